package lower

import (
	"cmp"
	"slices"

	"quill/ir"
)

// Hoisted is an op that a pass moved to the first segment: what a step computes once
// instead of in each layer.
type Hoisted struct {
	Op     string `json:"ir_op"`
	Source string `json:"source_op"`
	Type   string `json:"type"`
	Layers int    `json:"layers"` // that had one
	Bytes  int64  `json:"bytes"`  // of one result
}

// hoistable is what tells ops apart that were hoisted; those of several layers
// become one.
type hoistable struct{ op, source, typ string }

// FindHoisted lists what is in the first segment of a module after a pass and was
// not before it, in the order of the module, with sizes at the given values of its
// base symbols. What only moves elements goes along and is left out.
func FindHoisted(before, after *ir.Module, base map[string]int64) ([]Hoisted, error) {
	env, err := after.Env(base)
	if err != nil {
		return nil, err
	}
	had := map[hoistable]map[int]int{} // ops by layer
	visitFirst(before, func(k hoistable, o *ir.Op) {
		if had[k] == nil {
			had[k] = map[int]int{}
		}
		had[k][o.Loc.Layer]++
	})
	at := map[hoistable]int{}
	layers := map[hoistable]map[int]bool{}
	var list []Hoisted
	visitFirst(after, func(k hoistable, o *ir.Op) {
		if had[k][o.Loc.Layer] > 0 {
			had[k][o.Loc.Layer]--
			return
		}
		if layers[k] == nil {
			n := int64(0)
			for _, r := range o.Results {
				n += bytesAt(env, r.Type)
			}
			at[k], layers[k] = len(list), map[int]bool{}
			list = append(list, Hoisted{Op: k.op, Source: k.source, Type: k.typ, Bytes: n})
		}
		layers[k][o.Loc.Layer] = true
		list[at[k]].Layers = len(layers[k])
	})
	slices.SortStableFunc(list, func(a, b Hoisted) int { return cmp.Compare(b.Bytes*int64(b.Layers), a.Bytes*int64(a.Layers)) })
	return list, nil
}

// visitFirst visits the ops of the first segment that compute something.
func visitFirst(m *ir.Module, visit func(hoistable, *ir.Op)) {
	for _, o := range m.Entry().Ops {
		if ir.EndsSegment(o) {
			return
		}
		if len(o.Results) > 0 && !slices.Contains(layoutOps, o.Name()) && o.Name() != "const" && o.Name() != "iota" {
			visit(hoistable{o.Name(), o.Loc.Op, o.Results[0].Type.String()}, o)
		}
	}
}

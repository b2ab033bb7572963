package passes

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/ir/ops"
)

// hoistPass moves what depends on the step's inputs alone out of the segments of
// the layers, to the start of the first segment: distances, masks, block tables and
// the log-position factor are then computed once a step, before anything else, and cse
// merges what each layer computed for itself.
//
// Before:
//
//	%0 = matmul %x, %w {dtype = f32, trans_b = true} : f32[4, 8]@partial
//	%1 = all_reduce %0 : f32[4, 8]
//	%2 = const 1 {dtype = i32} : i32[1]
//	%3 = add %positions, %2 : i32[4]
//	%4 = cast %3 {dtype = f32} : f32[4]
//	%5 = reshape %4 {shape = [4, 1]} : f32[4, 1]
//	%6 = mul %1, %5 : f32[4, 8]
//
// After:
//
//	%0 = const 1 {dtype = i32} : i32[1]
//	%1 = add %positions, %0 : i32[4]
//	%2 = cast %1 {dtype = f32} : f32[4]
//	%3 = matmul %x, %w {dtype = f32, trans_b = true} : f32[4, 8]@partial
//	%4 = all_reduce %3 : f32[4, 8]
//	%5 = const 1 {dtype = i32} : i32[1]
//	%6 = reshape %2 {shape = [4, 1]} : f32[4, 1]
//	%7 = mul %4, %6 : f32[4, 8]
//
// Ops that only move elements, and constants, are not worth storing: they stay
// where they are, and what a hoisted op needs of them is copied. A value of
// more than most bytes, at the largest sizes of the family, stays where it is, and
// with it all that is computed from it: storing the mask of a long chunk costs more
// than each layer's computing its own. Targets pick elements by an index as large as
// what is picked; one that is the same for all heads, and has at most spread bytes once
// it is repeated, is repeated here. In a model of one layer a graph break follows what was
// hoisted, so that one layer has the segments of many. It does not fire where there is one
// segment.
var hoistPass = Pass{
	Name:     "hoist-step-invariant",
	Summary:  "computes what depends on the step's inputs alone once a step",
	Stages:   Family,
	Optional: true,
	Options: []Option{
		{Name: "most", Kind: Bytes, Default: "64MiB", Doc: "largest value to hoist, at the largest sizes of the family"},
		{Name: "spread", Kind: Bytes, Default: "4MiB", Doc: "largest index to repeat for what it picks from, 0 for none, at those sizes"},
	},
	Run: hoist,
}

func hoist(c *Context, m *ir.Module) (bool, error) {
	if m.Level == ops.Plan {
		return false, nil
	}
	if len(m.Funcs) != 1 {
		return false, fmt.Errorf("want one function, found %d", len(m.Funcs))
	}
	f := m.Entry()
	if !slices.ContainsFunc(f.Ops, ir.EndsSegment) {
		return false, nil
	}
	h := hoister{ctx: c, mod: m, hoisted: map[*ir.Op]bool{}, copies: map[*ir.Op]*ir.Op{}, invariant: map[*ir.Value]bool{}, fromInput: map[*ir.Value]bool{}}
	for _, p := range f.Params {
		if p.Kind == ir.Host {
			h.invariant[p.Value], h.fromInput[p.Value] = true, true
		}
	}
	var rest []*ir.Op
	for _, o := range f.Ops {
		known := h.learn(o)
		switch {
		case known && len(rest) == 0: // is there already
			h.add(o)
		case known && h.computes(o) && c.Rewrite():
			for i, a := range o.Args {
				o.Args[i] = h.available(a)
			}
			h.add(o)
			h.changed = true
		default:
			if !known {
				h.spread(o)
			}
			rest = append(rest, o)
		}
	}
	if oneLayer(f) && slices.ContainsFunc(h.list, h.computes) && !ir.EndsSegment(rest[0]) && c.Rewrite() {
		scratch := &ir.Func{}
		ir.NewBuilder(m, scratch).At(ir.Loc{Layer: -1}).GraphBreak("what a step computes once")
		rest = append(scratch.Ops, rest...)
		h.changed = true
	}
	if h.changed {
		f.Ops = slices.Concat(h.list, rest)
	}
	return h.changed, nil
}

// oneLayer reports whether all ops that belong to a layer belong to the same.
func oneLayer(f *ir.Func) bool {
	base := baseLayer(f.Ops)
	return base >= 0 && !slices.ContainsFunc(f.Ops, func(o *ir.Op) bool { return o.Loc.Layer > base })
}

// spread repeats the index by which a layer picks elements.
func (h *hoister) spread(o *ir.Op) {
	if o.Name() != "gather_elements" {
		return
	}
	index, t := o.Args[1], o.Results[0].Type
	t.DType = index.Type.DType
	if !h.fromInput[index] || ir.SameShape(index.Type.Shape, t.Shape) || h.mod.MaxBytes(t) > h.ctx.Int("spread") || !h.ctx.Rewrite() {
		return
	}
	scratch := &ir.Func{}
	b := ir.NewBuilder(h.mod, scratch).At(o.Loc)
	full := b.BroadcastTo(h.available(index), t.Dist, t.Shape...)
	if b.Err() != nil { // shards of it do not go with those of the result
		return
	}
	o.Args[1] = full
	h.add(full.Def)
	h.invariant[full], h.fromInput[full] = true, true
	h.changed = true
}

type hoister struct {
	ctx *Context
	mod *ir.Module
	// invariant are values that depend on nothing but inputs, fromInput those of
	// them that depend on any.
	invariant, fromInput map[*ir.Value]bool
	hoisted              map[*ir.Op]bool // the ops of list
	copies               map[*ir.Op]*ir.Op
	list                 []*ir.Op // what the first segment begins with
	changed              bool
}

func (h *hoister) add(o *ir.Op) {
	h.list = append(h.list, o)
	h.hoisted[o] = true
}

// computes reports whether an op is worth hoisting.
func (h *hoister) computes(o *ir.Op) bool { return !stays(o) && h.fromInput[o.Results[0]] }

// learn reports whether an op's results are invariant, and remembers it.
func (h *hoister) learn(o *ir.Op) bool {
	if !o.Def.Has(ops.Pure) || ir.EndsSegment(o) || len(o.Results) == 0 {
		return false
	}
	input := false
	for _, a := range o.Args {
		if !h.invariant[a] {
			return false
		}
		input = input || h.fromInput[a]
	}
	for _, r := range o.Results {
		if n := h.mod.MaxBytes(r.Type); input && !stays(o) && n > h.ctx.Int("most") {
			h.ctx.Remark(o.Loc, "%s is computed in each layer: %s can have %d bytes, more than most = %d", o.Name(), r.Type, n, h.ctx.Int("most"))
			return false
		}
	}
	for _, r := range o.Results {
		h.invariant[r], h.fromInput[r] = true, input
	}
	return true
}

// stays reports whether an op is computed where it is used.
func stays(o *ir.Op) bool {
	switch o.Name() {
	case "const", "iota", "reshape", "broadcast", "transpose", "slice":
		return true
	}
	return false
}

// available is a value that what is hoisted may read: ops that stay where they are
// used are copied.
func (h *hoister) available(v *ir.Value) *ir.Value {
	o := v.Def
	if o == nil || h.hoisted[o] {
		return v
	}
	n := h.copies[o]
	if n == nil {
		n = &ir.Op{Def: o.Def, Attrs: o.Attrs, Loc: o.Loc, Pos: o.Pos}
		for _, a := range o.Args {
			n.Args = append(n.Args, h.available(a))
		}
		for i, r := range o.Results {
			n.Results = append(n.Results, &ir.Value{Type: r.Type, Def: n, Index: i})
		}
		h.copies[o] = n
		h.add(n)
	}
	return n.Results[v.Index]
}

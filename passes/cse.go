package passes

import (
	"encoding/binary"
	"fmt"
	"slices"

	"quill/ir"
	"quill/ir/ops"
)

// csePass merges ops that compute the same: pure ops of one name with equal
// attributes, operands and result types. The earlier one stays, with its
// location; operands of commutative ops may be in either order. Reads of one
// version of a state are equal, writes never are.
//
// Before:
//
//	%0 = exp %x : f32[4]
//	%1 = exp %x : f32[4]
//	%2 = add %0, %1 : f32[4]
//
// After:
//
//	%0 = exp %x : f32[4]
//	%1 = add %0, %0 : f32[4]
//
// By default only ops of one segment are merged, those between two collectives
// or breaks. Across segments a merged value has to be stored by one launch and
// loaded by others, and is alive all the time in between: for a mask of a long
// context that costs more than it saves, so it is left to hoist-step-invariant to
// choose. It does not fire where it would make a function return one value twice.
var csePass = Pass{
	Name:     "cse",
	Summary:  "merges ops that compute the same",
	Stages:   Family | Bucket,
	Optional: true,
	Options: []Option{{
		Name: "scope", Kind: Choice, Default: "segment", Choices: []string{"segment", "function"},
		Doc: "merge ops of one segment only, or of the whole function",
	}},
	Run: cse,
}

func cse(c *Context, m *ir.Module) (changed bool, err error) {
	for _, f := range m.Funcs {
		n := numbering{whole: c.Choice("scope") == "function", ids: map[*ir.Value]uint64{}, seen: map[string]*ir.Op{}}
		if n.function(c, f) {
			changed = true
		}
	}
	return changed, nil
}

// numbering is value numbering of one function: equal values have equal ids.
type numbering struct {
	whole  bool
	ids    map[*ir.Value]uint64
	seen   map[string]*ir.Op // by key, of the current segment
	merged int
	key    []byte
}

func (n *numbering) function(c *Context, f *ir.Func) bool {
	uses := ir.NewUses(f)
	kept := make([]*ir.Op, 0, len(f.Ops))
	for _, o := range f.Ops {
		if !n.whole && ir.EndsSegment(o) {
			clear(n.seen)
		}
		if !n.merge(c, uses, o) {
			kept = append(kept, o)
		}
	}
	f.Ops = kept
	return n.merged > 0
}

// merge lets an earlier op stand for o, if there is an equal one.
func (n *numbering) merge(c *Context, uses *ir.Uses, o *ir.Op) bool {
	if !o.Def.Has(ops.Pure) || len(o.Results) == 0 {
		return false
	}
	key := n.keyOf(o)
	first := n.seen[key]
	if first == nil {
		n.seen[key] = o
		return false
	}
	for i, r := range o.Results {
		if !mayReplace(uses, r, first.Results[i]) {
			return false
		}
	}
	if !c.Rewrite() {
		return false
	}
	for i, r := range o.Results {
		uses.ReplaceAll(r, first.Results[i])
	}
	uses.Remove(o)
	n.merged++
	return true
}

// keyOf is equal for ops that compute the same.
func (n *numbering) keyOf(o *ir.Op) string {
	args := make([]uint64, len(o.Args))
	for i, a := range o.Args {
		id, ok := n.ids[a]
		if !ok {
			id = uint64(len(n.ids))
			n.ids[a] = id
		}
		args[i] = id
	}
	if o.Def.Has(ops.Commutative) {
		slices.Sort(args)
	}
	key := append(n.key[:0], o.Name()...)
	for _, a := range args {
		key = binary.AppendUvarint(append(key, '%'), a)
	}
	for i := range o.Attrs {
		key = fmt.Appendf(key, " %s", ir.AttrText(o, &o.Attrs[i]))
	}
	for _, r := range o.Results {
		key = fmt.Appendf(key, ":%s", r.Type)
	}
	n.key = key
	return string(key)
}

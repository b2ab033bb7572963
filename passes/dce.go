package passes

import (
	"slices"

	"quill/ir"
	"quill/ir/ops"
)

// dcePass takes out pure ops whose results nothing uses. Writes of a state are
// not pure, and what they write stays with them. Parameters stay too: they are
// how the function is called.
//
// Before:
//
//	%0 = exp %x : f32[4]
//	%1 = neg %0 : f32[4]
//	%2 = silu %x : f32[4]
//
// After:
//
//	%0 = silu %x : f32[4]
var dcePass = Pass{
	Name:     "dce",
	Summary:  "takes out ops whose results nothing uses",
	Stages:   Family | Bucket,
	Optional: true,
	Run:      dce,
}

func dce(c *Context, m *ir.Module) (changed bool, err error) {
	for _, f := range m.Funcs {
		live := map[*ir.Value]bool{}
		for _, v := range f.Return {
			live[v] = true
		}
		kept := make([]*ir.Op, 0, len(f.Ops))
		for _, o := range slices.Backward(f.Ops) {
			dead := o.Def.Has(ops.Pure) && !slices.ContainsFunc(o.Results, func(r *ir.Value) bool { return live[r] })
			if dead && c.Rewrite() {
				changed = true
				continue
			}
			kept = append(kept, o)
			for _, a := range o.Args {
				live[a] = true
			}
		}
		slices.Reverse(kept)
		f.Ops = kept
	}
	return changed, nil
}

package passes

import (
	"fmt"

	"quill/ir"
	"quill/ir/ops"
)

// pattern is a rewrite of single ops, found by their name.
type pattern struct {
	name string
	// ops are the names of the ops at its root; none means every op.
	ops []string
	// apply rewrites an op if it can: it builds what the op's results become with
	// r.Builder, hands it to r.replace and returns what that returns. It must not
	// change anything itself.
	apply func(r *rewriter, o *ir.Op) bool
}

// applyPatterns applies patterns to all ops of a module until none applies any
// more. New ops, and ops whose operands or users change, are looked at again.
func applyPatterns(c *Context, m *ir.Module, list []pattern) (changed bool, err error) {
	byOp := map[string][]*pattern{}
	for i := range ops.Table {
		name := ops.Table[i].Name
		for j := range list {
			p := &list[j]
			for _, root := range p.ops {
				if root == name {
					byOp[name] = append(byOp[name], p)
				}
			}
			if len(p.ops) == 0 {
				byOp[name] = append(byOp[name], p)
			}
		}
	}
	for _, f := range m.Funcs {
		r := newRewriter(c, m, f)
		err := r.run(byOp)
		if r.commit() {
			changed = true
		}
		if err != nil {
			return changed, fmt.Errorf("@%s: %w", f.Name, err)
		}
		if r.refused {
			break
		}
	}
	return changed, nil
}

// rewriter edits one function. It keeps use lists and a worklist; ops that it
// adds and takes away become part of the function's list at the end, in one go,
// so that its cost depends on the number of edits.
type rewriter struct {
	ctx  *Context
	mod  *ir.Module
	fn   *ir.Func
	uses *ir.Uses
	// Builder builds ops that will stand before the op being looked at, with its
	// location.
	*ir.Builder

	root    *ir.Op
	scratch *ir.Func            // where Builder appends
	before  map[*ir.Op][]*ir.Op // ops to insert before another one
	gone    map[*ir.Op]bool     // ops that were taken out
	queue   []*ir.Op
	queued  map[*ir.Op]bool
	edits   int
	refused bool // by the rewrite limit

	params  map[string]*ir.Param // by name, and what was made by type and source, once a weight is made
	weights []*ir.Param          // that were made
}

func newRewriter(c *Context, m *ir.Module, f *ir.Func) *rewriter {
	return &rewriter{
		ctx: c, mod: m, fn: f, uses: ir.NewUses(f),
		before: map[*ir.Op][]*ir.Op{}, gone: map[*ir.Op]bool{}, queued: map[*ir.Op]bool{},
	}
}

// maxEdits bounds the edits an op may cost on average: patterns that undo each
// other must not run for ever.
const maxEdits = 64

func (r *rewriter) run(byOp map[string][]*pattern) error {
	for _, o := range r.fn.Ops {
		r.push(o)
	}
	limit := maxEdits * (len(r.fn.Ops) + 1)
	for len(r.queue) > 0 && !r.refused {
		o := r.queue[0]
		r.queue = r.queue[1:]
		r.queued[o] = false
		for _, p := range byOp[o.Name()] {
			if r.gone[o] || r.refused {
				break
			}
			r.start(o)
			if p.apply(r, o) && r.edits > limit {
				return fmt.Errorf("no end after %d rewrites, the last one %s of %s (%s)", r.edits, p.name, o.Name(), o.Loc)
			}
		}
	}
	return nil
}

func (r *rewriter) push(o *ir.Op) {
	if o != nil && !r.gone[o] && !r.queued[o] {
		r.queue = append(r.queue, o)
		r.queued[o] = true
	}
}

// start begins to look at an op, with nothing built.
func (r *rewriter) start(o *ir.Op) {
	r.root = o
	r.scratch = &ir.Func{}
	r.Builder = ir.NewBuilder(r.mod, r.scratch).At(o.Loc)
}

// replace makes values stand for the results of the op being looked at, which
// goes with all that nothing uses any more. It is false, and nothing has changed,
// if what was built does not have the results' types, if it may not stand for
// them, or if the rewrite limit is reached.
func (r *rewriter) replace(values ...*ir.Value) bool {
	if r.Err() != nil {
		return false
	}
	for i, v := range values {
		if !v.Type.Equal(r.root.Results[i].Type) || !mayReplace(r.uses, r.root.Results[i], v) {
			return false
		}
	}
	if r.refused = !r.ctx.Rewrite(); r.refused {
		return false
	}
	r.edits++
	for _, o := range r.scratch.Ops {
		o.Pos = r.root.Pos
		r.uses.Add(o)
		r.push(o)
	}
	r.before[r.root] = append(r.before[r.root], r.scratch.Ops...)
	for i, v := range values {
		for _, u := range r.uses.Of(r.root.Results[i]) {
			r.push(u.Op)
		}
		r.uses.ReplaceAll(r.root.Results[i], v)
	}
	r.erase(r.root)
	return true
}

// aside are ops that will stand before another one than the op being looked at.
type aside struct {
	*ir.Builder
	fn *ir.Func
}

func (r *rewriter) aside() aside {
	f := &ir.Func{}
	return aside{ir.NewBuilder(r.mod, f).At(r.root.Loc), f}
}

// put puts ops before another one, which may be gone; what reads them must be part
// of the function by then.
func (r *rewriter) put(a aside, before *ir.Op) {
	for _, o := range a.fn.Ops {
		o.Pos = before.Pos
		r.uses.Add(o)
		r.push(o)
	}
	r.before[before] = append(r.before[before], a.fn.Ops...)
}

// mayReplace reports whether a value may stand for another one. What a function
// returns is computed by it and returned once: lowering gives every result a
// place of its own, and makes weights of constants.
func mayReplace(u *ir.Uses, old, v *ir.Value) bool {
	return !u.Returned(old) || v.Def != nil && v.Def.Name() != "const" && !u.Returned(v)
}

// erase takes out an op without uses, and its operands that thus lose their last
// one.
func (r *rewriter) erase(o *ir.Op) {
	for list := []*ir.Op{o}; len(list) > 0; {
		o := list[len(list)-1]
		list = list[:len(list)-1]
		if r.gone[o] || !o.Def.Has(ops.Pure) || r.used(o) {
			continue
		}
		r.gone[o] = true
		args := o.Args
		r.uses.Remove(o)
		for _, a := range args {
			if a.Def == nil {
				continue
			}
			list = append(list, a.Def)
			r.push(a.Def)
		}
	}
}

func (r *rewriter) used(o *ir.Op) bool {
	for _, v := range o.Results {
		if r.uses.Count(v) > 0 {
			return true
		}
	}
	return false
}

// commit writes the edits into the function.
func (r *rewriter) commit() (changed bool) {
	if r.edits == 0 {
		return false
	}
	for _, p := range r.weights {
		if r.uses.Count(p.Value) > 0 {
			r.fn.Params = append(r.fn.Params, p)
		}
	}
	list := make([]*ir.Op, 0, len(r.fn.Ops))
	var add func(o *ir.Op)
	add = func(o *ir.Op) {
		for _, b := range r.before[o] {
			add(b)
		}
		if !r.gone[o] {
			list = append(list, o)
		}
	}
	for _, o := range r.fn.Ops {
		add(o)
	}
	r.fn.Ops = list
	return true
}

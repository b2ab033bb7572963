package host

import (
	"fmt"
	"slices"

	"quill/recipes"
)

// safe reports what goes wrong, if anything does, when units execute in place of
// their nodes, with tensors at the given spots: every read must find what it finds
// when the nodes execute one by one, and what is written last must be the same.
// Fusion sees to that; this is the check of it, which knows nothing of fusion's
// reasons.
func (p *Program) safe(spots []spot) error {
	if p.unfused {
		return nil
	}
	return newFusion(p, nil).safe(p.fused, spots)
}

// write is a tensor that a unit has written.
type write struct{ unit, node, tensor int }

func (f *fusion) safe(plans []plan, spots []spot) error {
	var written []write // in sections, by unit
	at := make([]int, len(spots))
	for t := range at {
		at[t] = none
	}
	for u := range plans {
		for _, t := range plans[u].in {
			if t < 0 {
				continue
			}
			if err := f.fresh(plans, written, at, spots, u, t); err != nil {
				return err
			}
		}
		for _, t := range plans[u].out {
			at[t] = u
			if spots[t].space == workspaceSpace {
				continue
			}
			w := write{u, f.producer[t], t}
			for _, v := range written {
				same := v.unit != u || spots[t] == spots[v.tensor] && f.byRow(&plans[u], t)
				if spots[t].overlaps(spots[v.tensor]) && (!same || v.node > w.node) {
					return f.disorder(plans, w, v)
				}
			}
			written = append(written, w)
		}
	}
	return nil
}

// fresh checks that unit u finds in tensor t what its producer left there.
func (f *fusion) fresh(plans []plan, written []write, at []int, spots []spot, u, t int) error {
	source := f.source(t)
	if source != none && at[source] == none {
		return fmt.Errorf("%s reads %q before it is written", f.unitName(plans, u), f.p.recipe.Tensors[t].Name)
	}
	if spots[t].space == workspaceSpace {
		return nil
	}
	for _, w := range slices.Backward(written) {
		if source != none && w.tensor == source {
			break
		}
		if spots[t].overlaps(spots[w.tensor]) {
			return fmt.Errorf("%s reads %q after %s wrote %q in its memory", f.unitName(plans, u), f.p.recipe.Tensors[t].Name,
				f.unitName(plans, w.unit), f.p.recipe.Tensors[w.tensor].Name)
		}
	}
	for _, o := range plans[u].out {
		if spots[t].overlaps(spots[o]) && !(spots[t] == spots[o] && f.inPlace(&plans[u], t, o)) {
			return fmt.Errorf("%s overwrites %q while it reads it", f.unitName(plans, u), f.p.recipe.Tensors[t].Name)
		}
	}
	return nil
}

// source is the tensor of which t is a view, or t, if a node makes it, else none.
func (f *fusion) source(t int) int {
	for {
		i := f.producer[t]
		if i < 0 {
			return none
		}
		if !f.p.views[i] {
			return t
		}
		t = f.p.recipe.Nodes[i].In[0]
	}
}

// inPlace reports whether a unit may write tensor o where it reads t: a row of o
// is written when that row of t has been read for the last time. For one node
// hazard has seen to that, unless it reads t as a movement shows it.
func (f *fusion) inPlace(u *plan, t, o int) bool {
	for _, i := range u.nodes {
		for _, in := range f.p.recipe.Nodes[i].In {
			if in >= 0 && in != t && f.shows(in, t) || in == t && i > f.producer[o] {
				return false
			}
		}
	}
	return len(u.nodes) == 1 || f.byRow(u, t)
}

// byRow reports whether rows of all that a unit makes are in the places of those of
// t: it takes them one after the other, each through its nodes in order.
func (f *fusion) byRow(u *plan, t int) bool {
	r := f.p.recipe
	for _, i := range u.nodes {
		if f.p.moves[i] || !sameRows(&r.Tensors[r.Nodes[i].Out[0]], &r.Tensors[t]) {
			return false
		}
	}
	return true
}

// sameRows reports whether two tensors have rows in the same places.
func sameRows(x, y *recipes.Tensor) bool {
	return len(x.Dims) > 0 && len(y.Dims) > 0 && slices.Equal(x.Dims[1:], y.Dims[1:])
}

// shows reports whether a tensor is made of another one by movements alone.
func (f *fusion) shows(in, t int) bool {
	for in != t {
		i := f.producer[in]
		if i < 0 || !f.p.moves[i] {
			return false
		}
		in = f.p.recipe.Nodes[i].In[0]
	}
	return true
}

func (f *fusion) disorder(plans []plan, w, v write) error {
	return fmt.Errorf("%s writes %q before or while %s writes %q there, which comes later", f.unitName(plans, v.unit),
		f.p.recipe.Tensors[v.tensor].Name, f.unitName(plans, w.unit), f.p.recipe.Tensors[w.tensor].Name)
}

func (f *fusion) unitName(plans []plan, u int) string { return where(f.p.recipe, plans[u].at()) }

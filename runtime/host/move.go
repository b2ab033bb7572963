package host

import (
	"slices"

	"quill/recipes"
)

// movement is what a node that only moves elements does.
type movement struct {
	kind        moveKind
	perm        []int // transpose
	axis, begin int   // slice; axis of gather
}

type moveKind uint8

const (
	moveNot moveKind = iota
	moveReshape
	moveTranspose
	moveSlice
	moveBroadcast
	moveGather
)

// access is where the elements of the node's result are, given where those of
// its operand are.
func (n *node) access(a access, src *recipes.Node) (access, bool) {
	dims := n.out[0].dims
	switch n.move.kind {
	case moveReshape:
		return a.reshape(dims)
	case moveTranspose:
		return a.transpose(n.move.perm), true
	case moveSlice:
		return a.slice(n.move.axis, n.move.begin, dims[n.move.axis], n.in[0].dims[n.move.axis])
	case moveBroadcast:
		return a.broadcast(dims), true
	case moveGather:
		return a.gather(n.move.axis, src.In[1], n.index, dims[n.move.axis])
	}
	return a, false
}

// view says whether the node's result is a range of its operand's memory, and at
// which byte that begins.
func (n *node) view(src *recipes.Node) (at int, ok bool) {
	if n.move.kind == moveNot || n.out[0].elems == 0 {
		return 0, n.move.kind != moveNot
	}
	x := &n.in[0]
	a, ok := n.access(denseAccess(src.In[0], x.dims, x.dt.Size()), src)
	if !ok || len(a.picked) > 0 {
		return 0, false
	}
	run := joined(slices.Concat(a.dims...))
	return a.at, len(run) == 0 || len(run) == 1 && run[0].index == none && run[0].stride == x.dt.Size()
}

// locate follows the movements that made tensor t as far back as they go, for a
// reader at node root: what it reads must still be there.
func (f *fusion) locate(t, root int) access {
	x := &f.p.recipe.Tensors[t]
	dense := denseAccess(t, dimsOf(x), x.DType.Size())
	i := f.producer[t]
	if f.p.unfused && i >= 0 && i != root { // everyone reads results
		return dense
	}
	if i < 0 || f.nodes[i].move.kind == moveNot || len(f.p.recipe.Nodes[i].Out) != 1 || x.Section != recipes.Workspace && !f.p.views[i] {
		return dense
	}
	src := &f.p.recipe.Nodes[i]
	for _, in := range src.In {
		if f.writes(in, i, root) {
			return dense
		}
	}
	if a, ok := f.nodes[i].access(f.locate(src.In[0], root), src); ok {
		return a
	}
	return dense
}

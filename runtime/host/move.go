package host

import "quill/recipes"

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

// moveOf describes a node; its kind is moveNot if it computes, or if its result
// is no access.
func moveOf(n *node) movement {
	switch n.name {
	case "reshape", "identity":
		return movement{kind: moveReshape}
	case "transpose":
		perm, err := n.permutation()
		if err != nil {
			return movement{}
		}
		return movement{kind: moveTranspose, perm: perm}
	case "slice_axis":
		axis, _ := n.params.Int("axis")
		begin, _ := n.params.Int("begin")
		return movement{kind: moveSlice, axis: int(axis), begin: int(begin)}
	case "broadcast":
		return movement{kind: moveBroadcast}
	}
	if n.guid() != "gather_fwd" {
		return movement{}
	}
	// Indices of several dims would take several parts.
	dims := 0
	for _, d := range n.in[1].dims {
		if d != 1 {
			dims++
		}
	}
	if axis, _ := n.params.Int("axis"); dims <= 1 && len(n.in[1].dims) == 1 {
		return movement{kind: moveGather, axis: int(axis)}
	}
	return movement{}
}

// access is where the elements of tensor t are that node n makes of a.
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
		return a.gather(n.move.axis, src.In[1], dims[n.move.axis], n.in[0].dims[n.move.axis])
	}
	return a, false
}

// locate follows the movements that made tensor t as far back as they go, for a
// reader at node root: what it reads must still be there.
func (f *fusion) locate(t, root int) access {
	x := &f.p.recipe.Tensors[t]
	dims := make([]int, len(x.Dims))
	for i, d := range x.Dims {
		dims[i] = int(d)
	}
	dense := denseAccess(t, dims, x.DType.Size())
	i := f.producer[t]
	if f.p.device.unfused && i >= 0 && i != root { // everyone reads results
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

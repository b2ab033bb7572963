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

func asReshape(*node) movement   { return movement{kind: moveReshape} }
func asBroadcast(*node) movement { return movement{kind: moveBroadcast} }

func asTranspose(n *node) movement {
	perm, _ := n.permutation() // which build has checked
	return movement{kind: moveTranspose, perm: perm}
}

func asSlice(n *node) movement {
	axis, _ := n.params.Int("axis")
	begin, _ := n.params.Int("begin")
	return movement{kind: moveSlice, axis: int(axis), begin: int(begin)}
}

// asGather is none if indices of several dims would take several parts.
func asGather(n *node) movement {
	if len(n.in[1].dims) != 1 {
		return movement{}
	}
	axis, _ := n.params.Int("axis")
	return movement{kind: moveGather, axis: int(axis)}
}

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

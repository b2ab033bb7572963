package host

import (
	"fmt"
	"slices"

	"quill/recipes"
)

// Fusion makes the units of a program. Nodes that compute row by row, and whose
// values have equally many rows, become one unit if one reads what another
// makes: a tile of rows goes through all of them before the next one does.
// Movements in between cost nothing, since rows are read where they lie.
//
// The unit executes in place of its last node, its root. A node joins only if
// that is not too late for anyone: whoever else reads its result comes after
// the root, and nothing in between overwrites what it reads.
type fusion struct {
	p        *Program
	nodes    []*node
	producer []int   // of each tensor, or none
	readers  [][]int // nodes that read each tensor
	done     []bool  // nodes that are in a unit
	needed   []bool  // tensors that a later unit reads, or a section holds
	misfits  []int   // nodes that turned out not to fit into the present unit
}

// maxGroup is the number of nodes from which a unit does not grow. It may have a
// few more: who joins brings those along that must execute with it.
const maxGroup = 64

// fuse makes the units of a program. What fusion assumes of reads and writes is
// checked afterwards; a recipe for which it does not hold is executed node by node.
func (p *Program) fuse(nodes []*node) ([]plan, error) {
	p.unfused = p.device.unfused || p.tapped
	f := newFusion(p, nodes)
	plans, err := f.plans()
	if p.unfused || err == nil && f.safe(plans, p.spots) == nil {
		return plans, err
	}
	p.unfused = true
	return newFusion(p, nodes).plans()
}

// plans makes the units, last one first.
func (f *fusion) plans() ([]plan, error) {
	p, nodes := f.p, f.nodes
	var plans []plan
	for i := len(nodes) - 1; i >= 0; i-- {
		n := nodes[i]
		switch {
		case f.done[i]:
			continue
		case p.views[i]:
			if f.wanted(i) {
				f.needed[p.recipe.Nodes[i].In[0]] = true
			}
			continue
		case !f.wanted(i):
			continue // whoever reads it reads its operand instead
		}
		u, err := f.unit(n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where(p.recipe, i), err)
		}
		for _, t := range u.in {
			if t >= 0 {
				f.needed[t] = true
			}
		}
		for _, j := range u.nodes {
			f.done[j] = true
		}
		plans = append(plans, u)
	}
	slices.Reverse(plans)
	return plans, nil
}

func newFusion(p *Program, nodes []*node) *fusion {
	r := p.recipe
	f := &fusion{
		p: p, nodes: nodes, producer: make([]int, len(r.Tensors)), readers: make([][]int, len(r.Tensors)),
		done: make([]bool, len(nodes)), needed: make([]bool, len(r.Tensors)),
	}
	for t := range r.Tensors {
		f.producer[t] = none
		f.needed[t] = r.Tensors[t].Section != recipes.Workspace
	}
	for i := range r.Nodes {
		for _, t := range r.Nodes[i].Out {
			f.producer[t] = i
		}
		for _, t := range r.Nodes[i].In {
			if t >= 0 {
				f.readers[t] = append(f.readers[t], i)
			}
		}
	}
	for i, n := range nodes {
		if n.name == "batch_gemm" && n.rows != nil && f.large(i) {
			n.rows = nil
		}
	}
	return f
}

// smallMatrix bounds a matrix of weights that every tile is multiplied by. A
// larger one is multiplied by all rows at once, a part of it on each thread.
const smallMatrix = 64 << 10

// large reports whether product i has a large matrix of weights.
func (f *fusion) large(i int) bool {
	b := &f.nodes[i].in[1]
	return f.p.inWeights(f.locate(f.p.recipe.Nodes[i].In[1], i).tensor) && b.dims[0]*b.dims[1]*b.dt.Size() > smallMatrix
}

// wanted reports whether a node must execute: all but movements that everyone
// reads through, unless a tap may ask for them.
func (f *fusion) wanted(i int) bool {
	if f.p.tapped || f.nodes[i].move.kind == moveNot {
		return true
	}
	return f.needed[f.p.recipe.Nodes[i].Out[0]]
}

// unit makes the unit whose root is n.
func (f *fusion) unit(n *node) (plan, error) {
	if !n.byRows() {
		return f.p.alone(n), nil
	}
	f.misfits = nil
	for {
		members := []int{n.index}
		if !f.p.unfused && f.keepsRows(n) {
			members = f.grow(n)
			if i := f.early(members); i != none {
				f.misfits = append(f.misfits, i)
				continue
			}
		}
		if len(members) == 1 && n.kernel != nil && f.prefersKernel(n) {
			return f.p.alone(n), nil
		}
		u, culprit, err := newGroup(f, members).compile()
		switch {
		case err == nil:
			return u, nil
		case len(members) == 1 && n.kernel != nil:
			return f.p.alone(n), nil
		case len(members) == 1:
			return plan{}, err
		}
		if culprit == none || culprit == n.index || !slices.Contains(members, culprit) {
			f.misfits = append(f.misfits, members[:len(members)-1]...)
		} else {
			f.misfits = append(f.misfits, culprit)
		}
	}
}

// prefersKernel reports whether a node is better executed alone by its kernel
// than by rows: products, and what can only be copied row by tiny row.
func (f *fusion) prefersKernel(n *node) bool {
	return n.move.kind == moveNot || n.out[0].row()*n.out[0].dt.Size() < alignment
}

// byRows reports whether a unit can be made of the node.
func (n *node) byRows() bool {
	if n.out[0].elems == 0 {
		return false
	}
	for i := range n.in {
		if !n.in[i].absent && n.in[i].elems == 0 {
			return false
		}
	}
	return n.rows != nil || n.move.kind != moveNot
}

// row is the number of elements of a row.
func (o *operand) row() int {
	if len(o.dims) == 0 {
		return 1
	}
	return max(1, o.dims[0])
}

// count is the number of rows of a node's result.
func (n *node) count() int { return n.out[0].elems / n.out[0].row() }

// grow collects the members of a unit, ascending.
func (f *fusion) grow(root *node) []int {
	members := map[int]bool{root.index: true}
	tried := make(map[int]bool)
	queue := f.sources(root.index)
	for len(queue) > 0 && len(members) < maxGroup {
		// Readers have higher numbers: all that can join have been asked.
		slices.Sort(queue)
		i := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if tried[i] || members[i] {
			continue
		}
		tried[i] = true
		joining := map[int]bool{i: true}
		if !f.joins(i, root, members, joining) {
			continue
		}
		for j := range joining {
			members[j] = true
			queue = append(queue, f.sources(j)...)
		}
	}
	out := make([]int, 0, len(members))
	for i := range members {
		out = append(out, i)
	}
	slices.Sort(out)
	return f.computing(out)
}

// sources are the nodes whose results node i reads.
func (f *fusion) sources(i int) []int {
	var out []int
	for _, t := range f.p.recipe.Nodes[i].In {
		if t >= 0 && f.producer[t] >= 0 {
			out = append(out, f.producer[t])
		}
	}
	return out
}

// joins reports whether node i, and with it those in joining, may execute at the
// root.
func (f *fusion) joins(i int, root *node, members, joining map[int]bool) bool {
	n := f.nodes[i]
	if f.done[i] || slices.Contains(f.misfits, i) || !n.byRows() || n.count() != root.count() || !f.keepsRows(n) {
		return false
	}
	r := f.p.recipe
	for _, t := range r.Nodes[i].In {
		if t >= 0 && f.overwritten(t, i, root.index) {
			return false
		}
	}
	for _, t := range r.Nodes[i].Out {
		if r.Tensors[t].Section != recipes.Workspace && !f.p.views[i] && f.touched(t, i, root.index) {
			return false
		}
		if !f.late(t, root, members, joining) {
			return false
		}
	}
	return true
}

// keepsRows reports whether a movement's rows are rows of its operand.
func (f *fusion) keepsRows(n *node) bool {
	if n.move.kind == moveNot {
		return true
	}
	x, y := &n.in[0], &n.out[0]
	if len(x.dims) == 0 || len(y.dims) == 0 || x.elems/x.row() != y.elems/y.row() {
		return false
	}
	switch n.move.kind {
	case moveReshape:
		return x.dims[0] == y.dims[0]
	case moveTranspose:
		return n.move.perm[0] == 0
	case moveSlice:
		return n.move.axis == 0
	case moveBroadcast:
		return true
	}
	return false
}

// late reports whether all that read tensor t are in the unit or come after the
// root; nodes in between may be taken into the unit for that.
func (f *fusion) late(t int, root *node, members, joining map[int]bool) bool {
	for _, j := range f.readers[t] {
		if j > root.index || f.done[j] || members[j] || joining[j] {
			continue // units that are done have later roots
		}
		if f.nodes[j].move.kind != moveNot && (f.p.views[j] || !f.needed[f.p.recipe.Nodes[j].Out[0]]) {
			// It does not execute: what matters is who reads through it.
			if !f.late(f.p.recipe.Nodes[j].Out[0], root, members, joining) {
				return false
			}
			continue
		}
		joining[j] = true
		if !f.joins(j, root, members, joining) || !f.stays(j, members, joining) {
			return false
		}
	}
	return true
}

// stays reports whether a node that joins is executed by the unit: a movement of
// what the unit does not make is left out again.
func (f *fusion) stays(i int, members, joining map[int]bool) bool {
	if f.nodes[i].move.kind == moveNot {
		return true
	}
	p := f.producer[f.p.recipe.Nodes[i].In[0]]
	return p >= 0 && (members[p] || joining[p])
}

// overwritten reports whether a node after i and before the root writes where
// tensor t lies.
func (f *fusion) overwritten(t, i, root int) bool {
	base := f.locate(t, root).tensor
	return f.writes(base, i, root) || base != t && f.writes(t, i, root)
}

func (f *fusion) writes(t, i, root int) bool {
	s := f.p.spots[t]
	if s.space == workspaceSpace {
		return false
	}
	for j := i + 1; j < root; j++ {
		for _, o := range f.p.recipe.Nodes[j].Out {
			if !f.p.views[j] && o != t && f.p.spots[o].overlaps(s) {
				return true
			}
		}
	}
	return false
}

// touched reports whether a node after i and before the root reads or writes
// where tensor t lies, other than t itself.
func (f *fusion) touched(t, i, root int) bool {
	if f.writes(t, i, root) {
		return true
	}
	for j := i + 1; j < root; j++ {
		for _, o := range f.p.recipe.Nodes[j].In {
			if o >= 0 && o != t && f.p.spots[o].overlaps(f.p.spots[t]) {
				return true
			}
		}
	}
	return false
}

// early is a member that makes fewer elements of what the unit does not compute,
// and had better be made where that is: its row is no longer than what would have
// to be stored instead. It is none if there is no such member.
func (f *fusion) early(members []int) int {
	inside := make(map[int]bool)
	for _, i := range members {
		inside[i] = true
	}
	for _, i := range members[:len(members)-1] {
		n := f.nodes[i]
		if n.move.kind != moveNot || n.name != "batch_gemm" && n.out[0].row() >= n.in[0].row() {
			continue
		}
		stored := 0
		seen := map[int]bool{i: true}
		for queue := []int{i}; len(queue) > 0; queue = queue[1:] {
			for _, j := range f.sources(queue[0]) {
				if seen[j] {
					continue
				}
				seen[j] = true
				switch x := f.nodes[j]; {
				case inside[j]:
					queue = append(queue, j)
				case x.move.kind == moveNot && x.byRows() && x.count() == n.count():
					stored += x.out[0].row() * x.out[0].dt.Size()
				}
			}
		}
		if stored >= n.out[0].row()*n.out[0].dt.Size() {
			return i
		}
	}
	return none
}

// computing leaves out movements whose operand the unit does not make: their
// results are read where they lie. The root stays.
func (f *fusion) computing(members []int) []int {
	inside := make(map[int]bool)
	var out []int
	for k, i := range members {
		n := f.nodes[i]
		if k < len(members)-1 && n.move.kind != moveNot {
			p := f.producer[f.p.recipe.Nodes[i].In[0]]
			if p < 0 || !inside[p] {
				continue
			}
		}
		inside[i] = true
		out = append(out, i)
	}
	return out
}

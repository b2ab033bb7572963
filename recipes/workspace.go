package recipes

import (
	"cmp"
	"slices"
)

// Workspace memory: that of tensors which live only inside their recipe.

// Placement says where the tensors of a recipe without a section lie in its workspace.
// The target's graph compiler places its workspace itself; this is the estimate
// that planning uses. It is neither a bound from above, since nodes may need memory of
// their own, nor from below, since a graph compiler fuses nodes.
type Placement struct {
	// Bytes is the size of the workspace, a multiple of Alignment.
	Bytes int64
	// Offset is, by tensor, the byte of the workspace at which it begins. It is −1 for
	// tensors in sections, for views of these, and for those that no node touches.
	Offset []int64
	// Life is, by tensor, from the first to the last node that touches it; −1 to −1
	// where none does. What owns memory keeps it until the last view of it ends.
	Life []Lifetime
	// Owner is, by tensor, the one whose memory it lies in: itself, or what it is a
	// view of, which may be in a section. At is the byte of it at which it begins.
	Owner []int
	At    []int64
}

// PlaceWorkspace places the tensors of a recipe that have no section, for a recipe that
// has passed Check. Results of nodes that only say where something is are views of their
// operand where they are a range of its bytes and these do not change while the view is
// read. A node's result never shares memory with its operands otherwise. Equal recipes
// get equal placements.
func (r *Recipe) PlaceWorkspace() *Placement {
	p := &Placement{
		Offset: make([]int64, len(r.Tensors)), Life: make([]Lifetime, len(r.Tensors)),
		Owner: make([]int, len(r.Tensors)), At: make([]int64, len(r.Tensors)),
	}
	p.lives(r)
	p.views(r)
	owners, list := p.owners(r)
	p.Bytes = PlaceIntervals(0, list)
	for t := range r.Tensors {
		p.Offset[t] = -1
		if iv := owners[p.Owner[t]]; iv != nil && p.Life[t].First >= 0 {
			p.Offset[t] = iv.Offset + p.At[t]
		}
	}
	return p
}

// ConvHistory is the source of nodes that compute something of the short convolutions of
// all layers at once, when decoding.
const ConvHistory = "conv.history"

// LayerWorkspace is how much of a plan's workspace is for values of all layers: what
// nodes of ConvHistory add to it. As with LayerBytes of the arena, all else does not grow
// with the number of layers.
func (b *Bundle) LayerWorkspace(p *Plan) int64 {
	others := int64(0)
	done := map[Hash]bool{}
	for i := range p.Steps {
		l := p.Steps[i].Launch
		if l == nil || done[l.Recipe] {
			continue
		}
		done[l.Recipe] = true
		r := *b.Recipes[l.Recipe]
		r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(n Node) bool { return sourceOf(n.Origin) == ConvHistory })
		others = max(others, r.PlaceWorkspace().Bytes)
	}
	return p.WorkspaceBytes - others
}

// owners are the tensors that own memory of the workspace, by tensor and in their order.
func (p *Placement) owners(r *Recipe) (owners, list []*Interval) {
	owners = make([]*Interval, len(r.Tensors))
	for t := range r.Tensors {
		o := p.Owner[t]
		if r.Tensors[o].Section != Workspace || p.Life[t].First < 0 {
			continue
		}
		if owners[o] == nil {
			owners[o] = &Interval{Life: p.Life[o], Bytes: r.Tensors[o].Bytes()}
			list = append(list, owners[o])
		}
		owners[o].Life.Last = max(owners[o].Life.Last, p.Life[t].Last)
	}
	return owners, list
}

// lives finds the first and the last node that touches each tensor.
func (p *Placement) lives(r *Recipe) {
	for t := range p.Life {
		p.Life[t] = Lifetime{-1, -1}
	}
	for i := range r.Nodes {
		for _, list := range [][]int{r.Nodes[i].In, r.Nodes[i].Out} {
			for _, t := range list {
				if t == Absent {
					continue
				}
				if p.Life[t].First < 0 {
					p.Life[t].First = i
				}
				p.Life[t].Last = i
			}
		}
	}
}

// views finds the owner of each tensor.
func (p *Placement) views(r *Recipe) {
	for t := range p.Owner {
		p.Owner[t] = t
	}
	writers := make([]int, len(r.Tensors))
	for i := range r.Nodes {
		for _, t := range r.Nodes[i].Out {
			writers[t]++
		}
	}
	read := p.readUntil(r)
	writes := sectionWrites(r)
	for i := range r.Nodes {
		in, at, ok := r.view(i)
		if !ok {
			continue
		}
		out, owner := r.Nodes[i].Out[0], p.Owner[in]
		at += p.At[in]
		switch s := r.Tensors[owner].Section; {
		case writers[out] != 1 || r.Tensors[out].Section != Workspace:
		case s == Workspace && writers[owner] != 1:
		case s != Workspace && writes[s].touch(&r.Tensors[owner], at, r.Tensors[out].Bytes(), i, read[out]):
		default:
			p.Owner[out], p.At[out] = owner, at
		}
	}
}

// readUntil is, by tensor, the last node that reads it or what would be a view of it.
func (p *Placement) readUntil(r *Recipe) []int {
	last := make([]int, len(r.Tensors))
	for t := range last {
		last[t] = p.Life[t].Last
	}
	for i := len(r.Nodes) - 1; i >= 0; i-- {
		if in, _, ok := r.view(i); ok {
			last[in] = max(last[in], last[r.Nodes[i].Out[0]])
		}
	}
	return last
}

// view reports whether the result of node i is a range of the bytes of one of its
// operands, of which, and at which byte of it that begins.
func (r *Recipe) view(i int) (in int, at int64, ok bool) {
	n := &r.Nodes[i]
	if n.Computes() || len(n.In) == 0 || n.In[0] == Absent || len(n.Out) != 1 || n.Out[0] == n.In[0] {
		return 0, 0, false
	}
	in = n.In[0]
	x, y := &r.Tensors[in], &r.Tensors[n.Out[0]]
	if n.GUID != "slice_axis" {
		return in, 0, x.Bytes() == y.Bytes() && n.GUID != "slice" && n.GUID != "split"
	}
	axis, hasAxis := n.Params.Int("axis")
	begin, hasBegin := n.Params.Int("begin")
	if !hasAxis || !hasBegin || axis < 0 || axis >= int64(len(x.Dims)) || begin < 0 || begin > x.Dims[axis] || x.DType != y.DType {
		return 0, 0, false
	}
	at = begin * int64(x.DType.Size())
	for _, d := range x.Dims[:axis] {
		at *= d
	}
	for _, d := range x.Dims[axis+1:] {
		if d != 1 && x.Bytes() != y.Bytes() {
			return 0, 0, false // of each there is another range
		}
	}
	return in, at, within(at, y.Bytes(), x.Bytes())
}

// sectionWrite is a node that writes bytes lo to hi−1 of a section.
type sectionWrite struct {
	node   int
	lo, hi int64
}

// sectionLog are the writes of a section in the order of the nodes.
type sectionLog []sectionWrite

func sectionWrites(r *Recipe) []sectionLog {
	logs := make([]sectionLog, len(r.Sections))
	for i := range r.Nodes {
		for _, out := range r.Nodes[i].Out {
			if t := &r.Tensors[out]; t.Section != Workspace {
				logs[t.Section] = append(logs[t.Section], sectionWrite{i, t.Offset, t.Offset + t.Bytes()})
			}
		}
	}
	return logs
}

// touch reports whether a node after one and up to another writes some bytes of a
// tensor.
func (l sectionLog) touch(t *Tensor, at, bytes int64, after, until int) bool {
	lo := t.Offset + at
	first, _ := slices.BinarySearchFunc(l, after+1, func(w sectionWrite, node int) int { return cmp.Compare(w.node, node) })
	for _, w := range l[first:] {
		if w.node > until {
			break
		}
		if w.lo < lo+bytes && lo < w.hi {
			return true
		}
	}
	return false
}

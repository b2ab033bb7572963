package host

import (
	"fmt"
	"slices"

	"quill/recipes"
)

// A group is a unit in the making. Its rows are counted along axes, and every
// value says along which axes its dimensions above the first one go: values that
// the unit makes have all of them, operands from outside may lack some, and are
// then read again.
type group struct {
	f       *fusion
	members []int
	inside  map[int]bool // members
	root    int

	axes   []axis
	values []value
	made   map[int]int // value of each tensor that the unit makes
	ops    []operation
	in     []int // tensors
	out    []int
	reads  []fetch
}

// axis is one of a group's axes. Two that turn out to be the same are one, and
// one that turns out to be a product is split.
type axis struct {
	n         int
	same      int // another axis, or none
	low, high int // its factors, or none
}

// value is rows of a tensor.
type value struct {
	n, size int      // elements of a row, bytes of an element
	dims    [][]part // above the first, in axes

	fetch int // where a value from outside is, or none
	base  int // value that this one's rows are parts of, or none
	at    int // bytes from there
	buf   int // that memory, or none
	out   int // operand of the unit that this value is written to, or none
	keys  bool
}

// fetch is where rows from outside are: those of an access, or of a matrix whose
// rows are along the access's second dimension.
type fetch struct {
	access
	operand int
	pairs   []pair
	along   []axisPart // of the pairs, once axes are settled
	ld      int        // bytes between rows of a matrix, 0 for no matrix
	rows    int        // of a matrix in pieces: rows of each
	pieces  part       // and where they are
}

// pair says that a dimension of a fetch goes along axes.
type pair struct{ axes, parts []part }

// axisPart is the part along one axis.
type axisPart struct {
	axis int
	part part
}

func newGroup(f *fusion, members []int) *group {
	g := &group{f: f, members: members, inside: make(map[int]bool), root: members[len(members)-1], made: make(map[int]int)}
	for _, i := range members {
		g.inside[i] = true
	}
	return g
}

// misfit is why a node cannot be part of a group.
type misfit struct {
	node int
	why  string
}

func (e *misfit) Error() string { return fmt.Sprintf("node %d: %s", e.node, e.why) }

// compile makes the unit. If it cannot, culprit is a node that does not fit.
func (g *group) compile() (u plan, culprit int, err error) {
	for _, i := range g.members {
		if err := g.add(g.f.nodes[i]); err != nil {
			if m, ok := err.(*misfit); ok {
				return plan{}, m.node, err
			}
			return plan{}, none, err
		}
	}
	k, err := g.finish()
	if err != nil {
		return plan{}, none, err
	}
	return k, none, nil
}

// add appends a member's operation.
func (g *group) add(n *node) error {
	src := &g.f.p.recipe.Nodes[n.index]
	if n.move.kind != moveNot {
		return g.move(n, src)
	}
	dims, err := g.shape(n, src)
	if err != nil {
		return err
	}
	o := n.rows(n)
	o.name = n.guid()
	for j, t := range src.In {
		if t < 0 {
			continue
		}
		x := &n.in[j]
		v, err := g.read(n, t, x, dims, o.product != nil && j == 1)
		if err != nil {
			return err
		}
		if !o.positional && g.values[v].n != x.row() { // one number stands for a row
			if v, err = g.whole(n, t, x, dims, o.product != nil && j == 1); err != nil {
				return err
			}
		}
		o.in = append(o.in, v)
	}
	for j, t := range src.Out {
		y := &n.out[j]
		g.values = append(g.values, value{n: y.row(), size: y.dt.Size(), dims: dims, fetch: none, base: none, buf: none, out: none})
		g.made[t] = len(g.values) - 1
		o.out = append(o.out, len(g.values)-1)
	}
	g.ops = append(g.ops, o)
	return nil
}

// move adds a movement of a value of the group, or, as the only node, a copy.
func (g *group) move(n *node, src *recipes.Node) error {
	x, y := &n.in[0], &n.out[0]
	v, ok := g.made[src.In[0]]
	if !ok {
		return g.copy(n, src)
	}
	from := g.values[v]
	from.base, from.at, from.buf, from.out, from.fetch = v, 0, none, none, none
	switch n.move.kind {
	case moveReshape:
		var parts []part
		for _, d := range from.dims {
			parts = append(parts, g.leaves(d)...)
		}
		var ok bool
		if from.dims, ok = regroup(parts, y.dims[1:], g.cut); !ok {
			return &misfit{n.index, "axes do not regroup"}
		}
	case moveTranspose:
		dims := make([][]part, len(from.dims))
		for i, p := range n.move.perm[1:] {
			dims[i] = from.dims[p-1]
		}
		from.dims = dims
	case moveSlice:
		from.at, from.n = n.move.begin*from.size, y.row()
		if x.row() == 1 || g.values[v].n == 1 {
			from.at, from.n = 0, 1 // of a number that stands for any of them
		}
	case moveBroadcast:
	default:
		return &misfit{n.index, "rows are picked"}
	}
	g.values = append(g.values, from)
	g.made[src.Out[0]] = len(g.values) - 1
	return nil
}

// copy makes rows of a movement's result that are read from where they lie.
func (g *group) copy(n *node, src *recipes.Node) error {
	y := &n.out[0]
	dims := g.fresh(y.dims)
	v, err := g.fetch(n, src.Out[0], y, dims, false)
	if err != nil {
		return err
	}
	o := copied(y.dt.Size())
	o.in = []int{v}
	g.values = append(g.values, value{n: y.row(), size: y.dt.Size(), dims: dims, fetch: none, base: none, buf: none, out: none})
	g.made[src.Out[0]] = len(g.values) - 1
	o.out = []int{len(g.values) - 1}
	g.ops = append(g.ops, o)
	return nil
}

// shape is along which axes a member's result goes: those of its operands that
// the group makes, which are the same.
func (g *group) shape(n *node, src *recipes.Node) ([][]part, error) {
	var dims [][]part
	for j, t := range src.In {
		v, ok := g.made[t]
		if t < 0 || !ok {
			continue
		}
		d := g.values[v].dims
		if len(n.in[j].dims) != len(n.out[0].dims) || len(d) != len(n.out[0].dims)-1 {
			return nil, &misfit{g.f.producer[t], "ranks differ"}
		}
		if dims == nil {
			dims = d
		}
		for i := range d {
			if !g.unify(dims[i], d[i]) {
				return nil, &misfit{g.f.producer[t], "axes differ"}
			}
		}
	}
	if dims == nil {
		dims = g.fresh(n.out[0].dims)
	}
	return dims, nil
}

// fresh makes an axis of every dimension above the first.
func (g *group) fresh(dims []int) [][]part {
	var out [][]part
	for i, d := range dims {
		if i == 0 {
			continue
		}
		if d == 1 {
			out = append(out, nil)
			continue
		}
		out = append(out, []part{g.newAxis(d)})
	}
	return out
}

func (g *group) newAxis(n int) part {
	g.axes = append(g.axes, axis{n, none, none, none})
	return part{n: n, index: none, axis: len(g.axes) - 1}
}

// leaves are the axes that parts stand for by now.
func (g *group) leaves(parts []part) []part {
	var out []part
	for _, p := range parts {
		a := p.axis
		for g.axes[a].same != none {
			a = g.axes[a].same
		}
		x := g.axes[a]
		if x.low == none {
			out = append(out, part{n: x.n, index: none, axis: a})
			continue
		}
		out = append(out, g.leaves([]part{{axis: x.low}, {axis: x.high}})...)
	}
	return out
}

// cut splits an axis that is a leaf after n elements.
func (g *group) cut(p part, n int) (low, high part, ok bool) {
	low, high = g.newAxis(n), g.newAxis(p.n/n)
	g.axes[p.axis].low, g.axes[p.axis].high = low.axis, high.axis
	return low, high, true
}

// distinct reports whether some value has both of two axes, which then are not the
// same.
func (g *group) distinct(a, b int) bool {
	for i := range g.values {
		var hasA, hasB bool
		for _, d := range g.values[i].dims {
			for _, p := range g.leaves(d) {
				hasA, hasB = hasA || p.axis == a, hasB || p.axis == b
			}
		}
		if hasA && hasB {
			return true
		}
	}
	return false
}

// unify makes the axes of two dimensions the same.
func (g *group) unify(a, b []part) bool {
	for {
		x, y := g.leaves(a), g.leaves(b)
		done := true
		for i := 0; done; i++ {
			if i == len(x) || i == len(y) {
				return i == len(x) && i == len(y)
			}
			p, q := x[i], y[i]
			switch {
			case p.axis == q.axis:
			case p.n == q.n:
				if g.distinct(p.axis, q.axis) {
					return false
				}
				g.axes[p.axis].same = q.axis
				done = false
			case p.n > q.n && p.n%q.n == 0:
				g.cut(p, q.n)
				done = false
			case q.n > p.n && q.n%p.n == 0:
				g.cut(q, p.n)
				done = false
			default:
				return false
			}
		}
	}
}

// read is the value of an operand of a member whose result goes along dims.
func (g *group) read(n *node, t int, x *operand, dims [][]part, matrix bool) (int, error) {
	if v, ok := g.made[t]; ok {
		if matrix {
			return 0, &misfit{g.f.producer[t], "a matrix is needed whole"}
		}
		return v, nil
	}
	return g.fetch(n, t, x, dims, matrix)
}

// whole is the value of a tensor from outside that has all its elements.
func (g *group) whole(n *node, t int, x *operand, dims [][]part, matrix bool) (int, error) {
	bad := &misfit{n.index, "rows of " + x.label + " are spread"}
	if _, ok := g.made[t]; ok {
		bad.node = g.f.producer[t]
		return 0, bad
	}
	v, ok := g.rowsOf(denseAccess(t, x.dims, x.dt.Size()), x, dims, matrix)
	if !ok || g.values[v].n != x.row() {
		return 0, bad
	}
	return v, nil
}

// fetch is the value of a tensor from outside.
func (g *group) fetch(n *node, t int, x *operand, dims [][]part, matrix bool) (int, error) {
	if c := g.makes(t); c != none {
		return 0, &misfit{c, "its result is read in another order"}
	}
	a := g.f.locate(t, g.root)
	v, ok := g.rowsOf(a, x, dims, matrix)
	if !ok && a.tensor != t && g.f.producer[t] != n.index {
		v, ok = g.rowsOf(denseAccess(t, x.dims, x.dt.Size()), x, dims, matrix)
	}
	if !ok {
		return 0, &misfit{n.index, x.label + " has no rows"}
	}
	return v, nil
}

// makes is a member that tensor t, which is from outside, is moved from.
func (g *group) makes(t int) int {
	seen := map[int]bool{t: true}
	for queue := []int{t}; len(queue) > 0; queue = queue[1:] {
		p := g.f.producer[queue[0]]
		switch {
		case p < 0:
			continue
		case g.inside[p]:
			return p
		case g.f.nodes[p].move.kind == moveNot:
			continue
		}
		for _, in := range g.f.p.recipe.Nodes[p].In {
			if in >= 0 && !seen[in] {
				seen[in] = true
				queue = append(queue, in)
			}
		}
	}
	return none
}

// rowsOf makes a value of an access; false if its rows are not contiguous.
func (g *group) rowsOf(a access, x *operand, dims [][]part, matrix bool) (int, bool) {
	v := value{n: 1, size: x.dt.Size(), dims: dims, base: none, buf: none, out: none}
	if len(a.dims) > 0 {
		switch row := joined(a.dims[0]); {
		case len(row) == 0:
		case len(row) == 1 && row[0].index == none && row[0].stride == v.size:
			v.n = row[0].n
		case len(row) == 1 && row[0].index == none && row[0].stride == 0:
		default:
			return 0, false
		}
	}
	r := fetch{access: a}
	first := 1
	if matrix {
		first = 2
		r.ld = v.size * v.n
		switch d := joined(a.dims[1]); {
		case len(d) == 0:
		case len(d) == 1 && d[0].index == none && d[0].stride > 0:
			r.ld = d[0].stride
		case len(d) == 2 && d[0].index == none && d[0].stride > 0 && d[1].index != none && d[1].step == 1:
			r.ld, r.rows, r.pieces = d[0].stride, d[0].n, d[1]
		default:
			return 0, false
		}
	}
	for i := first; i < len(a.dims); i++ {
		if parts := joined(a.dims[i]); len(parts) > 0 {
			if i-1 >= len(dims) {
				return 0, false
			}
			r.pairs = append(r.pairs, pair{dims[i-1], parts})
		}
	}
	r.operand = g.operand(a.tensor)
	v.fetch = len(g.reads)
	g.reads = append(g.reads, r)
	g.values = append(g.values, v)
	return len(g.values) - 1, true
}

// operand is the slot of a tensor that the unit reads.
func (g *group) operand(t int) int {
	if i := slices.Index(g.in, t); i >= 0 {
		return i
	}
	g.in = append(g.in, t)
	return len(g.in) - 1
}

package host

import (
	"errors"
	"slices"
)

// errAxes says that values of a group do not have the same rows after all, or
// have more axes than there is room for.
var errAxes = errors.New("axes do not match")

// finish places the values of a group and makes its unit.
func (g *group) finish() (plan, error) {
	g.store()
	axes, err := g.settle()
	if err != nil {
		return plan{}, err
	}
	k := &rowsKernel{kernels: g.f.p.device.kernels}
	if axes = g.lead(axes); len(axes) > firstOnly {
		return plan{}, errAxes
	}
	for _, a := range axes {
		k.axes = append(k.axes, a.n)
	}
	for i := range g.reads {
		spot, err := g.spot(&g.reads[i], axes)
		if err != nil {
			return plan{}, err
		}
		k.spots = append(k.spots, spot)
	}
	k.join()
	k.span = g.keys()
	g.allot(k)
	g.lanes(k)
	k.ops = g.ops
	u := plan{
		nodes: g.members, in: g.in, out: g.out, own: k.own, values: len(k.values),
		info: g.f.p.describe(g.kind(), g.members),
	}
	u.kernel = kernel{k.stage()}
	u.info.Span = k.span != nil
	for i := range g.ops {
		if p := g.ops[i].product; p != nil {
			u.info.Flops += 2 * int64(p.n) * int64(p.k) * int64(k.rows())
		}
	}
	return u, nil
}

// kind names the unit in traces.
func (g *group) kind() string {
	switch {
	case g.products() && len(g.ops) > 1:
		return "rows and products"
	case len(g.members) == 1:
		return g.f.nodes[g.root].guid()
	}
	return "rows"
}

// owner is the value whose memory v's rows are in.
func (g *group) owner(v int) int {
	for g.values[v].base != none {
		v = g.values[v].base
	}
	return v
}

// escapes reports whether someone outside reads tensor t where it is.
func (g *group) escapes(t int) bool {
	if g.f.needed[t] {
		return true
	}
	for _, j := range g.f.readers[t] {
		if g.f.p.views[j] && g.escapes(g.f.p.recipe.Nodes[j].Out[0]) {
			return true
		}
	}
	return false
}

// store decides where results go: what escapes is computed where it must be, or
// copied there if it is in another place already.
func (g *group) store() {
	var tensors []int
	for t := range g.made {
		if g.escapes(t) && !g.f.p.views[g.f.producer[t]] {
			tensors = append(tensors, t)
		}
	}
	if len(tensors) == 0 { // nobody reads it
		tensors = slices.Clone(g.f.p.recipe.Nodes[g.root].Out)
	}
	slices.Sort(tensors)
	for _, t := range tensors {
		v := g.made[t]
		o := g.owner(v)
		w := &g.values[o]
		dims := dimsOf(&g.f.p.recipe.Tensors[t])
		row := 1
		if len(dims) > 0 {
			row = max(1, dims[0])
		}
		if w.out != none || w.n != row || g.values[v].n != row || g.values[v].at != 0 {
			c := copied(g.values[v].size)
			c.in = []int{v}
			place := g.values[v]
			place.n, place.base, place.at, place.fetch = row, none, 0, none
			g.values = append(g.values, place)
			o = len(g.values) - 1
			c.out = []int{o}
			g.ops = append(g.ops, c)
			w = &g.values[o]
		}
		r := fetch{access: denseAccess(t, dims, w.size), operand: len(g.out)}
		for i, parts := range r.dims {
			if i > 0 && len(parts) > 0 {
				r.pairs = append(r.pairs, pair{g.values[v].dims[i-1], parts})
			}
		}
		w.out = len(g.reads)
		g.reads = append(g.reads, r)
		g.out = append(g.out, t)
	}
}

// settle splits axes until every dimension of a fetch is a product of axes, and
// returns the axes in the order of the root's result.
func (g *group) settle() ([]part, error) {
	for again := true; again; {
		again = false
		for i := range g.reads {
			r := &g.reads[i]
			r.along = r.along[:0]
			for _, p := range r.pairs {
				along, split, err := g.align(p)
				if err != nil {
					return nil, err
				}
				again = again || split
				r.along = append(r.along, along...)
			}
		}
	}
	var axes []part
	for _, d := range g.values[g.made[g.f.p.recipe.Nodes[g.root].Out[0]]].dims {
		axes = append(axes, g.leaves(d)...)
	}
	n := 1
	for _, a := range axes {
		n *= a.n
	}
	if n != g.f.nodes[g.root].count() {
		return nil, errAxes
	}
	if len(axes) == 0 {
		axes = []part{g.newAxis(1)}
	}
	return axes, nil
}

// align finds the part of a fetch along each axis. Where an axis is longer than
// a part, it is split instead.
func (g *group) align(p pair) (along []axisPart, split bool, err error) {
	rest := slices.Clone(p.parts)
	for _, a := range g.leaves(p.axes) {
		if len(rest) == 0 {
			return nil, false, errAxes
		}
		b := rest[0]
		switch {
		case a.n == b.n:
			along, rest = append(along, axisPart{a.axis, b}), rest[1:]
		case b.n%a.n == 0:
			low, high, _ := cut(b, a.n)
			along = append(along, axisPart{a.axis, low})
			rest[0] = high
		case a.n%b.n == 0:
			g.cut(a, b.n)
			return nil, true, nil
		default:
			return nil, false, errAxes
		}
	}
	if len(rest) > 0 {
		return nil, false, errAxes
	}
	return along, false, nil
}

// spot is where the rows of a fetch are by axis.
func (g *group) spot(r *fetch, axes []part) (rowsSpot, error) {
	s := rowsSpot{operand: r.operand, at: r.at, strides: make([]int, len(axes)), ld: r.ld}
	pick := func(p part, along ...pickStep) {
		by := g.f.nodes[p.node]
		for i := range s.picks { // another part of the same index
			if q := &s.picks[i]; q.operand == g.operand(p.index) && q.node == p.node {
				q.along = append(q.along, along...)
				return
			}
		}
		s.picks = append(s.picks, rowsPick{along, g.operand(p.index), p.stride, by.indices(by.move.axis)})
	}
	if r.rows != 0 {
		pick(r.pieces)
		s.piece, s.pieces = r.rows, r.pieces.n
	}
	for _, p := range r.picked {
		pick(p, pickStep{firstOnly, 1})
	}
	for _, p := range r.along {
		at := slices.IndexFunc(axes, func(x part) bool { return x.axis == p.axis })
		switch {
		case at < 0:
			return s, errAxes
		case p.part.index == none:
			s.strides[at] += p.part.stride
		default:
			pick(p.part, pickStep{at, p.part.step})
		}
	}
	return s, nil
}

// lead puts the axis first along which the rows of a tile are: the first one
// along which no matrix changes and no row is picked by an index, of products the
// longest. Without one, it is a new axis of one row.
func (g *group) lead(axes []part) []part {
	fits := func(a int) bool {
		for i := range g.reads {
			r := &g.reads[i]
			for _, p := range r.along {
				if p.axis == axes[a].axis && (p.part.index != none || r.ld != 0 && p.part.stride != 0) {
					return false
				}
			}
		}
		return true
	}
	best := none
	for a := range axes {
		if fits(a) && (best == none || g.products() && axes[a].n > axes[best].n) {
			best = a
		}
	}
	if best == none {
		best, axes = len(axes), append(axes, g.newAxis(1))
	}
	axes[0], axes[best] = axes[best], axes[0]
	return axes
}

// join makes the first axis longer by others whose rows come next in every lane.
// Matrices may change along them: each then serves some of a tile's rows.
func (k *rowsKernel) join() {
	for a := 1; a < len(k.axes); a++ {
		if k.axes[0] >= productRows || !k.follows(a) {
			continue
		}
		for i := range k.spots {
			s := &k.spots[i]
			if s.ld != 0 && s.every == 0 && s.strides[a] != 0 {
				s.every, s.step = k.axes[0], s.strides[a]
				k.every = k.axes[0]
			}
			s.strides[a] = 0
		}
		k.axes[0], k.axes[a] = k.axes[0]*k.axes[a], 1
	}
}

// follows reports whether the rows along an axis continue those along the first
// one, and matrices are equally far apart.
func (k *rowsKernel) follows(a int) bool {
	for i := range k.spots {
		s := &k.spots[i]
		for _, p := range s.picks {
			if slices.ContainsFunc(p.along, func(x pickStep) bool { return x.axis == a }) {
				return false
			}
		}
		next := s.strides[0] * k.axes[0]
		if s.ld != 0 {
			if k.every == 0 {
				continue // the first axis has one matrix
			}
			next = 0
			if s.every != 0 {
				next = s.step * (k.axes[0] / s.every)
			}
		}
		if s.strides[a] != next {
			return false
		}
	}
	return true
}

func (g *group) products() bool {
	return slices.ContainsFunc(g.ops, func(o operation) bool { return o.product != nil })
}

// budget is how much memory the rows of a tile should take: they stay in the
// second-level cache beside what streams through it.
const budget = 384 << 10

// tileRows bounds the rows of a tile, productRows those that a matrix is
// multiplied by.
const tileRows, productRows = 1024, 32

// allot finds memory for the values of a tile, and says how many rows it has.
func (g *group) allot(k *rowsKernel) {
	buffers := g.buffers()
	width := 0
	for _, n := range buffers {
		width += n
	}
	for i := range g.values {
		if v := &g.values[i]; v.out != none {
			width += v.n * v.size
		}
	}
	most := tileRows
	if g.products() {
		most = productRows
	}
	k.height = min(k.axes[0], max(1, min(most, budget/max(1, width))))
	threads := g.f.p.device.crew.size
	if share := (k.rows() + 4*threads - 1) / (4 * threads); k.height > share && (!g.products() || k.every != 0) {
		k.height = max(1, share)
	}
	if k.every != 0 {
		k.height = max(k.height/k.every, 1) * k.every
	}
	tmp := 0
	for i := range g.ops {
		o := &g.ops[i]
		if p := o.product; p != nil {
			made := newProduct(k.kernels, *p, k.height)
			o.run, o.tmp = made.run, made.tmp
		}
		tmp = max(tmp, o.tmp)
	}
	k.tmp = region{0, tmp}
	at := align(tmp)
	for _, n := range buffers {
		k.buffers = append(k.buffers, at)
		at += align(n * k.height)
	}
	k.own = at
}

// buffers assigns memory of the thread to values that do not escape, and returns
// the bytes of a row of each buffer. A positional operation's result takes the
// place of an operand of the same size that is not read again.
func (g *group) buffers() []int {
	last := make(map[int]int)
	for i := range g.ops {
		for _, v := range g.ops[i].in {
			last[g.owner(v)] = i
		}
		for _, v := range g.ops[i].out {
			last[v] = max(last[v], i)
		}
	}
	var sizes []int
	var free []int
	for i := range g.ops {
		o := &g.ops[i]
		for _, y := range o.out {
			v := &g.values[y]
			if v.out != none {
				continue
			}
			if o.positional {
				for _, x := range o.in {
					w := g.owner(x)
					if !g.alone(o, x) {
						continue
					}
					if g.values[x].at == 0 && g.values[w].buf != none && last[w] == i && g.values[w].n == v.n && g.values[w].size == v.size {
						v.buf = g.values[w].buf
						last[w] = none
						break
					}
				}
			}
			if v.buf == none {
				v.buf, free = take(&sizes, free, v.n*v.size)
			}
		}
		for x := range last {
			if last[x] == i && g.values[x].buf != none {
				free = append(free, g.values[x].buf)
			}
		}
		slices.Sort(free)
	}
	return sizes
}

// alone reports whether no other operand of an operation is a part of the memory
// of x, which is read again for each piece of a row.
func (g *group) alone(o *operation, x int) bool {
	for _, y := range o.in {
		if y != x && g.owner(y) == g.owner(x) && (g.values[y].at != g.values[x].at || g.values[y].n != g.values[x].n) {
			return false
		}
	}
	return true
}

// take finds a free buffer of n bytes a row, the smallest that is large enough,
// or makes one.
func take(sizes *[]int, free []int, n int) (buffer int, rest []int) {
	best := none
	for i, b := range free {
		if (*sizes)[b] >= n && (best == none || (*sizes)[b] < (*sizes)[free[best]]) {
			best = i
		}
	}
	if best == none {
		*sizes = append(*sizes, n)
		return len(*sizes) - 1, free
	}
	b := free[best]
	return b, slices.Delete(free, best, best+1)
}

// lanes lists where the values are.
func (g *group) lanes(k *rowsKernel) {
	for i := range g.values {
		v := &g.values[i]
		r := rowsValue{n: v.n, size: v.size, spot: v.fetch, buffer: v.buf, base: v.base, at: v.at, keys: v.keys}
		if v.out != none {
			r.spot = v.out
			k.spots[v.out].out = true
		}
		k.values = append(k.values, r)
	}
}

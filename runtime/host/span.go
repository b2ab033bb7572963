package host

import "unsafe"

// A span leaves out keys that no row of a tile can see. Where a softmax is taken
// of scores of which a predicate hides some by a number so low that their
// exponentials are 0, the hidden ones at both ends add nothing but zeros to its
// sum and to the product with the values, so the tile's operations need not see
// them: results are the same bits, unless a value that is left out is not
// finite. If a row sees nothing, or if what it sees is as low as the number, all
// keys are computed with.
type span struct {
	cond   int // value: the predicate
	hidden int // value: the number
	matrix []keyMatrix
}

// keyMatrix is a matrix with a row for each key.
type keyMatrix struct{ value, ld int }

// reach is how far below the largest score an exponential is not 0 yet.
const reach = 105

// keyStep is what a span begins at a multiple of: the lanes of kern.Sum, so that
// a key stays in its lane.
const keyStep = 32

// restrict makes the lanes begin and end with what the tile's rows see; false if
// some row sees nothing.
func (k *rowsKernel) restrict(t *tile) bool {
	cond := &t.lanes[k.span.cond]
	lo, hi := cond.n, 0
	for r := range t.rows {
		row := rowOf[uint8](cond, r)
		first := firstSet(row)
		if first == len(row) {
			return false
		}
		lo, hi = min(lo, first), max(hi, lastSet(row)+1)
		if cond.stride == 0 {
			break
		}
	}
	lo &^= keyStep - 1
	t.floor = valueOf[float32](&t.lanes[k.span.hidden], 0) + reach
	for i := range k.values {
		if v := &k.values[i]; v.keys {
			l := &t.lanes[i]
			l.p, l.n = unsafe.Add(l.p, lo*v.size), hi-lo
		}
	}
	for _, m := range k.span.matrix {
		l := &t.lanes[m.value]
		l.p = unsafe.Add(l.p, lo*m.ld)
	}
	return true
}

// firstSet is the first element that is not 0.
func firstSet(x []uint8) int {
	i := 0
	for ; i+8 <= len(x); i += 8 {
		if *(*uint64)(unsafe.Pointer(&x[i])) != 0 {
			break
		}
	}
	for ; i < len(x) && x[i] == 0; i++ {
	}
	return i
}

// lastSet is the last element that is not 0; there is one.
func lastSet(x []uint8) int {
	i := len(x)
	for ; i >= 8; i -= 8 {
		if *(*uint64)(unsafe.Pointer(&x[i-8])) != 0 {
			break
		}
	}
	for i--; x[i] == 0; i-- {
	}
	return i
}

// keys finds the span of a group, nil if it has none.
func (g *group) keys() *span {
	for i := range g.ops {
		if s := &g.ops[i]; s.name == "softmax_fwd" {
			if k := g.keysOf(s); k != nil {
				return k
			}
		}
	}
	return nil
}

// keysOf finds the span of a softmax.
func (g *group) keysOf(s *operation) *span {
	scores := g.owner(s.in[0])
	n := g.values[scores].n
	var k *span
	for i := range g.ops {
		o := &g.ops[i]
		if o.name != "where_fwd" || o.out[0] != scores {
			continue
		}
		cond, hidden := o.in[0], o.in[2]
		if g.values[cond].fetch != none && g.values[cond].n == n && g.values[hidden].fetch != none && g.values[hidden].n == 1 && g.values[hidden].size == 4 {
			k = &span{cond: cond, hidden: hidden}
		}
	}
	if k == nil || n <= keyStep {
		return nil
	}
	set := map[int]bool{scores: true}
	for again := true; again; {
		again = false
		for i := range g.ops {
			changed, ok := g.spread(&g.ops[i], n, set)
			if !ok {
				return nil
			}
			again = again || changed
		}
	}
	for v := range set {
		if g.values[v].out != none {
			return nil
		}
	}
	for i := range g.values {
		o := g.owner(i)
		if !set[o] {
			continue
		}
		if g.values[i].n != n || g.values[i].at != 0 {
			return nil
		}
		g.values[i].keys = true
	}
	for i := range g.ops {
		o := &g.ops[i]
		if p := o.product; p != nil && (p.transposed && g.values[o.out[0]].keys || !p.transposed && g.values[o.in[0]].keys) {
			r := &g.reads[g.values[o.in[1]].fetch]
			k.matrix = append(k.matrix, keyMatrix{o.in[1], r.ld})
		}
	}
	return k
}

// spread adds to the values that have an element for each key those that an
// operation connects with them; false if it needs all keys.
func (g *group) spread(o *operation, n int, set map[int]bool) (changed, ok bool) {
	var connected, others []int
	switch {
	case o.positional, o.name == "softmax_fwd":
		for _, v := range append(append([]int(nil), o.in...), o.out...) {
			if g.values[v].n == n {
				connected = append(connected, g.owner(v))
			}
		}
	case o.name == "gather_elements_fwd":
		connected, others = []int{g.owner(o.in[1]), o.out[0]}, o.in[:1]
	case o.product != nil && o.product.transposed:
		connected, others = []int{o.out[0]}, o.in
	case o.product != nil:
		connected, others = []int{g.owner(o.in[0])}, []int{o.in[1], o.out[0]}
	default:
		others = append(append([]int(nil), o.in...), o.out...)
	}
	for _, v := range others {
		if set[g.owner(v)] {
			return false, false
		}
	}
	any := false
	for _, v := range connected {
		any = any || set[v]
	}
	if !any {
		return false, true
	}
	for _, v := range connected {
		changed = changed || !set[v]
		set[v] = true
	}
	return changed, true
}

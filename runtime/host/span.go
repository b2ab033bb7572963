package host

import (
	"unsafe"

	"quill/recipes/dtype"
)

// A span leaves out keys that no row of a tile can see. Where exponentials are
// taken of scores of which a predicate hides some by a number so low that their
// exponentials are 0, the hidden ones at both ends add nothing but zeros to sums
// and to the product with the values, so the tile's operations need not see
// them: results are the same bits, unless a value that is left out is not
// finite.
//
// There are two forms. A softmax is relative to the largest score; if a row sees
// nothing, or if what it sees is as low as the number, all keys are computed with.
// Where exponentials are relative to a maximum with a floor that lies above the
// number, this cannot matter, and a tile that sees nothing has next to no keys.
//
// What hides may also be a mask: the predicate selects the number into it, and it
// is added to the scores, which vanish in a number that is low enough.
type span struct {
	cond   int // value: the predicate
	hidden int // value: the number
	floor  int // value: the least maximum, or none
	mask   bool
	matrix []keyMatrix
}

// absorbing is at most what hides as a summand.
const absorbing = -1e20

// keyMatrix is a matrix with a row for each key.
type keyMatrix struct{ value, ld int }

// reach is how far below the largest score an exponential is not 0 yet.
const reach = 105

// keyStep is what a span begins at a multiple of: the lanes of kern.Sum, so that
// a key stays in its lane.
const keyStep = 32

// fewKeys is what a tile that sees nothing keeps, so that no row is empty.
const fewKeys = 2

// restrict makes the lanes begin and end with what the tile's rows see; false if
// all keys may matter.
func (k *rowsKernel) restrict(t *tile) bool {
	lowest, ok := k.lowest(t)
	if !ok {
		return false
	}
	if k.span.floor != none && !(-t.extreme(k.span.floor, -1) >= lowest) {
		return false
	}
	cond := &t.lanes[k.span.cond]
	lo, hi := cond.n, 0
	for r := range t.rows {
		row := rowOf[uint8](cond, r)
		first := firstSet(row)
		if first < len(row) {
			lo, hi = min(lo, first), max(hi, lastSet(row)+1)
		} else if k.span.floor == none {
			return false
		}
		if cond.stride == 0 {
			break
		}
	}
	if k.span.floor == none {
		t.least = lowest
	}
	if lo &^= keyStep - 1; hi == 0 {
		lo, hi = 0, fewKeys
	}
	for i := range k.values {
		if v := &k.values[i]; v.keys {
			l := &t.lanes[i]
			l.p, l.n = unsafe.Add(l.p, lo*v.size), hi-lo
		}
	}
	for _, m := range k.span.matrix {
		l := &t.lanes[m.value]
		if l.picks != nil {
			l.skip = lo
			continue
		}
		l.p = unsafe.Add(l.p, lo*m.ld)
	}
	return true
}

// lowest is below every maximum beside which hidden keys do not count; false if
// arithmetic does not tell.
func (k *rowsKernel) lowest(t *tile) (lowest float32, ok bool) {
	if !k.span.mask {
		hidden := t.extreme(k.span.hidden, 1)
		lowest = hidden + reach
		return lowest, lowest-hidden >= reach // else it is rounded, or no number
	}
	if t.lanes[k.span.hidden].stride != 0 {
		return 0, false
	}
	hidden := t.number(k.span.hidden, k.values[k.span.hidden].size)
	return hidden / 2, hidden <= absorbing
}

// number is the one number of a value, bf16 or f32.
func (t *tile) number(v, size int) float32 {
	if size == 2 {
		return dtype.FromBF16(valueOf[uint16](&t.lanes[v], 0))
	}
	return valueOf[float32](&t.lanes[v], 0)
}

// extreme is the largest of the numbers that a value has a row, times sign.
func (t *tile) extreme(v int, sign float32) float32 {
	l := &t.lanes[v]
	most := sign * valueOf[float32](l, 0)
	for r := 1; r < t.rows && l.stride != 0; r++ {
		most = max(most, sign*valueOf[float32](l, r))
	}
	return most
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
		o := &g.ops[i]
		if o.name != "where_fwd" {
			continue
		}
		cond, hidden, n := o.in[0], o.in[2], g.values[o.out[0]].n
		if n <= keyStep || g.values[cond].fetch == none || g.values[cond].n != n ||
			g.values[hidden].fetch == none || g.values[hidden].n != 1 {
			continue
		}
		if k := g.keysOf(&span{cond: cond, hidden: hidden, floor: none}, o.out[0]); k != nil {
			return k
		}
	}
	return nil
}

// keysOf completes the span of scores, nil if all keys are needed.
func (g *group) keysOf(k *span, scores int) *span {
	n := g.values[scores].n
	set := map[int]bool{scores: true}
	for again := true; again; {
		again = false
		for i := range g.ops {
			connected, others := g.keyed(&g.ops[i], n)
			any := false
			for _, v := range connected {
				any = any || set[v]
			}
			for _, v := range others {
				if set[g.owner(v)] {
					return nil
				}
			}
			for _, v := range connected {
				again = again || any && !set[v]
				set[v] = set[v] || any
			}
		}
	}
	if !g.vanish(k, scores, set) || !k.mask && g.values[k.hidden].size != 4 {
		return nil
	}
	for v, in := range set {
		if in && g.values[v].out != none {
			return nil
		}
	}
	for i := range g.values {
		if !set[g.owner(i)] {
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

// keyed lists the values of an operation that have elements for the same keys if
// one of them has, and those that must not have any.
func (g *group) keyed(o *operation, n int) (connected, others []int) {
	switch {
	case o.positional, o.name == "softmax_fwd":
		for _, v := range append(append([]int(nil), o.in...), o.out...) {
			if g.values[v].n == n {
				connected = append(connected, g.owner(v))
			}
		}
	case o.name == "reduce_max_fwd", o.name == "reduce_sum_fwd":
		connected, others = []int{g.owner(o.in[0])}, o.out
	case o.name == "gather_elements_fwd":
		connected, others = []int{g.owner(o.in[1]), o.out[0]}, o.in[:1]
	case o.product != nil && o.product.transposed:
		connected, others = []int{o.out[0]}, o.in
	case o.product != nil:
		connected, others = []int{g.owner(o.in[0])}, []int{o.in[1], o.out[0]}
	default:
		others = append(append([]int(nil), o.in...), o.out...)
	}
	return connected, others
}

// What is known of the elements that a value has for hidden keys, or of a maximum
// of scores.
type hiddenAs int

const (
	anything hiddenAs = iota
	low               // the number that hides, or a sum with it
	below             // so far below the maximum that the exponential is 0
	zero
	topmost // of scores: hidden ones count if there are no others
	floored // that, and the floor
)

// vanish reports whether hidden keys add zeros only to what is reduced over keys,
// and completes the span with the floor.
func (g *group) vanish(k *span, scores int, set map[int]bool) bool {
	known := map[int]hiddenAs{scores: low}
	is := func(v int) hiddenAs { return known[g.owner(v)] }
	for i := range g.ops {
		o := &g.ops[i]
		y := o.out[0]
		if y == scores {
			continue
		}
		switch {
		case o.name == "add_fwd" && (is(o.in[0]) == low || is(o.in[1]) == low):
			known[y], k.mask = low, true
		case o.name == "cast_bf16_to_f32" && is(o.in[0]) == low:
			known[y] = low
		case o.name == "softmax_fwd" && is(o.in[0]) == low:
			known[y] = zero
		case o.name == "reduce_max_fwd" && is(o.in[0]) == low:
			known[y] = topmost
		case o.name == "max_fwd" && is(o.in[0]) == topmost && g.asFloor(k, o.in[1]):
			known[y] = floored
		case o.name == "sub_fwd" && is(o.in[0]) == low && is(o.in[1]) == floored:
			known[y] = below
		case o.name == "exp_fwd" && is(o.in[0]) == below,
			o.name == "cast_f32_to_bf16" && is(o.in[0]) == zero:
			known[y] = zero
		case o.name == "reduce_sum_fwd", o.product != nil && !o.product.transposed:
			for _, x := range o.in {
				if is(x) == topmost || set[g.owner(x)] && is(x) != zero {
					return false
				}
			}
		default:
			for _, x := range o.in {
				reduced := !o.positional && o.product == nil && o.name != "gather_elements_fwd"
				if is(x) == topmost || reduced && set[g.owner(x)] {
					return false
				}
			}
		}
	}
	for v, s := range known {
		if s == topmost && g.values[v].out != none {
			return false
		}
	}
	return true
}

// asFloor makes a value the span's floor, if it can be.
func (g *group) asFloor(k *span, v int) bool {
	if g.values[v].fetch == none || g.values[v].n != 1 || g.values[v].size != 4 || k.floor != none && k.floor != v {
		return false
	}
	k.floor = v
	return true
}

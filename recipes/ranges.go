package recipes

import (
	"cmp"
	"iter"
	"slices"
)

// ranges says of the bytes of a buffer what was put there last.
type ranges[V any] struct{ list []rangeOf[V] } // sorted, without overlap

type rangeOf[V any] struct {
	lo, hi int64
	v      V
}

// from is the number of the first range that ends behind an offset.
func (r *ranges[V]) from(lo int64) int {
	i, _ := slices.BinarySearchFunc(r.list, lo, func(s rangeOf[V], lo int64) int { return cmp.Compare(s.hi, lo+1) })
	return i
}

// over gives the ranges that share bytes with [lo, hi), in order.
func (r *ranges[V]) over(lo, hi int64) iter.Seq[rangeOf[V]] {
	return func(yield func(rangeOf[V]) bool) {
		for _, s := range r.list[r.from(lo):] {
			if s.lo >= hi || !yield(s) {
				return
			}
		}
	}
}

// gap is the first byte of [lo, hi) at which nothing was put; ok is false if there is
// none.
func (r *ranges[V]) gap(lo, hi int64) (at int64, ok bool) {
	for s := range r.over(lo, hi) {
		if s.lo > lo {
			break
		}
		lo = s.hi
	}
	return lo, lo < hi
}

// put puts v at [lo, hi).
func (r *ranges[V]) put(lo, hi int64, v V) {
	if lo >= hi {
		return
	}
	at := r.from(lo)
	end := at
	now := append(make([]rangeOf[V], 0, 3), rangeOf[V]{lo, hi, v})
	for ; end < len(r.list) && r.list[end].lo < hi; end++ {
		if s := r.list[end]; s.lo < lo {
			now = slices.Insert(now, 0, rangeOf[V]{s.lo, lo, s.v})
		}
		if s := r.list[end]; s.hi > hi {
			now = append(now, rangeOf[V]{hi, s.hi, s.v})
		}
	}
	r.list = slices.Replace(r.list, at, end, now...)
}

package kern

import "unsafe"

// AddI32 is y = a + b; sums wrap around.
func (s Kernels) AddI32(y, a, b []int32) { s.ints(opAddI32, y, a, b, addI32) }

// SubI32 is y = a − b; differences wrap around.
func (s Kernels) SubI32(y, a, b []int32) { s.ints(opSubI32, y, a, b, subI32) }

// MaxI32 is y = max(a, b).
func (s Kernels) MaxI32(y, a, b []int32) { s.ints(opMaxI32, y, a, b, maxI32) }

// MinI32 is y = min(a, b).
func (s Kernels) MinI32(y, a, b []int32) { s.ints(opMinI32, y, a, b, minI32) }

// AddI32S is y = a + v.
func (s Kernels) AddI32S(y, a []int32, v int32) { s.intsS(opAddI32S, y, a, v, addI32) }

// SubI32S is y = a − v.
func (s Kernels) SubI32S(y, a []int32, v int32) { s.intsS(opSubI32S, y, a, v, subI32) }

// MaxI32S is y = max(a, v).
func (s Kernels) MaxI32S(y, a []int32, v int32) { s.intsS(opMaxI32S, y, a, v, maxI32) }

// MinI32S is y = min(a, v).
func (s Kernels) MinI32S(y, a []int32, v int32) { s.intsS(opMinI32S, y, a, v, minI32) }

// Predicates are 1 where they hold, else 0.

// LessI32 is y = a < b.
func (s Kernels) LessI32(y []uint8, a, b []int32) { s.compare(opLessI32, y, a, b, less) }

// LessEqualI32 is y = a ≤ b.
func (s Kernels) LessEqualI32(y []uint8, a, b []int32) {
	s.compare(opLessEqualI32, y, a, b, lessEqual)
}

// EqualI32 is y = (a = b).
func (s Kernels) EqualI32(y []uint8, a, b []int32) { s.compare(opEqualI32, y, a, b, equal) }

// LessI32S is y = a < v.
func (s Kernels) LessI32S(y []uint8, a []int32, v int32) { s.compareS(opLessI32S, y, a, v, less) }

// LessEqualI32S is y = a ≤ v.
func (s Kernels) LessEqualI32S(y []uint8, a []int32, v int32) {
	s.compareS(opLessEqualI32S, y, a, v, lessEqual)
}

// EqualI32S is y = (a = v).
func (s Kernels) EqualI32S(y []uint8, a []int32, v int32) { s.compareS(opEqualI32S, y, a, v, equal) }

// And8 is y = a ∧ b of predicates, 0 or 1; anything but zero is true.
func (s Kernels) And8(y, a, b []uint8) {
	y, b = y[:len(a)], b[:len(a)]
	for i := s.each(opAnd8, len(a), ptr(y), ptr(a), ptr(b), nil); i < len(a); i++ {
		y[i] = truth(a[i] != 0 && b[i] != 0)
	}
}

func (s Kernels) ints(f elem, y, a, b []int32, law func(a, b int32) int32) {
	y, b = y[:len(a)], b[:len(a)]
	for i := s.each(f, len(a), ptr(y), ptr(a), ptr(b), nil); i < len(a); i++ {
		y[i] = law(a[i], b[i])
	}
}

func (s Kernels) intsS(f elem, y, a []int32, v int32, law func(a, b int32) int32) {
	y = y[:len(a)]
	for i := s.each(f, len(a), ptr(y), ptr(a), unsafe.Pointer(&v), nil); i < len(a); i++ {
		y[i] = law(a[i], v)
	}
}

func (s Kernels) compare(f elem, y []uint8, a, b []int32, law func(a, b int32) bool) {
	y, b = y[:len(a)], b[:len(a)]
	for i := s.each(f, len(a), ptr(y), ptr(a), ptr(b), nil); i < len(a); i++ {
		y[i] = truth(law(a[i], b[i]))
	}
}

func (s Kernels) compareS(f elem, y []uint8, a []int32, v int32, law func(a, b int32) bool) {
	y = y[:len(a)]
	for i := s.each(f, len(a), ptr(y), ptr(a), unsafe.Pointer(&v), nil); i < len(a); i++ {
		y[i] = truth(law(a[i], v))
	}
}

func addI32(a, b int32) int32   { return a + b }
func subI32(a, b int32) int32   { return a - b }
func maxI32(a, b int32) int32   { return max(a, b) }
func minI32(a, b int32) int32   { return min(a, b) }
func less(a, b int32) bool      { return a < b }
func lessEqual(a, b int32) bool { return a <= b }
func equal(a, b int32) bool     { return a == b }

func truth(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

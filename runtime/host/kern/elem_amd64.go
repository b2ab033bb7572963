package kern

import "unsafe"

// elemBlock is the number of elements done at a time: assembly cannot be
// preempted.
const elemBlock = 8192

// The methods here do the elements their tier has vectors for and return how
// many those are: all where there are masks.

// whole is how many of n elements the tier has vectors for.
func (s Kernels) whole(n int) int {
	switch {
	case s.tier >= AVX512:
		return n
	case s.tier == AVX2:
		return n &^ 7
	}
	return 0
}

// parts are the vectors of n elements and the mask of the elements after them.
func parts(n int) (vecs, tail int) { return n / 16, 1<<(n%16) - 1 }

func (s Kernels) widen(y []float32, x []uint16) int {
	n := s.whole(len(x))
	for i := 0; i < n; i += elemBlock {
		b := min(elemBlock, n-i)
		to, from := unsafe.Pointer(&y[i]), unsafe.Pointer(&x[i])
		if s.tier == AVX2 {
			widenx256(to, from, b/8)
			continue
		}
		v, tail := parts(b)
		widenx512(to, from, v, tail)
	}
	return n
}

func (s Kernels) narrow(y []uint16, x []float32) int {
	n := s.whole(len(x))
	for i := 0; i < n; i += elemBlock {
		b := min(elemBlock, n-i)
		to, from := unsafe.Pointer(&y[i]), unsafe.Pointer(&x[i])
		if s.tier == AVX2 {
			narrowx256(to, from, b/8)
			continue
		}
		v, tail := parts(b)
		narrowx512(to, from, v, tail)
	}
	return n
}

func (s Kernels) axpy(y []float32, f float32, x []float32) int {
	n := s.whole(len(x))
	for i := 0; i < n; i += elemBlock {
		b := min(elemBlock, n-i)
		to, from := unsafe.Pointer(&y[i]), unsafe.Pointer(&x[i])
		if s.tier == AVX2 {
			axpyx256(to, from, unsafe.Pointer(&f), b/8)
			continue
		}
		v, tail := parts(b)
		axpyx512(to, from, unsafe.Pointer(&f), v, tail)
	}
	return n
}

func (s Kernels) unary(f unary, y, x []float32) int {
	n := s.whole(len(x))
	for i := 0; i < n; i += elemBlock {
		b := min(elemBlock, n-i)
		to, from := unsafe.Pointer(&y[i]), unsafe.Pointer(&x[i])
		if s.tier == AVX2 {
			unary256(f, to, from, b/8)
			continue
		}
		v, tail := parts(b)
		unary512(f, to, from, v, tail)
	}
	return n
}

func unary256(f unary, y, x unsafe.Pointer, n int) {
	switch f {
	case unaryExp:
		expx256(y, x, n)
	case unarySigmoid:
		sigmoidx256(y, x, n)
	default:
		silux256(y, x, n)
	}
}

func unary512(f unary, y, x unsafe.Pointer, n, tail int) {
	switch f {
	case unaryExp:
		expx512(y, x, n, tail)
	case unarySigmoid:
		sigmoidx512(y, x, n, tail)
	default:
		silux512(y, x, n, tail)
	}
}

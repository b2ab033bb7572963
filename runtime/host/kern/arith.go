package kern

import (
	"math"
	"unsafe"
)

// Functions of two operands take as many elements as a has. y and b have at
// least as many; y may be a or b, but not overlap them in another way.

// Add is y = a + b.
func (s Kernels) Add(y, a, b []float32) { s.binary(opAdd, y, a, b, add) }

// Sub is y = a − b.
func (s Kernels) Sub(y, a, b []float32) { s.binary(opSub, y, a, b, sub) }

// Mul is y = a·b.
func (s Kernels) Mul(y, a, b []float32) { s.binary(opMul, y, a, b, mul) }

// Div is y = a/b.
func (s Kernels) Div(y, a, b []float32) { s.binary(opDiv, y, a, b, div) }

// Max is y = max(a, b), the one of Go: NaN if either is, and −0 < +0.
func (s Kernels) Max(y, a, b []float32) { s.binary(opMax, y, a, b, maxOf) }

// Min is y = min(a, b), the one of Go: NaN if either is, and −0 < +0.
func (s Kernels) Min(y, a, b []float32) { s.binary(opMin, y, a, b, minOf) }

// AddS is y = a + v.
func (s Kernels) AddS(y, a []float32, v float32) { s.binaryS(opAddS, y, a, v, add) }

// SubS is y = a − v.
func (s Kernels) SubS(y, a []float32, v float32) { s.binaryS(opSubS, y, a, v, sub) }

// MulS is y = a·v.
func (s Kernels) MulS(y, a []float32, v float32) { s.binaryS(opMulS, y, a, v, mul) }

// DivS is y = a/v.
func (s Kernels) DivS(y, a []float32, v float32) { s.binaryS(opDivS, y, a, v, div) }

// MaxS is y = max(a, v).
func (s Kernels) MaxS(y, a []float32, v float32) { s.binaryS(opMaxS, y, a, v, maxOf) }

// MinS is y = min(a, v).
func (s Kernels) MinS(y, a []float32, v float32) { s.binaryS(opMinS, y, a, v, minOf) }

func (s Kernels) binary(f elem, y, a, b []float32, law func(a, b float32) float32) {
	y, b = y[:len(a)], b[:len(a)]
	for i := s.each(f, len(a), ptr(y), ptr(a), ptr(b), nil); i < len(a); i++ {
		y[i] = quiet(law(a[i], b[i]))
	}
}

func (s Kernels) binaryS(f elem, y, a []float32, v float32, law func(a, b float32) float32) {
	y = y[:len(a)]
	for i := s.each(f, len(a), ptr(y), ptr(a), unsafe.Pointer(&v), nil); i < len(a); i++ {
		y[i] = quiet(law(a[i], v))
	}
}

func add(a, b float32) float32   { return a + b }
func sub(a, b float32) float32   { return a - b }
func mul(a, b float32) float32   { return a * b }
func div(a, b float32) float32   { return a / b }
func maxOf(a, b float32) float32 { return max(a, b) }
func minOf(a, b float32) float32 { return min(a, b) }

// Sum adds the elements of x. 16 lanes, +0 at first, add up elements l, l + 16,
// … each, and are then added as those of a product are. A zero of either sign
// changes nothing.
func (s Kernels) Sum(x []float32) float32 {
	var sum [lanes]float32
	for i := s.addLanes(&sum, x); i < len(x); i++ {
		sum[i%lanes] += x[i]
	}
	return quiet(fold(&sum))
}

// MaxOf is the largest element of x: NaN if any element is one, and −0 < +0. It
// panics if there is none.
func (s Kernels) MaxOf(x []float32) float32 {
	if len(x) == 0 {
		panic("kern: MaxOf of no elements")
	}
	var top [lanes]float32
	for l := range top {
		top[l] = float32(math.Inf(-1))
	}
	for i := s.maxLanes(&top, x); i < len(x); i++ {
		top[i%lanes] = max(top[i%lanes], x[i])
	}
	y := top[0]
	for _, v := range top[1:] {
		y = max(y, v)
	}
	return quiet(y)
}

package kern

import (
	"math"
	"unsafe"

	"quill/recipes/dtype"
)

// Elementwise functions give the same bits in every tier; the Go code of the
// scalar tier is the law for the others. y and x may be the same slice. Every
// NaN of arithmetic is the one of the products.

// Widen is y = x, exactly.
func (s Kernels) Widen(y []float32, x []uint16) {
	y = y[:len(x)]
	for i := s.each(opWiden, len(x), ptr(y), ptr(x), nil, nil); i < len(x); i++ {
		y[i] = widen(x[i])
	}
}

// Narrow is y = x rounded as dtype.ToBF16 does.
func (s Kernels) Narrow(y []uint16, x []float32) {
	y = y[:len(x)]
	for i := s.each(opNarrow, len(x), ptr(y), ptr(x), nil, nil); i < len(x); i++ {
		y[i] = narrow(x[i])
	}
}

// Axpy is y += v·x with one rounding.
func (s Kernels) Axpy(y []float32, v float32, x []float32) {
	y = y[:len(x)]
	for i := s.each(opAxpy, len(x), ptr(y), ptr(y), ptr(x), unsafe.Pointer(&v)); i < len(x); i++ {
		y[i] = quiet(fma(v, x[i], y[i]))
	}
}

// Exp is y = eˣ to 1.01 ulp.
func (s Kernels) Exp(y, x []float32) { s.unary(opExp, y, x, expOf) }

// Sigmoid is y = 1/(1 + e⁻ˣ) to 2.5 ulp, however small.
func (s Kernels) Sigmoid(y, x []float32) { s.unary(opSigmoid, y, x, sigmoidOf) }

// SiLU is y = x/(1 + e⁻ˣ) to 3.5 ulp; below −87, where the exponential
// is denormal, to 2⁻¹⁴² more. It is NaN for −∞.
func (s Kernels) SiLU(y, x []float32) { s.unary(opSilu, y, x, siluOf) }

func (s Kernels) unary(f elem, y, x []float32, law func(float32) float32) {
	y = y[:len(x)]
	for i := s.each(f, len(x), ptr(y), ptr(x), nil, nil); i < len(x); i++ {
		y[i] = quiet(law(x[i]))
	}
}

// widen is exact, denormals included.
func widen(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// narrow rounds to nearest even; a NaN stays one.
func narrow(f float32) uint16 { return dtype.ToBF16(f) }

// expOf is 2ⁿ·eʳ with x = n·ln 2 + r and eʳ = 1 + r + r²·q(r), where q is the
// minimax polynomial of degree 4 (relative error of eʳ: 2⁻²⁸).
func expOf(x float32) float32 {
	const (
		magic = 3 << 22
		log2e = 0x1.715476p+0
		ln2hi = 0x1.62e43p-1
		ln2lo = -0x1.05c61p-29
	)
	if x < -104 {
		x = -104
	}
	if x > 89 {
		x = 89
	}
	t := fma(x, log2e, magic)
	n := t - magic
	r := fma(-n, ln2hi, x)
	r = fma(-n, ln2lo, r)
	q := float32(0x1.6a23ep-10)
	q = fma(q, r, 0x1.123a2p-7)
	q = fma(q, r, 0x1.5558f2p-5)
	q = fma(q, r, 0x1.555492p-3)
	q = fma(q, r, 0x1.fffffcp-2)
	q = fma(float32(r*r), q, r)
	// In two steps: 2ⁿ may be out of range where the result is not.
	q++
	e := int32(math.Float32bits(t)) - int32(math.Float32bits(magic))
	lo := e >> 1
	q *= math.Float32frombits(uint32(lo+127) << 23)
	return q * math.Float32frombits(uint32(e-lo+127)<<23)
}

func sigmoidOf(x float32) float32 {
	num, den := gate(x)
	return num / den
}

func siluOf(x float32) float32 {
	num, den := gate(x)
	return float32(x*num) / den
}

// gate is the sigmoid of x as a quotient whose parts do not overflow.
func gate(x float32) (num, den float32) {
	b := math.Float32bits(x)
	e := expOf(math.Float32frombits(b | 1<<31))
	if b>>31 != 0 {
		return e, e + 1
	}
	return 1, e + 1
}

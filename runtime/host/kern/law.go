package kern

import "math"

const (
	// lanes is the number of partial sums of a product.
	lanes = 16
	// vector is the bytes of a row that one step of the lanes takes.
	vector = 64
	// chunk is the bytes of a row after which the lanes are added up. It bounds
	// the length of a chain of roundings, and lets panels of rows stay in the
	// nearest cache.
	chunk = 64 * vector
)

// nan is every NaN result: which operand's payload survives an operation
// depends on the processor.
const nan = 0x7fc00000

// DotBF16 is the law for bf16 operands: the value of Σ x·w, bit for bit, in
// every tier. The rows have the same length.
func DotBF16(x, w []uint16) float32 {
	w = w[:len(x)]
	var y float32
	for len(x) > 0 {
		n := min(len(x), chunk/2)
		var sum [lanes]float32
		i := 0
		for ; i+2*lanes <= n; i += 2 * lanes {
			x, w := x[i:i+2*lanes], w[i:i+2*lanes]
			for l := range sum {
				s := fmaFlush(x[2*l+1], w[2*l+1], sum[l])
				sum[l] = fmaFlush(x[2*l], w[2*l], s)
			}
		}
		if i < n {
			var px, pw [2 * lanes]uint16
			copy(px[:], x[i:n])
			copy(pw[:], w[i:n])
			for l := range sum {
				s := fmaFlush(px[2*l+1], pw[2*l+1], sum[l])
				sum[l] = fmaFlush(px[2*l], pw[2*l], s)
			}
		}
		y = quiet(y + fold(&sum))
		x, w = x[n:], w[n:]
	}
	return y
}

// DotF32 is the law for f32 operands.
func DotF32(x, w []float32) float32 {
	w = w[:len(x)]
	var y float32
	for len(x) > 0 {
		n := min(len(x), chunk/4)
		var sum [lanes]float32
		i := 0
		for ; i+lanes <= n; i += lanes {
			x, w := x[i:i+lanes], w[i:i+lanes]
			for l := range sum {
				sum[l] = fma(x[l], w[l], sum[l])
			}
		}
		if i < n {
			var px, pw [lanes]float32
			copy(px[:], x[i:n])
			copy(pw[:], w[i:n])
			for l := range sum {
				sum[l] = fma(px[l], pw[l], sum[l])
			}
		}
		y = quiet(y + fold(&sum))
		x, w = x[n:], w[n:]
	}
	return y
}

// mulF32 is the law of a product in the order of k, for f32 operands: the value
// of s + Σ x[l]·w[l·ldw]. A sum that is −0 becomes +0, so that a term which is a zero
// of either sign changes nothing.
func mulF32(s float32, x, w []float32, ldw int) float32 {
	for l, x := range x {
		s = fma(x, w[l*ldw], s)
	}
	return quiet(s + 0)
}

// mulBF16 is the law for bf16 operands. Denormals are what they are.
func mulBF16(s float32, x, w []uint16, ldw int) float32 {
	for l, x := range x {
		s = fma(widen(x), widen(w[l*ldw]), s)
	}
	return quiet(s + 0)
}

func mulLaw[T any](y []float32, ldy int, x []T, ldx int, w []T, ldw, m, n, k int, on bool, law func(s float32, x, w []T, ldw int) float32) {
	for i := range m {
		for j := range n {
			s := float32(0)
			if on {
				s = y[i*ldy+j]
			}
			y[i*ldy+j] = law(s, rowOf(x, i*ldx, k), w[min(j, len(w)):], ldw)
		}
	}
}

// fold adds the lanes: the four of each block, then the four blocks.
func fold(s *[lanes]float32) float32 {
	var b [4]float32
	for i := range b {
		b[i] = (s[4*i] + s[4*i+2]) + (s[4*i+1] + s[4*i+3])
	}
	return (b[0] + b[2]) + (b[1] + b[3])
}

func quiet(y float32) float32 {
	if y != y {
		return math.Float32frombits(nan)
	}
	return y
}

// fma is a·b + c with one rounding, to nearest even.
func fma(a, b, c float32) float32 {
	// The product of two f32 is exact in f64. Rounding the sum twice differs
	// from rounding it once only if the first one lands on a tie of the second.
	p := float64(a) * float64(b)
	s := p + float64(c)
	const tie, rest = 1 << 28, 1<<29 - 1
	if bits := math.Float64bits(s); bits&rest != tie && bits<<1 >= 0x381<<53 {
		return float32(s)
	}
	return fmaTie(p, float64(c), s)
}

// fmaTie is p + c rounded to f32, where s is the f64 sum. It makes s odd unless
// it is exact, which no second rounding can mistake for a tie.
func fmaTie(p, c, s float64) float32 {
	v := s - p
	e := (p - (s - v)) + (c - v)
	bits := math.Float64bits(s)
	if e != 0 && bits&1 == 0 {
		if (e > 0) == (s > 0) {
			bits++
		} else {
			bits--
		}
	}
	return float32(math.Float64frombits(bits))
}

// fmaFlush is a·b + c as VDPBF16PS computes it: with one rounding, to nearest
// even, denormal operands read as zeros, and a zero for a result whose
// magnitude, rounded to 24 bits, is below 2⁻¹²⁶. Zeros keep their signs. c is
// never denormal.
func fmaFlush(a, b uint16, c float32) float32 {
	// 16 bits of product and 24 of c: if they reach so far apart that f64
	// rounds their sum, that sum is not near a tie of f32.
	s := float64(bf16(a))*float64(bf16(b)) + float64(c)
	if bits := math.Float64bits(s); bits<<1 < (0x381+1)<<53 {
		const up = 1 << 64
		if t := float32(s * up); t > -up*0x1p-126 && t < up*0x1p-126 {
			return float32(math.Copysign(0, s))
		}
	}
	return float32(s)
}

// bf16 widens h; denormals become zeros.
func bf16(h uint16) float32 {
	if h&0x7f80 == 0 {
		h &= 0x8000
	}
	return math.Float32frombits(uint32(h) << 16)
}

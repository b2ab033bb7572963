package kern

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// tiers are the kernels this processor can run.
func tiers() []Kernels {
	var s []Kernels
	for t := Scalar; t <= best; t++ {
		s = append(s, Kernels{t})
	}
	return s
}

// spice is what values a test draws.
type spice int

const (
	plain    spice = iota // normally distributed
	ranging               // exponents far apart
	tiny                  // products around the least normal number
	special               // ±0, denormals, infinities and NaNs among the others
	integers              // sums are exact
	spices
)

// value draws an operand.
func (p spice) value(r *rand.Rand) float32 {
	switch p {
	case ranging:
		return float32(math.Ldexp(r.NormFloat64(), r.IntN(60)-30))
	case tiny:
		return float32(math.Ldexp(r.NormFloat64(), -63-r.IntN(6)))
	case special:
		switch r.IntN(12) {
		case 0:
			return 0
		case 1:
			return float32(math.Copysign(0, -1))
		case 2:
			return math.Float32frombits(r.Uint32() & 0x807fffff)
		case 3:
			if r.IntN(200) == 0 {
				return float32(math.Inf(1 - 2*r.IntN(2)))
			}
		case 4:
			if r.IntN(400) == 0 {
				return math.Float32frombits(0x7f800001 | r.Uint32())
			}
		}
	case integers:
		return float32(r.IntN(17) - 8)
	}
	return float32(r.NormFloat64())
}

// shape draws the extents of a product of bounded size: a row or some, short or
// long ones, and sometimes many short ones.
func shape(r *rand.Rand) (m, n, k int) {
	k = int(math.Exp(r.Float64()*math.Log(7000))) - 1
	m, n = 1+r.IntN(17), 1+r.IntN(27)
	if r.IntN(4) == 0 {
		m, n, k = 1+r.IntN(90), 1+r.IntN(60), r.IntN(70)
	}
	for m*n*k > 60_000 {
		m, n = (m+1)/2, (n+1)/2
		if m == 1 && n == 1 {
			break
		}
	}
	return m, n, k
}

// bounds is the interval that roundings one after another, and results that are
// rounded to a multiple of tiny or to zero, leave around Σ x·w.
func bounds(n int, at func(i int) (x, w float64), roundings int, tiny float64) (lo, hi float64) {
	var sum, abs float64
	for i := range n {
		x, w := at(i)
		sum += x * w
		abs += math.Abs(x * w)
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return sum, sum
	}
	d := float64(roundings) * 0x1p-24
	e := d/(1-d)*abs + float64(n)*tiny
	e += abs * float64(n) * 0x1p-52 // of this sum
	return sum - e, sum + e
}

// within checks a result against the oracle. Sums of finite operands do not
// overflow here.
func within(y float32, lo, hi float64) bool {
	v := float64(y)
	return lo <= v && v <= hi || math.IsNaN(lo) && math.IsNaN(v)
}

// problem is a product and its results by the law.
type problem struct {
	ordered  bool // w is [k, n], and sums are in the order of k
	m, n, k  int
	ldx, ldw int
	x, w     []float32
	xh, wh   []uint16
	f32      []float32
	bf16     []float32
}

// newProblem draws the operands of a product. Between rows, there is NaN.
func newProblem(r *rand.Rand, ordered bool, m, n, k int) *problem {
	p := &problem{ordered: ordered, m: m, n: n, k: k}
	kind := spice(r.IntN(int(spices)))
	p.ldx, p.x, p.xh = operand(r, kind, m, k)
	if ordered {
		p.ldw, p.w, p.wh = operand(r, kind, k, n)
	} else {
		p.ldw, p.w, p.wh = operand(r, kind, n, k)
	}
	for i := range m {
		x, xh := rowOf(p.x, i*p.ldx, k), rowOf(p.xh, i*p.ldx, k)
		for j := range n {
			if ordered {
				p.f32 = append(p.f32, mulF32(0, x, p.w[min(j, len(p.w)):], p.ldw))
				p.bf16 = append(p.bf16, mulBF16(0, xh, p.wh[min(j, len(p.wh)):], p.ldw))
				continue
			}
			p.f32 = append(p.f32, DotF32(x, rowOf(p.w, j*p.ldw, k)))
			p.bf16 = append(p.bf16, DotBF16(xh, rowOf(p.wh, j*p.ldw, k)))
		}
	}
	return p
}

// operand draws rows at any alignment and distance, in f32 and cut off to bf16.
func operand(r *rand.Rand, kind spice, rows, cols int) (ld int, f []float32, h []uint16) {
	ld = cols
	switch r.IntN(4) {
	case 0:
		ld += 1 + r.IntN(3)
	case 1:
		ld += r.IntN(70)
	}
	size := span(rows, ld, cols)
	f, h = make([]float32, size+16)[r.IntN(16):], make([]uint16, size+32)[r.IntN(32):]
	f, h = f[:size:size], h[:size:size]
	for i := range f {
		f[i] = float32(math.NaN())
		if i%ld < cols {
			f[i] = kind.value(r)
		}
		h[i] = uint16(math.Float32bits(f[i]) >> 16)
	}
	return ld, f, h
}

// oracle checks the law itself against sums in f64.
func (p *problem) oracle(t *testing.T) {
	t.Helper()
	chained := func(chunk int) int { return chunk/lanes + 4 + ceil(p.k, chunk) }
	rounds32, rounds16, tiny16, read := chained(chunk/4), chained(chunk/2), 0x1p-125, bf16
	if p.ordered {
		rounds32, rounds16, tiny16, read = p.k, p.k, 0x1p-149, widen
	}
	for i := range p.m {
		for j := range p.n {
			x, w := i*p.ldx, j*p.ldw
			step := 1
			if p.ordered {
				w, step = j, p.ldw
			}
			p.check(t, "f32", i, j, p.f32, rounds32, 0x1p-149, func(l int) (float64, float64) {
				return float64(p.x[x+l]), float64(p.w[w+l*step])
			})
			p.check(t, "bf16", i, j, p.bf16, rounds16, tiny16, func(l int) (float64, float64) {
				return float64(read(p.xh[x+l])), float64(read(p.wh[w+l*step]))
			})
		}
	}
}

func (p *problem) check(t *testing.T, what string, i, j int, ys []float32, roundings int, tiny float64, at func(l int) (x, w float64)) {
	t.Helper()
	y := ys[i*p.n+j]
	if lo, hi := bounds(p.k, at, roundings, tiny); !within(y, lo, hi) {
		t.Fatalf("%s [%d,%d,%d] at %d,%d: %v is not in [%v, %v]", what, p.m, p.n, p.k, i, j, y, lo, hi)
	}
}

const canary = -12345.5

// run checks one tier against the law, with rows of y that are ldy apart.
func (p *problem) run(t *testing.T, s Kernels, ldy int, scratch []byte) {
	t.Helper()
	if p.m == 0 || p.n == 0 {
		return
	}
	f32, bf16 := scratch[:s.ScratchF32(p.m, p.k)], scratch[:s.ScratchBF16(p.m, p.k)]
	last := p.m - 1 // a row on its own
	x, xh := rowOf(p.x, last*p.ldx, p.k), rowOf(p.xh, last*p.ldx, p.k)
	if p.ordered {
		p.compare(t, s, "MulF32", ldy, 0, p.f32, func(y []float32) {
			s.MulF32(y, ldy, p.x, p.ldx, p.w, p.ldw, p.m, p.n, p.k)
		})
		p.compare(t, s, "MulBF16", ldy, 0, p.bf16, func(y []float32) {
			s.MulBF16(y, ldy, p.xh, p.ldx, p.wh, p.ldw, p.m, p.n, p.k)
		})
		return
	}
	p.compare(t, s, "GemmF32", ldy, 0, p.f32, func(y []float32) {
		s.GemmF32(y, ldy, p.x, p.ldx, p.w, p.ldw, p.m, p.n, p.k, f32)
	})
	p.compare(t, s, "GemmBF16", ldy, 0, p.bf16, func(y []float32) {
		s.GemmBF16(y, ldy, p.xh, p.ldx, p.wh, p.ldw, p.m, p.n, p.k, bf16)
	})
	p.compare(t, s, "GemmF32 of a row", ldy, last, p.f32, func(y []float32) {
		s.GemmF32(y, ldy, x, p.ldx, p.w, p.ldw, 1, p.n, p.k, nil)
	})
	p.compare(t, s, "GemmBF16 of a row", ldy, last, p.bf16, func(y []float32) {
		s.GemmBF16(y, ldy, xh, p.ldx, p.wh, p.ldw, 1, p.n, p.k, nil)
	})
}

// compare runs f for the rows from the first one on and looks at all of y, and
// around it.
func (p *problem) compare(t *testing.T, s Kernels, name string, ldy, first int, want []float32, f func(y []float32)) {
	t.Helper()
	const margin = 20
	size := (p.m-1-first)*ldy + p.n
	got := make([]float32, size+2*margin)
	for i := range got {
		got[i] = canary
	}
	f(got[margin : margin+size : margin+size])
	for i, v := range got {
		at, expect := i-margin, float32(canary)
		row, col := first+at/ldy, at%ldy
		if at >= 0 && at < size && col < p.n {
			expect = want[row*p.n+col]
		}
		if math.Float32bits(v) != math.Float32bits(expect) {
			t.Fatalf("%v %s [%d,%d,%d], strides %d, %d, %d, at %d,%d: %x, want %x",
				s.Tier(), name, p.m, p.n, p.k, p.ldx, p.ldw, ldy, row, col, v, expect)
		}
	}
}

// Random shapes and values: the law is within its bound of the oracle, and
// every tier follows it bit for bit.
func TestProducts(t *testing.T) { products(t, false) }

// The same in the order of k.
func TestOrderedProducts(t *testing.T) { products(t, true) }

func products(t *testing.T, ordered bool) {
	shapes := 10_000
	if testing.Short() {
		shapes = 1000
	}
	const parts = 4
	for part := range parts {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(2, uint64(part)))
			scratch := make([]byte, 1<<20)
			for i := range shapes / parts {
				m, n, k := shape(r)
				p := newProblem(r, ordered, m, n, k)
				p.oracle(t)
				for _, s := range tiers() {
					if s.Tier() == Scalar && i%50 != 0 {
						continue // it is the law
					}
					p.run(t, s, p.n+r.IntN(3), scratch)
				}
			}
		})
	}
}

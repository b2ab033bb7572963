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

// shape draws the extents of a product of bounded size.
func shape(r *rand.Rand) (m, n, k int) {
	k = int(math.Exp(r.Float64()*math.Log(7000))) - 1
	m, n = 1+r.IntN(15), 1+r.IntN(27)
	for m*n*k > 60_000 {
		m, n = (m+1)/2, (n+1)/2
		if m == 1 && n == 1 {
			break
		}
	}
	return m, n, k
}

// bounds is the interval that the documented error leaves around Σ x·w.
func bounds(n int, at func(i int) (x, w float64), chunk int, tiny float64) (lo, hi float64) {
	var sum, abs float64
	for i := range n {
		x, w := at(i)
		sum += x * w
		abs += math.Abs(x * w)
	}
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return sum, sum
	}
	d := float64(chunk/lanes+4+(n+chunk-1)/chunk) * 0x1p-24
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
	m, n, k int
	x, w    []float32
	xh, wh  []uint16
	f32     []float32
	bf16    []float32
}

func newProblem(r *rand.Rand, m, n, k int) *problem {
	p := &problem{m: m, n: n, k: k}
	kind := spice(r.IntN(int(spices)))
	fill := func(size int) ([]float32, []uint16) {
		// Any alignment.
		f, h := make([]float32, size+16)[r.IntN(16):], make([]uint16, size+32)[r.IntN(32):]
		f, h = f[:size:size], h[:size:size]
		for i := range f {
			f[i] = kind.value(r)
			h[i] = uint16(math.Float32bits(f[i]) >> 16)
		}
		return f, h
	}
	p.x, p.xh = fill(m * k)
	p.w, p.wh = fill(n * k)
	for i := range m {
		for j := range n {
			p.f32 = append(p.f32, DotF32(p.x[i*k:(i+1)*k], p.w[j*k:(j+1)*k]))
			p.bf16 = append(p.bf16, DotBF16(p.xh[i*k:(i+1)*k], p.wh[j*k:(j+1)*k]))
		}
	}
	return p
}

// oracle checks the law itself against sums in f64.
func (p *problem) oracle(t *testing.T) {
	t.Helper()
	for i := range p.m {
		for j := range p.n {
			y := p.f32[i*p.n+j]
			lo, hi := bounds(p.k, func(l int) (x, w float64) {
				return float64(p.x[i*p.k+l]), float64(p.w[j*p.k+l])
			}, chunk/4, 0x1p-149)
			if !within(y, lo, hi) {
				t.Fatalf("f32 [%d,%d,%d] at %d,%d: %v is not in [%v, %v]", p.m, p.n, p.k, i, j, y, lo, hi)
			}
			y = p.bf16[i*p.n+j]
			lo, hi = bounds(p.k, func(l int) (x, w float64) {
				return float64(bf16(p.xh[i*p.k+l])), float64(bf16(p.wh[j*p.k+l]))
			}, chunk/2, 0x1p-125)
			if !within(y, lo, hi) {
				t.Fatalf("bf16 [%d,%d,%d] at %d,%d: %v is not in [%v, %v]", p.m, p.n, p.k, i, j, y, lo, hi)
			}
		}
	}
}

const canary = -12345.5

// run checks one tier against the law, with rows of y that are ldy apart.
func (p *problem) run(t *testing.T, s Kernels, ldy int, scratch []byte) {
	t.Helper()
	if p.m == 0 || p.n == 0 {
		return
	}
	for _, f := range []struct {
		name string
		want []float32
		need int
		gemm func(y []float32, scratch []byte)
		gemv func(y []float32, i int)
	}{
		{"f32", p.f32, s.ScratchF32(p.m, p.k), func(y []float32, scratch []byte) {
			s.GemmF32(y, ldy, p.x, p.k, p.w, p.k, p.m, p.n, p.k, scratch)
		}, func(y []float32, i int) {
			s.GemvF32(y, p.x[i*p.k:(i+1)*p.k], p.w, p.k, p.n, p.k)
		}},
		{"bf16", p.bf16, s.ScratchBF16(p.m, p.k), func(y []float32, scratch []byte) {
			s.GemmBF16(y, ldy, p.xh, p.k, p.wh, p.k, p.m, p.n, p.k, scratch)
		}, func(y []float32, i int) {
			s.GemvBF16(y, p.xh[i*p.k:(i+1)*p.k], p.wh, p.k, p.n, p.k)
		}},
	} {
		y := make([]float32, p.m*ldy)
		for i := range y {
			y[i] = canary
		}
		f.gemm(y[:(p.m-1)*ldy+p.n], scratch[:f.need])
		where := fmt.Sprintf("%v %s [%d,%d,%d]", s.Tier(), f.name, p.m, p.n, p.k)
		for i := range y {
			want := float32(canary)
			if i%ldy < p.n {
				want = f.want[i/ldy*p.n+i%ldy]
			}
			if math.Float32bits(y[i]) != math.Float32bits(want) {
				t.Fatalf("%s: gemm at %d,%d: %x, want %x", where, i/ldy, i%ldy, y[i], want)
			}
		}
		i := p.m - 1
		row := y[:p.n]
		f.gemv(row, i)
		for j, v := range row {
			if want := f.want[i*p.n+j]; math.Float32bits(v) != math.Float32bits(want) {
				t.Fatalf("%s: gemv at %d,%d: %x, want %x", where, i, j, v, want)
			}
		}
	}
}

// Random shapes and values: the law is within its bound of the oracle, and
// every tier follows it bit for bit.
func TestProducts(t *testing.T) {
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
				p := newProblem(r, m, n, k)
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

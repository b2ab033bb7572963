package kern

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// exact is a·b + c without rounding; all are finite.
func exact(a, b, c float32) *big.Float {
	f := func(v float32) *big.Float { return new(big.Float).SetPrec(600).SetFloat64(float64(v)) }
	p := f(a)
	p.Mul(p, f(b))
	return p.Add(p, f(c))
}

// nearBits is a float whose exponent is at most spread from the middle one and
// whose mantissa is often sparse, so that sums land on ties.
func nearBits(r *rand.Rand, middle, spread int) float32 {
	m := r.Uint32() & 0x7fffff
	if r.IntN(2) == 0 {
		m = 1<<r.IntN(23) | r.Uint32N(2)<<22 | r.Uint32N(2)
	}
	e := min(max(middle+r.IntN(2*spread+1)-spread, 0), 254)
	return math.Float32frombits(r.Uint32()<<31 | uint32(e)<<23 | m)
}

func TestFMA(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 300_000 {
		a, b := nearBits(r, 127, 30), nearBits(r, 127, 30)
		c := nearBits(r, 127, 60)
		switch i % 3 {
		case 1: // results around the least normal number
			a, b, c = nearBits(r, 64, 20), nearBits(r, 64, 20), nearBits(r, 1, 12)
		case 2:
			a, b, c = math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32()), math.Float32frombits(r.Uint32())
		}
		got := fma(a, b, c)
		if s := float64(a)*float64(b) + float64(c); math.IsNaN(s) || math.IsInf(s, 0) {
			if math.Float32bits(quiet(got)) != math.Float32bits(quiet(float32(s))) {
				t.Fatalf("fma(%x, %x, %x) = %x", a, b, c, got)
			}
			continue
		}
		want, _ := exact(a, b, c).Float32()
		if got != want {
			t.Fatalf("fma(%x, %x, %x) = %x, want %x", a, b, c, got, want)
		}
	}
}

func TestFMAFlush(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	least := big.NewFloat(0x1p-126)
	for i := range 300_000 {
		a, b, c := nearBits(r, 127, 30), nearBits(r, 127, 30), nearBits(r, 127, 60)
		if i%2 == 0 {
			a, b, c = nearBits(r, 64, 20), nearBits(r, 64, 20), nearBits(r, 1, 12)
		}
		if math.Abs(float64(c)) < 0x1p-126 {
			c = 0
		}
		x, w := uint16(math.Float32bits(a)>>16), uint16(math.Float32bits(b)>>16)
		got := fmaFlush(x, w, c)
		e := exact(bf16(x), bf16(w), c)
		if e.Sign() == 0 {
			if want := bf16(x)*bf16(w) + c; math.Float32bits(got) != math.Float32bits(want) {
				t.Fatalf("fmaFlush(%x, %x, %x) = %x, want %x", bf16(x), bf16(w), c, got, want)
			}
			continue
		}
		neg := e.Signbit()
		e.SetPrec(24)
		want, _ := e.Float32()
		if new(big.Float).Abs(e).Cmp(least) < 0 {
			want = 0
			if neg {
				want = float32(math.Copysign(0, -1))
			}
		}
		if math.Float32bits(got) != math.Float32bits(want) {
			t.Fatalf("fmaFlush(%x, %x, %x) = %x, want %x", bf16(x), bf16(w), c, got, want)
		}
	}
}

// The law spelled out for one vector.
func TestLawOrder(t *testing.T) {
	x := make([]float32, 16)
	for i := range x {
		x[i] = float32(math.Ldexp(1, 3*(i*7%16)))
	}
	one := make([]float32, 16)
	for i := range one {
		one[i] = 1
	}
	b := func(i int) float32 { return (x[i] + x[i+2]) + (x[i+1] + x[i+3]) }
	if got, want := DotF32(x, one), (b(0)+b(8))+(b(4)+b(12)); got != want {
		t.Fatal(got, want)
	}
	// 1 + 2⁻²⁴ is lost before the other half is added: odd elements come first.
	px, pw := make([]uint16, 4), make([]uint16, 4)
	px[1], pw[1] = 0x3f80, 0x3f80
	px[0], pw[0] = 0x3f80, 0x3380
	if got := DotBF16(px, pw); got != 1 {
		t.Fatal(got)
	}
	if got := DotBF16([]uint16{0x0001}, []uint16{0x7f00}); got != 0 {
		t.Fatal("a denormal operand is zero", got)
	}
}

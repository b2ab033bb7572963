package kern

import (
	"math"
	"math/rand/v2"
	"testing"

	"quill/recipes/dtype"
)

// ulps is the distance of y from the exact value in units of the last place of
// an f32 of that size.
func ulps(y float32, exact float64) float64 {
	if float64(y) == exact || y != y && exact != exact {
		return 0
	}
	if math.Abs(exact) > math.MaxFloat32 {
		// Only values that round to infinity may become it.
		if math.IsInf(float64(y), 0) && (y > 0) == (exact > 0) {
			return 0
		}
		return math.Abs(float64(y)-exact) / 0x1p104
	}
	_, e := math.Frexp(exact)
	return math.Abs(float64(y)-exact) / math.Ldexp(1, max(e-24, -149))
}

func sigmoid64(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// silu64 is NaN for −∞, as the kernels are.
func silu64(x float64) float64 { return x * sigmoid64(x) }

var curves = []struct {
	name string
	run  func(s Kernels, y, x []float32)
	want func(float64) float64
	ulps float64
}{
	{"exp", Kernels.Exp, math.Exp, 1.01},
	{"sigmoid", Kernels.Sigmoid, sigmoid64, 2.5},
	{"silu", Kernels.SiLU, silu64, 3.5},
}

// Values of all sizes, and the edges of the range of the exponential.
func TestCurves(t *testing.T) {
	stride := uint32(3001)
	if testing.Short() {
		stride = 100_003
	}
	var all []float32
	for b := uint64(0); b < 1<<32; b += uint64(stride) {
		all = append(all, math.Float32frombits(uint32(b)))
	}
	for b := range uint32(2000) {
		for _, edge := range []float32{88.72284, -87.33655, -103.97208, -104, 89, 0} {
			all = append(all, math.Float32frombits(math.Float32bits(edge)+b-1000))
		}
	}
	inf := float32(math.Inf(1))
	all = append(all, inf, -inf, float32(math.NaN()), math.MaxFloat32, -math.MaxFloat32)
	for _, c := range curves {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want := make([]float32, len(all))
			c.run(Kernels{}, want, all)
			worst, at := 0.0, float32(0)
			for i, x := range all {
				if want[i] != want[i] && math.Float32bits(want[i]) != nan {
					t.Fatalf("%v: NaN %x", x, math.Float32bits(want[i]))
				}
				exact := c.want(float64(x))
				if c.name == "silu" && x < -87 && math.Abs(float64(want[i])-exact) < 0x1p-142 {
					continue
				}
				if u := ulps(want[i], exact); !(u <= worst) {
					worst, at = u, x
				}
			}
			t.Logf("%.3f ulp at %v", worst, at)
			if !(worst <= c.ulps) {
				t.Errorf("%v ulp at %v, want at most %v", worst, at, c.ulps)
			}
			got := make([]float32, len(all))
			for _, s := range tiers()[1:] {
				c.run(s, got, all)
				for i, x := range all {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("%v: %s(%v) = %x, law %x", s.Tier(), c.name, x, got[i], want[i])
					}
				}
			}
		})
	}
}

func TestConversions(t *testing.T) {
	h := make([]uint16, 1<<16)
	for i := range h {
		h[i] = uint16(i)
	}
	r := rand.New(rand.NewPCG(8, 8))
	f := make([]float32, 1<<20+7)
	for i := range f {
		f[i] = math.Float32frombits(r.Uint32())
		if i%4 == 0 { // ties
			f[i] = math.Float32frombits(r.Uint32()&0xffff8000 | r.Uint32N(3) - 1)
		}
	}
	for _, s := range tiers() {
		y := make([]float32, len(h))
		s.Widen(y, h)
		for i, v := range y {
			if math.Float32bits(v) != uint32(i)<<16 {
				t.Fatalf("%v: %x widened to %x", s.Tier(), i, math.Float32bits(v))
			}
		}
		back := make([]uint16, len(f))
		s.Narrow(back, f)
		for i, v := range back {
			if want := dtype.ToBF16(f[i]); v != want {
				t.Fatalf("%v: %x rounded to %x, want %x", s.Tier(), math.Float32bits(f[i]), v, want)
			}
		}
	}
}

func TestAxpy(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for i := range 400 {
		x, y := make([]float32, i), make([]float32, i+1)
		for j := range x {
			x[j], y[j] = special.value(r), special.value(r)
		}
		y[i] = canary
		v := ranging.value(r)
		for _, s := range tiers() {
			got := append([]float32(nil), y...)
			s.Axpy(got[:i], v, x)
			for j := range x {
				if want := quiet(fma(v, x[j], y[j])); math.Float32bits(got[j]) != math.Float32bits(want) {
					t.Fatalf("%v: %v·%v + %v = %v, want %v", s.Tier(), v, x[j], y[j], got[j], want)
				}
			}
			if got[i] != canary {
				t.Fatal(s.Tier(), "wrote beyond x")
			}
		}
	}
}

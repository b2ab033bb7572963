package kern

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Terms are added in the order of k, each with one rounding.
func TestOrder(t *testing.T) {
	x, one := []float32{1, 0x1p-24, 0x1p-24}, []float32{1, 1, 1}
	reversed := []float32{0x1p-24, 0x1p-24, 1}
	big, small := float32(1<<12+1), float32(-(1<<24 + 1<<13))
	for _, s := range tiers() {
		var y [1]float32
		mul := func(x, w []float32) float32 {
			s.MulF32(y[:], 1, x, len(x), w, 1, 1, 1, len(x))
			return y[0]
		}
		if v := mul(x, one); v != 1 {
			t.Error(s.Tier(), v)
		}
		if v := mul(reversed, one); v != 1+0x1p-23 {
			t.Error(s.Tier(), v)
		}
		if v := mul([]float32{small, big}, []float32{1, big}); v != 1 {
			t.Error(s.Tier(), "a product is rounded:", v)
		}
	}
}

// A row of w that meets a zero of either sign changes nothing, wherever it is,
// not even the sign of a sum that is zero; so company in a product with zeros
// and ones does not show.
func TestZeroTerms(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 14))
	negative := float32(math.Copysign(0, -1))
	for range 400 {
		m, n, k, more := 1+r.IntN(9), 1+r.IntN(90), r.IntN(40), 1+r.IntN(20)
		kind := []spice{plain, ranging, tiny}[r.IntN(3)]
		draw := func(size int) []float32 {
			x := make([]float32, size)
			for i := range x {
				if x[i] = kind.value(r); kind == tiny && r.IntN(2) == 0 {
					x[i] *= 0x1p-20 // their products vanish
				}
			}
			return x
		}
		x, w := draw(m*k), draw(k*n)
		// The same with more terms.
		at := slices.Sorted(slices.Values(r.Perm(k + more)[:k]))
		longX, longW := make([]float32, m*(k+more)), draw((k+more)*n)
		for i := range longX {
			if r.IntN(2) == 0 {
				longX[i] = negative
			}
		}
		for l, to := range at {
			for i := range m {
				longX[i*(k+more)+to] = x[i*k+l]
			}
			copy(longW[to*n:][:n], w[l*n:])
		}
		for _, s := range tiers() {
			want, got := make([]float32, m*n), make([]float32, m*n)
			s.MulF32(want, n, x, k, w, n, m, n, k)
			s.MulF32(got, n, longX, k+more, longW, n, m, n, k+more)
			same(t, s.Tier().String()+" f32", got, want)
			s.MulBF16(want, n, cut(x), k, cut(w), n, m, n, k)
			s.MulBF16(got, n, cut(longX), k+more, cut(longW), n, m, n, k+more)
			same(t, s.Tier().String()+" bf16", got, want)
		}
	}
}

// A product in parts of k has the bits of one product.
func TestProductInParts(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 15))
	for range 300 {
		m, n, k := 1+r.IntN(20), 1+r.IntN(140), r.IntN(700)
		x, w := make([]float32, m*k), make([]float32, k*n)
		kind := []spice{plain, ranging, tiny}[r.IntN(3)]
		for i := range x {
			x[i] = kind.value(r)
		}
		for i := range w {
			w[i] = kind.value(r)
		}
		if r.IntN(4) == 0 && k > 0 {
			x[r.IntN(len(x))], w[r.IntN(len(w))] = float32(math.Inf(1)), float32(math.NaN())
		}
		cuts := []int{0, r.IntN(k + 1), r.IntN(k + 1), k}
		slices.Sort(cuts)
		for _, s := range tiers() {
			want, got := make([]float32, m*n), make([]float32, m*n)
			s.MulF32(want, n, x, k, w, n, m, n, k)
			s.MulF32(got, n, x, k, w, n, m, n, cuts[1])
			for i := 1; i < 3; i++ {
				s.AddMulF32(got, n, x[min(cuts[i], len(x)):], k, w[cuts[i]*n:], n, m, n, cuts[i+1]-cuts[i])
			}
			same(t, s.Tier().String()+" f32", got, want)
			xh, wh := cut(x), cut(w)
			s.MulBF16(want, n, xh, k, wh, n, m, n, k)
			s.MulBF16(got, n, xh, k, wh, n, m, n, cuts[1])
			for i := 1; i < 3; i++ {
				s.AddMulBF16(got, n, xh[min(cuts[i], len(xh)):], k, wh[cuts[i]*n:], n, m, n, cuts[i+1]-cuts[i])
			}
			same(t, s.Tier().String()+" bf16", got, want)
		}
	}
}

func cut(x []float32) []uint16 {
	h := make([]uint16, len(x))
	for i, v := range x {
		h[i] = uint16(math.Float32bits(v) >> 16)
	}
	return h
}

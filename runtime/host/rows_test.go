package host

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// cut returns row r of the slowest dim as a tensor of one row.
func (v *val) cut(r int) *val {
	last := len(v.dims) - 1
	n := product(v.dims[:last])
	c := &val{v.dt, slices.Clone(v.dims), v.x[r*n : (r+1)*n]}
	c.dims[last] = 1
	return c
}

// A row of a batch has the bits it has alone, whatever the size of the batch.
func TestRowsAreIndependent(t *testing.T) {
	for _, dt := range []dtype.Type{f32, bf16} {
		s := "_" + dt.String()
		g := newGen(3)
		for _, rows := range []int{2, 3, 63, 64, 65, 130} {
			k, n := 1+g.IntN(300), 1+g.IntN(50)
			x := func(d ...int) *val { return g.values(dt, false, d...) }
			// Operand slots listed in whole are the same for every row.
			for _, c := range []struct {
				testCase
				whole []int
			}{
				{testCase{guid: "gemm", params: gemmP(0, 1), in: []*val{x(k, rows), x(k, n)}, out: []*val{newVal(f32, n, rows)}}, []int{1}},
				{testCase{guid: "gemm", params: gemmP(0, 0), in: []*val{x(k, rows), x(n, k)}, out: []*val{newVal(dt, n, rows)}}, []int{1}},
				{testCase{guid: "batch_gemm", params: gemmP(0, 1), in: []*val{x(k, 2, rows), x(k, n, 1)}, out: []*val{newVal(dt, n, 2, rows)}}, []int{1}},
				{testCase{guid: "batch_gemm", params: gemmP(0, 0), in: []*val{x(k, 2, rows), x(n, k, rows)}, out: []*val{newVal(dt, n, 2, rows)}}, nil},
				{testCase{guid: "softmax_fwd" + s, params: axisP("ns_Softmax::Params", "dim", recipes.I32, 0), in: []*val{x(k, rows)}, out: []*val{newVal(dt, k, rows)}}, nil},
				{testCase{guid: "rms_norm_fwd" + s, params: normP(1e-6), in: []*val{x(k, rows), x(k)}, out: []*val{newVal(dt, k, rows), newVal(f32, 1, rows)}}, []int{1}},
				{testCase{guid: "reduce_sum_fwd" + s, params: axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 0), in: []*val{x(k, rows)}, out: []*val{newVal(dt, 1, rows)}}, nil},
				{testCase{guid: "reduce_sum_fwd" + s, params: axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 1), in: []*val{x(3, k, rows)}, out: []*val{newVal(dt, 3, 1, rows)}}, nil},
				{testCase{guid: "topk", params: topkP(1, 0), in: []*val{x(k, rows), nil, nil}, out: []*val{newVal(dt, 1, rows), newVal(i32, 1, rows)}}, []int{1, 2}},
				{testCase{guid: "topk", params: topkP(k, 0), in: []*val{x(k, rows), nil, nil}, out: []*val{newVal(dt, k, rows), newVal(i32, k, rows)}}, []int{1, 2}},
				{testCase{guid: "silu_fwd" + s, in: []*val{x(k, rows)}, out: []*val{newVal(dt, k, rows)}}, nil},
				{testCase{guid: "mult_fwd" + s, in: []*val{x(k, rows), x(1, rows)}, out: []*val{newVal(dt, k, rows)}}, nil},
				{testCase{guid: "moe" + s, params: moeP(1, 3), in: []*val{
					x(k, rows), g.indices(5, 2, rows), x(2, rows),
					x(k, 2*n), x(k, 2*n), x(k, 2*n), x(n, k), x(n, k), x(n, k),
				}, out: []*val{newVal(dt, k, rows)}}, []int{3, 4, 5, 6, 7, 8}},
			} {
				batch := c.run(t)
				for _, r := range []int{0, 1, rows / 2, rows - 1} {
					one := testCase{guid: c.guid, params: c.params}
					for i, v := range c.in {
						if !slices.Contains(c.whole, i) {
							v = v.cut(r)
						}
						one.in = append(one.in, v)
					}
					for _, v := range c.out {
						one.out = append(one.out, v.cut(r))
					}
					for o, m := range one.run(t) {
						if !slices.Equal(m, batch[o][r*len(m):(r+1)*len(m)]) {
							t.Errorf("%s: output %d, row %d of %d differs from the row alone", c.guid, o, r, rows)
						}
					}
				}
			}
		}
	}
}

// A product has the same bits however A lies in memory.
func TestGemmLayouts(t *testing.T) {
	g := newGen(4)
	for range 60 {
		m, n, k := g.IntN(100), g.IntN(300), g.IntN(50)
		dt := pick(g, f32, bf16)
		a, b := g.values(dt, false, k, m), g.values(dt, false, k, n)
		for tb, b := range []*val{flip(b), b} {
			want := gemmBytes(t, 0, int64(tb), a, b, m, n)
			if got := gemmBytes(t, 1, int64(tb), flip(a), b, m, n); !slices.Equal(want, got) {
				t.Errorf("m=%d n=%d k=%d %v transpose_b=%d: A transposed differs", m, n, k, dt, tb)
			}
		}
	}
}

// Without transpose_b, terms that are exactly 0 change nothing wherever they
// stand: a row of a 0/1 matrix picks the same sum whatever lies between what it
// picks. Decoding relies on it to be independent of a sequence's company.
func TestZeroTermsChangeNothing(t *testing.T) {
	g := newGen(5)
	for range 60 {
		m, n, k := 1+g.IntN(4), 1+g.IntN(300), 1+g.IntN(40)
		dt := pick(g, f32, bf16)
		a, b := g.values(dt, false, k, m), g.values(dt, false, k, n)
		at := make([]int, k) // where each term goes among others
		wide := 0
		for i := range at {
			wide += g.IntN(4)
			at[i] = wide
			wide++
		}
		wideA, wideB := newVal(dt, wide, m), g.values(dt, false, n, wide)
		for i, to := range at {
			for r := range m {
				wideA.x[r*wide+to] = a.get(i, r)
			}
			for c := range n {
				wideB.x[to*n+c] = b.get(i, c)
			}
		}
		if !slices.Equal(gemmBytes(t, 0, 0, a, flip(b), m, n), gemmBytes(t, 0, 0, wideA, wideB, m, n)) {
			t.Errorf("m=%d n=%d k=%d %v: zero terms change the sum", m, n, k, dt)
		}
	}
}

// flip transposes a matrix.
func flip(v *val) *val {
	y := newVal(v.dt, v.dims[1], v.dims[0])
	y.each(func(i int, idx []int) { y.x[i] = v.get(idx[1], idx[0]) })
	return y
}

func gemmBytes(t *testing.T, ta, tb int64, a, b *val, m, n int) []byte {
	t.Helper()
	c := testCase{guid: "gemm", params: gemmP(ta, tb), in: []*val{a, b}, out: []*val{newVal(f32, n, m)}}
	return c.run(t)[0]
}

// The roundings of a norm, bit for bit: given inv_rms, nothing is left open.
func TestRMSNormRounds(t *testing.T) {
	g := newGen(6)
	for range 100 {
		dt := pick(g, f32, bf16)
		d, rows := 1+g.IntN(100), 1+g.IntN(4)
		c := testCase{
			guid: "rms_norm_fwd_" + dt.String(), params: normP(1e-5),
			in: []*val{g.values(dt, false, d, rows), g.values(dt, false, d)}, out: []*val{newVal(dt, d, rows), newVal(f32, 1, rows)},
		}
		out := c.run(t)
		inv, y := c.out[1].decode(out[1]), c.out[0].decode(out[0])
		c.out[0].each(func(i int, idx []int) {
			s := rounded(dt, rounded(f32, c.in[0].x[i]*inv[idx[1]]))
			if want := rounded(dt, rounded(f32, s*c.in[1].x[idx[0]])); y[i] != want {
				t.Errorf("%v: element %d is %v, want %v", dt, i, y[i], want)
			}
		})
	}
}

// The roundings of a mixture of experts, bit for bit: with one hidden element
// and F = 1 no sum but that over experts is left.
func TestMoERounds(t *testing.T) {
	g := newGen(8)
	kernels, err := kern.FromEnv()
	require.NoError(t, err)
	silu := func(x float64) float64 {
		y := []float32{float32(x)}
		kernels.SiLU(y, y)
		return float64(y[0])
	}
	for range 200 {
		dt := pick(g, f32, bf16)
		tokens, k, experts := 1+g.IntN(4), 1+g.IntN(4), 3
		x, tab, w := g.values(dt, false, 1, tokens), g.indices(experts, k, tokens), g.values(dt, false, k, tokens)
		c := testCase{guid: "moe_" + dt.String(), params: moeP(0, experts-1), in: []*val{x, tab, w}, out: []*val{newVal(dt, 1, tokens)}}
		for range experts {
			c.in = append(c.in, g.values(dt, false, 1, 2))
		}
		for range experts {
			c.in = append(c.in, g.values(dt, false, 1, 1))
		}
		got := c.out[0].decode(c.run(t)[0])
		r := func(v float64) float64 { return rounded(dt, rounded(f32, v)) }
		for tok := range tokens {
			sum := float32(0)
			for e := range experts {
				for j := range k {
					if int(tab.get(j, tok)) != e {
						continue
					}
					gate, up := r(c.in[3+e].x[0]*x.x[tok]), r(c.in[3+e].x[1]*x.x[tok])
					act := r(silu(gate) * up)
					// One rounding: the product is exact in f64.
					sum = float32(float64(sum) + w.get(j, tok)*r(c.in[3+experts+e].x[0]*act))
				}
			}
			if want := rounded(dt, float64(sum)); got[tok] != want {
				t.Errorf("%v: token %d is %v, want %v", dt, tok, got[tok], want)
			}
		}
	}
}

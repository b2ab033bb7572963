package host

import (
	"slices"
	"testing"

	"quill/recipes"
	"quill/recipes/dtype"
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
				{testCase{guid: "moe" + s, params: moeP(1, 3), in: []*val{x(k, rows), g.indices(5, 2, rows), x(2, rows),
					x(k, 2*n), x(k, 2*n), x(k, 2*n), x(n, k), x(n, k), x(n, k)}, out: []*val{newVal(dt, k, rows)}}, []int{3, 4, 5, 6, 7, 8}},
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

// Both forms of the dot product give the same bits.
func TestDotForms(t *testing.T) {
	g := newGen(1)
	for n := range 40 {
		a, b, w := make([]float32, n), make([]uint16, n), make([]float32, n)
		for i := range a {
			a[i], b[i] = float32(g.NormFloat64()), dtype.ToBF16(float32(g.NormFloat64()))
		}
		widen(w, b)
		if x, y := dot(a, w), dotWide(a, b); x != y {
			t.Errorf("length %d: %v and %v", n, x, y)
		}
	}
}

package target

import (
	"fmt"
	"math"
	"slices"

	"quill/recipes"
	"quill/recipes/dtype"
)

// product checks A {K,M} by B {N,K}, or {K,N} transposed, and what is behind them: the
// batch.
func product(c *nodeCheck) error {
	a, b, y := c.in(0), c.in(1), c.out(0)
	if a.DType != b.DType {
		return c.illegal("product-types", c.inName(1), fmt.Sprintf("%s, that of a", a.DType), b.DType.String())
	}
	if y.DType != a.DType && y.DType != dtype.F32 {
		want := "f32"
		if a.DType != dtype.F32 {
			want = a.DType.String() + " or f32"
		}
		return c.illegal("product-types", c.outName(0), want, y.DType.String())
	}
	if len(b.Dims) != len(a.Dims) {
		return c.illegal("product-batch", c.inName(1), fmt.Sprintf("rank %d, that of a", len(a.Dims)), dimsText(b.Dims))
	}
	k, m := c.oriented(a, "transpose_a")
	n, inner := c.oriented(b, "transpose_b")
	if inner != k {
		return c.illegal("product-inner", c.inName(1), fmt.Sprintf("%d to sum over, as a in %s", k, dimsText(a.Dims)), fmt.Sprintf("%d in %s", inner, dimsText(b.Dims)))
	}
	want := []int64{n, m}
	for i := 2; i < len(a.Dims); i++ {
		x, z := a.Dims[i], b.Dims[i]
		if x != z && x != 1 && z != 1 {
			return c.illegal("product-batch", c.inName(1), fmt.Sprintf("1 or %d in dim %d, as a in %s", x, i, dimsText(a.Dims)), dimsText(b.Dims))
		}
		if x == 1 {
			x = z
		}
		want = append(want, x)
	}
	return c.outDims("product-result", 0, want)
}

// oriented gives the first two dims of an operand, turned if a parameter says so.
func (c *nodeCheck) oriented(t *recipes.Tensor, flag string) (first, second int64) {
	if turned, _ := c.n.Params.Int(flag); turned != 0 {
		return t.Dims[1], t.Dims[0]
	}
	return t.Dims[0], t.Dims[1]
}

func norm(c *nodeCheck) error {
	x := c.in(0)
	p := c.n.Params
	for _, f := range []struct {
		name string
		want int64
	}{{"epsValid", 1}, {"NormAxisBmp", 1}, {"ParamAxisBmp", 1}, {"normalizedShapeDims", 1}} {
		if v, _ := p.Int(f.name); v != f.want {
			return c.illegal("norm-params", "parameter "+f.name, fmt.Sprint(f.want), fmt.Sprint(v))
		}
	}
	if eps, _ := p.FloatOf("eps"); !(eps > 0) || math.IsInf(float64(eps), 0) {
		return c.illegal("norm-params", "parameter eps", "a finite number above 0", fmt.Sprint(eps))
	}
	if err := c.inDims("norm", 1, x.Dims[:1]); err != nil {
		return err
	}
	if err := c.outDims("norm", 0, x.Dims); err != nil {
		return err
	}
	return c.outDims("norm", 1, withDim(x.Dims, 0, 1))
}

// group is the dim of queries' heads that share keys and values, over which these are
// broadcast.
const group = 2

func attention(c *nodeCheck) error {
	if err := c.attentionParams(); err != nil {
		return err
	}
	q, k, v := c.in(0), c.in(1), c.in(2)
	for i, t := range []*recipes.Tensor{k, v} {
		if len(t.Dims) != len(q.Dims) {
			return c.illegal("attention-dims", c.inName(1+i), fmt.Sprintf("rank %d, that of q", len(q.Dims)), dimsText(t.Dims))
		}
		for d := 2; d < len(q.Dims); d++ {
			have, want := t.Dims[d], q.Dims[d]
			switch {
			case have == want, d == group && have == 1 && len(q.Dims) > group+1:
			case d == group:
				return c.illegal("attention-heads", c.inName(1+i), fmt.Sprintf("1 or %d in dim %d, as q in %s", want, d, dimsText(q.Dims)), dimsText(t.Dims))
			default:
				return c.illegal("attention-dims", c.inName(1+i), fmt.Sprintf("%d in dim %d, as q in %s", want, d, dimsText(q.Dims)), dimsText(t.Dims))
			}
		}
	}
	if k.Dims[0] != q.Dims[0] {
		return c.illegal("attention-dims", c.inName(1), fmt.Sprintf("%d in dim 0, as q in %s", q.Dims[0], dimsText(q.Dims)), dimsText(k.Dims))
	}
	if err := c.inDims("attention-dims", 2, withDim(k.Dims, 0, v.Dims[0])); err != nil {
		return err
	}
	if err := c.attentionMask(withDim(q.Dims, 0, k.Dims[1])); err != nil {
		return err
	}
	if err := c.outDims("attention-dims", 0, withDim(q.Dims, 0, v.Dims[0])); err != nil {
		return err
	}
	for i := 1; i < len(c.n.Out); i++ {
		if err := c.outDims("attention-statistics", i, withDim(q.Dims, 0, 1)); err != nil {
			return err
		}
	}
	return nil
}

func (c *nodeCheck) attentionParams() error {
	p, masked := c.n.Params, c.in(3) != nil
	if causal, _ := p.Int("is_causal"); causal != 0 && masked {
		return c.illegal("attention-causal", "parameter is_causal", "0 beside the mask", fmt.Sprint(causal))
	}
	want := 3
	if inference, _ := p.Int("is_inference"); inference != 0 {
		want = 1
	}
	if n := len(c.n.Out); n != want || slices.Contains(c.n.Out, recipes.Absent) {
		return c.illegal("attention-statistics", "results", fmt.Sprintf("%d, as is_inference says", want), fmt.Sprint(n))
	}
	if ratio, _ := p.FloatOf("dropout.ratio"); ratio != 0 {
		return c.illegal("attention-params", "parameter dropout.ratio", "0", fmt.Sprint(ratio))
	}
	if scale, _ := p.FloatOf("scale"); math.IsInf(float64(scale), 0) || math.IsNaN(float64(scale)) {
		return c.illegal("attention-params", "parameter scale", "a finite number", fmt.Sprint(scale))
	}
	return nil
}

// attentionMask checks a mask, if there is one, against the dims of the scores.
func (c *nodeCheck) attentionMask(scores []int64) error {
	mask := c.in(3)
	if mask == nil {
		return nil
	}
	ok := len(mask.Dims) == len(scores) && mask.Dims[0] == scores[0]
	for d := 1; ok && d < len(scores); d++ {
		ok = mask.Dims[d] == 1 || mask.Dims[d] == scores[d]
	}
	if !ok {
		return c.illegal("attention-mask", c.inName(3), "dims "+dimsText(scores)+", or 1 in any but the first", dimsText(mask.Dims))
	}
	return nil
}

func experts(c *nodeCheck) error {
	p := c.n.Params
	if act, flags := p.SymOf("activation"), p.SymOf("flags"); act != "silu" || flags != "MOE_FLAGS_PERMUTED_WEIGHTS|MOE_FLAGS_FUSED_GEMM" {
		return c.illegal("experts-form", "parameters activation and flags", "silu and MOE_FLAGS_PERMUTED_WEIGHTS|MOE_FLAGS_FUSED_GEMM", fmt.Sprintf("%s and %s", act, flags))
	}
	low, lowOK := p.Int("experts_min")
	high, highOK := p.Int("experts_max")
	count := int64(len(c.n.In)-3) / 2
	if !lowOK || !highOK || low < 0 || high-low+1 != count {
		return c.illegal("experts-count", "parameters experts_min and experts_max", fmt.Sprintf("the numbers of %d experts", count), fmt.Sprintf("%d to %d", low, high))
	}
	hidden, table := c.in(0).Dims, c.in(1).Dims
	if err := c.inDims("experts-dims", 1, []int64{table[0], hidden[1]}); err != nil {
		return err
	}
	if err := c.inDims("experts-dims", 2, table); err != nil {
		return err
	}
	inner := c.in(3).Dims[1] / 2
	for i := 3; i < len(c.n.In); i++ {
		want := []int64{hidden[0], 2 * inner}
		if int64(i) >= 3+count {
			want = []int64{inner, hidden[0]}
		}
		if err := c.inDims("experts-dims", i, want); err != nil {
			return err
		}
	}
	return c.outDims("experts-dims", 0, hidden)
}

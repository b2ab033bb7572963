package target

import (
	"fmt"
	"math"
	"slices"

	"quill/recipes/dtype"
)

// shapeRules check what entries do not say: how dims, types and parameters of a node's
// operands go together. Operands have been checked against the entry, so there are as
// many as it lists; parameters too, unless their layout is missing.
var shapeRules = map[string]func(*nodeCheck) error{
	"add_fwd": elementwise, "sub_fwd": elementwise, "mult_fwd": elementwise, "div_fwd": elementwise, "max_fwd": elementwise, "min_fwd": elementwise,
	"less_fwd": elementwise, "less_equal_fwd": elementwise, "equal_fwd": elementwise, "and_fwd": elementwise, "where_fwd": elementwise,
	"neg_fwd": elementwise, "exp_fwd": elementwise, "log_fwd": elementwise, "sigmoid_fwd": elementwise, "silu_fwd": elementwise, "softplus_fwd": elementwise,
	"cast_f32_to": elementwise, "cast_bf16_to": elementwise, "cast_i32_to": elementwise, "cast_i8_to": elementwise,

	"identity": moved(reshape), "reshape": moved(reshape), "transpose": moved(transpose), "broadcast": moved(broadcast),
	"slice_axis": moved(slice), "concat": moved(concat),

	"constant": constant, "range": rangeOf,

	"reduce_sum_fwd": reduce, "reduce_max_fwd": reduce, "softmax_fwd": softmax, "topk": topk,
	"gather_fwd": gather, "gather_elements_fwd": gatherElements, "index_copy_fwd": indexCopy,

	"gemm": product, "batch_gemm": product, "rms_norm_fwd": norm, "sdpa_recomp_fwd": attention, "moe": experts,
}

// elementwise checks operands that are broadcast to a result.
func elementwise(c *nodeCheck) error {
	want := slices.Clone(c.in(0).Dims)
	for i := range c.n.In {
		x := c.in(i).Dims
		if len(x) != len(want) {
			return c.illegal("elementwise-dims", c.inName(i), fmt.Sprintf("rank %d, that of operand 0", len(want)), fmt.Sprintf("%d, of %s", len(x), dimsText(x)))
		}
		for k, d := range x {
			switch {
			case want[k] == 1:
				want[k] = d
			case d != 1 && d != want[k]:
				return c.illegal("elementwise-dims", c.inName(i), fmt.Sprintf("1 or %d in dim %d", want[k], k), dimsText(x))
			}
		}
	}
	return c.outDims("elementwise-dims", 0, want)
}

// moved checks a node that keeps elements as they are.
func moved(dims func(*nodeCheck) error) func(*nodeCheck) error {
	return func(c *nodeCheck) error {
		for i := range c.n.In {
			if x, y := c.in(i), c.out(0); x.DType != y.DType {
				return c.illegal("move-type", c.outName(0), fmt.Sprintf("%s, that of operand %d", x.DType, i), y.DType.String())
			}
		}
		return dims(c)
	}
}

func reshape(c *nodeCheck) error {
	x, y := c.in(0), c.out(0)
	if c.entry.GUID == "identity" {
		return c.outDims("reshape", 0, x.Dims)
	}
	if x.Elems() != y.Elems() {
		return c.illegal("reshape", c.outName(0), fmt.Sprintf("%d elements, as in %s", x.Elems(), dimsText(x.Dims)), fmt.Sprintf("%d in %s", y.Elems(), dimsText(y.Dims)))
	}
	return nil
}

func transpose(c *nodeCheck) error {
	x := c.in(0)
	perm := c.n.Params.IntsOf("permutation")
	want := make([]int64, len(perm))
	seen := make([]bool, len(x.Dims))
	ok := len(perm) == len(x.Dims)
	for i, a := range perm {
		if ok = ok && a >= 0 && a < int64(len(x.Dims)) && !seen[a]; !ok {
			break
		}
		seen[a], want[i] = true, x.Dims[a]
	}
	if !ok {
		return c.illegal("transpose", "parameter permutation", fmt.Sprintf("each of 0 to %d once", len(x.Dims)-1), fmt.Sprint(perm))
	}
	return c.outDims("transpose", 0, want)
}

func broadcast(c *nodeCheck) error {
	x, y := c.in(0).Dims, c.out(0).Dims
	ok := len(x) == len(y)
	for k := range x {
		ok = ok && (x[k] == 1 || x[k] == y[k])
	}
	if !ok {
		return c.illegal("broadcast", c.inName(0), "dims "+dimsText(y)+", or 1 in any", dimsText(x))
	}
	return nil
}

func slice(c *nodeCheck) error {
	x := c.in(0)
	axis, err := c.axis("axis", x)
	if err != nil {
		return err
	}
	begin, _ := c.n.Params.Int("begin")
	end, _ := c.n.Params.Int("end")
	if begin < 0 || begin >= end || end > x.Dims[axis] {
		return c.illegal("slice", "parameters begin and end", fmt.Sprintf("a part of 0 to %d, dim %d of tensor %s", x.Dims[axis], axis, x.Name), fmt.Sprintf("%d to %d", begin, end))
	}
	return c.outDims("slice", 0, withDim(x.Dims, axis, end-begin))
}

func concat(c *nodeCheck) error {
	y := c.out(0)
	axis, err := c.axis("axis", y)
	if err != nil {
		return err
	}
	sum := int64(0)
	for i := range c.n.In {
		x := c.in(i)
		if len(x.Dims) != len(y.Dims) || !slices.Equal(withDim(x.Dims, axis, 0), withDim(y.Dims, axis, 0)) {
			return c.illegal("concat", c.inName(i), fmt.Sprintf("dims %s but for dim %d", dimsText(y.Dims), axis), dimsText(x.Dims))
		}
		sum += x.Dims[axis]
	}
	return c.outDims("concat", 0, withDim(y.Dims, axis, sum))
}

func constant(c *nodeCheck) error {
	t := c.out(0).DType
	if f, ok := c.n.Params.FloatOf("value"); t.IsFloat() {
		if t == dtype.BF16 {
			f = dtype.RoundBF16(f)
		}
		if wide := float64(f); !ok || math.IsInf(wide, 0) || math.IsNaN(wide) {
			return c.illegal("constant-finite", "parameter value", fmt.Sprintf("a finite number of %s", t), fmt.Sprint(f))
		}
		return nil
	}
	v, ok := c.n.Params.Int("value")
	s := scalars[map[dtype.Type]string{dtype.I8: "int8_t", dtype.U8: "uint8_t", dtype.I32: "int32_t"}[t]]
	if !ok || float64(v) < s.min || float64(v) > s.max {
		return c.illegal("constant-range", "parameter value", fmt.Sprintf("a number of %s, %.0f to %.0f", t, s.min, s.max), fmt.Sprint(v))
	}
	return nil
}

// rangeOf has integers: recipes have no other ranges.
func rangeOf(c *nodeCheck) error {
	start, _ := c.n.Params.Int("start")
	limit, _ := c.n.Params.Int("limit")
	delta, ok := c.n.Params.Int("delta")
	y := c.out(0)
	if !ok || delta == 0 || limit-start != delta*y.Dims[0] {
		return c.illegal("range", "parameters of "+c.outName(0), fmt.Sprintf("%d steps of delta from start to limit", y.Dims[0]), fmt.Sprintf("start %d, limit %d, delta %d", start, limit, delta))
	}
	return nil
}

func reduce(c *nodeCheck) error {
	x := c.in(0)
	axis, err := c.axis("reductionDimension", x)
	if err != nil {
		return err
	}
	return c.outDims("reduce", 0, withDim(x.Dims, axis, 1))
}

func softmax(c *nodeCheck) error {
	if _, err := c.axis("dim", c.in(0)); err != nil {
		return err
	}
	return c.outDims("elementwise-dims", 0, c.in(0).Dims)
}

func topk(c *nodeCheck) error {
	x := c.in(0)
	axis, err := c.axis("axis", x)
	if err != nil {
		return err
	}
	k, _ := c.n.Params.Int("bsw")
	if k < 1 || k > x.Dims[axis] {
		return c.illegal("topk", "parameter bsw", fmt.Sprintf("1 to %d, dim %d of tensor %s", x.Dims[axis], axis, x.Name), fmt.Sprint(k))
	}
	if v := c.out(0).DType; v != x.DType {
		return c.illegal("type", c.outName(0), fmt.Sprintf("%s, that of operand 0", x.DType), v.String())
	}
	for i := range c.n.Out {
		if err := c.outDims("topk", i, withDim(x.Dims, axis, k)); err != nil {
			return err
		}
	}
	return nil
}

func gather(c *nodeCheck) error {
	x := c.in(0)
	axis, err := c.axis("axis", x)
	if err != nil {
		return err
	}
	want := slices.Concat(x.Dims[:axis], c.in(1).Dims, x.Dims[axis+1:])
	return c.outDims("gather", 0, want)
}

func gatherElements(c *nodeCheck) error {
	x, index := c.in(0), c.in(1)
	axis, err := c.axis("axis", x)
	if err != nil {
		return err
	}
	if len(index.Dims) != len(x.Dims) || !slices.Equal(withDim(index.Dims, axis, 0), withDim(x.Dims, axis, 0)) {
		return c.illegal("gather-elements", c.inName(1), fmt.Sprintf("dims %s but for dim %d", dimsText(x.Dims), axis), dimsText(index.Dims))
	}
	return c.outDims("gather-elements", 0, index.Dims)
}

func indexCopy(c *nodeCheck) error {
	x, index := c.in(0), c.in(1)
	axis, err := c.axis("axis", x)
	if err != nil {
		return err
	}
	if axis != 0 {
		return c.illegal("axis", "parameter axis", "0, the slowest dim: only for it both ways of counting are known to agree with the node's meaning here", fmt.Sprint(axis))
	}
	if err := c.inDims("index-copy", 2, withDim(x.Dims, int64(len(x.Dims))-1, index.Dims[0])); err != nil {
		return err
	}
	return c.outDims("index-copy", 0, x.Dims)
}

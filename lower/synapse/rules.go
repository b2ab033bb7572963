package synapse

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/recipes"
	"quill/recipes/dtype"
)

// rule emits the nodes of one op; outs are the tensors of its results.
type rule func(e *emitter, o *ir.Op, outs []int) error

// rules lists the Synapse form of every op that a segment can hold.
var rules = map[string]rule{
	"add": elementwise("add_fwd"), "sub": elementwise("sub_fwd"), "mul": elementwise("mult_fwd"), "div": elementwise("div_fwd"),
	"max": elementwise("max_fwd"), "min": elementwise("min_fwd"),
	// The suffix of a comparison is its operands' type.
	"lt": elementwise("less_fwd"), "le": elementwise("less_equal_fwd"), "eq": elementwise("equal_fwd"),
	"and": elementwise("and_fwd"),
	"neg": elementwise("neg_fwd"), "exp": elementwise("exp_fwd"), "log": elementwise("log_fwd"),
	"sigmoid": elementwise("sigmoid_fwd"), "silu": elementwise("silu_fwd"),
	"logsigmoid": logsigmoid,
	"select":     selectRule,
	"cast":       castRule,
	"iota":       iotaRule,
	"const":      constRule,

	"reshape": func(e *emitter, o *ir.Op, outs []int) error {
		e.node("reshape", nil, []int{e.arg(o, 0)}, outs)
		return nil
	},
	"broadcast": func(e *emitter, o *ir.Op, outs []int) error {
		e.node("broadcast", nil, []int{e.arg(o, 0)}, outs)
		return nil
	},
	"transpose": transposeRule,
	"slice":     sliceRule,
	"concat":    concatRule,

	"reduce_sum": reduceRule("reduce_sum_fwd"), "reduce_max": reduceRule("reduce_max_fwd"),
	"softmax":         softmaxRule,
	"topk":            topkRule,
	"gather":          gatherRule,
	"gather_elements": gatherElementsRule,
	"matmul":          matmulRule,
	"matmul_joined":   matmulJoinedRule,

	"rms_norm":   rmsNormRule,
	"short_conv": shortConvRule,
	"moe":        moeRule,
	"embedding":  embeddingRule,
	"sdpa":       sdpaRule,
	"sdpa_stats": sdpaRule,

	"kv_read":    kvReadRule,
	"conv_read":  convReadRule,
	"kv_write":   writeRule,
	"conv_write": writeRule,

	"conv_reads":  convReadsRule,
	"conv_writes": convWritesRule,

	"graph_break": func(*emitter, *ir.Op, []int) error { return nil },
}

// axis turns an IR axis of a tensor into the target's.
func (e *emitter) axis(o *ir.Op, t int) int64 { return int64(len(e.dims(t))) - 1 - o.Int("axis") }

func elementwise(guid string) rule {
	return func(e *emitter, o *ir.Op, outs []int) error {
		in := e.args(o.Args)
		e.node(e.typed(guid, in[0]), nil, in, outs)
		return nil
	}
}

// logsigmoid(x) = −softplus(−x).
func logsigmoid(e *emitter, o *ir.Op, outs []int) error {
	x := e.arg(o, 0)
	a, b := e.temp(e.dtype(x), e.dims(x)...), e.temp(e.dtype(x), e.dims(x)...)
	e.node(e.typed("neg_fwd", x), nil, []int{x}, []int{a})
	e.node(e.typed("softplus_fwd", x), nil, []int{a}, []int{b})
	e.node(e.typed("neg_fwd", x), nil, []int{b}, outs)
	return nil
}

func selectRule(e *emitter, o *ir.Op, outs []int) error {
	e.node(e.typed("where_fwd", outs[0]), nil, e.args(o.Args), outs)
	return nil
}

func castRule(e *emitter, o *ir.Op, outs []int) error {
	e.cast(e.arg(o, 0), outs[0])
	return nil
}

// cast converts a tensor, rounding to nearest even.
func (e *emitter) cast(x, y int) {
	if e.dtype(x) == e.dtype(y) {
		e.node("identity", nil, []int{x}, []int{y})
		return
	}
	e.node(fmt.Sprintf("cast_%s_to_%s", e.dtype(x), e.dtype(y)),
		params("ns_CastKernel::Params", intField("round_mode", recipes.I32, 0)), []int{x}, []int{y})
}

func constRule(e *emitter, o *ir.Op, outs []int) error {
	e.fill(outs[0], o.Attr("value").Float)
	return nil
}

func iotaRule(e *emitter, o *ir.Op, outs []int) error {
	e.multiples(outs[0], e.dims(outs[0])[0], 1)
	return nil
}

// multiples fills a tensor with those of a step, from 0 to below a limit.
func (e *emitter) multiples(t int, limit, step int64) {
	e.node("range_i32", params("ns_RangeKernel::Params",
		intField("start", recipes.I32, 0), intField("limit", recipes.I32, limit), intField("delta", recipes.I32, step)), nil, []int{t})
}

func transposeRule(e *emitter, o *ir.Op, outs []int) error {
	perm := o.Ints("perm")
	n := len(perm)
	if ir.KeepsOrder(o.Args[0].Type.Shape, perm) { // heads move, of which this rank has one
		e.node("reshape", nil, []int{e.arg(o, 0)}, outs)
		return nil
	}
	// Fastest first: output dim i is the reverse of axis n−1−i.
	rev := make([]int64, n)
	for i := range rev {
		rev[i] = int64(n) - 1 - perm[n-1-i]
	}
	e.node("transpose", params("synTransposeParamsNDims",
		intField("tensorDim", recipes.U32, int64(n)), intField("permutation", recipes.U32, rev...)), []int{e.arg(o, 0)}, outs)
	return nil
}

func sliceRule(e *emitter, o *ir.Op, outs []int) error {
	start, _ := o.Attr("start").Dim.Const()
	stop, _ := o.Attr("stop").Dim.Const()
	x := e.arg(o, 0)
	e.slice(x, outs[0], e.axis(o, x), start, stop)
	return nil
}

func (e *emitter) slice(x, y int, axis, begin, end int64) {
	e.node("slice_axis", params("synSliceAxisParamsV2",
		intField("axis", recipes.U32, axis), intField("begin", recipes.U64, begin), intField("end", recipes.U64, end)), []int{x}, []int{y})
}

func concatRule(e *emitter, o *ir.Op, outs []int) error {
	e.concat(e.args(o.Args), outs[0], e.axis(o, outs[0]))
	return nil
}

func (e *emitter) concat(in []int, y int, axis int64) {
	e.node("concat", params("synConcatenateParams", intField("axis", recipes.U32, axis)), in, []int{y})
}

func reduceRule(guid string) rule {
	return func(e *emitter, o *ir.Op, outs []int) error {
		x := e.arg(o, 0)
		e.reduce(guid, x, outs[0], e.axis(o, x))
		return nil
	}
}

func (e *emitter) reduce(guid string, x, y int, axis int64) {
	e.node(e.typed(guid, x), params("ns_Reduction::Params", intField("reductionDimension", recipes.U32, axis)), []int{x}, []int{y})
}

func softmaxRule(e *emitter, o *ir.Op, outs []int) error {
	x := e.arg(o, 0)
	e.node(e.typed("softmax_fwd", x), params("ns_Softmax::Params", intField("dim", recipes.I32, 0)), []int{x}, outs)
	return nil
}

func topkRule(e *emitter, o *ir.Op, outs []int) error {
	e.node("topk", params("ns_TopkNodeV2::ParamsV4",
		intField("bsw", recipes.U32, o.Int("k")), intField("axis", recipes.U32, 0), intField("bottomK", recipes.U8, 0),
		intField("isStable", recipes.U8, 1), intField("isVcData", recipes.U8, 0), intField("kType", recipes.I32, 0)),
		[]int{e.arg(o, 0), recipes.Absent, recipes.Absent}, outs)
	return nil
}

func gatherRule(e *emitter, o *ir.Op, outs []int) error {
	x := e.arg(o, 0)
	e.gather(x, e.arg(o, 1), outs[0], e.axis(o, x))
	return nil
}

func (e *emitter) gather(x, idx, y int, axis int64) {
	e.node(e.typed("gather_fwd", x), params("ns_GatherKernel::Params", intField("axis", recipes.I32, axis)), []int{x, idx}, []int{y})
}

func gatherElementsRule(e *emitter, o *ir.Op, outs []int) error {
	x, idx := e.arg(o, 0), e.arg(o, 1)
	// The node wants an index of the result's dims.
	if !slices.Equal(e.dims(idx), e.dims(outs[0])) {
		full := e.temp(dtype.I32, e.dims(outs[0])...)
		e.node("broadcast", nil, []int{idx}, []int{full})
		idx = full
	}
	e.node(e.typed("gather_elements_fwd", x), params("ns_GatherElementsKernel::Params", intField("axis", recipes.I32, e.axis(o, x))), []int{x, idx}, outs)
	return nil
}

// matmulRule makes one flat product of several with one right-hand side: a product for
// each head uses a quarter of the matrix engine.
func matmulRule(e *emitter, o *ir.Op, outs []int) error {
	a, b, y, transB := e.arg(o, 0), e.arg(o, 1), outs[0], o.Attr("trans_b").Bool
	da, db, dy := e.dims(a), e.dims(b), e.dims(y)
	switch {
	case len(dy) == 2:
		e.product("gemm", a, b, y, transB)
	case slices.ContainsFunc(db[2:], func(n int64) bool { return n != 1 }):
		e.product("batch_gemm", a, b, y, transB)
	default:
		rows := e.r.Tensors[a].Elems() / da[0]
		flat := e.temp(e.dtype(y), dy[0], rows)
		e.product("gemm", e.reshape(a, da[0], rows), e.reshape(b, db[0], db[1]), flat, transB)
		e.node("reshape", nil, []int{flat}, []int{y})
	}
	return nil
}

// product has no bias operand: it would become an addition after rounding.
func (e *emitter) product(guid string, a, b, y int, transB bool) {
	e.node(guid, params("synGEMMParams",
		intField("transpose_a", recipes.U8, 0), intField("transpose_b", recipes.U8, boolInt(transB))), []int{a, b}, []int{y})
}

// matmulJoinedRule multiplies by all weights at once where they lie behind each other,
// and takes the product apart.
func matmulJoinedRule(e *emitter, o *ir.Op, outs []int) error {
	x, weights := e.arg(o, 0), o.Args[1:]
	inner, rows := e.dims(x)[0], e.dims(x)[1]
	at, end := make([]int64, len(weights)), int64(0) // columns
	for i, w := range weights {
		at[i] = end
		end += e.r.Tensors[e.tensors[w]].Elems() / inner
	}
	at = append(at, end)
	whole := recipes.Absent
	if e.adjacent(weights) {
		whole = e.temp(e.dtype(outs[0]), end, rows)
		e.product("gemm", x, e.span(weights[0], inner, end), whole, true)
	}
	for i, w := range weights {
		y := outs[i]
		if len(e.dims(y)) > 2 { // several matrices are one with all their rows
			y = e.temp(e.dtype(y), at[i+1]-at[i], rows)
		}
		if whole == recipes.Absent {
			e.product("gemm", x, e.reshape(e.tensors[w], inner, at[i+1]-at[i]), y, true)
		} else {
			e.slice(whole, y, 0, at[i], at[i+1])
		}
		if y != outs[i] {
			e.node("reshape", nil, []int{y}, []int{outs[i]})
		}
	}
	return nil
}

// span is a tensor of other dims where a parameter begins, which may take in those
// behind it.
func (e *emitter) span(first *ir.Value, ds ...int64) int {
	base := e.r.Tensors[e.tensors[first]]
	return e.tensor(recipes.Tensor{
		Name: fmt.Sprintf("%s.span%d", base.Name, len(e.r.Tensors)), DType: base.DType, Dims: ds, Section: base.Section, Offset: base.Offset,
	})
}

// reshape is a tensor in other dims, itself if it has them.
func (e *emitter) reshape(t int, ds ...int64) int {
	if slices.Equal(e.dims(t), ds) {
		return t
	}
	y := e.temp(e.dtype(t), ds...)
	e.node("reshape", nil, []int{t}, []int{y})
	return y
}

func rmsNormRule(e *emitter, o *ir.Op, outs []int) error {
	x := e.arg(o, 0)
	inv := append([]int64{1}, e.dims(x)[1:]...)
	e.node(e.typed("rms_norm_fwd", x), params("ns_LayerNormKernel::ParamsRmsNorm",
		intField("epsValid", recipes.U8, 1),
		recipes.Field{Name: "eps", Type: recipes.F32, Float: float32(o.Attr("eps").Float)},
		intField("NormAxisBmp", recipes.I32, 1), intField("ParamAxisBmp", recipes.I32, 1),
		intField("normalizedShapeDims", recipes.U32, 1), intField("fastMath", recipes.U8, 0)),
		[]int{x, e.arg(o, 1)}, []int{outs[0], e.temp(dtype.F32, inv...)})
	return nil
}

// shortConvRule has two forms: one token multiplies its window and reduces it;
// more unroll the taps, since a convolution node would turn a depthwise filter
// into dense ones. Both accumulate in f32.
func shortConvRule(e *emitter, o *ir.Op, outs []int) error {
	x, w := e.arg(o, 0), e.arg(o, 1)
	taps := e.dims(w)[1]
	wide := e.temp(dtype.F32, e.dims(x)...)
	if e.dtype(x) == dtype.F32 {
		wide = x
	} else {
		e.cast(x, wide)
	}
	var sum int
	if e.dims(outs[0])[1] == 1 {
		sum = e.convOne(wide, w, taps, e.dims(outs[0]))
	} else {
		sum = e.convUnrolled(wide, w, taps, e.dims(outs[0]))
	}
	now := e.temp(dtype.F32, e.dims(outs[0])...)
	e.slice(wide, now, 1, taps-1, e.dims(x)[1])
	if e.dtype(outs[0]) == dtype.F32 {
		e.node("add_fwd_f32", nil, []int{now, sum}, outs)
		return nil
	}
	y := e.temp(dtype.F32, e.dims(outs[0])...)
	e.node("add_fwd_f32", nil, []int{now, sum}, []int{y})
	e.cast(y, outs[0])
	return nil
}

// widen gives a 2-D tensor the rank of a like one by adding outer dims of 1.
func (e *emitter) widen(t, rank int) int {
	ds := slices.Clone(e.dims(t))
	for len(ds) < rank {
		ds = append(ds, 1)
	}
	return e.reshape(t, ds...)
}

func (e *emitter) convOne(x, w int, taps int64, out []int64) int {
	prod := e.temp(dtype.F32, e.dims(x)...)
	e.node("mult_fwd_f32", nil, []int{x, e.widen(w, len(out))}, []int{prod})
	sum := e.temp(dtype.F32, out...)
	e.reduce("reduce_sum_fwd", prod, sum, 1)
	return sum
}

func (e *emitter) convUnrolled(x, w int, taps int64, out []int64) int {
	sum := recipes.Absent
	for j := range taps {
		xj := e.temp(dtype.F32, out...)
		e.slice(x, xj, 1, j, j+out[1])
		wj := e.temp(dtype.F32, e.dims(w)[0], 1)
		e.slice(w, wj, 1, j, j+1)
		p := e.temp(dtype.F32, out...)
		e.node("mult_fwd_f32", nil, []int{xj, e.widen(wj, len(out))}, []int{p})
		if sum == recipes.Absent {
			sum = p
			continue
		}
		next := e.temp(dtype.F32, out...)
		e.node("add_fwd_f32", nil, []int{sum, p}, []int{next})
		sum = next
	}
	return sum
}

// moeRule gives the fused node one tensor per expert and matrix, all w13 first: views
// into the weights' section, so nothing is copied.
func moeRule(e *emitter, o *ir.Op, outs []int) error {
	for _, v := range o.Args[3:] {
		if !e.views[v] {
			return fmt.Errorf("expert weights are computed in the segment; want them as stored")
		}
	}
	lowest := int64(0)
	if o.Attr("first") != nil {
		lowest = o.Int("first")
	}
	in := e.args(o.Args[:3])
	experts := int64(0)
	for first := range 2 {
		for b := 3 + first; b < len(o.Args); b += 2 {
			t := e.arg(o, b)
			d := e.dims(t) // {H, F, 2, E} or {F, H, E}
			last := len(d) - 1
			rows := int64(1)
			for _, n := range d[1:last] {
				rows *= n
			}
			for i := range d[last] {
				in = append(in, e.matrix(t, i, d[0], rows))
			}
			experts += d[last]
		}
	}
	experts /= 2
	e.node(e.typed("moe", outs[0]), params("ns_MoeKernel::ParamsV2",
		recipes.Field{Name: "activation", Type: recipes.Enum, Sym: "silu"},
		intField("experts_min", recipes.I32, lowest), intField("experts_max", recipes.I32, lowest+experts-1),
		recipes.Field{Name: "flags", Type: recipes.Enum, Sym: "MOE_FLAGS_PERMUTED_WEIGHTS|MOE_FLAGS_FUSED_GEMM"}), in, outs)
	return nil
}

// matrix is the i-th matrix of a persistent tensor.
func (e *emitter) matrix(t int, i int64, ds ...int64) int {
	base := e.r.Tensors[t]
	v := recipes.Tensor{Name: fmt.Sprintf("%s.%d", base.Name, i), DType: base.DType, Dims: ds, Section: base.Section}
	v.Offset = base.Offset + i*v.Bytes()
	return e.tensor(v)
}

// sdpaRule gives grouped heads in the form that the node takes without a reshape:
// q {D, Sq, group, heads} and keys with a dim of 1 where q has the group. The mask
// goes with neither valid lengths nor the causal flag. Statistics are results of
// the training form only; without dropout it computes the same, and the random
// state, its fourth result, is left out.
func sdpaRule(e *emitter, o *ir.Op, outs []int) error {
	e.node(e.typed("sdpa_recomp_fwd", outs[0]), params("ns_Sdpa::Params",
		recipes.Field{Name: "scale", Type: recipes.F32, Float: float32(o.Attr("scale").Float)},
		intField("is_causal", recipes.U8, 0),
		recipes.Field{Name: "dropout.ratio", Type: recipes.F32},
		intField("dropout.seed", recipes.U32, 0), intField("dropout.disableMaskOut", recipes.U8, 1),
		intField("is_inference", recipes.U8, boolInt(o.Name() == "sdpa"))), e.args(o.Args), outs)
	return nil
}

// embeddingRule gathers with clamped indices and zeroes the rows that other
// ranks have.
func embeddingRule(e *emitter, o *ir.Op, outs []int) error {
	table, ids, off := e.arg(o, 0), e.arg(o, 1), e.arg(o, 2)
	n, rows := e.dims(ids)[0], e.dims(table)[1]
	i32 := func() int { return e.temp(dtype.I32, n) }
	i8 := func() int { return e.temp(dtype.I8, n) }
	local, low, clamped := i32(), i32(), i32()
	zero, last := e.constant(dtype.I32, 0), e.constant(dtype.I32, rows-1)
	e.node("sub_fwd_i32", nil, []int{ids, off}, []int{local})
	e.node("max_fwd_i32", nil, []int{local, zero}, []int{low})
	e.node("min_fwd_i32", nil, []int{low, last}, []int{clamped})
	above, below, inside := i8(), i8(), i8()
	e.node("less_equal_fwd_i32", nil, []int{zero, local}, []int{above})
	e.node("less_equal_fwd_i32", nil, []int{local, last}, []int{below})
	e.node("and_fwd_i8", nil, []int{above, below}, []int{inside})
	column := e.temp(dtype.I8, 1, n)
	e.node("reshape", nil, []int{inside}, []int{column})
	picked := e.temp(e.dtype(table), e.dims(outs[0])...)
	e.gather(table, clamped, picked, 1)
	none := e.temp(e.dtype(table), 1, 1)
	e.node("reshape", nil, []int{e.constant(e.dtype(table), 0)}, []int{none})
	e.node(e.typed("where_fwd", outs[0]), nil, []int{column, picked, none}, outs)
	return nil
}

// constant is a one-element tensor.
func (e *emitter) constant(t dtype.Type, v int64) int {
	c := e.temp(t, 1)
	e.fill(c, float64(v))
	return c
}

// fill sets all elements of a tensor.
func (e *emitter) fill(t int, v float64) {
	f := intField("value", recipes.I32, int64(v))
	if e.dtype(t).IsFloat() {
		f = recipes.Field{Name: "value", Type: recipes.F32, Float: float32(v)}
	}
	e.node(e.typed("constant", t), params("ns_ConstantKernel::Params", f), nil, []int{t})
}

func kvReadRule(e *emitter, o *ir.Op, outs []int) error {
	cache, b := e.arg(o, 0), o.Int("block_size")
	d := e.dims(cache) // {D, heads, slots}
	blocks := e.temp(e.dtype(cache), d[0], d[1], b, d[2]/b)
	e.node("reshape", nil, []int{cache}, []int{blocks})
	e.gather(blocks, e.arg(o, 1), outs[0], 3)
	return nil
}

func convReadRule(e *emitter, o *ir.Op, outs []int) error {
	e.gather(e.arg(o, 0), e.arg(o, 1), outs[0], 2)
	return nil
}

// convReadsRule gathers from all states at once where they lie behind each other.
func convReadsRule(e *emitter, o *ir.Op, outs []int) error {
	idx, states := e.arg(o, 0), o.Args[1:]
	d := e.dims(e.tensors[states[0]]) // {C, K−1, blocks}
	if e.behind(states) {
		e.gather(e.span(states[0], append(slices.Clone(d), int64(len(states)))...), idx, outs[0], 2)
		return nil
	}
	parts := make([]int, len(states))
	for i, s := range states {
		rows := e.temp(e.dtype(outs[0]), d[0], d[1], e.dims(idx)[0])
		e.gather(e.tensors[s], idx, rows, 2)
		parts[i] = e.reshape(rows, append(slices.Clone(e.dims(rows)), 1)...)
	}
	e.concat(parts, outs[0], 3)
	return nil
}

// convWritesRule updates all states at once where they lie behind each other: rows of
// state i are then i·blocks further.
func convWritesRule(e *emitter, o *ir.Op, outs []int) error {
	idx, values, states := e.arg(o, 0), e.arg(o, 1), o.Args[2:]
	n, rows := int64(len(states)), e.dims(idx)[0]
	d := e.dims(e.tensors[states[0]])
	for i, s := range states {
		if err := e.inPlace(s, o.Results[i], outs[i]); err != nil {
			return err
		}
	}
	if !e.behind(states) {
		for i, s := range states {
			part := e.temp(e.dtype(values), d[0], d[1], rows, 1)
			e.slice(values, part, 3, int64(i), int64(i+1))
			e.copyRows(e.tensors[s], idx, e.reshape(part, d[0], d[1], rows), outs[i])
		}
		return nil
	}
	first := e.temp(dtype.I32, n)
	e.multiples(first, n*d[2], d[2])
	all := e.temp(dtype.I32, rows, n)
	e.node("add_fwd_i32", nil, []int{e.reshape(first, 1, n), e.reshape(idx, rows, 1)}, []int{all})
	whole := []int64{d[0], d[1], d[2] * n}
	e.copyRows(e.span(states[0], whole...), e.reshape(all, rows*n), e.reshape(values, d[0], d[1], rows*n), e.span(states[0], whole...))
	return nil
}

// inPlace puts the next version of a state where the state is.
func (e *emitter) inPlace(state, next *ir.Value, out int) error {
	s, t := &e.r.Tensors[e.tensors[state]], &e.r.Tensors[out]
	if t.Section != s.Section || t.Offset != s.Offset {
		if _, leaves := e.slots[next]; leaves {
			return fmt.Errorf("the next version of the state lives at section %d offset %d, the state at section %d offset %d", t.Section, t.Offset, s.Section, s.Offset)
		}
		t.Section, t.Offset = s.Section, s.Offset // an inner version
	}
	e.slots[next] = Slot{s.Section, s.Offset}
	return nil
}

// writeRule updates a state in place: the result lives where the state does.
func writeRule(e *emitter, o *ir.Op, outs []int) error {
	if err := e.inPlace(o.Args[0], o.Results[0], outs[0]); err != nil {
		return err
	}
	e.copyRows(e.arg(o, 0), e.arg(o, 1), e.arg(o, 2), outs[0])
	return nil
}

// copyRows replaces rows of a state.
func (e *emitter) copyRows(state, idx, values, next int) {
	e.node(e.typed("index_copy_fwd", state), params("ns_IndexCopy::Params", intField("axis", recipes.I32, 0)), []int{state, idx, values}, []int{next})
}

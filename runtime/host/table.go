package host

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// spec is what the device knows of one GUID.
type spec struct {
	// types are the element types a GUID may end in. A GUID without a suffix
	// has none, and its constructor checks the types.
	types []dtype.Type
	// in counts the operands, of which the last empty ones must be absent;
	// variadic means in or more.
	in, empty int
	variadic  bool
	out       int
	params    *schema
	// inPlace is the number of leading operands whose memory the node may
	// overwrite with its result (same range, nothing less).
	inPlace int
	// build checks the operands and makes the kernel. It sets the node's rows if
	// its rows are computed from rows, and may then do without a kernel, and its
	// move if it only moves elements.
	build func(*node) (kernel, error)
}

var (
	floatTypes = []dtype.Type{dtype.BF16, dtype.F32}
	numTypes   = []dtype.Type{dtype.BF16, dtype.F32, dtype.I32}
	bitTypes   = []dtype.Type{dtype.BF16, dtype.F32, dtype.I32, dtype.I8}
	predicates = []dtype.Type{dtype.I8}
	integers   = []dtype.Type{dtype.I32}
)

const maxI32, maxU32 = math.MaxInt32, math.MaxUint32

var (
	gemmParams = &schema{"synGEMMParams", []param{
		{name: "transpose_a", typ: recipes.U8, max: 1},
		{name: "transpose_b", typ: recipes.U8, max: 1},
	}}
	castParams = &schema{"ns_CastKernel::Params", []param{
		{name: "round_mode", typ: recipes.I32},
	}}
	constantParams = &schema{"ns_ConstantKernel::Params", []param{
		{name: "value", typ: recipes.I32, min: math.MinInt32, max: maxI32, value: true},
	}}
	rangeParams = &schema{"ns_RangeKernel::Params", []param{
		{name: "start", typ: recipes.I32, min: math.MinInt32, max: maxI32},
		{name: "limit", typ: recipes.I32, min: math.MinInt32, max: maxI32},
		{name: "delta", typ: recipes.I32, min: math.MinInt32, max: maxI32},
	}}
	transposeParams = &schema{"synTransposeParamsNDims", []param{
		{name: "tensorDim", typ: recipes.U32, max: maxRank},
		{name: "permutation", typ: recipes.U32, max: maxRank - 1, array: true},
	}}
	sliceParams = &schema{"synSliceAxisParamsV2", []param{
		{name: "axis", typ: recipes.U32, max: maxU32},
		{name: "begin", typ: recipes.U64, max: math.MaxInt64},
		{name: "end", typ: recipes.U64, max: math.MaxInt64},
	}}
	concatParams = &schema{"synConcatenateParams", []param{
		{name: "axis", typ: recipes.U32, max: maxU32},
	}}
	reduceParams = &schema{"ns_Reduction::Params", []param{
		{name: "reductionDimension", typ: recipes.U32, max: maxU32},
	}}
	softmaxParams = &schema{"ns_Softmax::Params", []param{
		{name: "dim", typ: recipes.I32, max: maxI32},
	}}
	topkParams = &schema{"ns_TopkNodeV2::ParamsV4", []param{
		{name: "bsw", typ: recipes.U32, max: maxU32},
		{name: "axis", typ: recipes.U32, max: maxU32},
		{name: "bottomK", typ: recipes.U8},
		{name: "isStable", typ: recipes.U8, max: 1},
		{name: "isVcData", typ: recipes.U8},
		{name: "kType", typ: recipes.I32},
	}}
	gatherParams = &schema{"ns_GatherKernel::Params", []param{
		{name: "axis", typ: recipes.I32, max: maxI32},
	}}
	gatherElementsParams = &schema{"ns_GatherElementsKernel::Params", []param{
		{name: "axis", typ: recipes.I32, max: maxI32},
	}}
	// The axis of index_copy counts from the slowest dim; only that one is used.
	indexCopyParams = &schema{"ns_IndexCopy::Params", []param{
		{name: "axis", typ: recipes.I32},
	}}
	// Normalization over the fastest dim with a parameter of that dim, the only
	// form in use. fastMath changes nothing here.
	rmsNormParams = &schema{"ns_LayerNormKernel::ParamsRmsNorm", []param{
		{name: "epsValid", typ: recipes.U8, min: 1, max: 1},
		{name: "eps", typ: recipes.F32},
		{name: "NormAxisBmp", typ: recipes.I32, min: 1, max: 1},
		{name: "ParamAxisBmp", typ: recipes.I32, min: 1, max: 1},
		{name: "normalizedShapeDims", typ: recipes.U32, min: 1, max: 1},
		{name: "fastMath", typ: recipes.U8, max: 1},
	}}
	moeParams = &schema{"ns_MoeKernel::ParamsV2", []param{
		{name: "activation", typ: recipes.Enum, syms: []string{"silu", "MOE_ACTIVATION_MODE_SILU"}},
		{name: "experts_min", typ: recipes.I32, max: maxI32},
		{name: "experts_max", typ: recipes.I32, max: maxI32},
		{
			name: "flags", typ: recipes.Enum, flags: true,
			syms: []string{"MOE_FLAGS_FUSED_GEMM", "MOE_FLAGS_PERMUTED_WEIGHTS"},
		},
	}}
)

// table has one entry for each node the device executes.
var table = map[string]spec{
	"gemm":       {in: 2, out: 1, params: gemmParams, build: buildGemm},
	"batch_gemm": {in: 2, out: 1, params: gemmParams, build: buildBatchGemm},

	"add_fwd":  {types: numTypes, in: 2, out: 1, inPlace: 2, build: binary(zip2(kern.Kernels.Add, kern.Kernels.AddS), zip2(kern.Kernels.AddI32, kern.Kernels.AddI32S))},
	"sub_fwd":  {types: numTypes, in: 2, out: 1, inPlace: 2, build: binary(zip2(kern.Kernels.Sub, kern.Kernels.SubS), zip2(kern.Kernels.SubI32, kern.Kernels.SubI32S))},
	"mult_fwd": {types: numTypes, in: 2, out: 1, inPlace: 2, build: binary(zip2(kern.Kernels.Mul, kern.Kernels.MulS), zip1(mult))},
	"div_fwd":  {types: numTypes, in: 2, out: 1, inPlace: 2, build: binary(zip2(kern.Kernels.Div, kern.Kernels.DivS), zip1(div))},
	"max_fwd":  {types: numTypes, in: 2, out: 1, inPlace: 2, build: binary(zip2(kern.Kernels.Max, kern.Kernels.MaxS), zip2(kern.Kernels.MaxI32, kern.Kernels.MaxI32S))},
	"min_fwd":  {types: numTypes, in: 2, out: 1, inPlace: 2, build: binary(zip2(kern.Kernels.Min, kern.Kernels.MinS), zip2(kern.Kernels.MinI32, kern.Kernels.MinI32S))},

	"less_fwd":       {types: numTypes, in: 2, out: 1, build: compare(less, zip2(kern.Kernels.LessI32, kern.Kernels.LessI32S))},
	"less_equal_fwd": {types: numTypes, in: 2, out: 1, build: compare(lessEqual, zip2(kern.Kernels.LessEqualI32, kern.Kernels.LessEqualI32S))},
	"equal_fwd":      {types: numTypes, in: 2, out: 1, build: compare(equal, zip2(kern.Kernels.EqualI32, kern.Kernels.EqualI32S))},

	"and_fwd":   {types: predicates, in: 2, out: 1, inPlace: 2, build: logical(kern.Kernels.And8)},
	"or_fwd":    {types: predicates, in: 2, out: 1, inPlace: 2, build: logical(or)},
	"not_fwd":   {types: predicates, in: 1, out: 1, inPlace: 1, build: buildNot},
	"where_fwd": {types: bitTypes, in: 3, out: 1, inPlace: 3, build: buildWhere},

	"neg_fwd":      {types: numTypes, in: 1, out: 1, inPlace: 1, build: unary(plain(neg[float32]), neg[int32])},
	"exp_fwd":      {types: floatTypes, in: 1, out: 1, inPlace: 1, build: unary(kernel1(kern.Kernels.Exp), nil)},
	"log_fwd":      {types: floatTypes, in: 1, out: 1, inPlace: 1, build: unary(plain(each(math.Log)), nil)},
	"sigmoid_fwd":  {types: floatTypes, in: 1, out: 1, inPlace: 1, build: unary(kernel1(kern.Kernels.Sigmoid), nil)},
	"silu_fwd":     {types: floatTypes, in: 1, out: 1, inPlace: 1, build: unary(kernel1(kern.Kernels.SiLU), nil)},
	"softplus_fwd": {types: floatTypes, in: 1, out: 1, inPlace: 1, build: unary(plain(each(softplus)), nil)},

	"cast_f32_to_bf16": {in: 1, out: 1, params: castParams, build: cast(dtype.F32, dtype.BF16, kernel1(kern.Kernels.Narrow))},
	"cast_bf16_to_f32": {in: 1, out: 1, params: castParams, build: cast(dtype.BF16, dtype.F32, kernel1(kern.Kernels.Widen))},
	"cast_i32_to_f32":  {in: 1, out: 1, params: castParams, inPlace: 1, build: cast(dtype.I32, dtype.F32, plain(i32ToF32))},
	"cast_f32_to_i32":  {in: 1, out: 1, params: castParams, inPlace: 1, build: cast(dtype.F32, dtype.I32, plain(f32ToI32))},
	"cast_i32_to_i8":   {in: 1, out: 1, params: castParams, build: cast(dtype.I32, dtype.I8, plain(i32ToI8))},
	"cast_i8_to_i32":   {in: 1, out: 1, params: castParams, build: cast(dtype.I8, dtype.I32, plain(i8ToI32))},

	"constant":   {types: numTypes, in: 0, out: 1, params: constantParams, build: buildConstant},
	"range":      {types: integers, in: 0, out: 1, params: rangeParams, build: buildRange},
	"identity":   {in: 1, out: 1, inPlace: 1, build: buildIdentity},
	"reshape":    {in: 1, out: 1, inPlace: 1, build: buildReshape},
	"transpose":  {in: 1, out: 1, params: transposeParams, build: buildTranspose},
	"broadcast":  {in: 1, out: 1, build: buildBroadcast},
	"slice_axis": {in: 1, out: 1, params: sliceParams, build: buildSlice},
	"concat":     {in: 1, variadic: true, out: 1, params: concatParams, build: buildConcat},

	"reduce_sum_fwd": {
		types: numTypes, in: 1, out: 1, params: reduceParams,
		build: reduce(sums),
	},
	"reduce_max_fwd": {
		types: numTypes, in: 1, out: 1, params: reduceParams,
		build: reduce(maxima),
	},
	"softmax_fwd": {types: floatTypes, in: 1, out: 1, params: softmaxParams, build: buildSoftmax},
	"topk":        {in: 3, empty: 2, out: 2, params: topkParams, build: buildTopk},

	"gather_fwd":          {types: bitTypes, in: 2, out: 1, params: gatherParams, build: buildGather},
	"gather_elements_fwd": {types: bitTypes, in: 2, out: 1, params: gatherElementsParams, build: buildGatherElements},
	"index_copy_fwd":      {types: bitTypes, in: 3, out: 1, params: indexCopyParams, inPlace: 1, build: buildIndexCopy},

	"rms_norm_fwd": {types: floatTypes, in: 2, out: 2, params: rmsNormParams, build: buildRMSNorm},
	"moe":          {types: floatTypes, in: 5, variadic: true, out: 1, params: moeParams, build: buildMoE},
}

// lookup finds the spec of a GUID and the type of its suffix.
func lookup(guid string) (*spec, dtype.Type, error) {
	if s, ok := table[guid]; ok {
		if s.types != nil {
			return nil, dtype.Invalid, fmt.Errorf("GUID %q has no type suffix, want one of %v", guid, s.types)
		}
		return &s, dtype.Invalid, nil
	}
	if cut := strings.LastIndexByte(guid, '_'); cut >= 0 {
		if s, ok := table[guid[:cut]]; ok && s.types != nil {
			dt, _ := dtype.Parse(guid[cut+1:])
			if slices.Contains(s.types, dt) {
				return &s, dt, nil
			}
			return nil, dtype.Invalid, fmt.Errorf("GUID %q has type suffix %q, want one of %v", guid, guid[cut+1:], s.types)
		}
	}
	return nil, dtype.Invalid, fmt.Errorf("unknown GUID %q", guid)
}

// count checks the number of operands and that exactly the empty slots are
// empty.
func (s *spec) count(n *node) error {
	if len(n.in) != s.in && !(s.variadic && len(n.in) > s.in) {
		want := fmt.Sprint(s.in)
		if s.variadic {
			want += " or more"
		}
		return n.bad("operands", "number", len(n.in), want)
	}
	if len(n.out) != s.out {
		return n.bad("results", "number", len(n.out), s.out)
	}
	for i := range n.in {
		if empty := i >= s.in-s.empty && i < s.in; n.in[i].absent != empty {
			if empty {
				return n.bad(n.in[i].label, "operand", "present", "an empty slot")
			}
			return n.bad(n.in[i].label, "operand", "absent", "a tensor")
		}
	}
	return nil
}

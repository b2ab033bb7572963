package target

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// draft is a recipe that a test makes, of tensors that have a section each unless they
// say otherwise.
type draft struct{ recipes.Recipe }

// tensor is a type with dims.
type tensor struct {
	t    dtype.Type
	dims []int64
}

func half(dims ...int64) tensor   { return tensor{dtype.BF16, dims} }
func single(dims ...int64) tensor { return tensor{dtype.F32, dims} }
func index(dims ...int64) tensor  { return tensor{dtype.I32, dims} }
func pred(dims ...int64) tensor   { return tensor{dtype.I8, dims} }

// add adds a tensor in a section of its own.
func (d *draft) add(t tensor) int {
	d.Sections = append(d.Sections, recipes.Section{Name: fmt.Sprintf("s%d", len(d.Sections)), Buffer: recipes.Arena})
	return d.at(len(d.Sections)-1, 0, t)
}

// at adds a tensor of a section.
func (d *draft) at(section int, offset int64, t tensor) int {
	d.Tensors = append(d.Tensors, recipes.Tensor{
		Name: fmt.Sprintf("t%d", len(d.Tensors)), DType: t.t, Dims: t.dims, Section: section, Offset: offset,
	})
	return len(d.Tensors) - 1
}

// node adds a node of tensors that are there.
func (d *draft) node(guid string, p *recipes.Params, in, out []int) {
	d.Nodes = append(d.Nodes, recipes.Node{
		Name: fmt.Sprintf("n%d", len(d.Nodes)), GUID: guid, In: in, Out: out, Params: p, Origin: "layer 3 attn.q_proj",
	})
}

// in and out are operands of the first node.
func (d *draft) in(i int) *recipes.Tensor  { return &d.Tensors[d.Nodes[0].In[i]] }
func (d *draft) out(i int) *recipes.Tensor { return &d.Tensors[d.Nodes[0].Out[i]] }

// set changes a parameter of the first node.
func (d *draft) set(name string, v ...int64) { d.field(name).Ints = v }

func (d *draft) field(name string) *recipes.Field {
	f := d.Nodes[0].Params.Fields
	for i := range f {
		if f[i].Name == name {
			return &f[i]
		}
	}
	panic("no field " + name)
}

// finish sizes the sections.
func (d *draft) finish() *recipes.Recipe {
	d.Name = "r"
	for i := range d.Tensors {
		if t := &d.Tensors[i]; t.Section >= 0 {
			s := &d.Sections[t.Section]
			s.Size = max(s.Size, t.Offset+t.Bytes())
		}
	}
	return &d.Recipe
}

func params(name string, fields ...recipes.Field) *recipes.Params {
	return &recipes.Params{Struct: name, Fields: fields}
}

// example is a legal recipe of one node; each call makes another one.
func example(guid string) *draft {
	d := &draft{}
	one := func(guid string, p *recipes.Params, in []tensor, out ...tensor) *draft {
		var ins, outs []int
		for _, t := range in {
			ins = append(ins, d.add(t))
		}
		for _, t := range out {
			outs = append(outs, d.add(t))
		}
		d.node(guid, p, ins, outs)
		return d
	}
	axis := func(of, field string, t recipes.FieldType, v int64) *recipes.Params {
		return params(of, ints(field, t, v))
	}
	list := func(t ...tensor) []tensor { return t }
	wide := half(64, 5, 3)
	switch guid {
	case "add_fwd", "sub_fwd", "mult_fwd", "div_fwd", "max_fwd", "min_fwd":
		return one(guid+"_bf16", nil, list(wide, half(64, 1, 3)), wide)
	case "less_fwd", "less_equal_fwd", "equal_fwd":
		return one(guid+"_i32", nil, list(index(7, 1), index(1, 4)), pred(7, 4))
	case "and_fwd":
		return one("and_fwd_i8", nil, list(pred(7), pred(7)), pred(7))
	case "neg_fwd", "exp_fwd", "log_fwd", "sigmoid_fwd", "silu_fwd", "softplus_fwd":
		return one(guid+"_f32", nil, list(single(6, 2)), single(6, 2))
	case "where_fwd":
		return one("where_fwd_bf16", nil, list(pred(1, 5, 3), wide, half(1, 1, 1)), wide)
	case "cast_f32_to", "cast_bf16_to", "cast_i32_to", "cast_i8_to":
		from := map[string]dtype.Type{"cast_f32_to": dtype.F32, "cast_bf16_to": dtype.BF16, "cast_i32_to": dtype.I32, "cast_i8_to": dtype.I8}[guid]
		to := dtype.F32
		if from == to {
			to = dtype.BF16
		}
		return one(guid+"_"+to.String(), axis("ns_CastKernel::Params", "round_mode", recipes.I32, 0), list(tensor{from, []int64{8, 2}}), tensor{to, []int64{8, 2}})
	case "identity":
		return one(guid, nil, list(wide), wide)
	case "constant":
		return one("constant_bf16", params("ns_ConstantKernel::Params", f32("value", -30000)), nil, half(1, 1))
	case "range":
		return one("range_i32", params("ns_RangeKernel::Params", ints("start", recipes.I32, 2), ints("limit", recipes.I32, 14), ints("delta", recipes.I32, 3)), nil, index(4))
	case "reshape":
		return one(guid, nil, list(wide), half(64, 15))
	case "broadcast":
		return one(guid, nil, list(half(64, 1, 3)), wide)
	case "transpose":
		return one(guid, params("synTransposeParamsNDims", ints("tensorDim", recipes.U32, 3), ints("permutation", recipes.U32, 0, 2, 1)), list(wide), half(64, 3, 5))
	case "slice_axis":
		return one(guid, params("synSliceAxisParamsV2", ints("axis", recipes.U32, 1), ints("begin", recipes.U64, 1), ints("end", recipes.U64, 4)), list(wide), half(64, 3, 3))
	case "concat":
		return one(guid, axis("synConcatenateParams", "axis", recipes.U32, 1), list(wide, half(64, 2, 3)), half(64, 7, 3))
	case "reduce_sum_fwd", "reduce_max_fwd":
		return one(guid+"_f32", axis("ns_Reduction::Params", "reductionDimension", recipes.U32, 1), list(single(6, 5)), single(6, 1))
	case "softmax_fwd":
		return one("softmax_fwd_f32", axis("ns_Softmax::Params", "dim", recipes.I32, 0), list(single(6, 5)), single(6, 5))
	case "topk":
		p := params("ns_TopkNodeV2::ParamsV4", ints("bsw", recipes.U32, 2), ints("axis", recipes.U32, 0), ints("bottomK", recipes.U8, 0), ints("isStable", recipes.U8, 1), ints("isVcData", recipes.U8, 0), ints("kType", recipes.I32, 0))
		return one(guid, p, list(single(6, 5)), single(2, 5), index(2, 5))
	case "gather_fwd":
		return one("gather_fwd_bf16", axis("ns_GatherKernel::Params", "axis", recipes.I32, 1), list(wide, index(7)), half(64, 7, 3))
	case "gather_elements_fwd":
		return one("gather_elements_fwd_f32", axis("ns_GatherElementsKernel::Params", "axis", recipes.I32, 0), list(single(6, 5), index(2, 5)), single(2, 5))
	case "index_copy_fwd":
		x := d.add(half(64, 2, 32))
		d.node("index_copy_fwd_bf16", axis("ns_IndexCopy::Params", "axis", recipes.I32, 0), []int{x, d.add(index(3)), d.add(half(64, 2, 3))}, []int{d.at(0, 0, half(64, 2, 32))})
		return d
	case "gemm":
		return one(guid, params("synGEMMParams", ints("transpose_a", recipes.U8, 0), ints("transpose_b", recipes.U8, 1)), list(half(64, 4), half(64, 32)), single(32, 4))
	case "batch_gemm":
		return one(guid, params("synGEMMParams", ints("transpose_a", recipes.U8, 1), ints("transpose_b", recipes.U8, 0)), list(half(4, 64, 3, 2), half(32, 64, 1, 2)), half(32, 4, 3, 2))
	case "rms_norm_fwd":
		p := params("ns_LayerNormKernel::ParamsRmsNorm", ints("epsValid", recipes.U8, 1), f32("eps", 1e-6), ints("NormAxisBmp", recipes.I32, 1),
			ints("ParamAxisBmp", recipes.I32, 1), ints("normalizedShapeDims", recipes.U32, 1), ints("fastMath", recipes.U8, 0))
		return one("rms_norm_fwd_bf16", p, list(wide, half(64)), wide, single(1, 5, 3))
	case "sdpa_recomp_fwd":
		p := params("ns_Sdpa::Params", f32("scale", 0.125), ints("is_causal", recipes.U8, 0), f32("dropout.ratio", 0), ints("dropout.seed", recipes.U32, 0),
			ints("dropout.disableMaskOut", recipes.U8, 1), ints("is_inference", recipes.U8, 1))
		return one("sdpa_recomp_fwd_bf16", p, list(half(64, 5, 4, 2), half(64, 9, 1, 2), half(32, 9, 1, 2), half(9, 5, 1, 1)), half(32, 5, 4, 2))
	case "moe":
		p := params("ns_MoeKernel::ParamsV2", recipes.Field{Name: "activation", Type: recipes.Enum, Sym: "silu"}, ints("experts_min", recipes.I32, 4), ints("experts_max", recipes.I32, 5),
			recipes.Field{Name: "flags", Type: recipes.Enum, Sym: "MOE_FLAGS_PERMUTED_WEIGHTS|MOE_FLAGS_FUSED_GEMM"})
		return one("moe_bf16", p, list(half(64, 3), index(2, 3), half(2, 3), half(64, 24), half(64, 24), half(12, 64), half(12, 64)), half(64, 3))
	}
	panic("no example of " + guid)
}

// training makes attention give statistics.
func training(d *draft) {
	d.set("is_inference", 0)
	d.Nodes[0].Out = append(d.Nodes[0].Out, d.add(half(1, 5, 4, 2)), d.add(single(1, 5, 4, 2)))
}

// stateful is a recipe that reads a state, updates it in place, and reads the new
// version.
func stateful() *draft {
	d := &draft{}
	state := half(64, 32)
	old, rows, values := d.add(state), d.add(index(3)), d.add(half(64, 3))
	next := d.at(0, 0, state)
	gather := func(from int) {
		d.node("gather_fwd_bf16", params("ns_GatherKernel::Params", ints("axis", recipes.I32, 1)), []int{from, rows}, []int{d.add(half(64, 3))})
	}
	gather(old)
	d.node("index_copy_fwd_bf16", params("ns_IndexCopy::Params", ints("axis", recipes.I32, 0)), []int{old, rows, values}, []int{next})
	d.Nodes[1].After = []int{0}
	gather(next)
	return d
}

// Every node of the profile has an example that is legal, and each example's node has a
// rule for its shapes.
func TestExamplesAreLegal(t *testing.T) {
	p := load(t)
	for i := range p.Nodes {
		guid := p.Nodes[i].GUID
		require.NoError(t, p.CheckRecipe(example(guid).finish()), guid)
		require.Contains(t, shapeRules, guid)
	}
	require.Len(t, shapeRules, len(p.Nodes))
	for name, change := range map[string]func(*draft){
		"no mask":           func(d *draft) { d.Nodes[0].In = d.Nodes[0].In[:3] },
		"absent mask":       func(d *draft) { d.Nodes[0].In[3] = recipes.Absent },
		"causal, no mask":   func(d *draft) { d.Nodes[0].In[3] = recipes.Absent; d.set("is_causal", 1) },
		"statistics":        training,
		"a mask of all":     func(d *draft) { d.in(3).Dims = []int64{9, 5, 4, 2} },
		"a batch":           func(d *draft) { addDim(d, 6) },
		"keys of all heads": func(d *draft) { d.in(1).Dims[2], d.in(2).Dims[2] = 4, 4 },
	} {
		d := example("sdpa_recomp_fwd")
		change(d)
		require.NoError(t, p.CheckRecipe(d.finish()), name)
	}
	require.NoError(t, p.CheckRecipe(stateful().finish()))
}

// addDim gives all operands another dim.
func addDim(d *draft, n int64) {
	for i := range d.Tensors {
		d.Tensors[i].Dims = append(d.Tensors[i].Dims, n)
	}
}

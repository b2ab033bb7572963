package compiler

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dl"
	"quill/recipes/dtype"
	"quill/recipes/target"
)

// A recipe's graph becomes another one only with another GraphVersion, or what was compiled
// of the old one would be taken from stores for ever. Nothing but the calls is in the digest.
func TestGraphVersion(t *testing.T) {
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	var rec recorder
	c := &Compiler{fn: rec.functions()}
	for _, r := range []*recipes.Recipe{sample(), allSorts()} {
		_, _, err := c.Compile(r, p, "file")
		require.NoError(t, err)
	}
	if have := fmt.Sprintf("%.8x", sha256.Sum256([]byte(rec.calls.String()))); have != GraphVersion {
		t.Errorf("Compile makes other graphs of the same recipes than those of GraphVersion %q. If that is meant, write in graph.go\n\n"+
			"\tconst GraphVersion = %q\n\nAll native recipes are compiled anew then. The calls are now\n%s", GraphVersion, have, rec.calls.String())
	}
}

// recorder stands for the library, and writes down how it is called. A call that it does not
// know ends the test: it belongs here then.
type recorder struct {
	calls strings.Builder
	last  uint64 // handle or id
}

func (r *recorder) call(name string, args ...any) dl.Status {
	fmt.Fprintln(&r.calls, append([]any{name}, args...)...)
	return dl.Success
}

// made is call for what gives a handle, or an id.
func made[T ~uint64 | ~uintptr](r *recorder, to *T, name string, args ...any) dl.Status {
	r.last++
	*to = T(r.last)
	return r.call(name, append(args, "->", r.last)...)
}

func (r *recorder) functions() functions {
	return functions{
		GraphCreate: func(g *dl.Handle, device uint32) dl.Status { return made(r, g, "graph", device) },
		GraphSetAttributes: func(g dl.Handle, ids *uint32, values *uint64, n uint32) dl.Status {
			return r.call("attributes", g, unsafe.Slice(ids, n), unsafe.Slice(values, n))
		},
		GraphDestroy: func(g dl.Handle) dl.Status { return r.call("destroy graph", g) },
		GraphCompile: func(x *dl.Handle, g dl.Handle, name string, log *byte) dl.Status {
			return made(r, x, "compile", g, name, log)
		},
		SectionCreate: func(s *dl.Handle, descriptor uint64, g dl.Handle) dl.Status {
			return made(r, s, "section", descriptor, g)
		},
		SectionSetPersistent: func(s dl.Handle, on bool) dl.Status { return r.call("persistent", s, on) },
		SectionSetGroup:      func(s dl.Handle, group uint64) dl.Status { return r.call("group", s, group) },
		TensorHandleCreate: func(t *dl.Handle, g dl.Handle, kind uint32, name string) dl.Status {
			return made(r, t, "tensor", g, kind, name)
		},
		TensorSetGeometry: func(t dl.Handle, g *geometry, kind uint32) dl.Status {
			return r.call("geometry", t, g.sizes[:g.dims], kind)
		},
		TensorSetDeviceType:   func(t dl.Handle, dtype uint32) dl.Status { return r.call("type", t, dtype) },
		TensorAssignToSection: func(t, s dl.Handle, at uint64) dl.Status { return r.call("assign", t, s, at) },
		NodeCreateWithID: func(g dl.Handle, in, out *dl.Handle, nIn, nOut uint32, params *byte, bytes uint32, guid, name string, id *uint64, inLayouts, outLayouts **byte) dl.Status {
			return made(r, id, "node", g, unsafe.Slice(in, nIn), unsafe.Slice(out, nOut), unsafe.Slice(params, bytes), guid, name, inLayouts, outLayouts)
		},
		NodeDependencySet: func(g dl.Handle, before, after *uint64, nBefore, nAfter uint32) dl.Status {
			return r.call("dependency", g, unsafe.Slice(before, nBefore), unsafe.Slice(after, nAfter))
		},
		RecipeSerialize: func(x dl.Handle, path string) dl.Status { return r.call("serialize", x, path) },
		RecipeGetAttribute: func(values *uint64, ids *uint32, n uint32, x dl.Handle) dl.Status {
			return r.call("sizes", unsafe.Slice(ids, n), x)
		},
		RecipeDestroy: func(x dl.Handle) dl.Status { return r.call("destroy recipe", x) },
	}
}

// sample reads a row of weights and updates a state in place after it was read.
func sample() *recipes.Recipe {
	const ws = recipes.Workspace
	return &recipes.Recipe{
		Name: "decode-seg1",
		Sections: []recipes.Section{
			{Name: "weights", Buffer: recipes.Weights, Size: 4096},
			{Name: "kv", Buffer: recipes.KV, Size: 4096},
			{Name: "arena", Buffer: recipes.Arena, Size: 4096},
		},
		Tensors: []recipes.Tensor{
			{Name: "x", DType: dtype.BF16, Dims: []int64{16, 2}, Section: 2},
			{Name: "w", DType: dtype.BF16, Dims: []int64{16, 8}, Section: 0, Offset: 128},
			{Name: "y", DType: dtype.BF16, Dims: []int64{8, 2}, Section: ws},
			{Name: "state", DType: dtype.BF16, Dims: []int64{8, 4}, Section: 1},
			{Name: "index", DType: dtype.I32, Dims: []int64{2}, Section: 2, Offset: 512},
			{Name: "state.next", DType: dtype.BF16, Dims: []int64{8, 4}, Section: 1},
			{Name: "read", DType: dtype.BF16, Dims: []int64{8, 2}, Section: 2, Offset: 1024},
			{Name: "unused", DType: dtype.F32, Dims: []int64{3}, Section: 2, Offset: 2048},
		},
		Nodes: []recipes.Node{
			{
				Name: "n0", GUID: "gemm", In: []int{0, 1}, Out: []int{2}, Origin: "layer 3 attn.q",
				Params: &recipes.Params{Struct: "synGEMMParams", Fields: []recipes.Field{
					{Name: "transpose_a", Type: recipes.U8, Ints: []int64{0}}, {Name: "transpose_b", Type: recipes.U8, Ints: []int64{1}},
				}},
			},
			{
				Name: "n1", GUID: "gather_fwd_bf16", In: []int{3, 4}, Out: []int{6}, Origin: "layer 3 kv_read",
				Params: &recipes.Params{Struct: "ns_GatherKernel::Params", Fields: []recipes.Field{{Name: "axis", Type: recipes.I32, Ints: []int64{1}}}},
			},
			{
				Name: "n2", GUID: "index_copy_fwd_bf16", In: []int{3, 4, 2}, Out: []int{5}, After: []int{1}, Origin: "layer 3 kv_write",
				Params: &recipes.Params{Struct: "ns_IndexCopy::Params", Fields: []recipes.Field{{Name: "axis", Type: recipes.I32, Ints: []int64{0}}}},
			},
		},
	}
}

// allSorts has what the sample lacks: all buffers, a node without operands, absent ones,
// several results, vectors and many dims, and parameters of all kinds.
func allSorts() *recipes.Recipe {
	r := &recipes.Recipe{Name: "all-sorts"}
	for _, b := range recipes.Buffers() {
		r.Sections = append(r.Sections, recipes.Section{Name: string(b), Buffer: b, Size: 1 << 20})
	}
	ints := func(name string, t recipes.FieldType, v ...int64) recipes.Field {
		return recipes.Field{Name: name, Type: t, Ints: v}
	}
	float := func(name string, v float32) recipes.Field {
		return recipes.Field{Name: name, Type: recipes.F32, Float: v}
	}
	at := make([]int64, len(r.Sections))
	tensor := func(section int, t dtype.Type, dims ...int64) int {
		x := recipes.Tensor{Name: fmt.Sprint("t", len(r.Tensors)), DType: t, Dims: dims, Section: section}
		if section != recipes.Workspace {
			x.Offset = at[section]
			at[section] += 1 << 12
		}
		r.Tensors = append(r.Tensors, x)
		return len(r.Tensors) - 1
	}
	node := func(guid, params string, fields []recipes.Field, in []int, out ...int) {
		n := recipes.Node{Name: fmt.Sprint("n", len(r.Nodes)), GUID: guid, In: in, Out: out}
		if params != "" {
			n.Params = &recipes.Params{Struct: params, Fields: fields}
		}
		r.Nodes = append(r.Nodes, n)
	}
	const ws = recipes.Workspace
	q, k, v := tensor(0, dtype.BF16, 64, 5, 4, 2), tensor(1, dtype.BF16, 64, 9, 1, 2), tensor(2, dtype.BF16, 32, 9, 1, 2)
	node("sdpa_recomp_fwd_bf16", "ns_Sdpa::Params", []recipes.Field{
		float("scale", 0.125), ints("is_causal", recipes.U8, 0), float("dropout.ratio", 0), ints("dropout.seed", recipes.U32, 0),
		ints("dropout.disableMaskOut", recipes.U8, 1), ints("is_inference", recipes.U8, 0),
	}, []int{q, k, v, recipes.Absent}, tensor(3, dtype.BF16, 32, 5, 4, 2), tensor(ws, dtype.BF16, 1, 5, 4, 2), tensor(4, dtype.F32, 1, 5, 4, 2))
	value := tensor(ws, dtype.BF16, 1, 1)
	node("constant_bf16", "ns_ConstantKernel::Params", []recipes.Field{float("value", -30000)}, nil, value)
	index := tensor(3, dtype.I32, 7)
	visible := tensor(ws, dtype.I8, 7)
	node("less_fwd_i32", "", nil, []int{index, index}, visible)
	moved := tensor(ws, dtype.BF16, 64, 4, 5, 2)
	node("transpose", "synTransposeParamsNDims", []recipes.Field{ints("tensorDim", recipes.U32, 4), ints("permutation", recipes.U32, 0, 2, 1, 3)}, []int{q}, moved)
	node("slice_axis", "synSliceAxisParamsV2", []recipes.Field{ints("axis", recipes.U32, 1), ints("begin", recipes.U64, 1), ints("end", recipes.U64, 4)}, []int{moved}, tensor(4, dtype.BF16, 64, 3, 5, 2))
	return r
}

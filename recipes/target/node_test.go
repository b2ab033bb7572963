package target

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// Nodes are checked against their GUID's entry before their parameters are.
func TestNodesThatTheTargetDoesNotTake(t *testing.T) {
	p := load(t)
	r := &recipes.Recipe{Name: "r"}
	tensor := func(t dtype.Type, dims ...int64) int {
		r.Tensors = append(r.Tensors, recipes.Tensor{Name: "t", DType: t, Dims: dims})
		return len(r.Tensors) - 1
	}
	f, h, i := tensor(dtype.F32, 4, 4), tensor(dtype.BF16, 4, 4), tensor(dtype.I32, 4)
	deep, long, flat := tensor(dtype.F32, 1, 1, 1, 1, 1, 1), tensor(dtype.F32, 1<<31+1, 1), tensor(dtype.F32)
	gemm := &recipes.Params{Struct: "synGEMMParams"}
	gather := &recipes.Params{Struct: "ns_GatherKernel::Params", Fields: []recipes.Field{ints("axis", recipes.I32, 0)}}
	for _, c := range []struct {
		guid    string
		in, out []int
		params  *recipes.Params
		want    string
	}{
		{"add_fwd_f32", []int{f, f}, []int{f}, nil, ""},
		{"gemm", []int{h, h}, []int{f}, gemm, ""},
		{"gemm", []int{h, h, recipes.Absent}, []int{f}, gemm, ""},
		{"gather_fwd_f32", []int{f, i}, []int{f}, gather, ""},
		{"concat", []int{f, f, f}, []int{f}, &recipes.Params{Struct: "synConcatenateParams", Fields: []recipes.Field{ints("axis", recipes.U32, 0)}}, ""},
		{"add_fwd_i64", []int{f, f}, []int{f}, nil, "recipe r: node n (add_fwd_i64): GUID: want add_fwd_ and one of bf16, f32, i32, have i64; help: "},
		{"add_f32", []int{f, f}, []int{f}, nil, "GUID: want one that profile gaudi2-1.21 lists, have add_f32"},
		{"add", []int{f, f}, []int{f}, nil, "GUID: want one that profile gaudi2-1.21 lists, have add"},
		{"add_fwd_f32", []int{f}, []int{f}, nil, "operand 1, b: want a tensor, have none"},
		{"add_fwd_f32", []int{f, f, f}, []int{f}, nil, "operands: want at most 2, have 3"},
		{"add_fwd_f32", []int{f, recipes.Absent}, []int{f}, nil, "operand 1, b: want a tensor, have none"},
		{"add_fwd_f32", []int{f, h}, []int{f}, nil, "operand 1, b, tensor t: want f32, have bf16"},
		{"add_fwd_f32", []int{f, f}, nil, nil, "result 0, y: want a tensor, have none"},
		{"add_fwd_f32", []int{f, deep}, []int{f}, nil, "operand 1, b, tensor t: want rank 1 to 5, have 6"},
		{"add_fwd_f32", []int{f, flat}, []int{f}, nil, "tensor t: want rank 1 to 5, have 0"},
		{"add_fwd_f32", []int{f, long}, []int{f}, nil, "tensor t: want at most 2147483647 elements from the first to the last index of a dim, have 2147483648 in {2147483649, 1}"},
		{"add_fwd_f32", []int{f, f}, []int{f}, gemm, "parameters: want none, have synGEMMParams"},
		{"gemm", []int{h, h}, []int{f}, nil, "parameters: want synGEMMParams, have none"},
		{"gemm", []int{h, h}, []int{f}, gather, "parameters: want synGEMMParams, have ns_GatherKernel::Params"},
		{"gemm", []int{i, h}, []int{f}, gemm, "operand 0, a, tensor t: want bf16 or f32, have i32"},
		{"concat", nil, []int{f}, nil, "operands: want 0 and a multiple of 1, have 0"},
		{"moe_bf16", []int{h, i, h, h, h, h}, []int{h}, nil, "operands: want 3 and a multiple of 2, have 6"},
	} {
		_, err := p.EncodeNode(r, &recipes.Node{Name: "n", GUID: c.guid, In: c.in, Out: c.out, Params: c.params})
		if c.want == "" {
			require.NoError(t, err, c.guid)
			continue
		}
		require.ErrorContains(t, err, c.want)
	}

	// A node whose layout is missing has everything else checked first.
	table := tensor(dtype.I32, 2, 4)
	n := &recipes.Node{Name: "n", GUID: "moe_bf16", In: []int{h, table, h, h, h}, Out: []int{h}, Params: &recipes.Params{Struct: "ns_MoeKernel::ParamsV2"}}
	_, err := p.EncodeNode(r, n)
	m, ok := errors.AsType[*MissingError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "perf_lib_layer_params.h", m.Header)
	n.In[1] = f
	_, err = p.EncodeNode(r, n)
	require.ErrorContains(t, err, "operand 1, routing_table, tensor t: want i32, have f32")
}

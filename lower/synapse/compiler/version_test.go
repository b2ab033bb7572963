package compiler

import (
	"quill/recipes"
	"quill/recipes/dtype"
)

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

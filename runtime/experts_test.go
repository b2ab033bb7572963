package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// Slots that a mixture of experts reads are found wherever its operands lie in
// them and however often the launch is bound; all others are not.
func TestExpertSlots(t *testing.T) {
	tensor := func(section int, offset int64) recipes.Tensor {
		return recipes.Tensor{DType: dtype.BF16, Dims: []int64{8}, Section: section, Offset: offset}
	}
	r := &recipes.Recipe{
		Sections: []recipes.Section{{Name: "in", Buffer: recipes.Arena}, {Name: "w", Buffer: recipes.Weights}},
		Tensors: []recipes.Tensor{
			tensor(0, 0), tensor(recipes.Workspace, 0), tensor(recipes.Workspace, 0),
			tensor(1, 64), tensor(1, 80), tensor(1, 128), // experts: two of one slot, one of another
			tensor(1, 0), // a norm
		},
		Nodes: []recipes.Node{
			{GUID: "rms_norm_fwd_bf16", In: []int{0, 6}, Out: []int{1}},
			{GUID: "moe_bf16", In: []int{0, 1, 2, 3, 4, 5, recipes.Absent}, Out: []int{1}},
		},
	}
	launch := func(at int64) recipes.Step {
		return recipes.Step{Launch: &recipes.Launch{Bindings: []recipes.Binding{{Buffer: recipes.Arena}, {Buffer: recipes.Weights, Offset: at}}}}
	}
	b := &recipes.Bundle{Recipes: map[recipes.Hash]*recipes.Recipe{{}: r}}
	set := &recipes.Set{
		Plans: []recipes.Plan{{Steps: []recipes.Step{launch(0), {Collective: &recipes.Collective{}}, launch(1000)}}, {Steps: []recipes.Step{launch(0)}}},
	}
	for _, at := range []int64{0, 64, 128, 192, 1000, 1064, 1128, 1192} {
		set.Weights = append(set.Weights, recipes.Weight{DType: dtype.BF16, Shape: []int64{16}, Offset: at})
	}
	require.Equal(t, map[int64]bool{64: true, 128: true, 1064: true, 1128: true}, expertSlots(b, set))
}

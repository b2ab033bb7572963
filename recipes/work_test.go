package recipes

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes/dtype"
)

// Chains go through launches and collectives at addresses; a state is a value at
// its address; what only moves an address counts for nothing.
func TestWork(t *testing.T) {
	t.Parallel()
	tensor := func(section int, offset int64) Tensor {
		return Tensor{DType: dtype.F32, Dims: []int64{4}, Section: section, Offset: offset}
	}
	// exp → reshape → exp of the input, and a state that is read, then written.
	first := &Recipe{
		Sections: []Section{{Buffer: Arena, Size: 64}, {Buffer: KV, Size: 64}},
		Tensors:  []Tensor{tensor(0, 0), tensor(Workspace, 0), tensor(Workspace, 0), tensor(0, 32), tensor(1, 0), tensor(1, 0), tensor(Workspace, 0)},
		Nodes: []Node{
			{GUID: "exp_fwd_f32", In: []int{0}, Out: []int{1}},
			{GUID: "reshape", In: []int{1}, Out: []int{2}},
			{GUID: "add_fwd_f32", In: []int{2, 1}, Out: []int{3}},
			{GUID: "exp_fwd_f32", In: []int{4}, Out: []int{6}},
			{GUID: "index_copy_fwd_f32", In: []int{4, Absent, 1}, Out: []int{5}, After: []int{3}},
		},
	}
	// Reads what the first one wrote and the state.
	second := &Recipe{
		Sections: []Section{{Buffer: Arena, Size: 16}, {Buffer: KV, Size: 64}},
		Tensors:  []Tensor{tensor(0, 0), tensor(1, 0), tensor(Workspace, 0)},
		Nodes:    []Node{{GUID: "add_fwd_f32", In: []int{0, 1}, Out: []int{2}}},
	}
	b := &Bundle{Recipes: map[Hash]*Recipe{{1}: first, {2}: second}}
	launch := func(h byte, arena, kv int64) Step {
		return Step{Launch: &Launch{Recipe: Hash{h}, Bindings: []Binding{{Arena, arena}, {KV, kv}}}}
	}
	reduce := func(in, out int64) Step {
		return Step{Collective: &Collective{Kind: AllReduce, DType: dtype.F32, Count: 4, In: in, Out: out}}
	}

	p := &Plan{Steps: []Step{launch(1, 128, 0)}}
	require.Equal(t, Work{Launches: 1, Nodes: 5, Compute: 4, Chain: 2}, b.Work(p))

	// The second one reads the sum where the reduction left it.
	p.Steps = append(p.Steps, reduce(160, 256), launch(2, 256, 512))
	require.Equal(t, Work{Launches: 2, AllReduces: 1, Nodes: 6, Compute: 5, Chain: 3, Breaks: map[string]int{"all_reduce": 1}}, b.Work(p))

	// Elsewhere there is nothing; but the state of the same layer has two nodes behind it.
	p.Steps[2] = launch(2, 384, 512)
	require.Equal(t, 2, b.Work(p).Chain)
	p.Steps[2] = launch(2, 384, 0)
	require.Equal(t, 3, b.Work(p).Chain)

	// A mask is made in each launch, one in the arena once; both are alive in one.
	third := &Recipe{
		Sections: []Section{{Buffer: Arena, Size: 64}},
		Tensors:  []Tensor{tensor(0, 0), tensor(0, 16), tensor(Workspace, 0), tensor(Workspace, 0)},
		Nodes: []Node{
			{GUID: "exp_fwd_f32", In: []int{0}, Out: []int{2}},
			{GUID: "sdpa_recomp_fwd_f32", In: []int{0, 0, 0, 2}, Out: []int{3}},
			{GUID: "sdpa_recomp_fwd_f32", In: []int{0, 0, 0, 1}, Out: []int{3}},
			{GUID: "sdpa_recomp_fwd_f32", In: []int{0, 0, 0, Absent}, Out: []int{3}},
		},
	}
	b.Recipes[Hash{3}] = third
	masked := b.Work(&Plan{Steps: []Step{launch(3, 0, 0), launch(3, 0, 0), launch(3, 128, 0)}})
	require.EqualValues(t, 3*16+2*16, masked.MaskBytes)
	require.EqualValues(t, 32, masked.MaskPeak)
	require.Empty(t, masked.MaskLayers, "nothing says of which layer they are")

	// A mask that is written again where one was is another one.
	writer := &Recipe{
		Sections: []Section{{Buffer: Arena, Size: 64}},
		Tensors:  []Tensor{tensor(0, 0), tensor(0, 16)},
		Nodes:    []Node{{GUID: "exp_fwd_f32", In: []int{0}, Out: []int{1}}},
	}
	b.Recipes[Hash{4}] = writer
	again := b.Work(&Plan{Steps: []Step{launch(4, 0, 0), launch(3, 0, 0), launch(3, 0, 0), launch(4, 0, 0), launch(3, 0, 0)}})
	require.EqualValues(t, 3*16+2*16, again.MaskBytes)

	// Layers read masks that they share; origins count from the layer of the launch.
	for i := range third.Nodes {
		third.Nodes[i].Origin = "layer 1 attn"
	}
	third.Nodes[2].Origin = "layer 2 attn"
	steps := []Step{launch(3, 0, 0), launch(3, 0, 0), launch(3, 0, 0)}
	for i, label := range []string{"layer 3 attn", "layer 4 attn", "embed"} {
		steps[i].Launch.Label = label
	}
	steps[1].Launch.Break = "sub-block 2 of 3: mask_budget"
	steps[2].Launch.Break = "rows are joined"
	masked = b.Work(&Plan{Steps: steps})
	require.Equal(t, []LayerMasks{{4, 16, 16}, {5, 32, 16}, {6, 16, 16}}, masked.MaskLayers)
	require.EqualValues(t, 3*16+16, masked.MaskBytes)
	require.Equal(t, map[string]int{"sub-block: mask_budget": 1, "rows are joined": 1}, masked.Breaks)

	p.Steps = append(p.Steps, Step{Collective: &Collective{Kind: AllGather}})
	require.Equal(t, 1, b.Work(p).AllGathers)
}

// Of what bytes hold the last write counts, byte by byte.
func TestDepths(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var d depths
		want := make([]int, 64)
		for range rapid.IntRange(1, 30).Draw(t, "writes") {
			lo, bytes, depth := rapid.IntRange(0, 60).Draw(t, "lo"), rapid.IntRange(1, 8).Draw(t, "bytes"), rapid.IntRange(0, 9).Draw(t, "depth")
			d.write(int64(lo), int64(bytes), depth)
			for i := lo; i < min(lo+bytes, len(want)); i++ {
				want[i] = depth
			}
			for at := range want {
				n := min(3, len(want)-at)
				require.Equal(t, slices.Max(want[at:at+n]), d.read(int64(at), int64(n)))
			}
		}
	})
}

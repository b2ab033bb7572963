package recipes

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dtype"
)

// The peak of a plan worked out by hand: values live from their write to their last
// read, inputs and what is left throughout, and a reduction in place is one value.
func TestMemory(t *testing.T) {
	t.Parallel()
	tensor := func(name string, section int, elems int64) Tensor {
		return Tensor{Name: name, DType: dtype.F32, Dims: []int64{elems}, Section: section}
	}
	// Makes its result in two nodes of which the second needs 4000 bytes of workspace.
	first := &Recipe{
		Sections: []Section{{Name: "inputs", Buffer: Arena, Size: 400}, {Name: "out0", Buffer: Arena, Size: 800}, {Name: "c", Buffer: Carry, Size: 80}},
		Tensors: []Tensor{
			tensor("x", 0, 100), tensor("y", 1, 200), tensor("wide", Workspace, 1000), tensor("view", Workspace, 1000), tensor("c", 2, 20), tensor("late", Workspace, 10),
		},
		Nodes: []Node{
			{GUID: "exp_fwd_f32", In: []int{0}, Out: []int{2}, Origin: "layer 0 mlp.up model.layers.+0.up"},
			{GUID: "reshape", In: []int{2}, Out: []int{3}},
			{GUID: "add_fwd_f32", In: []int{3, 0}, Out: []int{1}, Origin: "layer 1 mlp.down model.layers.+1.down"},
			{GUID: "exp_fwd_f32", In: []int{1}, Out: []int{5}, Origin: "final"},
			{GUID: "exp_fwd_f32", In: []int{5}, Out: []int{4}, Origin: "final"},
		},
	}
	require.NoError(t, first.Check())
	second := &Recipe{
		Sections: []Section{{Name: "a", Buffer: Arena, Size: 800}, {Name: "out0", Buffer: Arena, Size: 800}},
		Tensors:  []Tensor{tensor("a", 0, 200), tensor("b", 1, 200)},
		Nodes:    []Node{{GUID: "exp_fwd_f32", In: []int{0}, Out: []int{1}, Origin: "layer 0 mlp.up"}},
	}
	require.NoError(t, second.Check())
	b := &Bundle{Recipes: map[Hash]*Recipe{{1}: first, {2}: second}}
	b.Manifest.Deployment.TensorParallel = 2
	p := &Plan{
		Inputs:  []IO{{Name: "x", DType: dtype.F32, Dims: []int64{100}}},
		Outputs: []IO{{Name: "y", DType: dtype.F32, Dims: []int64{200}, Offset: 1408}},
		Steps: []Step{
			{Launch: &Launch{Recipe: Hash{1}, Label: "layer 4 mlp", Bindings: []Binding{{Arena, 0}, {Arena, 512}, {Carry, 0}}}},
			{Collective: &Collective{Kind: AllReduce, DType: dtype.F32, Count: 200, In: 512, Out: 512, Label: "layer 5 mlp"}},
			{Launch: &Launch{Recipe: Hash{2}, Label: "layer 6 mlp", Bindings: []Binding{{Arena, 512}, {Arena, 1408}}}},
		},
	}
	require.Equal(t, &Memory{
		Peak: 400 + 800 + 4000, ArenaBytes: 1200, WorkspaceBytes: 4000, Step: 0, Node: 2,
		Tensors: []Alive{
			{"wide", "workspace", dtype.F32, []int64{1000}, 4000, "layer 4 mlp.up model.layers.4.up"},
			{"y", "arena", dtype.F32, []int64{200}, 800, "layer 5 mlp.down model.layers.5.down"},
			{"x", "inputs", dtype.F32, []int64{100}, 400, ""},
		},
	}, b.Memory(p))

	// Without the wide value the last launch has most; what it reads is what the
	// reduction left, and what is carried is alive, but not counted.
	first.Tensors[2].Dims, first.Tensors[3].Dims = []int64{1}, []int64{1}
	require.Equal(t, &Memory{
		Peak: 400 + 800 + 800, ArenaBytes: 2000, Step: 2, Node: 0,
		Tensors: []Alive{
			{"all_reduce", "arena", dtype.F32, []int64{200}, 800, "layer 5 mlp"},
			{"b", "arena", dtype.F32, []int64{200}, 800, "layer 6 mlp.up"},
			{"x", "inputs", dtype.F32, []int64{100}, 400, ""},
			{"c", "carry", dtype.F32, []int64{20}, 80, "final"},
		},
	}, b.Memory(p))

	// A gather of both ranks' parts is twice as large. What is carried and read here was
	// there before.
	p.Steps[1].Collective = &Collective{Kind: AllGather, DType: dtype.F32, Count: 200, In: 512, Out: 2304, Label: "head"}
	p.Steps[2].Launch.Bindings[0].Offset = 2304
	require.EqualValues(t, 400+1600+800, b.Memory(p).Peak)
	require.Equal(t, 1, b.Memory(p).Step)
	require.Equal(t, -1, b.Memory(p).Node)
	second.Sections[0].Buffer, p.Steps[2].Launch.Bindings[0] = Carry, Binding{Carry, 0}
	p.Steps = p.Steps[2:]
	m := b.Memory(p)
	require.EqualValues(t, 400+800, m.Peak)
	require.Contains(t, m.Tensors, Alive{"a", "carry", dtype.F32, []int64{200}, 800, ""})

	// Half of a value is overwritten: the rest is alive.
	half := &Recipe{
		Sections: []Section{{Name: "out0", Buffer: Arena, Size: 400}},
		Tensors:  []Tensor{tensor("half", 0, 100)},
		Nodes:    []Node{{GUID: "constant_f32", Out: []int{0}}},
	}
	whole := &Recipe{
		Sections: []Section{{Name: "out0", Buffer: Arena, Size: 800}},
		Tensors:  []Tensor{tensor("whole", 0, 200)},
		Nodes:    []Node{{GUID: "constant_f32", Out: []int{0}}},
	}
	b.Recipes = map[Hash]*Recipe{{1}: half, {2}: whole}
	p = &Plan{
		Outputs: []IO{{Name: "y", DType: dtype.F32, Dims: []int64{200}}},
		Steps: []Step{
			{Launch: &Launch{Recipe: Hash{2}, Label: "w", Bindings: []Binding{{Arena, 0}}}},
			{Launch: &Launch{Recipe: Hash{1}, Label: "h", Bindings: []Binding{{Arena, 100}}}},
			{Launch: &Launch{Recipe: Hash{1}, Label: "h", Bindings: []Binding{{Arena, 896}}}},
		},
	}
	m = b.Memory(p)
	require.Equal(t, []any{int64(1200), 2}, []any{m.Peak, m.Step})
	require.Equal(t, []int64{400, 400, 400}, []int64{m.Tensors[0].Bytes, m.Tensors[1].Bytes, m.Tensors[2].Bytes})

	require.Equal(t, &Memory{Step: -1, Node: -1}, b.Memory(&Plan{Inputs: p.Inputs}))
}

// Origins count from the layer of the launch, where both have one.
func TestOrigin(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"layer 7 attn", "layer 2 mlp.up a.layers.+2.w", "layer 9 mlp.up a.layers.9.w"},
		{"embed", "layer 2 mlp.up a.layers.2.w", "layer 2 mlp.up a.layers.2.w"},
		{"layer 7 attn", "final_norm", "final_norm"},
		{"layer 7 attn", "layer 0", "layer 7"},
		{"", "", ""},
	} {
		require.Equal(t, c[2], Origin(c[0], c[1]))
	}
}

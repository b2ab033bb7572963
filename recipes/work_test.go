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
	require.Equal(t, Work{Launches: 1, Nodes: 5, Compute: 4, Merged: 4, Chain: 2, Kinds: outside(4, 2), Sources: map[string]int{"": 4}}, b.Work(p))

	// The second one reads the sum where the reduction left it.
	p.Steps = append(p.Steps, reduce(160, 256), launch(2, 256, 512))
	require.Equal(t, Work{
		Launches: 2, AllReduces: 1, Nodes: 6, Compute: 5, Merged: 5, Chain: 3, Kinds: outside(5, 3), Sources: map[string]int{"": 5},
		Breaks: map[string]int{"all_reduce": 1},
	}, b.Work(p))

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

// outside is all work outside layers, with nothing merged.
func outside(nodes, chain int) []KindWork {
	return []KindWork{{
		Kind: OutsideLayers, Compute: nodes, Merged: nodes, LeastOfLayer: nodes, MostOfLayer: nodes, LeastChain: chain, MostChain: chain,
	}}
}

// Nodes and chains belong to the layer that origins name, counted from that of the launch;
// a chain that goes through a reduction goes on, and one of another layer does not count.
func TestWorkByLayer(t *testing.T) {
	t.Parallel()
	x := func(section int, offset int64) Tensor {
		return Tensor{DType: dtype.F32, Dims: []int64{4}, Section: section, Offset: offset}
	}
	// The end of a layer, then the beginning of the next one.
	r := &Recipe{
		Sections: []Section{{Buffer: Arena, Size: 64}},
		Tensors:  []Tensor{x(0, 0), x(Workspace, 0), x(Workspace, 0), x(Workspace, 0), x(0, 16)},
		Nodes: []Node{
			{GUID: "exp_fwd_f32", In: []int{0}, Out: []int{1}, Origin: "layer 0 mlp.down model.llm.layers.+0.mlp.w2_md.weight"},
			{GUID: "neg_fwd_f32", In: []int{1}, Out: []int{2}, Origin: "layer 0 mlp.residual"},
			{GUID: "reduce_sum_fwd_f32", In: []int{2}, Out: []int{3}, Origin: "layer 1 attn.norm"},
			{GUID: "exp_fwd_f32", In: []int{3}, Out: []int{4}, Origin: "embed model.llm.embed.weight"},
		},
	}
	b := &Bundle{Recipes: map[Hash]*Recipe{{1}: r}}
	b.Manifest.Model = Model{Layers: 3, LayerKinds: []LayerKind{LocalDense, LocalDense, GlobalMoE}}
	require.NoError(t, b.Manifest.Model.checkKinds())
	launch := func(at int64, label string) Step {
		return Step{Launch: &Launch{Recipe: Hash{1}, Bindings: []Binding{{Arena, at}}, Label: label}}
	}
	p := &Plan{Steps: []Step{
		launch(0, "layer 0 mlp.down..embed"),
		{Collective: &Collective{Kind: AllReduce, DType: dtype.F32, Count: 4, In: 16, Out: 16}},
		launch(16, "layer 1 mlp.down..embed"),
	}}
	w := b.Work(p)
	require.Equal(t, []KindWork{
		{Kind: LocalDense, Layers: 2, Compute: 5, Merged: 3, LeastOfLayer: 2, MostOfLayer: 3, LeastChain: 2, MostChain: 2},
		{Kind: GlobalMoE, Layers: 1, Compute: 1, Merged: 1, LeastOfLayer: 1, MostOfLayer: 1, LeastChain: 1, MostChain: 1},
		{Kind: OutsideLayers, Compute: 2, Merged: 2, LeastOfLayer: 2, MostOfLayer: 2, LeastChain: 1, MostChain: 1},
	}, w.Kinds)
	require.Equal(t, []int{8, 6, 8}, []int{w.Compute, w.Merged, w.Chain})
	require.Equal(t, map[string]int{"mlp.down": 2, "mlp.residual": 2, "attn.norm": 2, "embed": 2}, w.Sources)

	b.Manifest.Model.LayerKinds = nil
	require.Equal(t, UnknownLayers, b.Work(p).Kinds[0].Kind)
	for want, kinds := range map[string][]LayerKind{
		"layer_kinds has 1 entries, want one for each of 3 layers":                                     {LocalDense},
		`layer_kinds: layer 1 is "dense", want one of [local-dense local-moe global-dense global-moe]`: {LocalDense, "dense", LocalMoE},
	} {
		require.EqualError(t, (&Model{Layers: 3, LayerKinds: kinds}).checkKinds(), want)
	}
}

// What joins a chain and what ends one.
func TestElementwiseChains(t *testing.T) {
	t.Parallel()
	const arena, temp = 0, Workspace
	exp, sum, view := "exp_fwd_f32", "reduce_sum_fwd_f32", "reshape"
	for _, c := range []struct {
		name string
		out  []int // sections of the results, one a node; tensor 0 is the launch's operand
		node []Node
		want []bool
	}{
		{"one after the other", []int{temp, temp, arena}, []Node{
			{GUID: exp, In: []int{0}}, {GUID: "cast_f32_to_bf16", In: []int{1}}, {GUID: "add_fwd_bf16", In: []int{2, 2}},
		}, []bool{true, true, false}},
		{"read twice by one chain", []int{temp, temp, arena}, []Node{
			{GUID: exp, In: []int{0}}, {GUID: "sigmoid_fwd_f32", In: []int{1}}, {GUID: "mult_fwd_f32", In: []int{1, 2}},
		}, []bool{true, true, false}},
		{"a sum reads it too", []int{temp, temp, arena}, []Node{
			{GUID: exp, In: []int{0}}, {GUID: sum, In: []int{1}}, {GUID: "div_fwd_f32", In: []int{1, 2}},
		}, []bool{false, false, false}},
		{"around a sum", []int{temp, temp, temp, arena}, []Node{
			{GUID: exp, In: []int{0}}, {GUID: "neg_fwd_f32", In: []int{1}}, {GUID: sum, In: []int{2}}, {GUID: "div_fwd_f32", In: []int{1, 3}},
		}, []bool{false, false, false, false}},
		{"two chains read it", []int{temp, arena, arena}, []Node{
			{GUID: exp, In: []int{0}}, {GUID: "neg_fwd_f32", In: []int{1}}, {GUID: "log_fwd_f32", In: []int{1}},
		}, []bool{false, false, false}},
		{"it leaves the launch", []int{arena, arena}, []Node{{GUID: exp, In: []int{0}}, {GUID: exp, In: []int{1}}}, []bool{false, false}},
		{"a view in between", []int{temp, temp, arena}, []Node{
			{GUID: exp, In: []int{0}}, {GUID: view, In: []int{1}}, {GUID: exp, In: []int{2}},
		}, []bool{false, false, false}},
		{"another node waits for it", []int{temp, arena, arena}, []Node{
			{GUID: exp, In: []int{0}}, {GUID: sum, In: []int{0}, After: []int{0}}, {GUID: exp, In: []int{1}},
		}, []bool{false, false, false}},
		{"nothing reads it", []int{temp}, []Node{{GUID: exp, In: []int{0}}}, []bool{false}},
		{"no element-wise node", []int{temp, arena}, []Node{{GUID: "gemm", In: []int{0, 0}}, {GUID: exp, In: []int{1}}}, []bool{false, false}},
	} {
		r := &Recipe{Sections: []Section{{Buffer: Arena, Size: 64}}, Tensors: []Tensor{{DType: dtype.F32, Dims: []int64{4}}}, Nodes: c.node}
		for i, section := range c.out {
			r.Tensors = append(r.Tensors, Tensor{DType: dtype.F32, Dims: []int64{4}, Section: section})
			r.Nodes[i].Out = []int{i + 1}
		}
		require.NoError(t, r.Check(), c.name)
		require.Equal(t, c.want, r.joinsReaders(), c.name)
	}
}

// Chains are element-wise, and no path leaves one and comes back: each could be one kernel.
func TestChainsAreConvex(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 14).Draw(t, "nodes")
		r := &Recipe{Sections: []Section{{Buffer: Arena, Size: 64}}, Tensors: []Tensor{{DType: dtype.F32, Dims: []int64{4}}}}
		for i := range n {
			node := Node{GUID: rapid.SampledFrom([]string{"exp_fwd_f32", "add_fwd_f32", "neg_fwd_f32", "reduce_sum_fwd_f32", "reshape"}).Draw(t, "guid"), Out: []int{i + 1}}
			for range rapid.IntRange(1, 2).Draw(t, "operands") {
				node.In = append(node.In, rapid.IntRange(max(0, i-4), i).Draw(t, "operand"))
			}
			if i > 0 && rapid.IntRange(0, 9).Draw(t, "waits") == 0 {
				node.After = []int{rapid.IntRange(0, i-1).Draw(t, "after")}
			}
			r.Nodes = append(r.Nodes, node)
			r.Tensors = append(r.Tensors, Tensor{DType: dtype.F32, Dims: []int64{4}, Section: rapid.SampledFrom([]int{Workspace, Workspace, Workspace, 0}).Draw(t, "section")})
		}
		reads := func(i, j int) bool { // node j reads node i, or waits for it
			return slices.Contains(r.Nodes[j].In, i+1) || slices.Contains(r.Nodes[j].After, i)
		}
		joins := r.joinsReaders()
		chain := make([]int, n)
		for i := n - 1; i >= 0; i-- {
			chain[i] = i
			for j := i + 1; joins[i] && j < n; j++ {
				if reads(i, j) {
					chain[i] = chain[j]
				}
			}
			require.True(t, !joins[i] || r.Nodes[i].Elementwise() && r.Nodes[chain[i]].Elementwise())
		}
		for root := range n { // what a chain's nodes lead to outside of it never leads back
			left := make([]bool, n)
			for j := range n {
				for i := range j {
					if reads(i, j) && (left[i] || chain[i] == root) {
						if chain[j] == root {
							require.False(t, left[i], "node %d leads back to the chain of %d", i, root)
						} else {
							left[j] = true
						}
					}
				}
			}
		}
	})
}

// Of what bytes hold the last write counts, byte by byte.
func TestDepths(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var d depths
		want := make([]int, 64)
		for range rapid.IntRange(1, 30).Draw(t, "writes") {
			lo, bytes, depth := rapid.IntRange(0, 60).Draw(t, "lo"), rapid.IntRange(1, 8).Draw(t, "bytes"), rapid.IntRange(0, 9).Draw(t, "depth")
			d.write(int64(lo), int64(bytes), reach{depth: depth})
			for i := lo; i < min(lo+bytes, len(want)); i++ {
				want[i] = depth
			}
			for at := range want {
				n := min(3, len(want)-at)
				require.Equal(t, slices.Max(want[at:at+n]), d.read(int64(at), int64(n), 0).depth)
			}
		}
	})
}

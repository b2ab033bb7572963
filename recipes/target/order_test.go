package target

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// manyUpdates is a recipe of one state that is read and updated by turns, so many times;
// what is read goes through a long chain before the next update.
func manyUpdates(rounds, chain int) *draft {
	d := &draft{}
	state := half(64, 32)
	now, rows := d.add(state), d.add(index(3))
	for range rounds {
		value := d.at(recipes.Workspace, 0, half(64, 3))
		d.node("gather_fwd_bf16", params("ns_GatherKernel::Params", ints("axis", recipes.I32, 1)), []int{now, rows}, []int{value})
		for range chain {
			next := d.at(recipes.Workspace, 0, half(64, 3))
			d.node("exp_fwd_bf16", nil, []int{value}, []int{next})
			value = next
		}
		next := d.at(0, 0, state)
		d.node("index_copy_fwd_bf16", params("ns_IndexCopy::Params", ints("axis", recipes.I32, 0)), []int{now, rows, value}, []int{next})
		now = next
	}
	return d
}

// A path may be long, and go through others' writes.
func TestOrderByLongPaths(t *testing.T) {
	p := load(t)
	d := manyUpdates(3, 50)
	require.NoError(t, p.CheckRecipe(d.finish()))
	// Without the update between, the chain is what orders the next one.
	d = manyUpdates(2, 50)
	last := &d.Nodes[len(d.Nodes)-1]
	for i := range d.Nodes {
		if n := &d.Nodes[i]; n.GUID == "exp_fwd_bf16" && n.Out[0] == last.In[2] {
			n.In = []int{d.add(half(64, 3))} // the end of the chain waits for nothing
		}
	}
	require.ErrorContains(t, p.CheckRecipe(d.finish()), "[order]")
}

// The time is that of reading a recipe, near enough: it grows with the number of nodes.
func BenchmarkCheckRecipe(b *testing.B) {
	p := load(b)
	find(p.Limits, func(l *Limit) bool { return l.Name == "program_data" }).Value = 1 << 40
	for name, d := range map[string]*draft{
		"5000 nodes": manyUpdates(50, 98), "20000 nodes": manyUpdates(200, 98), "20000 nodes, long paths": manyUpdates(4, 4998),
	} {
		r := d.finish()
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				require.NoError(b, p.CheckRecipe(r))
			}
		})
	}
}

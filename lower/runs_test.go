package lower

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/passes"
	"quill/recipes"
)

// guids counts the nodes of all launches of a plan.
func guids(p *planner) map[string]int {
	n := map[string]int{}
	for _, r := range p.recipes {
		for i := range r.Nodes {
			n[r.Nodes[i].GUID]++
		}
	}
	return n
}

// Weights of one product lie behind each other in each layer's group, and layers share
// a recipe.
func TestJoinedWeightsLieTogether(t *testing.T) {
	p, lay, err := planOf(t, `module @m {level = model, tp = 2}
func @f(
  input %x: i32[2], weight %e: f32[8, 5] = "e",
  weight %q0: f32[3, 5]@shard(0, 2) = "q0", weight %k0: f32[1, 5] = "k0", weight %v0: f32[1, 5] = "v0", weight %o0: f32[5, 3]@shard(1, 2) = "o0",
  weight %q1: f32[3, 5]@shard(0, 2) = "q1", weight %k1: f32[1, 5] = "k1", weight %v1: f32[1, 5] = "v1", weight %o1: f32[5, 3]@shard(1, 2) = "o1"
) -> (output y: f32[2, 5]) {
  %h0 = gather %e, %x {axis = 0}
  graph_break "layer"
  %a = matmul %h0, %q0 {trans_b = true, dtype = f32}
  %b = matmul %h0, %k0 {trans_b = true, dtype = f32}
  %c = matmul %h0, %v0 {trans_b = true, dtype = f32}
  %d = mul %b, %c
  %g = mul %a, %d
  %p0 = matmul %g, %o0 {trans_b = true, dtype = f32}
  %h1 = all_reduce %p0
  %i = matmul %h1, %q1 {trans_b = true, dtype = f32}
  %j = matmul %h1, %k1 {trans_b = true, dtype = f32}
  %k = matmul %h1, %v1 {trans_b = true, dtype = f32}
  %l = mul %j, %k
  %m = mul %i, %l
  %p1 = matmul %m, %o1 {trans_b = true, dtype = f32}
  %h2 = all_reduce %p1
  return %h2
}
`)
	require.NoError(t, err)
	require.Len(t, p.recipes, 3)
	require.Same(t, p.recipes[1], p.recipes[2])
	require.Equal(t, 4, guids(p)["gemm"], "two a layer")
	gemm := p.recipes[1].Nodes[slices.IndexFunc(p.recipes[1].Nodes, func(n recipes.Node) bool { return n.GUID == "gemm" })]
	require.Equal(t, []int64{5, 5}, p.recipes[1].Tensors[gemm.In[1]].Dims, "3 + 1 + 1 rows of 5")

	lay.finish()
	slots := map[string]recipes.Weight{}
	for _, w := range lay.weightsMap() {
		slots[w.Tensor] = w
	}
	for _, l := range []string{"0", "1"} {
		q, k, v, o := slots["q"+l], slots["k"+l], slots["v"+l], slots["o"+l]
		require.Equal(t, []int{1, 2, 3, 0}, []int{q.Part, k.Part, v.Part, o.Part})
		require.Equal(t, q.Offset+60, k.Offset, "no gap, though 60 is no multiple of 128")
		require.Equal(t, q.Offset+80, v.Offset)
		require.Zero(t, o.Offset%recipes.Alignment)
		require.Equal(t, 1, q.Copies(2)/2, "a rank has its own queries")
	}
	packing := recipes.NewPacking(lay.weightsMap(), 2, func(w *recipes.Weight) bool { return w.Part > 0 })
	require.Len(t, packing.Runs, 2)
	for _, r := range packing.Runs {
		require.Equal(t, 2, r.Copies, "keys and values come twice, beside the queries of either rank")
		require.Equal(t, int64(100), r.Bytes)
	}
}

// requireApart checks that values of a plan which are alive together share no bytes.
func requireApart(t *testing.T, p *planner) {
	t.Helper()
	first, last := map[*ir.Value]int{}, map[*ir.Value]int{}
	var list []*ir.Value
	for i, o := range p.entry.Ops {
		for _, a := range o.Args {
			last[a] = i
		}
		for _, r := range o.Results {
			if b := p.values[r]; b != nil && b.Buffer == recipes.Arena {
				first[r], last[r] = i, i
				list = append(list, r)
			}
		}
	}
	for _, v := range p.entry.Return {
		last[v] = len(p.entry.Ops)
	}
	require.NotEmpty(t, list)
	for i, v := range list {
		n, err := typeBytes(v.Type)
		require.NoError(t, err)
		for _, w := range list[:i] {
			m, err := typeBytes(w.Type)
			require.NoError(t, err)
			at, other := p.values[v].Offset, p.values[w].Offset
			inPlace := v.Def.Name() == "all_reduce" && v.Def.Args[0] == w
			apart := at+n <= other || other+m <= at || first[v] > last[w] || first[w] > last[v]
			require.True(t, apart || inPlace, "%d bytes at %d and %d at %d", n, at, m, other)
		}
	}
}

// convs is a decode step of some layers with a convolution of some channels each.
func convs(layers, channels int) string { return convsOf(layers, channels, 4, 5) }

// convsOf has other numbers of taps and of rows of the states.
func convsOf(layers, channels, taps, rows int) string {
	var b, body strings.Builder
	fmt.Fprintf(&b, "module @m {level = model, tp = 1}\nfunc @f(\n  input %%i: i32[2], input %%from: i32[2], input %%to: i32[2], weight %%e: f32[8, %d] = \"e\"", channels)
	result, names := "", ""
	for l := range layers {
		fmt.Fprintf(&b, ",\n  weight %%w%d: f32[%d, %d] = \"w%d\", weight %%p%d: f32[%d, %d] = \"p%d\", state %%conv.%d: f32[%d, %d, %d]", l, taps, channels, l, l, channels, channels, l, l, rows, taps-1, channels)
		result += fmt.Sprintf(", state conv.%d: f32[%d, %d, %d]", l, rows, taps-1, channels)
		names += fmt.Sprintf(", %%s%d", l)
	}
	in := "%h"
	body.WriteString("  %h = gather %e, %i {axis = 0}\n")
	for l := range layers {
		fmt.Fprintf(&body, `  graph_break "layer"
  %%x%[1]d = matmul %[2]s, %%p%[1]d {trans_b = true, dtype = f32} loc(%[1]d, "proj")
  %%r%[1]d = conv_read %%conv.%[1]d, %%from loc(%[1]d, "conv")
  %%y%[1]d = reshape %%x%[1]d {shape = [2, 1, %[3]d]} loc(%[1]d, "conv")
  %%z%[1]d = concat %%r%[1]d, %%y%[1]d {axis = 1} loc(%[1]d, "conv")
  %%c%[1]d = short_conv %%z%[1]d, %%w%[1]d loc(%[1]d, "conv")
  %%k%[1]d = slice %%z%[1]d {axis = 1, start = 1, stop = %[4]d} loc(%[1]d, "conv")
  %%s%[1]d = conv_write %%conv.%[1]d, %%to, %%k%[1]d loc(%[1]d, "conv")
  %%o%[1]d = reshape %%c%[1]d {shape = [2, %[3]d]} loc(%[1]d, "conv")
`, l, in, channels, taps)
		in = fmt.Sprintf("%%o%d", l)
	}
	fmt.Fprintf(&b, "\n) -> (output y: f32[2, %d]%s) {\n%s  graph_break \"end\"\n  %%v = silu %s\n  return %%v%s\n}\n", channels, result, body.String(), in, names)
	return b.String()
}

// States of all layers lie behind each other, and so do the rows that cross launches: a
// step reads and writes all at once, whatever the number of layers, and a layer's launch
// finds its part at an address.
func TestStatesOfLayersLieTogether(t *testing.T) {
	var first map[string]int
	for _, layers := range []int{3, 7} {
		p, _, err := planOf(t, convs(layers, 128))
		require.NoError(t, err)
		requireApart(t, p)
		got := guids(p)
		delete(got, "gemm") // one a layer, as are the next two
		for _, perLayer := range []string{"mult_fwd_f32", "add_fwd_f32", "slice_axis", "reshape"} {
			delete(got, perLayer)
		}
		if first == nil {
			first = got
		}
		require.Equal(t, first, got)
		require.Equal(t, 2, got["gather_fwd_f32"], "the embedding and all states")
		require.Equal(t, 1, got["index_copy_fwd_f32"])
		require.Equal(t, 1, got["concat"], "old rows and new ones")
		for l := 2; l < layers; l++ {
			require.Same(t, p.recipes[2], p.recipes[l])
		}
	}
}

// A step that uses the states one by one binds each where it lies among the others, so
// that its layers share a recipe as well.
func TestLayersUseTheirStatesAlone(t *testing.T) {
	decode, err := ir.VerifyText("decode.qir", []byte(convs(4, 128)))
	require.NoError(t, err)
	alone, err := ir.VerifyText("alone.qir", []byte(convs(4, 128)))
	require.NoError(t, err)
	require.NoError(t, passes.Run(t.Context(), decode, passes.Default()))
	pipeline, err := passes.Default().Without(passes.Passes(), "hoist-conv-history")
	require.NoError(t, err)
	require.NoError(t, passes.Run(t.Context(), alone, pipeline))

	lay := newLayout()
	require.NoError(t, lay.reserve([]*ir.Module{decode, alone}))
	p, err := newPlan(alone, recipes.Bucket{Phase: recipes.Prefill, Query: 1}, lay)
	require.NoError(t, err)
	require.Equal(t, 4, guids(p)["index_copy_fwd_f32"])
	require.Same(t, p.recipes[2], p.recipes[3])
	bound := map[int64]bool{}
	for _, l := range p.launches {
		for _, b := range p.plan.Steps[l].Launch.Bindings {
			if b.Buffer == recipes.Conv {
				bound[b.Offset] = true
			}
		}
	}
	require.Len(t, bound, 4, "each at its own address")
}

// Where the parts would begin at no address that can be bound, nodes take them together.
func TestStatesThatCannotLieTogether(t *testing.T) {
	p, _, err := planOf(t, convs(3, 8))
	require.NoError(t, err)
	got := guids(p)
	require.Equal(t, 4, got["gather_fwd_f32"], "the embedding and each state")
	require.Equal(t, 3, got["index_copy_fwd_f32"])
	require.Equal(t, 3, got["concat"], "histories, new rows, both")
}

// runNames are the runs of a segment whose weights have rows of some numbers.
func runNames(t *testing.T, row int) []string {
	m, err := ir.VerifyText("test.qir", []byte(strings.ReplaceAll(`module @m {level = plan, tp = 1}
func @seg(
  weight %a: f32[2, N], weight %b: f32[2, N], weight %c: f32[3, N], temp %t: f32[2, N], temp %u: f32[2, N], input %i: i32[2]
) -> () {
  %0 = reshape %a {shape = [1, 2, N]}
  %1 = reshape %b {shape = [1, 2, N]}
  %2 = concat %0, %1 {axis = 0}
  %3, %4 = matmul_joined %t, %c, %2 {dtype = f32}
  %5 = concat %t, %u {axis = 0}
  %6 = concat %t, %u {axis = 1}
  %7 = concat %a, %t {axis = 0}
  %8 = silu %t
  %9 = concat %8, %u {axis = 0}
  %10 = concat %b, %a {axis = 0}
  return
}
func @f() -> () {
  return
}
`, "N", fmt.Sprint(row))))
	require.NoError(t, err)
	var got []string
	for _, r := range runsOf(m.Funcs[0]) {
		names := ""
		for _, p := range r {
			names += p.Name
		}
		got = append(got, names)
	}
	return got
}

// Runs are of parameters of one kind, the longest that an op reads.
func TestRuns(t *testing.T) {
	require.Equal(t, []string{"cab", "tu"}, runNames(t, 32))
}

// A weight that another op reads too begins at an address, so it is in no run where it
// would not: 3 rows of 16 before it are 192 bytes.
func TestRunsKeepAddresses(t *testing.T) {
	require.Equal(t, []string{"tu"}, runNames(t, 16))
}

package synapse

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes"
)

// Every op that a segment can hold has a Synapse form, and no rule is left of
// an op that is gone. Collectives stand between segments.
func TestEveryOpHasARule(t *testing.T) {
	for i := range ops.Table {
		o := &ops.Table[i]
		want := o.Levels&ops.Fused != 0 && !o.Has(ops.Collective)
		_, ok := rules[o.Name]
		require.Equal(t, want, ok, o.Name)
	}
	for name := range rules {
		_, ok := ops.ByName(name)
		require.True(t, ok, name)
	}
}

func emit(t *testing.T, text string, sections ...recipes.Section) (*recipes.Recipe, error) {
	t.Helper()
	m, err := ir.VerifyText("test.qir", []byte(text))
	require.NoError(t, err)
	f := m.Funcs[0]
	s := Segment{Name: f.Name, Fn: f, Sections: sections}
	for range f.Params {
		s.Params = append(s.Params, Slot{Section: len(s.Params)})
	}
	for i, r := range f.Results {
		at := Slot{Section: len(f.Params) + i}
		for j, p := range f.Params {
			if r.Kind == ir.State && p.Name == r.Name {
				at = s.Params[j]
			}
		}
		s.Results = append(s.Results, at)
	}
	for len(s.Sections) < len(f.Params)+len(f.Results) {
		s.Sections = append(s.Sections, recipes.Section{Name: "s", Buffer: recipes.Arena})
	}
	return Emit(s)
}

// An update in place waits for the reads of the version before it, and only
// for those.
func TestUpdatesWaitForReads(t *testing.T) {
	r, err := emit(t, `module @m {level = plan, tp = 1}
func @seg(state %s0: f32[8, 1, 4], input %i: i32[2], input %x: f32[2, 1, 4]) -> (temp r0: f32[2, 4, 1, 4], temp r1: f32[2, 4, 1, 4], state s0: f32[8, 1, 4]) {
  %0 = kv_read %s0, %i {block_size = 4}
  %1 = kv_write %s0, %i, %x
  %2 = kv_read %1, %i {block_size = 4}
  %3 = kv_write %1, %i, %x
  return %0, %2, %3
}
func @f(state %s0: f32[8, 1, 4], input %i: i32[2], input %x: f32[2, 1, 4]) -> (state s0: f32[8, 1, 4]) {
  %0, %1, %2 = call @seg %s0, %i, %x
  return %2
}
`)
	require.NoError(t, err)
	var updates [][]int
	for i, n := range r.Nodes {
		if n.GUID != "index_copy_fwd_f32" {
			continue
		}
		for _, a := range n.After {
			require.Equal(t, "gather_fwd_f32", r.Nodes[a].GUID)
			require.Less(t, a, i)
		}
		updates = append(updates, n.After)
		state, next := r.Tensors[n.In[0]], r.Tensors[n.Out[0]]
		require.Equal(t, []any{state.Section, state.Offset, state.Dims}, []any{next.Section, next.Offset, next.Dims})
	}
	require.Len(t, updates, 2)
	require.Len(t, updates[0], 1)
	require.Len(t, updates[1], 1)
	require.NotEqual(t, updates[0], updates[1])
}

// A read of several states at once waits for the updates of each, with which no tensor
// connects it, and an update of several for the reads of each.
func TestReadsOfSeveralStatesWait(t *testing.T) {
	m, err := ir.VerifyText("test.qir", []byte(`module @m {level = plan, tp = 1}
func @seg(
  state %a: f32[4, 3, 32], state %b: f32[4, 3, 32], input %i: i32[2], input %x: f32[2, 3, 32], input %y: f32[2, 2, 3, 32]
) -> (temp r0: f32[2, 2, 3, 32], state a: f32[4, 3, 32], state b: f32[4, 3, 32]) {
  %0 = conv_write %a, %i, %x
  %1 = conv_write %b, %i, %x
  %2 = conv_reads %i, %0, %1
  %3, %4 = conv_writes %i, %y, %0, %1
  return %2, %3, %4
}
func @f() -> () {
  return
}
`))
	require.NoError(t, err)
	s := Segment{Name: "seg", Fn: m.Funcs[0], Sections: make([]recipes.Section, 5)}
	for i := range s.Sections {
		s.Sections[i] = recipes.Section{Name: "s", Buffer: recipes.Arena}
	}
	s.Params = []Slot{{0, 0}, {0, 4 * 3 * 32 * 4}, {1, 0}, {2, 0}, {3, 0}}
	s.Results = []Slot{{4, 0}, s.Params[0], s.Params[1]}
	r, err := Emit(s)
	require.NoError(t, err)
	var updates []int
	gather := -1
	for i, n := range r.Nodes {
		switch n.GUID {
		case "index_copy_fwd_f32":
			updates = append(updates, i)
		case "gather_fwd_f32":
			require.Equal(t, -1, gather, "one for both")
			gather = i
		}
	}
	require.Len(t, updates, 3)
	require.Equal(t, updates[:2], r.Nodes[gather].After)
	require.Subset(t, r.Nodes[updates[2]].After, []int{updates[0], updates[1], gather})
}

func TestWhatTheTargetCannotDo(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{"%0 = reshape %x {shape = [1, 1, 1, 1, 2, 2]}\n%1 = reshape %0 {shape = [4]}\nreturn %1", "rank 6, engines take at most 5"},
		{"%0 = neg %x\nreturn %x", "returned twice or is a parameter"},
	} {
		_, err := emit(t, `module @m {level = plan, tp = 1}
func @seg(input %x: f32[4]) -> (temp r0: f32[4]) {
`+c.body+`
}
func @f(input %x: f32[4]) -> (output y: f32[4]) {
  %0 = call @seg %x
  return %0
}
`)
		require.ErrorContains(t, err, c.want)
	}
}

// Experts are views into the stored weights: expert e begins e matrices in.
func TestExpertsAreViews(t *testing.T) {
	r, err := emit(t, `module @m {level = plan, tp = 1}
func @seg(temp %x: bf16[3, 8], temp %e: i32[3, 2], temp %p: bf16[3, 2], weight %w13: bf16[5, 2, 6, 8], weight %w2: bf16[5, 8, 6]) -> (temp r0: bf16[3, 8]) {
  %0 = moe %x, %e, %p, %w13, %w2
  return %0
}
func @f(input %t: i32[3]) -> (output y: i32[3]) {
  return %t
}
`)
	require.NoError(t, err)
	require.Len(t, r.Nodes, 1)
	n := r.Nodes[0]
	require.Equal(t, "moe_bf16", n.GUID)
	require.Len(t, n.In, 3+5+5)
	for e := range 5 {
		gateUp, down := r.Tensors[n.In[3+e]], r.Tensors[n.In[8+e]]
		require.Equal(t, []int64{8, 12}, gateUp.Dims)
		require.Equal(t, int64(e*2*6*8*2), gateUp.Offset)
		require.Equal(t, []int64{6, 8}, down.Dims)
		require.Equal(t, int64(e*8*6*2), down.Offset)
	}
}

// A part of a bank is no copy, nor is one that begins in a bank and ends in another.
// The node says which experts it has.
func TestPartsOfBanksAreViews(t *testing.T) {
	r, err := emit(t, `module @m {level = plan, tp = 1}
func @seg(temp %x: bf16[3, 8], temp %e: i32[3, 2], temp %p: bf16[3, 2], weight %w13: bf16[5, 2, 6, 8], weight %w2: bf16[5, 8, 6], weight %s13: bf16[2, 2, 6, 8], weight %s2: bf16[2, 8, 6]) -> (temp r0: bf16[3, 8]) {
  %0 = slice %w13 {axis = 0, start = 3, stop = 5}
  %1 = slice %w2 {axis = 0, start = 3, stop = 5}
  %2 = slice %s13 {axis = 0, start = 0, stop = 1}
  %3 = slice %s2 {axis = 0, start = 0, stop = 1}
  %4 = moe %x, %e, %p, %0, %1, %2, %3 {first = 3}
  return %4
}
func @f(input %t: i32[3]) -> (output y: i32[3]) {
  return %t
}
`)
	require.NoError(t, err)
	require.Len(t, r.Nodes, 1)
	n := r.Nodes[0]
	low, _ := n.Params.Int("experts_min")
	high, _ := n.Params.Int("experts_max")
	require.Equal(t, []int64{3, 5}, []int64{low, high})
	var places [][2]int64 // section and offset in matrices
	for i, in := range n.In[3:] {
		v := r.Tensors[in]
		places = append(places, [2]int64{int64(v.Section), v.Offset / int64(2*6*8*(2-i/3))})
	}
	require.Equal(t, [][2]int64{{3, 3}, {3, 4}, {5, 0}, {4, 3}, {4, 4}, {6, 0}}, places)
}

// A slice of what is computed, or of an input, is a node.
func TestSlicesOfWeightsAreViews(t *testing.T) {
	r, err := emit(t, `module @m {level = plan, tp = 1}
func @seg(temp %x: f32[4, 8], weight %w: f32[4, 8]) -> (temp r0: f32[2, 8], temp r1: f32[4, 4]) {
  %0 = slice %x {axis = 0, start = 2, stop = 4}
  %1 = slice %w {axis = 0, start = 1, stop = 3}
  %2 = add %0, %1
  %3 = slice %w {axis = 1, start = 0, stop = 4}
  %4 = neg %3
  return %2, %4
}
func @f(input %t: i32[3]) -> (output y: i32[3]) {
  return %t
}
`)
	require.NoError(t, err)
	var guids []string
	for _, n := range r.Nodes {
		guids = append(guids, n.GUID)
	}
	require.Equal(t, []string{"slice_axis", "add_fwd_f32", "slice_axis", "neg_fwd_f32"}, guids)
	part := r.Tensors[r.Nodes[1].In[1]]
	require.Equal(t, []any{1, int64(32), []int64{8, 2}}, []any{part.Section, part.Offset, part.Dims})
}

// Attention is one node: no valid lengths beside its mask, no causal flag, and
// statistics in the training form only.
func TestAttentionIsANode(t *testing.T) {
	r, err := emit(t, `module @m {level = plan, tp = 1}
func @seg(temp %q: bf16[2, 3, 5, 8], temp %k: bf16[2, 1, 7, 8], temp %m: bf16[1, 1, 1, 7]) -> (temp r0: bf16[2, 3, 5, 8], temp r1: bf16[2, 3, 5, 8], temp r2: bf16[2, 3, 5, 1], temp r3: f32[2, 3, 5, 1]) {
  %0 = sdpa %q, %k, %k, %m {scale = 0.125}
  %1, %2, %3 = sdpa_stats %q, %k, %k {scale = 0.25}
  return %0, %1, %2, %3
}
func @f(input %t: i32[3]) -> (output y: i32[3]) {
  return %t
}
`)
	require.NoError(t, err)
	require.Len(t, r.Nodes, 2)
	for i, n := range r.Nodes {
		require.Equal(t, "sdpa_recomp_fwd_bf16", n.GUID)
		require.Len(t, n.In, 4-i) // the second has no mask
		require.Len(t, n.Out, 1+2*i)
		require.Equal(t, []int64{8, 5, 3, 2}, r.Tensors[n.In[0]].Dims)
		require.Equal(t, []int64{8, 7, 1, 2}, r.Tensors[n.In[1]].Dims)
		causal, ok := n.Params.Int("is_causal")
		require.True(t, ok)
		require.Zero(t, causal)
		inference, _ := n.Params.Int("is_inference")
		require.Equal(t, int64(1-i), inference)
		scale, _ := n.Params.FloatOf("scale")
		require.Equal(t, []float32{0.125, 0.25}[i], scale)
	}
}

// A transpose of axes of one element, such as heads of which a rank has one, moves
// nothing.
func TestTransposeOfOneElementIsAReshape(t *testing.T) {
	for perm, guid := range map[string]string{"[0, 2, 1, 3]": "reshape", "[2, 1, 0, 3]": "transpose", "[0, 1, 3, 2]": "reshape", "[0, 2, 3, 1]": "transpose"} {
		m, err := ir.VerifyText("test.qir", []byte(`module @m {level = plan, tp = 2}
func @seg(temp %x: f32[3, 5, 1, 4]@shard(2, 2)) -> () {
  %y = transpose %x {perm = `+perm+`}
  return
}
func @f() -> () {
  return
}
`))
		require.NoError(t, err)
		r, err := Emit(Segment{Name: "seg", Fn: m.Funcs[0], Sections: []recipes.Section{{Name: "s", Buffer: recipes.Arena}}, Params: []Slot{{}}})
		require.NoError(t, err)
		require.Equal(t, guid, r.Nodes[0].GUID, perm)
		require.Len(t, r.Nodes, 1)
	}
}

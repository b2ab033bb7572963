package lower

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/passes"
	"quill/recipes"
)

func parseIR(t *testing.T, text string) *ir.Module {
	t.Helper()
	m, err := ir.VerifyText("test.qir", []byte(text))
	require.NoError(t, err)
	return m
}

// Two reductions make three launches, and a break makes one more; equal ones are one
// segment. What moves is no link of a chain. A mask that two layers read is written
// once, and attention may have none.
func TestMeasure(t *testing.T) {
	t.Parallel()
	m := parseIR(t, `module @m {level = fused, tp = 2}
sym q: 1..64
func @f(input %x: f32[q, 4], input %q: f32[1, 1, q, 4], input %mask: f32[1, 1, q, q], weight %w: f32[2, 4]@shard(0, 2) = "w") -> (output y: f32[q, 4], output z: f32[1, 1, q, 4], output u: f32[1, 1, q, 4]) {
  %0 = slice %x {axis = 1, start = 0, stop = 2}
  %1 = neg %0
  %2 = concat %1, %1 {axis = 1}
  %m2 = add %mask, %mask
  %a = sdpa %q, %q, %q, %m2 {scale = 1} loc(0, "attn")
  %3 = exp %2
  graph_break "step 1 of 2: to see"
  %b = sdpa %a, %q, %q, %m2 {scale = 1} loc(1, "attn")
  %c = sdpa %b, %q, %q, %mask {scale = 1} loc(1, "attn")
  %d = sdpa %q, %q, %q {scale = 1} loc(1, "attn")
  return %3, %c, %d
}
`)
	text := m.String()
	got, err := Measure(t.Context(), m, map[string]int64{"q": 8})
	require.NoError(t, err)
	require.Equal(t, Measures{
		Ops: 9, Chain: 4, Launches: 2, Segments: 2, Breaks: map[string]int{"step: to see": 1},
		MaskBytes: 2 * 8 * 8 * 4, MaskPeak: 2 * 8 * 8 * 4,
		MaskLayers: []recipes.LayerMasks{{Layer: 0, Total: 256, Peak: 256}, {Layer: 1, Total: 512, Peak: 512}},
	}, got)
	require.Equal(t, text, m.String(), "measuring changes nothing")
	_, err = Measure(t.Context(), m, map[string]int64{"q": 65})
	require.Error(t, err)

	m = parseIR(t, `module @m {level = model, tp = 2}
func @f(weight %x: f32[4, 4]@shard(1, 2) = "x", weight %w: f32[8, 4]@shard(1, 2) = "w") -> (output y: f32[4, 8]) {
  %0 = matmul %x, %w {dtype = f32, trans_b = true}
  %1 = all_reduce %0
  %2 = neg %1
  return %2
}
`)
	want := Measures{Ops: 3, Chain: 3, Launches: 2, Segments: 2, AllReduces: 1, Breaks: map[string]int{"all_reduce": 1}}
	got, err = Measure(t.Context(), m, nil)
	require.NoError(t, err)
	require.Equal(t, want, got)
	cut, err := passes.Parse("outline-segments")
	require.NoError(t, err)
	require.NoError(t, passes.Run(t.Context(), m, cut))
	got, err = Measure(t.Context(), m, nil)
	require.NoError(t, err)
	require.Equal(t, want, got, "it is as if it were cut")
}

// What is measured of the IR is what the bundle has.
func TestMeasuresAreThoseOfPlans(t *testing.T) {
	t.Parallel()
	d, err := deployment(t, small+"sub_block_rows: 24\n")
	require.NoError(t, err)
	var planned []*Planned
	b, _, err := CompileWith(t.Context(), d, Options{
		Passes: func(params passes.Params) *passes.Manager {
			return passes.NewManager(passes.Config{Pipeline: passes.Default(), Params: params})
		},
		Planned: func(precision string, p *Planned) {
			require.Equal(t, BF16, precision)
			planned = append(planned, p)
		},
	})
	require.NoError(t, err)
	require.Len(t, planned, len(b.Sets[0].Plans))
	masked, broken := 0, 0
	for i := range b.Sets[0].Plans {
		p := &b.Sets[0].Plans[i]
		require.Equal(t, p.Bucket, planned[i].Plan.Bucket)
		m, err := Measure(t.Context(), planned[i].Module, nil)
		require.NoError(t, err)
		w := b.Work(p)
		require.Equal(t, []int{w.Launches, w.AllReduces, w.AllGathers}, []int{m.Launches, m.AllReduces, m.AllGathers}, "%s", p.Bucket)
		require.Len(t, planned[i].Segments, w.Launches)
		require.Equal(t, w.Breaks, m.Breaks, "%s", p.Bucket)
		require.Equal(t, []int64{w.MaskBytes, w.MaskPeak}, []int64{m.MaskBytes, m.MaskPeak}, "%s", p.Bucket)
		require.Equal(t, w.MaskLayers, m.MaskLayers, "%s", p.Bucket)
		require.LessOrEqual(t, m.Segments, m.Launches)
		require.LessOrEqual(t, m.Chain, w.Chain+w.AllReduces+w.AllGathers, "an op is a node or more")
		masked += len(m.MaskLayers)
		broken += m.Breaks["sub-block: sub_block_rows"]
	}
	require.Positive(t, masked)
	require.Positive(t, broken)
}

// Compiling a bundle again gives the same plans and recipes, whatever it was compiled
// with, from what the bundle holds alone.
func TestRecompile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "precision: f32\nattention: masked\nmask_budget: 64KiB\nembedding: sharded\n"} {
		d, err := deployment(t, "model: ../nano-small\ntensor_parallel: 2\nmax_model_len: 64\nmax_num_seqs: 1\nblock_size: 16\nmax_batched_tokens: 32\n"+text)
		require.NoError(t, err)
		b, _, err := Compile(t.Context(), d, nil)
		require.NoError(t, err)
		require.Equal(t, passes.Default().String(), b.Manifest.Compiled.Passes)
		for i := range b.Sets {
			again, err := Recompile(t.Context(), b, &b.Sets[i], Options{})
			require.NoError(t, err)
			require.Equal(t, b.Sets[i], again.Sets[0])
			require.Equal(t, b.Checkpoint, again.Checkpoint)
			for h, r := range again.Recipes {
				require.Equal(t, b.Recipes[h], r)
			}
		}
		b.Manifest.Compiled.Passes = ""
		_, err = Recompile(t.Context(), b, &b.Sets[0], Options{})
		require.ErrorContains(t, err, `the passes "" that the bundle was compiled with`)
		b.Manifest.Compiled.Params = []string{"nope=1"}
		_, err = Recompile(t.Context(), b, &b.Sets[0], Options{})
		require.ErrorContains(t, err, "what the bundle says of its passes")
	}
}

// What was hoisted is what the first segment has more than before, by op and source.
func TestFindHoisted(t *testing.T) {
	t.Parallel()
	m := parseIR(t, `module @m {level = model, tp = 1}
sym q: 1..64
func @f(input %p: i32[q], carry %x: f32[q]) -> (output y: f32[q]) {
  %0 = neg %x loc(0, "embed")
  graph_break "one"
  %1 = cast %p {dtype = f32} loc(0, "attn.position")
  %2 = exp %1 loc(0, "attn.position")
  %3 = add %0, %2 loc(0, "attn")
  graph_break "two"
  %4 = cast %p {dtype = f32} loc(1, "attn.position")
  %5 = exp %4 loc(1, "attn.position")
  %6 = add %3, %5 loc(1, "attn")
  return %6
}
`)
	before := m.Clone()
	p, err := passes.Parse("hoist-step-invariant")
	require.NoError(t, err)
	require.NoError(t, passes.Run(t.Context(), m, p))
	got, err := FindHoisted(before, m, map[string]int64{"q": 16})
	require.NoError(t, err)
	require.Equal(t, []Hoisted{
		{Op: "cast", Source: "attn.position", Type: "f32[q]", Layers: 2, Bytes: 64},
		{Op: "exp", Source: "attn.position", Type: "f32[q]", Layers: 2, Bytes: 64},
	}, got)
	got, err = FindHoisted(m, m, map[string]int64{"q": 16})
	require.NoError(t, err)
	require.Empty(t, got)
}

package passes

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/interp"
	"quill/recipes/dtype"
)

// fourSums has the sum of four reductions on four ranks.
const fourSums = `module @m {level = model, tp = 4}
func @f(weight %w: f32[4, 3, 50]@shard(1, 4) = "w") -> (output y: f32[50]) {
  %s = reduce_sum %w {axis = 1}
  %s0 = slice %s {axis = 0, start = 0, stop = 1}
  %s1 = slice %s {axis = 0, start = 1, stop = 2}
  %s2 = slice %s {axis = 0, start = 2, stop = 3}
  %s3 = slice %s {axis = 0, start = 3, stop = 4}
  %r0 = all_reduce %s0
  %r1 = all_reduce %s1
  %r2 = all_reduce %s2
  %r3 = all_reduce %s3
  %a = add %r0, %r1
  %b = sub %r2, %r3
  %c = sub %b, %a
  %d = reshape %c {shape = [50]}
  return %d
}
`

// Sums of small integers are exact in any order. Of others both forms are within
// the bound of the pass's comment.
func TestCollapsedSumsAreWithinTheBound(t *testing.T) {
	before := parse(t, fourSums)
	after := before.Clone()
	require.NoError(t, Run(t.Context(), after, pipelineOf(t, "collapse-reduces")))
	require.Equal(t, 1, countOps(after)["all_reduce"])
	for seed := range uint64(20) {
		whole := interp.Random(seed, dtype.F32, 4, 12, 50)
		got, want := onShards(t, after, whole), onShards(t, before, whole)
		for i := range want.F {
			sum := 0.0
			for at := i; at < len(whole.F); at += len(want.F) {
				sum += math.Abs(float64(whole.F[at]))
			}
			require.InDelta(t, want.F[i], got.F[i], 2*sum*(4+4)/(1<<24))
		}
		for i, v := range interp.RandomInts(seed, dtype.I32, -1000, 1000, 4, 12, 50).I {
			whole.F[i] = float32(v)
		}
		require.True(t, interp.Equal(onShards(t, after, whole), onShards(t, before, whole)))
	}
}

// onShards interprets a module whose only parameter is given as a whole.
func onShards(t *testing.T, m *ir.Module, whole *interp.Tensor) *interp.Tensor {
	t.Helper()
	p := m.Entry().Params[0]
	parts, err := interp.Shard(whole, p.Value.Type.Dist, m.TP)
	require.NoError(t, err)
	var args []map[string]*interp.Tensor
	for _, part := range parts {
		args = append(args, map[string]*interp.Tensor{p.Name: part})
	}
	out, err := interp.Run(t.Context(), m, m.Entry(), nil, args, interp.Options{})
	require.NoError(t, err)
	return out[0]["y"]
}

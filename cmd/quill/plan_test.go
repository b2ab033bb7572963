package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower"
	"quill/recipes"
	"quill/runtime"
)

// What a forecast says of a bundle is what inspect says of it, and the memory of the CPU
// device that of a session.
func TestForecastIsWhatIsServed(t *testing.T) {
	t.Parallel()
	for model, precision := range map[string]string{"nano-small": "both", "nano-dense": "f32"} {
		path := writeDeployment(t, model, fmt.Sprintf("model: MODEL\ntensor_parallel: 2\nmax_model_len: 64\nmax_num_seqs: 2\nblock_size: 16\nmax_batched_tokens: 16\nprecision: %s\n", precision))
		d, err := lower.ReadDeployment(path)
		require.NoError(t, err)
		f, err := lower.NewForecast(t.Context(), d, lower.ForecastOptions{Full: true})
		require.NoError(t, err)
		b, _, err := lower.Compile(t.Context(), d, nil)
		require.NoError(t, err)
		bundle := filepath.Join(t.TempDir(), "x.quill")
		require.NoError(t, recipes.WriteBundle(t.Context(), bundle, b))
		r := newReport(bundle, 0, b)
		for i := range r.Sets {
			set, m := &r.Sets[i], &f.Memory[i]
			require.Equal(t, set.Recipes, m.Recipes)
			require.Len(t, set.Families, len(m.Families))
			for j, x := range set.Families {
				require.Equal(t, lower.FamilyForecast{Family: x.Name, Buckets: x.Buckets, Compiled: x.Buckets, Recipes: x.Recipes}, m.Families[j])
			}
			for _, l := range m.Lines {
				want := set.Bytes[recipes.Buffer(l.Name)]
				if l.Name == lower.WorkspaceLine {
					want = set.WorkspaceBytes
				}
				require.Equal(t, want, l.Bytes, l.Name)
			}
			s, err := runtime.Open(t.Context(), bundle, runtime.Options{Model: filepath.Join("../../testdata", model), Precision: set.Precision, Weights: runtime.NoWeights})
			require.NoError(t, err)
			require.Equal(t, s.Memory(), runtime.Memory{Buffers: m.Host.BufferBytes, Copied: m.Host.CopiedBytes, Mapped: m.Host.MappedBytes}, "%s, %s", model, set.Precision)
			require.NoError(t, s.Close())
		}
	}
}

// A largest value, or why there is none.
func TestLargestText(t *testing.T) {
	t.Parallel()
	require.Equal(t, "7, 2.0 KiB a rank; above it no", largestText(lower.Largest{Value: 7, Bytes: 2048, Next: "no"}))
	require.Equal(t, "none: no", largestText(lower.Largest{Next: "no"}))
}

// A strategy without buckets has a column without numbers, and its reason below.
func TestPrintStrategies(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	printStrategies(&text, []lower.StrategyForecast{
		{Strategy: "exp", Buckets: 3, Families: []lower.FamilyBuckets{{Family: "prefill", Buckets: 3}}},
		{Strategy: "pad", Error: "too many"},
		{Strategy: "linear", Buckets: 5, Families: []lower.FamilyBuckets{{Family: "logits", Buckets: 5}}},
	})
	require.Equal(t, `
  BUCKETS BY STRATEGY  exp  pad  linear
  all                  3    -    5
  prefill              3    -    -
  logits               -    -    5
  pad: too many
`, text.String())
}

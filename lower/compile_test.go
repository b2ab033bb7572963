package lower

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

func compileSmall(t testing.TB, extra string) *recipes.Bundle {
	t.Helper()
	d, err := deployment(t, small+extra)
	require.NoError(t, err)
	b, notes, err := Compile(t.Context(), d, nil)
	require.NoError(t, err)
	require.Empty(t, notes)
	return b
}

// Equal inputs give equal bytes.
func TestBundlesAreReproducible(t *testing.T) {
	dir := t.TempDir()
	var files [][]byte
	for _, name := range []string{"a.quill", "b.quill"} {
		path := filepath.Join(dir, name)
		require.NoError(t, recipes.WriteBundle(t.Context(), path, compileSmall(t, "precision: both\n")))
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		files = append(files, data)
		_, err = recipes.ReadBundle(path)
		require.NoError(t, err)
	}
	require.Equal(t, files[0], files[1])
}

// Layers of a kind share their recipes, so a bucket has far fewer recipes than
// launches; there is one reduction after attention and one after the MLP.
func TestRecipesAreShared(t *testing.T) {
	b := compileSmall(t, "")
	for _, p := range b.Sets[0].Plans {
		distinct := map[recipes.Hash]bool{}
		launches, collectives := 0, 0
		for _, s := range p.Steps {
			if s.Launch != nil {
				launches++
				distinct[s.Launch.Recipe] = true
			} else {
				collectives++
			}
		}
		if p.Bucket.Phase == recipes.Logits {
			require.Equal(t, 2, launches)
			require.Equal(t, 1, collectives)
			continue
		}
		require.Equal(t, 2*12, collectives, "%s", p.Bucket)
		require.Equal(t, collectives+1, launches)
		require.LessOrEqual(t, len(distinct), 10, "%s", p.Bucket)
	}
}

// Every tensor of the checkpoint has a slot, at a device address unless it lies in a run;
// only taps of convolutions have others, since decoding reads those of the history together
// and the newest one by itself.
func TestWeightsMapIsComplete(t *testing.T) {
	b := compileSmall(t, "embedding: sharded\n")
	set := b.Sets[0]
	have := map[string]bool{}
	for _, w := range set.Weights {
		if w.Tensor != "" {
			twice := strings.Contains(w.Tensor, "sconv") && len(w.Rows) > 0
			require.True(t, !have[w.Tensor] || twice, "%s is loaded twice", w.Tensor)
			have[w.Tensor] = true
		}
		require.True(t, w.Part > 1 || w.Offset%recipes.Alignment == 0)
	}
	for _, c := range b.Checkpoint {
		require.True(t, have[c.Name], "%s is never loaded", c.Name)
	}
}

func TestCompileStops(t *testing.T) {
	d, err := deployment(t, small)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err = Compile(ctx, d, func(s Step) {
		if s.Done == 3 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
}

func TestProgressCountsEveryBucket(t *testing.T) {
	d, err := deployment(t, small+"precision: both\n")
	require.NoError(t, err)
	calls, last := 0, 0
	b, _, err := Compile(t.Context(), d, func(s Step) {
		calls++
		last = s.Total
		require.Equal(t, calls, s.Done)
		require.NotEmpty(t, s.What)
		require.Zero(t, s.Kept)
	})
	require.NoError(t, err)
	require.Equal(t, last, calls)
	require.Len(t, b.Sets, 2)
}

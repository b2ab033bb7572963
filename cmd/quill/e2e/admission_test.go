package e2e

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
)

// withoutPlans drops the plans that drop says from a bundle.
func withoutPlans(b *recipes.Bundle, drop func(recipes.Bucket) bool) {
	set := &b.Sets[0]
	set.Plans = slices.DeleteFunc(set.Plans, func(p recipes.Plan) bool { return drop(p.Bucket) })
	set.Info.Plans = slices.DeleteFunc(slices.Clone(set.Info.Plans), drop)
	b.Manifest.Sets[0] = set.Info
	used := map[recipes.Hash]*recipes.Recipe{}
	for i := range set.Plans {
		for _, s := range set.Plans[i].Steps {
			if s.Launch != nil {
				used[s.Launch.Recipe] = b.Recipes[s.Launch.Recipe]
			}
		}
	}
	b.Recipes = used
}

// Compiling refuses buckets with holes. A bundle that has some all the same refuses the
// sequences that could come to one, when they ask and before they have blocks; the others
// are served.
func TestIncompleteBundlesRefuseAtAdmission(t *testing.T) {
	t.Parallel()
	d := nano("nano-dense", 1, 16, "f32")
	path, err := d.file(t.Context())
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*recipes.Bundle)
		fits   int // longest sequence that is admitted, alone
		need   recipes.Bucket
	}{
		"long prefills": {func(b *recipes.Bundle) {
			withoutPlans(b, func(b recipes.Bucket) bool { return b.Phase == recipes.Prefill && b.Blocks > 4 })
		}, 65, recipes.Bucket{Phase: recipes.Prefill, Query: 1, Blocks: 5}},
		"large batches": {func(b *recipes.Bundle) {
			withoutPlans(b, func(b recipes.Bucket) bool { return b.Phase == recipes.Decode && b.Blocks > 8 })
		}, 128, recipes.Bucket{Phase: recipes.Decode, Seqs: 1, Blocks: 9}},
		"raised limit": {func(b *recipes.Bundle) { b.Manifest.Deployment.MaxModelLen = 300 }, 257, recipes.Bucket{Phase: recipes.Prefill, Query: 1, Blocks: 17}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := recipes.ReadBundle(path)
			require.NoError(t, err)
			c.change(b)
			broken := filepath.Join(t.TempDir(), "b.quill")
			require.NoError(t, recipes.WriteBundle(t.Context(), broken, b))
			s, err := runtime.Open(t.Context(), broken, runtime.Options{Model: d.model})
			require.NoError(t, err)
			defer s.Close()
			_, err = s.NewSequence(c.fits + 1)
			var missing *runtime.NoBucketError
			require.ErrorAs(t, err, &missing)
			require.Equal(t, c.need, missing.Need)
			require.Equal(t, b.Manifest.Deployment.KVBlocks, s.Info().Counters.FreeBlocks)
			q, err := s.NewSequence(c.fits)
			require.NoError(t, err)
			_, err = s.Prefill(t.Context(), q, make([]int32, c.fits-1))
			require.NoError(t, err)
			_, err = s.Decode(t.Context(), []*runtime.Sequence{q}, []int32{1})
			require.NoError(t, err)
			require.EqualValues(t, 1, s.Info().Counters.Misses)
			require.ErrorContains(t, unstatic(s), "1 sequences or steps had no bucket")
			q.Close()
		})
	}
}

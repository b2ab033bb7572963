package runtime

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower/buckets"
	"quill/recipes"
)

// The planner's choice, made of what the compiler knows, is the runtime's, made of
// what the bundle holds, for a million admissible steps; so what was proved of the
// one holds for the other.
func TestRuntimeChoosesAsPlanned(t *testing.T) {
	steps := 1_000_000
	if testing.Short() {
		steps = 20_000
	}
	r := rand.New(rand.NewPCG(1, 2))
	cases := []struct {
		spec   buckets.Spec
		limits simLimits
	}{
		{buckets.Spec{Strategy: buckets.Exp}, simLimits{block: 16, blocks: 900, maxLen: 4000, maxSeqs: 16, maxTokens: 512, ranks: 1}},
		{buckets.Spec{Strategy: buckets.Optimal, Most: 120}, simLimits{block: 32, blocks: 200, maxLen: 5000, maxSeqs: 7, maxTokens: 300, ranks: 1}},
		{buckets.Spec{Strategy: buckets.Pad}, simLimits{block: 8, blocks: 30, maxLen: 200, maxSeqs: 5, maxTokens: 50, ranks: 1}},
		{buckets.Spec{Strategy: buckets.Exp}, simLimits{block: 16, blocks: 1, maxLen: 5, maxSeqs: 3, maxTokens: 5, ranks: 1}},
	}
	for _, c := range cases {
		l := c.limits
		d := recipes.Deployment{
			TensorParallel: l.ranks, MaxModelLen: l.maxLen, MaxNumSeqs: l.maxSeqs, BlockSize: l.block, KVBlocks: l.blocks, MaxBatchedTokens: l.maxTokens,
		}
		costs := recipes.Costs{Row: 1, Block: 1, Key: 1} // those of simulated bundles
		set, err := buckets.Make(c.spec, d, costs)
		require.NoError(t, err)
		require.NoError(t, set.Covered())
		planner := recipes.NewSelector(&costs, l.block, set.Buckets)
		l.buckets = slices.Clone(set.Buckets)
		r.Shuffle(len(l.buckets), func(i, j int) { l.buckets[i], l.buckets[j] = l.buckets[j], l.buckets[i] })
		s, _ := simSession(t, l, Options{})
		for range steps / len(cases) {
			need := admissible(r, &d)
			p, err := s.choose(need)
			if err != nil {
				t.Fatalf("%+v: %v", c, err)
			}
			if want := set.Buckets[planner.Select(need)]; p.bucket != want {
				t.Fatalf("%+v: %v gets %v, was planned to get %v", c, need, p.bucket, want)
			}
		}
		require.Zero(t, s.counts.misses.Load())
	}
}

// admissible is a step as sessions ask for it.
func admissible(r *rand.Rand, d *recipes.Deployment) recipes.Bucket {
	switch r.IntN(3) {
	case 0:
		q := 1 + r.IntN(min(d.MaxBatchedTokens, d.MaxModelLen))
		return recipes.Bucket{Phase: recipes.Prefill, Query: q, Blocks: d.BlocksFor(r.IntN(d.MaxModelLen - q + 1))}
	case 1:
		s := 1 + r.IntN(d.MaxNumSeqs)
		return recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: s + r.IntN(s*d.BlocksFor(d.MaxModelLen)-s+1)}
	}
	return recipes.Bucket{Phase: recipes.Logits, Seqs: 1 + r.IntN(d.MaxNumSeqs)}
}

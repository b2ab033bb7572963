package buckets

import (
	"math/rand/v2"
	"testing"

	"quill/recipes"
)

// price is what a bucket costs a step, as recipes.Costs says.
func price(d *recipes.Deployment, b, need recipes.Bucket) int64 {
	q, n, s := int64(b.Query), int64(b.Blocks), int64(b.Seqs)
	switch {
	case b.Phase == recipes.Prefill:
		return q*costs.Row + q*costs.Key*(q+n*int64(d.BlockSize))
	case b.Phase == recipes.Logits:
		return s
	case b.Seqs > need.Seqs:
		return s*costs.Row + n*costs.Block + costs.Pad
	}
	return s*costs.Row + n*costs.Block
}

// draw is an admissible step, drawn as tokens.
func draw(r *rand.Rand, d *recipes.Deployment) recipes.Bucket {
	switch r.IntN(5) {
	case 0, 1:
		q := 1 + r.IntN(min(d.MaxBatchedTokens, d.MaxModelLen))
		return recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: q, Blocks: d.BlocksFor(r.IntN(d.MaxModelLen - q + 1))}
	case 2, 3:
		s, n := 1+r.IntN(d.MaxNumSeqs), 0
		length := 1 + r.IntN(d.MaxModelLen)
		for range s {
			n += d.BlocksFor(1 + r.IntN(length))
		}
		return recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: n}
	}
	return recipes.Bucket{Phase: recipes.Logits, Seqs: 1 + r.IntN(d.MaxNumSeqs)}
}

// A million admissible steps: the selected bucket covers, and none that covers is
// cheaper, or as cheap and smaller.
func TestSelectionOfAMillionSteps(t *testing.T) {
	steps := 1_000_000
	if testing.Short() {
		steps = 20_000
	}
	r := rand.New(rand.NewPCG(9, 10))
	cases := []struct {
		s Spec
		d recipes.Deployment
	}{
		{Spec{Strategy: Exp}, small(2048)},
		{Spec{Strategy: Exp}, small(8192)},
		{Spec{Strategy: Optimal}, small(8192)},
		{Spec{Strategy: Optimal, Padding: 1.5}, deployment(5000, 7, 48, 300, 999)},
		{Spec{Strategy: Pad}, deployment(4096, 32, 64, 700, 1024)},
		{Spec{Strategy: Linear}, deployment(255, 5, 16, 16, 100)},
		{Spec{Strategy: Exp}, deployment(7, 3, 16, 1, 7)},
	}
	for _, c := range cases {
		set := made(t, c.s, c.d)
		sel := recipes.NewSelector(&costs, c.d.BlockSize, set.Buckets)
		for range steps / len(cases) {
			need := draw(r, &c.d)
			i := sel.Select(need)
			if i < 0 || !set.Buckets[i].Covers(need) {
				t.Fatalf("%+v %+v: bucket %d for %v", c.s, c.d, i, need)
			}
			best := price(&c.d, set.Buckets[i], need)
			for j, b := range set.Buckets {
				if b.Covers(need) && (price(&c.d, b, need) < best || price(&c.d, b, need) == best && compare(b, set.Buckets[i]) < 0) {
					t.Fatalf("%+v %+v: %v costs %d for %v, %v costs %d", c.s, c.d, set.Buckets[j], price(&c.d, b, need), need, set.Buckets[i], best)
				}
			}
		}
	}
}

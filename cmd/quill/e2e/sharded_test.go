package e2e

import (
	"testing"

	"quill/runtime"
)

// With the embedding split by vocabulary the logits stay what they are.
func TestShardedEmbeddingMatches(t *testing.T) {
	t.Parallel()
	for _, m := range models {
		for _, tp := range []int{2, 4} {
			d := nano(m.name, tp, 16, "f32")
			d.sharded = true
			t.Run(d.String(), func(t *testing.T) {
				s := d.open(t)
				for _, n := range lengths {
					g := goldenOf(t, m.name, n)
					got := s.score(t, g.tokens, runtime.ScoreOptions{Chunk: 24, DecodeFrom: n * 3 / 4, NoiseSeqs: n % 2})
					record(t, "logits, sharded embedding", farthestRow(got, g.logits), f32Bound)
				}
			})
		}
	}
}

// The captured graphs with the embedding split mean the same.
func TestPlainGraphsWithShardedEmbeddingMatch(t *testing.T) {
	t.Parallel()
	for _, m := range models {
		for _, tp := range []int{2, 4} {
			d := nano(m.name, tp, 16, "f32")
			d.sharded = true
			t.Run(d.String(), func(t *testing.T) {
				t.Parallel()
				r := d.reference(t)
				for i, c := range schedules[:2] {
					r.matches(t, m.name, c, uint64(i))
				}
			})
		}
	}
}

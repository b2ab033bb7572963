package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
)

// oneDecodeBucket compiles a single decode bucket, so that a sequence runs in
// the same one alone and in company.
func oneDecodeBucket(d deployment) deployment {
	perSeq := (d.maxLen + d.block - 1) / d.block
	d.maxBatched = 16
	d.buckets = fmt.Sprintf("prefill q=4,16 c=0,2,%d\ndecode b=%d n=%d\n", perSeq, d.maxSeqs, d.maxSeqs*perSeq)
	return d
}

// Other sequences in the same batches change no bit of a sequence's logits,
// whichever row it has and whatever they are.
func TestNoiseChangesNoBit(t *testing.T) {
	t.Parallel()
	precisions := []string{"f32", "bf16"}
	for _, m := range models {
		for i, tp := range m.tps {
			for j, precision := range precisions {
				if !soak() && i%2 != j { // a sample takes turns
					continue
				}
				d := nano(m.name, tp, 16, precision)
				d.maxLen = 128
				d = oneDecodeBucket(d)
				t.Run(d.String(), func(t *testing.T) { noiseChangesNoBit(t, d, m.name) })
			}
		}
	}
}

func noiseChangesNoBit(t *testing.T, d deployment, model string) {
	g := goldenOf(t, model, 48)
	s := d.open(t)
	for _, from := range []int{0, 33} {
		alone := s.score(t, g.tokens, runtime.ScoreOptions{Chunk: 7, DecodeFrom: from})
		for seed := range uint64(3) {
			got := s.score(t, g.tokens, runtime.ScoreOptions{Chunk: 7, DecodeFrom: from, NoiseSeqs: 1 + int(seed), Seed: seed})
			sameBits(t, alone, got, fmt.Sprintf("decode from %d, noise %d", from, seed))
			record(t, "noise, bits of logits", farthestRow(got, alone), 0)
		}
	}
	decodes := 0
	for b := range s.Info().Counters.Used {
		if b.Phase == recipes.Decode {
			decodes++
		}
	}
	require.Equal(t, 1, decodes, "decode buckets")
}

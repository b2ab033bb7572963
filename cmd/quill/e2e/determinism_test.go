package e2e

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/runtime"
)

// Compiling twice gives the same bytes.
func TestBundlesAreReproducible(t *testing.T) {
	t.Parallel()
	for _, m := range models {
		for _, precision := range []string{"both", "f32"} {
			d := nano(m.name, m.tps[len(m.tps)-1], 16, precision)
			d.maxLen, d.maxSeqs = 64, 2
			var first []byte
			for range 2 {
				path, err := d.file(t.Context())
				require.NoError(t, err)
				data, err := os.ReadFile(path)
				require.NoError(t, err)
				if first == nil {
					first = data
				}
				require.True(t, string(first) == string(data), "%v: bundles differ", d)
			}
		}
	}
}

// Running twice gives the same bits, also on blocks that others have used; and
// the number of ranks changes the order of sums, not more.
func TestLogitsAreReproducible(t *testing.T) {
	t.Parallel()
	for _, m := range models {
		var alone [][]float32 // on one rank
		for _, tp := range []int{1, m.tps[len(m.tps)-1]} {
			d := nano(m.name, tp, 16, "f32")
			t.Run(d.String(), func(t *testing.T) {
				s := d.open(t)
				g := goldenOf(t, m.name, 200)
				opt := runtime.ScoreOptions{Chunk: 30, DecodeFrom: 150}
				first := s.score(t, g.tokens, opt)
				s.score(t, g.tokens[:77], runtime.ScoreOptions{NoiseSeqs: 3, DecodeFrom: 70})
				sameBits(t, first, s.score(t, g.tokens, opt), "second run")
				if alone == nil {
					alone = first
				}
				record(t, "ranks, f32 logits", farthestRow(first, alone), f32Bound)
			})
		}
	}
}

// Two devices with the same bundle give the same bits.
func TestSessionsAreReproducible(t *testing.T) {
	t.Parallel()
	d := nano("nano-small", 4, 16, "bf16")
	d.maxLen, d.maxSeqs = 64, 2
	g := goldenOf(t, "nano-small", 48)
	var first [][]float32
	for range 2 {
		s := &served{}
		require.NoError(t, s.start(t.Context(), d))
		rows := s.score(t, g.tokens, runtime.ScoreOptions{Chunk: 16, DecodeFrom: 30, NoiseSeqs: 1})
		require.NoError(t, s.Close())
		if first == nil {
			first = rows
		}
		sameBits(t, first, rows, "second session")
	}
}

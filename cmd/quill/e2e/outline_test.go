package e2e

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/interp"
)

// What the passes make of a graph computes the same bits as the captured graph:
// logits, states and carried rows.
func TestPassesChangeNoBit(t *testing.T) {
	for _, m := range models {
		for i, tp := range m.tps {
			for j, precision := range []string{"f32", "bf16"} {
				if !soak() && (i != j || tp > 2) { // a sample takes turns
					continue
				}
				d := nano(m.name, tp, 4, precision)
				t.Run(d.String(), func(t *testing.T) {
					t.Parallel()
					passesChangeNoBit(t, d, m.name)
				})
			}
		}
	}
}

func passesChangeNoBit(t *testing.T, d deployment, model string) {
	plain, outlined := d.reference(t), d.reference(t)
	outlined.outlined = true
	for i, c := range schedules {
		if c.length == 200 && !soak() {
			continue
		}
		tokens := goldenOf(t, model, c.length).tokens
		feed := func(r *reference) [][]float32 {
			return r.feed(r.newText(c.length), tokens, c.chunks, c.pad, rand.New(rand.NewPCG(uint64(i), 0)))
		}
		sameBits(t, feed(plain), feed(outlined), "logits")
		for rank, states := range plain.states {
			require.Len(t, outlined.states[rank], len(states))
			for name, x := range states {
				require.True(t, interp.Equal(x, outlined.states[rank][name]), "rank %d, state %s", rank, name)
			}
			require.True(t, interp.Equal(plain.carry[rank], outlined.carry[rank]), "rank %d, carried rows", rank)
		}
		record(t, "passes, bits of logits and states", 0, 0)
	}
	require.Equal(t, plain.used, outlined.used)
}

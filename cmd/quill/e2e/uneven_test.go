package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/inkling"
	"quill/recipes"
	"quill/runtime"
)

// A batch may hold one long sequence among short ones. Its references count as
// few for the batch though those of the long one reach beyond the relative bias.
const (
	longAt   = 100 // position at which the long one decodes
	shortAt  = 1
	together = 4 // steps
)

func unevenGoldens(t *testing.T, model string) (goldens []golden, starts []int) {
	short := goldenOf(t, model, 5)
	return []golden{short, goldenOf(t, model, 200), short, short}, []int{shortAt, longAt, shortAt, shortAt}
}

// In the interpreter.
func TestPlainGraphsDecodeUnevenBatches(t *testing.T) {
	for _, m := range models {
		d := nano(m.name, m.tps[1], 8, "f32")
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			r := d.reference(t)
			goldens, starts := unevenGoldens(t, m.name)
			var texts []*text
			for i, g := range goldens {
				s := r.newText(starts[i] + together)
				for s.n < starts[i] {
					r.prefill(s, g.tokens[s.n:min(s.n+64, starts[i])], 64, r.history(s))
				}
				texts = append(texts, s)
			}
			refs := d.maxSeqs * r.cfg.NearRefs(d.block)
			for range together {
				var tokens []int32
				var want [][]float32
				for i, s := range texts {
					tokens, want = append(tokens, goldens[i].tokens[s.n]), append(want, goldens[i].logits[s.n])
				}
				record(t, "plain graphs, logits", farthestRow(r.decode(texts, tokens, len(texts), refs), want), f32Bound)
			}
			require.Equal(t, together, r.used[inkling.DecodeFew])
		})
	}
}

// On the host.
func TestUnevenBatches(t *testing.T) {
	t.Parallel()
	for _, m := range models {
		d := nano(m.name, m.tps[1], 8, "f32")
		cfg := d.reference(t).cfg
		refs := d.maxSeqs * cfg.NearRefs(d.block)
		d.buckets = fmt.Sprintf("prefill q=64 c=0,16,32\ndecode b=1 n=32\ndecode b=4 n=%d,128\n", refs)
		t.Run(d.String(), func(t *testing.T) {
			s := d.open(t)
			goldens, starts := unevenGoldens(t, m.name)
			var seqs []*runtime.Sequence
			for i, g := range goldens {
				q, err := s.NewSequence(starts[i] + together)
				require.NoError(t, err)
				defer q.Close()
				_, err = s.Prefill(t.Context(), q, g.tokens[:starts[i]])
				require.NoError(t, err)
				seqs = append(seqs, q)
			}
			for range together {
				var tokens []int32
				var want [][]float32
				for i, q := range seqs {
					tokens, want = append(tokens, goldens[i].tokens[q.Len()]), append(want, goldens[i].logits[q.Len()])
				}
				got, err := s.Decode(t.Context(), seqs, tokens)
				require.NoError(t, err)
				record(t, "uneven batches, f32 logits", farthestRow(got, want), f32Bound)
			}
			require.EqualValues(t, together, s.Info().Counters.Used[recipes.Bucket{Phase: recipes.Decode, Seqs: 4, Blocks: refs}])
		})
	}
}

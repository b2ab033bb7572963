package e2e

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/inkling"
)

// feed runs tokens through a reference: chunks of the given lengths, then
// decode steps. Buckets are up to pad larger than the steps need.
func (r *reference) feed(s *text, tokens []int32, chunks []int, pad int, rng *rand.Rand) [][]float32 {
	perSeq := (r.opt.MaxModelLen + r.opt.BlockSize - 1) / r.opt.BlockSize
	more := func(need, most int) int { return min(need+rng.IntN(pad+1), most) }
	var rows [][]float32
	for _, n := range chunks {
		c := r.history(s)
		if c > 0 {
			c = more(c, perSeq)
		}
		rows = append(rows, r.prefill(s, tokens[s.n:s.n+n], more(n, r.opt.MaxBatchedTokens), c)...)
	}
	for s.n < len(tokens) {
		need := s.n/r.opt.BlockSize + 1
		batch := more(1, r.opt.MaxNumSeqs)
		rows = append(rows, r.decode([]*text{s}, tokens[s.n:s.n+1], batch, more(max(need, batch), batch*perSeq))...)
	}
	return rows
}

// schedule is a way to feed a sequence: chunks, then decode steps.
type schedule struct {
	length int
	chunks []int
	pad    int // buckets are up to so much larger than the steps
}

// Chunks begin before, at and after the edges of blocks. The first schedule
// has one with history beyond the relative bias, after which references reach
// beyond it too; the second has references within it as well.
var schedules = []schedule{
	{48, []int{5, 16, 3, 16, 5, 1}, 0},
	{48, []int{17}, 0},
	{48, []int{1, 1, 1, 30, 8}, 3},
	{17, nil, 2},
	{5, []int{5}, 3},
	{1, nil, 0},
	{200, []int{64, 40, 56, 32}, 0},
}

// The captured graphs of all families mean what the independent implementation
// computes: logits, residual streams after every sublayer and routed experts.
func TestPlainGraphsMatchTheIndependentImplementation(t *testing.T) {
	for _, m := range models {
		for _, tp := range m.tps {
			for _, block := range []int{4, 16} {
				if block == 16 && tp > 2 && !soak() {
					continue // families are reached with small blocks
				}
				d := nano(m.name, tp, block, "f32")
				t.Run(d.String(), func(t *testing.T) {
					t.Parallel()
					r := d.reference(t)
					for i, c := range schedules {
						if c.length == 200 && (tp > 1 || block > 4) && !soak() {
							continue
						}
						r.matches(t, m.name, c, uint64(i))
					}
					for _, fam := range r.cfg.Families(r.opt) {
						if block == 4 {
							require.NotZero(t, r.used[fam], "steps of %s", fam)
						}
					}
				})
			}
		}
	}
}

// matches feeds an expected sequence.
func (r *reference) matches(t *testing.T, model string, c schedule, seed uint64) {
	g := goldenOf(t, model, c.length)
	taps := r.watch()
	got := r.feed(r.newText(c.length), g.tokens, c.chunks, c.pad, rand.New(rand.NewPCG(seed, 0)))
	record(t, "plain graphs, logits", farthestRow(got, g.logits), f32Bound)
	if c.length == tapped {
		taps.check(t, model)
	}
}

// Sequences decode in one batch, each at its own position.
func TestPlainGraphsDecodeInBatches(t *testing.T) {
	for _, m := range models {
		d := nano(m.name, m.tps[1], 8, "f32")
		t.Run(d.String(), func(t *testing.T) {
			t.Parallel()
			r := d.reference(t)
			var texts []*text
			var goldens []golden
			for _, n := range []int{5, 17, 48} {
				g := goldenOf(t, m.name, n)
				s := r.newText(n)
				if n > 5 {
					got := r.prefill(s, g.tokens[:n-5], n-5, 0)
					record(t, "plain graphs, logits", farthestRow(got, g.logits[:n-5]), f32Bound)
				}
				texts, goldens = append(texts, s), append(goldens, g)
			}
			for range 5 {
				var tokens []int32
				var want [][]float32
				refs := 0
				for i, s := range texts {
					tokens, want = append(tokens, goldens[i].tokens[s.n]), append(want, goldens[i].logits[s.n])
					refs += s.n/d.block + 1
				}
				got := r.decode(texts, tokens, len(texts), refs)
				record(t, "plain graphs, logits", farthestRow(got, want), f32Bound)
				slices.Reverse(texts) // rows mean nothing
				slices.Reverse(goldens)
			}
			require.NotZero(t, r.used[inkling.DecodeFew])
		})
	}
}

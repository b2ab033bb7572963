package e2e

import (
	"math/rand/v2"
	"slices"
	"testing"

	"quill/runtime"
)

// bf16Share is how much farther from F32 the BF16 path may be than the
// published implementation's: it rounds elsewhere, not more.
const bf16Share = 2

// In BF16 a dense model stays about as near to F32 as the published
// implementation does, however the sequence is fed. Models with routed experts
// cannot be measured like that: a near-tie in a router turns an ulp into a whole
// expert.
func TestBF16StaysNearF32(t *testing.T) {
	t.Parallel()
	tps := []int{1, 4}
	if soak() {
		tps = models[2].tps
	}
	for _, tp := range tps {
		for _, block := range []int{8, 16} {
			d := nano("nano-dense", tp, block, "bf16")
			t.Run(d.String(), func(t *testing.T) {
				s := d.open(t)
				for _, n := range lengths {
					g := goldenOf(t, "nano-dense", n)
					for _, opt := range waysToFeed(n) {
						got := s.score(t, g.tokens, opt)
						record(t, "logits, bf16 (of the published path's error)", farthestRow(got, g.logits)/farthestRow(g.bf16, g.logits), bf16Share)
					}
				}
			})
		}
	}
}

// waysToFeed are chunks and decode steps of all kinds.
func waysToFeed(n int) []runtime.ScoreOptions {
	return []runtime.ScoreOptions{
		{Chunk: 64, DecodeFrom: n},
		{Chunk: 5, DecodeFrom: n / 2},
		{Chunk: 16, DecodeFrom: 1, NoiseSeqs: 2},
	}
}

// The same for the captured graphs in the interpreter.
func TestPlainGraphsInBF16StayNearF32(t *testing.T) {
	t.Parallel()
	d := nano("nano-dense", 2, 16, "bf16")
	r := d.reference(t)
	for i, n := range lengths[:4] {
		g := goldenOf(t, "nano-dense", n)
		for _, chunks := range [][]int{{n}, {(n + 1) / 2}, slices.Repeat([]int{1}, n)} {
			r.release()
			got := r.feed(r.newText(n), g.tokens, chunks, i%2, rand.New(rand.NewPCG(uint64(n), 0)))
			record(t, "plain graphs, bf16 (of the published path's error)", farthestRow(got, g.logits)/farthestRow(g.bf16, g.logits), bf16Share)
		}
	}
}

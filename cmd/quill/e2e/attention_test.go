package e2e

import (
	"strings"
	"testing"

	"quill/runtime"
)

// formsOfAttention are what a deployment may say of attention beside the default.
var formsOfAttention = []string{
	"attention: plain\n",
	"attention: masked\n",
	"attention: masked\nsub_block_rows: 7\n",
	"far: exact\n",
	"far: exact\nsub_block_rows: 5\n",
	"far: tiled\n",
	"far: tiled\nsub_block_rows: 5\n",
	"sub_block_rows: 7\n",
	"mask_budget: 24KiB\n",
}

// Every form of attention gives the logits of the independent implementation, in
// chunks with and without history in and out of reach.
func TestEveryFormOfAttention(t *testing.T) {
	t.Parallel()
	for _, form := range formsOfAttention {
		t.Run(strings.ReplaceAll(strings.TrimSpace(form), "\n", ", "), func(t *testing.T) {
			d := nano("nano-small", 2, 16, "f32")
			d.more = form
			d.buckets = "prefill q=1,64 c=0,3,16\ndecode b=1 n=16\ndecode b=4 n=64\n"
			g := goldenOf(t, "nano-small", 200)
			s := d.open(t)
			for _, chunk := range []int{23, 64} {
				got := s.score(t, g.tokens, runtime.ScoreOptions{Chunk: chunk, DecodeFrom: 190, Seed: 1})
				record(t, "logits, f32, forms of attention", farthestRow(got, g.logits), f32Bound)
			}
		})
	}
}

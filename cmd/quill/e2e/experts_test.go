package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/passes"
	"quill/runtime"
)

// formsOfExperts are what a deployment may say of experts, and a form and small buffers
// that expand-moe is to use.
var formsOfExperts = []struct{ more, options string }{
	{"moe: fused\nmoe_experts_per_node: 5\n", ""},
	{"moe_experts_per_node: 1\n", ""},
	{"moe: gather\n", ""},
	{"moe: gather\n", "form=pairs,bytes=64KiB"},
	{"moe: gather\n", "form=all,bytes=64KiB"},
	{"moe: gather\n", "form=sorted,rows=8,bytes=64KiB"},
	{"moe: gather\n", "form=sorted"},
}

// withExperts is a deployment with experts in a form.
func withExperts(d deployment, more, options string) deployment {
	d.more = more
	if options != "" {
		d.pipeline = strings.Replace(passes.Default().String(), "expand-moe", "expand-moe{"+options+"}", 1)
	}
	return d
}

// Every form of experts gives the logits of the independent implementation.
func TestEveryFormOfExperts(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"nano-small", "nano-big"} {
		for i, form := range formsOfExperts {
			t.Run(model+", "+strings.ReplaceAll(form.more+form.options, "\n", ", "), func(t *testing.T) {
				d := withExperts(nano(model, 1+i%2, 16, "f32"), form.more, form.options)
				d.buckets = "prefill q=1,64 c=0,3,16\ndecode b=1 n=16\ndecode b=4 n=64\n"
				b, err := d.compile(t.Context())
				require.NoError(t, err)
				nodes := 0 // of experts
				for _, r := range b.Recipes {
					for _, n := range r.Nodes {
						if n.GUID == "moe_f32" {
							nodes++
							most, _ := n.Params.Int("experts_max")
							least, _ := n.Params.Int("experts_min")
							require.Less(t, most-least, int64(5))
						}
					}
				}
				require.Equal(t, strings.Contains(form.more, "gather"), nodes == 0)
				g := goldenOf(t, model, 200)
				s := d.open(t)
				for _, chunk := range []int{23, 64} {
					got := s.score(t, g.tokens, runtime.ScoreOptions{Chunk: chunk, DecodeFrom: 190, Seed: 1})
					record(t, "logits, f32, forms of experts", farthestRow(got, g.logits), f32Bound)
				}
			})
		}
	}
}

// Company and padding change no bit where experts are gathered either.
func TestNoiseChangesNoBitOfGatheredExperts(t *testing.T) {
	t.Parallel()
	for i, form := range formsOfExperts {
		model := []string{"nano-small", "nano-big"}[i%2]
		d := nano(model, 2, 16, []string{"f32", "bf16"}[i/2%2])
		d.maxLen = 128
		d = withExperts(oneDecodeBucket(d), form.more, form.options)
		t.Run(d.String()+", "+form.options, func(t *testing.T) { noiseChangesNoBit(t, d, model) })
	}
}

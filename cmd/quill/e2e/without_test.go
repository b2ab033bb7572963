package e2e

import (
	"fmt"
	"slices"
	"testing"

	"quill/passes"
	"quill/runtime"
)

// Without any one of the optional passes the logits are those of the independent
// implementation too. Exact passes change no bit on the device either, where what
// they leave out is as long as its vectors.
func TestEveryPassCanBeLeftOut(t *testing.T) {
	t.Parallel()
	const length, model = 200, "nano-small"
	g := goldenOf(t, model, length)
	opt := runtime.ScoreOptions{Chunk: 24, DecodeFrom: 130, NoiseSeqs: 2, Seed: 1}
	d := nano(model, 2, 16, "f32")
	whole := d.open(t).score(t, g.tokens, opt)
	left := map[string]bool{}
	for _, s := range passes.Default() {
		name := s.Pass.Name
		if !s.Pass.Optional || left[name] {
			continue
		}
		left[name] = true
		d.without = name
		t.Run(name, func(t *testing.T) {
			got := d.open(t).score(t, g.tokens, opt)
			record(t, "a pass left out, f32", farthestRow(got, g.logits), f32Bound)
			if !s.Pass.Inexact {
				sameBits(t, whole, got, "without "+name)
			}
		})
	}
}

// In whatever order the table allows passes to run, the logits are those of the
// independent implementation.
func TestPassesInAnyOrder(t *testing.T) {
	t.Parallel()
	const length, model = 200, "nano-small"
	g := goldenOf(t, model, length)
	for seed := range uint64(20) {
		d := nano(model, 2, 16, "f32")
		d.pipeline = slices.Concat(passes.Passes().Random(seed), passes.Default().Stage(passes.Bucket)).String()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Log(d.pipeline)
			got := d.open(t).score(t, g.tokens, runtime.ScoreOptions{Chunk: 24 + int(seed), DecodeFrom: 150, NoiseSeqs: 1, Seed: seed})
			record(t, "passes in any order, f32", farthestRow(got, g.logits), f32Bound)
		})
	}
}

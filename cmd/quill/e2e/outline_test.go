package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/interp"
	"quill/passes"
)

// What the exact passes make of a graph computes the same bits as the captured
// graph: logits, states and carried rows, but for what padding writes. What all
// make of it computes logits that are as good.
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
	plain, exact, all := d.reference(t), d.reference(t), d.reference(t)
	all.passes = passes.Default().Stage(passes.Family)
	for _, s := range all.passes {
		if !s.Pass.Inexact {
			exact.passes = append(exact.passes, s)
		}
	}
	for i, c := range schedules {
		if c.length == 200 && !soak() {
			continue
		}
		tokens := goldenOf(t, model, c.length).tokens
		feed := func(r *reference) [][]float32 {
			return r.feed(r.newText(c.length), tokens, c.chunks, c.pad, rand.New(rand.NewPCG(uint64(i), 0)))
		}
		want := feed(plain)
		sameBits(t, want, feed(exact), "logits")
		for rank, states := range plain.states {
			require.Len(t, exact.states[rank], len(states))
			for name, x := range states {
				kept := int(x.Shape[0]) / (d.options().Blocks + 2) * (d.options().Blocks + 1) // all but the trash block
				sameRows(t, x, exact.states[rank][name], kept, fmt.Sprintf("rank %d, state %s", rank, name))
			}
			sameRows(t, plain.carry[rank], exact.carry[rank], plain.rows, fmt.Sprintf("rank %d, carried rows", rank))
		}
		record(t, "passes, bits of logits and states", 0, 0)
		if d.precision == "f32" {
			record(t, "passes, logits", farthestRow(feed(all), want), f32Bound)
		}
	}
	require.Equal(t, plain.used, exact.used)
}

// sameRows compares the first rows of two tensors bit by bit.
func sameRows(t *testing.T, want, got *interp.Tensor, rows int, what string) {
	t.Helper()
	first := func(x *interp.Tensor) *interp.Tensor {
		n := len(x.F) / int(x.Shape[0]) * rows
		return &interp.Tensor{DType: x.DType, Shape: []int64{int64(n)}, F: x.F[:n]}
	}
	require.True(t, interp.Equal(first(want), first(got)), what)
}

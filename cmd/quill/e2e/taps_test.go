package e2e

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/interp"
)

// taps collects what layers compute, a row for each token, in the order of
// steps.
type taps struct {
	layers, routed int // layers in all, and those with routed experts
	// rows has the residual streams by location, as "layer 3 attn.residual".
	rows map[string][][]float32
	// experts has the routed experts by layer.
	experts map[int][][]int64
}

// watch taps a reference.
func (r *reference) watch() *taps {
	w := &taps{layers: r.cfg.Layers, routed: r.cfg.Layers - r.cfg.DenseLayers, rows: map[string][][]float32{}, experts: map[int][][]int64{}}
	r.tap = func(op *ir.Op, result int, x *interp.Tensor, rows int) {
		switch {
		case op.Loc.Op == "attn.residual", op.Loc.Op == "mlp.residual":
			key := op.Loc.String()
			w.rows[key] = append(w.rows[key], inRows(x.F, int(x.Shape[0]))[:rows]...)
		case op.Loc.Op == "mlp.router" && op.Name() == "topk" && result == 1:
			k := int(x.Shape[1])
			for i := range rows {
				w.experts[op.Loc.Layer] = append(w.experts[op.Loc.Layer], slices.Sorted(slices.Values(x.I[i*k:(i+1)*k])))
			}
		}
	}
	return w
}

// tapped is the length of the sequence whose layers are known.
const tapped = 48

// check compares with that sequence.
func (w *taps) check(t *testing.T, model string) {
	t.Helper()
	const n = tapped
	for l := range w.layers {
		for op, name := range map[string]string{"attn.residual": "after_attn", "mlp.residual": "out"} {
			want := inRows(expectedF32(t, model, fmt.Sprintf("seq%d.layer%d.%s", n, l, name)), n)
			got := w.rows[ir.Loc{Layer: l, Op: op}.String()]
			// The residual stream grows with depth: the bound is relative to it.
			record(t, "plain graphs, residual streams (relative)", farthestRow(got, want)/max(1, scale(want...)), f32Bound)
		}
		if got := w.experts[l]; got != nil {
			want := expectedI32(t, model, fmt.Sprintf("seq%d.layer%d.experts", n, l))
			k := len(want) / n
			for i := range n {
				for j := range k {
					require.Equal(t, int64(want[i*k+j]), got[i][j], "layer %d, token %d, experts %v", l, i, got[i])
				}
			}
		}
	}
	require.Len(t, w.rows, 2*w.layers)
	require.Len(t, w.experts, w.routed)
}

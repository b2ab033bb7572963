package e2e

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/interp"
	"quill/lower/synapse"
)

// guide is what a recipe computed on the device, node by node, where the interpreter is to
// go on with the same, once it has compared it with its own:
//
//	what routers chose   a choice between scores that are nearly equal depends on how sums
//	                     before it are rounded, and decides all that follows
//	residual streams     so that errors of layers do not add up
type guide struct {
	of    map[*ir.Op][]*interp.Tensor // choices of topk ops, streams of others, by rank
	bound float64                     // of near ties, relative to the largest score of the row
	rows  int                         // choices that were compared
	ties  []float64                   // by how much those differ that are others
	// streams are how far residual streams were off, relative to the largest element.
	streams []float64
}

// routersOf are the ops of a segment that choose experts, by scores with a bias. Others
// sort choices: integers, of which none are nearly equal.
func routersOf(f *ir.Func) (list []*ir.Op) {
	for _, o := range f.Ops {
		if o.Name() == "topk" && o.Args[0].Def != nil && o.Args[0].Def.Name() == "add" {
			list = append(list, o)
		}
	}
	return list
}

// streamsOf are the ops of a segment that make what norms of layers read.
func streamsOf(f *ir.Func) (list []*ir.Op) {
	for _, o := range f.Ops {
		if x := o.Args; o.Name() == "rms_norm" && (o.Loc.Op == "attn.norm" || o.Loc.Op == "mlp.norm") && x[0].Def != nil && !slices.Contains(list, x[0].Def) {
			list = append(list, x[0].Def)
		}
	}
	return list
}

// guide executes a recipe node by node, with what it reads in its place, and keeps what
// the interpreter is to go on with.
func (e *experiment) guide(ops []*ir.Op) *guide {
	traced, err := synapse.Trace(*e.lowered)
	require.NoError(e.t, err)
	require.Equal(e.t, e.recipe, traced.Recipe)
	tap, err := e.device.Tap(e.recipe, e.binding)
	require.NoError(e.t, err)
	require.NoError(e.t, tap.Run(e.t.Context()))
	g := &guide{of: map[*ir.Op][]*interp.Tensor{}, bound: e.bound}
	for _, o := range ops {
		require.True(e.t, traced.Makes(o), "no node makes %s of %s", o.Name(), o.Loc)
		v := o.Results[len(o.Results)-1]
		shape := make([]int64, v.Type.Rank())
		for i, d := range v.Type.Shape {
			shape[i], _ = d.Const()
		}
		for rank := range e.mod.TP {
			data, err := tap.Tensor(rank, traced.Tensors[v])
			require.NoError(e.t, err)
			g.of[o] = append(g.of[o], tensorFrom(data, interp.Zeros(v.Type.DType, shape...)))
		}
	}
	return g
}

// replace gives the interpreter what the device has, if that is as right as its own.
func (g *guide) replace(rank int, o *ir.Op, in, out []*interp.Tensor) ([]*interp.Tensor, error) {
	switch all, ok := g.of[o]; {
	case !ok:
		return out, nil
	case o.Name() == "topk":
		return g.choice(rank, int(o.Int("k")), in[0], out, all[rank])
	default:
		by, err := interp.MaxAbsDiff(all[rank], out[0])
		g.streams = append(g.streams, by/max(scale(out[0].F), 1e-6))
		return all[rank : rank+1], err
	}
}

// choice compares each row of a choice.
func (g *guide) choice(rank, k int, scores *interp.Tensor, out []*interp.Tensor, chosen *interp.Tensor) ([]*interp.Tensor, error) {
	n := int(scores.Shape[len(scores.Shape)-1])
	values := interp.Zeros(out[0].DType, out[0].Shape...)
	for row := range chosen.Len() / k {
		own, other, of := out[1].I[row*k:][:k], chosen.I[row*k:][:k], scores.F[row*n:][:n]
		by, err := nearTie(of, own, other, g.bound)
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", row, err)
		}
		for i, at := range other {
			values.F[row*k+i] = of[at]
		}
		if rank > 0 { // ranks agree, which the interpreter checks
			continue
		}
		g.rows++
		if !slices.Equal(own, other) {
			g.ties = append(g.ties, by)
		}
	}
	return []*interp.Tensor{values, chosen}, nil
}

// certain is the magnitude from which a score says that an expert is chosen whatever the
// others have: that of shared ones.
const certain = 1e29

// nearTie compares two choices among scores, the right one and another, both from the
// largest on. The score of each chosen one may be off by the bound, relative to the largest
// score of the row; by is the most that one is.
func nearTie(scores []float32, right, other []int64, bound float64) (by float64, err error) {
	most := 0.0
	for _, s := range scores {
		if m := math.Abs(float64(s)); m < certain {
			most = max(most, m)
		}
	}
	for i, at := range other {
		if at < 0 || at >= int64(len(scores)) || slices.Contains(other[:i], at) {
			return 0, fmt.Errorf("chose %v of %d experts", other, len(scores))
		}
		if at == right[i] {
			continue
		}
		off := math.Abs(float64(scores[at])-float64(scores[right[i]])) / most
		if !(off <= bound) {
			return 0, fmt.Errorf("chose %v, want %v: the scores %v and %v of choice %d are no near tie, %.3g of the largest, at most %.3g", other, right, scores[at], scores[right[i]], i, off, bound)
		}
		by = max(by, off)
	}
	return by, nil
}

func TestNearTie(t *testing.T) {
	scores := []float32{0.5, 0.25, 0.496, 0.1, 1e30, 0.249}
	right := []int64{4, 0, 2, 1}
	for _, c := range []struct {
		other []int64
		by    float64
		err   string
	}{
		{right, 0, ""},
		{[]int64{4, 2, 0, 1}, 0.008, ""},                            // in another order
		{[]int64{4, 0, 2, 5}, 0.002, ""},                            // another one at the end
		{[]int64{4, 0, 1, 2}, 0, "chose [4 0 1 2], want [4 0 2 1]"}, // far from in order
		{[]int64{4, 0, 2, 3}, 0, "0.3 of the largest, at most 0.01"},
		{[]int64{0, 4, 2, 1}, 0, "no near tie"}, // a shared expert belongs to the front
		{[]int64{4, 0, 2, 2}, 0, "chose [4 0 2 2] of 6 experts"},
		{[]int64{4, 0, 2, 6}, 0, "chose [4 0 2 6] of 6 experts"},
		{[]int64{4, 0, 2, -1}, 0, "chose [4 0 2 -1] of 6 experts"},
	} {
		by, err := nearTie(scores, right, c.other, 0.01)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.InDelta(t, c.by, by, 1e-6)
	}
	_, err := nearTie([]float32{1, float32(math.NaN()), 1}, []int64{1, 0}, []int64{0, 2}, 0.01)
	require.ErrorContains(t, err, "no near tie")
}

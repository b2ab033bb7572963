package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"

	"quill/ir"
	"quill/ir/interp"
	"quill/recipes/dtype"
)

// tolerance is what an element may differ by: atol plus rtol times the largest
// magnitude of its row, the last axis, or times the sum of the magnitudes of what was
// summed, if that is more.
type tolerance struct{ atol, rtol float64 }

// Defaults of what one op may differ by from the interpreter, which sums in f64 and
// rounds once. In F32 they cover the order of sums, in BF16 a last place of the
// largest element, and half of one more where an op rounds in between.
var defaultTolerance = map[dtype.Type]tolerance{
	dtype.F32:  {1e-7, 2e-6},
	dtype.BF16: {1e-5, 1.0 / 96},
}

// rounded are the ops whose results depend on the order of a sum or on a
// function's last places. All others have the same bits everywhere.
var rounded = []string{
	"exp", "log", "sigmoid", "silu", "logsigmoid", "softmax", "reduce_sum", "matmul", "matmul_joined", "rms_norm", "short_conv", "moe",
	"sdpa", "sdpa_stats", "all_reduce",
}

// sums are those that are linear in the operands whose elements are summed: of
// magnitudes they compute the sum of magnitudes.
var sums = []string{"reduce_sum", "matmul", "matmul_joined", "short_conv", "all_reduce"}

// magnitudes are the tensors with the absolute values of others.
func magnitudes(xs []*interp.Tensor) []*interp.Tensor {
	out := make([]*interp.Tensor, len(xs))
	for rank, x := range xs {
		out[rank] = &interp.Tensor{DType: x.DType, Shape: x.Shape, F: slices.Clone(x.F), I: x.I}
		for i, f := range x.F {
			out[rank].F[i] = float32(math.Abs(float64(f)))
		}
	}
	return out
}

// number is a float that JSON shows even where it is not finite, as text then.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	if f := float64(n); math.IsNaN(f) || math.IsInf(f, 0) {
		return json.Marshal(fmt.Sprint(f))
	}
	return json.Marshal(float64(n))
}

// difference is how far a value on the device is from the interpreter's.
type difference struct {
	Rank      int     `json:"rank"`
	Element   []int64 `json:"element"` // slowest axis first
	Got       number  `json:"device"`
	Want      number  `json:"interpreter"`
	Error     number  `json:"error"`
	Tolerance number  `json:"tolerance"`
	Differ    int     `json:"differ"` // elements of the rank that are beyond the tolerance
	Of        int     `json:"of"`
}

// compareRanks finds the largest error beyond the tolerance over all ranks, nil if
// there is none, and the largest one as a share of what it may be. scale is the sum
// of magnitudes of each element, nil if it is not known.
func compareRanks(got, want, scale []*interp.Tensor, tol tolerance) (d *difference, share float64) {
	for rank := range want {
		c := comparison{tol: tol, got: got[rank], want: want[rank]}
		if scale != nil {
			c.scale = scale[rank]
		}
		e := c.run()
		share = max(share, c.share)
		if e != nil && (d == nil || e.Error > d.Error) {
			e.Rank, d = rank, e
		}
	}
	return d, share
}

// comparison compares two tensors.
type comparison struct {
	tol              tolerance
	got, want, scale *interp.Tensor
	share            float64
}

func (c *comparison) run() (worst *difference) {
	row := max(1, int(c.want.Shape[len(c.want.Shape)-1]))
	differ, n := 0, c.want.Len()
	for i := range n {
		g, w := c.got.Number(i), c.want.Number(i)
		by := interp.Distance(g, w)
		if by == 0 {
			continue
		}
		bound := c.bound(i, i-i%row, row)
		c.share = max(c.share, by/bound)
		if by <= bound {
			continue
		}
		differ++
		if worst == nil || by > float64(worst.Error) {
			worst = &difference{Element: interp.Place(c.want.Shape, i), Got: number(g), Want: number(w), Error: number(by), Tolerance: number(bound)}
		}
	}
	if worst != nil {
		worst.Differ, worst.Of = differ, n
	}
	return worst
}

// bound is what element i, of a row, may differ by.
func (c *comparison) bound(i, from, row int) float64 {
	if c.tol == (tolerance{}) {
		return 0
	}
	most := 0.0
	for j := from; j < from+row; j++ {
		if v := math.Abs(c.want.Number(j)); !math.IsInf(v, 0) {
			most = max(most, v)
		}
	}
	if c.scale != nil {
		if v := c.scale.Number(i); !math.IsInf(v, 0) {
			most = max(most, v)
		}
	}
	return c.tol.atol + c.tol.rtol*most
}

// tie is a row of a router that chooses between two experts by less than rounding
// may change: beside other sums, the other one would be as right.
type tie struct {
	Step   int    `json:"step"`
	Layer  int    `json:"layer"`
	Op     string `json:"op"`
	Row    int    `json:"row"` // of the step's batch
	Chosen int    `json:"chosen"`
	Other  int    `json:"other"`
	Margin number `json:"margin"`
	Bound  number `json:"bound"`
}

// certain is the magnitude from which a score says that an element is chosen, or not,
// whatever the others are: shared experts have a bias of at least 1e30.
const certain = 1e29

// nearTies lists the rows of a topk in which the last chosen element and the next
// one are within the tolerance of the largest score that is one.
func nearTies(o *ir.Op, x *interp.Tensor, tol tolerance) []tie {
	n, k := int(x.Shape[len(x.Shape)-1]), int(o.Int("k"))
	if k >= n {
		return nil
	}
	var ties []tie
	order := make([]int, n)
	for row := range x.Len() / n {
		values := x.F[row*n:][:n]
		most := 0.0
		for i := range order {
			order[i] = i
			if v := math.Abs(float64(values[i])); v < certain {
				most = max(most, v)
			}
		}
		sort.SliceStable(order, func(i, j int) bool { return values[order[i]] > values[order[j]] })
		last, next := order[k-1], order[k]
		margin, bound := float64(values[last])-float64(values[next]), tol.atol+tol.rtol*most
		if margin <= bound {
			ties = append(ties, tie{Row: row, Chosen: last, Other: next, Margin: number(margin), Bound: number(bound)})
		}
	}
	return ties
}

package interp

import (
	"fmt"
	"math"
	"slices"

	"quill/recipes/dtype"
)

// reduceSum adds in index order in float64 and rounds once.
func reduceSum(a attrs, in []*Tensor) ([]*Tensor, error) {
	return one(reduce(in[0], a.axis(), 0, func(sum, v float64) float64 { return sum + v }))
}

// reduceMax is NaN when an element is.
func reduceMax(a attrs, in []*Tensor) ([]*Tensor, error) {
	return one(reduce(in[0], a.axis(), math.Inf(-1), func(m, v float64) float64 { return max(m, v) }))
}

// reduce folds an axis in index order, in float64, and rounds once.
func reduce(x *Tensor, axis int, first float64, f func(acc, v float64) float64) *Tensor {
	y := Zeros(x.DType, withAxis(x.Shape, axis, 1)...)
	outer, n, inner := split(x.Shape, axis)
	for o := range outer {
		for i := range inner {
			acc := first
			for k := range n {
				acc = f(acc, float64(x.F[(o*n+k)*inner+i]))
			}
			y.F[o*inner+i] = round(y.DType, acc)
		}
	}
	return y
}

// softmax rounds once, at the end.
func softmax(_ attrs, in []*Tensor) ([]*Tensor, error) {
	x, y := in[0], Zeros(in[0].DType, in[0].Shape...)
	n := int(x.Shape[len(x.Shape)-1])
	e := make([]float64, n)
	for at := 0; at < len(x.F); at += n {
		row := x.F[at : at+n]
		top := float64(slices.Max(row)) // NaN when an element is
		sum := 0.0
		for i, v := range row {
			e[i] = math.Exp(float64(v) - top)
			sum += e[i]
		}
		for i := range row {
			y.F[at+i] = round(y.DType, e[i]/sum)
		}
	}
	return one(y)
}

// topk sorts in descending order, NaN first and equal elements by ascending
// index.
func topk(a attrs, in []*Tensor) ([]*Tensor, error) {
	x := in[0]
	last := len(x.Shape) - 1
	n, k := int(x.Shape[last]), int(a.op.Int("k"))
	if k > n {
		return nil, fmt.Errorf("k is %d, more than the %d elements of the axis", k, n)
	}
	shape := withAxis(x.Shape, last, int64(k))
	values, indices := Zeros(x.DType, shape...), Zeros(dtype.I32, shape...)
	order := make([]int, n)
	for r := range product(x.Shape[:last]) {
		row := x.F[r*n : (r+1)*n]
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(i, j int) int { return descending(row[i], row[j]) })
		for i, from := range order[:k] {
			values.F[r*k+i] = row[from]
			indices.I[r*k+i] = int64(from)
		}
	}
	return []*Tensor{values, indices}, nil
}

// descending orders floats downwards with NaN first; −0 equals 0.
func descending(x, y float32) int {
	xNaN, yNaN := x != x, y != y
	switch {
	case xNaN && yNaN:
		return 0
	case xNaN, x > y:
		return -1
	case yNaN, x < y:
		return 1
	}
	return 0
}

package interp

import (
	"cmp"
	"math"
	"slices"
)

// rmsNorm rounds t = x/sqrt(mean(x²) + eps) and then t·weight. The mean is not
// rounded by itself.
func rmsNorm(a attrs, in []*Tensor) ([]*Tensor, error) {
	x, w, eps := in[0], in[1], a.op.Attr("eps").Float
	y := Zeros(x.DType, x.Shape...)
	n := len(w.F)
	for at := 0; at < len(x.F); at += n {
		sum := 0.0
		for _, v := range x.F[at : at+n] {
			sum += float64(v) * float64(v)
		}
		root := math.Sqrt(sum/float64(n) + eps)
		for i, v := range x.F[at : at+n] {
			t := round(y.DType, float64(v)/root)
			y.F[at+i] = round(y.DType, float64(t)*float64(w.F[i]))
		}
	}
	return one(y)
}

// shortConv adds to the row itself, the newest of K, the products with the taps,
// oldest first, and rounds once.
func shortConv(_ attrs, in []*Tensor) ([]*Tensor, error) {
	window, taps := in[0], in[1]
	time := len(window.Shape) - 2
	k, c := int(taps.Shape[0]), int(taps.Shape[1])
	rowsIn := int(window.Shape[time])
	rowsOut := rowsIn - k + 1
	y := Zeros(window.DType, withAxis(window.Shape, time, int64(rowsOut))...)
	for b := range product(window.Shape[:time]) {
		x := window.F[b*rowsIn*c:]
		for t := range rowsOut {
			for ch := range c {
				sum := float64(x[(t+k-1)*c+ch])
				for j := range k {
					sum += float64(taps.F[j*c+ch]) * float64(x[(t+j)*c+ch])
				}
				y.F[(b*rowsOut+t)*c+ch] = round(y.DType, sum)
			}
		}
	}
	return one(y)
}

// moe rounds to the type, in this order: g and u (sums over H), silu(g)·u, each
// expert's output (sums over I), and the weighted sum over the experts, taken in
// ascending expert number and, for one that is named twice, in order of j.
func moe(a attrs, in []*Tensor) ([]*Tensor, error) {
	x, experts, weights := in[0], in[1], in[2]
	h, width, k := int(x.Shape[1]), int(in[3].Shape[2]), int(experts.Shape[1])
	gateUps, downs := in[3].F, in[4].F // of all experts
	for i := 5; i < len(in); i += 2 {
		gateUps, downs = slices.Concat(gateUps, in[i].F), slices.Concat(downs, in[i+1].F)
	}
	count, first, part := int(in[3].Shape[0]), 0, a.op.Attr("first") != nil
	for i := 5; i < len(in); i += 2 {
		count += int(in[i].Shape[0])
	}
	if part {
		first = int(a.op.Int("first"))
	}
	for i := range experts.I {
		if err := inside("expert", experts, i, count); err != nil && !part {
			return nil, err
		}
	}
	y := Zeros(x.DType, x.Shape...)
	act := make([]float32, width)
	for t := range int(x.Shape[0]) {
		token := x.F[t*h : (t+1)*h]
		sum := make([]float64, h)
		for _, j := range ascending(experts.I[t*k : (t+1)*k]) {
			e, weight := int(experts.I[t*k+j])-first, float64(weights.F[t*k+j])
			if e < 0 || e >= count {
				continue
			}
			gate := gateUps[e*2*width*h:][:width*h]
			up := gateUps[(e*2+1)*width*h:][:width*h]
			for i := range act {
				g := round(x.DType, dot(gate[i*h:], token))
				u := round(x.DType, dot(up[i*h:], token))
				act[i] = round(x.DType, silu(float64(g))*float64(u))
			}
			down := downs[e*h*width:][:h*width]
			for i := range sum {
				sum[i] += weight * float64(round(x.DType, dot(down[i*width:], act)))
			}
		}
		for i, s := range sum {
			y.F[t*h+i] = round(y.DType, s)
		}
	}
	return one(y)
}

// ascending orders the positions of a list by what they hold, equal ones by
// position.
func ascending(list []int64) []int {
	order := make([]int, len(list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(list[i], list[j]) })
	return order
}

// dot is the sum over x of x·w in index order.
func dot(w, x []float32) float64 {
	sum := 0.0
	for i, v := range x {
		sum += float64(v) * float64(w[i])
	}
	return sum
}

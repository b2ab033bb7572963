package interp

import (
	"math"
	"slices"

	"quill/recipes/dtype"
)

// sdpa computes scores, exponentials and sums in float64 and rounds the results
// once. The statistics are relative to the maximum as it is returned, rounded;
// the mean is not.
func sdpa(a attrs, in []*Tensor) ([]*Tensor, error) {
	q, k, v := in[0], in[1], in[2]
	n := len(q.Shape) - 1 // axes of rows
	rows, d, keys, dv := q.Shape[:n], int(q.Shape[n]), int(k.Shape[n-1]), int(v.Shape[n])
	scale := float64(float32(a.op.Attr("scale").Float))
	o := Zeros(q.DType, append(rows[:n:n], int64(dv))...)
	m, linv := Zeros(q.DType, append(rows[:n:n], 1)...), Zeros(dtype.F32, append(rows[:n:n], 1)...)
	// The heads that make a row's scores, and the row of the mask.
	heads := walk(rows, 0, broadcastStrides(append(k.Shape[:n-1:n-1], 1), rows))
	mask := Zeros(q.DType, append(slices.Repeat([]int64{1}, n), int64(keys))...)
	if len(in) > 3 {
		mask = in[3]
	}
	masks := walk(rows, 0, broadcastStrides(mask.Shape[:n], rows))
	e := make([]float64, keys)
	for r := range heads {
		row, kh, vh := q.F[r*d:][:d], k.F[heads[r]*keys*d:][:keys*d], v.F[heads[r]*keys*dv:][:keys*dv]
		top := math.Inf(-1)
		for j := range e {
			s := 0.0
			for l, x := range row {
				s += float64(x) * float64(kh[j*d+l])
			}
			e[j] = s*scale + float64(mask.F[masks[r]*keys+j])
			top = max(top, e[j]) // NaN when an element is
		}
		stat := round(m.DType, top)
		sum, rel := 0.0, 0.0
		for j, s := range e {
			e[j] = math.Exp(s - top)
			sum += e[j]
			rel += math.Exp(s - float64(stat))
		}
		for c := range dv {
			y := 0.0
			for j, p := range e {
				y += p * float64(vh[j*dv+c])
			}
			o.F[r*dv+c] = round(o.DType, y/sum)
		}
		m.F[r], linv.F[r] = stat, round(dtype.F32, 1/rel)
	}
	return []*Tensor{o, m, linv}[:len(a.op.Results)], nil
}

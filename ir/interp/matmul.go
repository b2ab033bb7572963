package interp

import (
	"fmt"

	"quill/recipes/dtype"
)

func matmul(a attrs, in []*Tensor) ([]*Tensor, error) {
	z, err := dense(in[0], in[1], a.op.Attr("trans_b").Bool, a.dtype())
	if err != nil {
		return nil, err
	}
	return one(z)
}

// matmulJoined multiplies by the transpose of each weight. A weight of several
// matrices is as good as one with all their rows.
func matmulJoined(a attrs, in []*Tensor) ([]*Tensor, error) {
	x := in[0]
	out := make([]*Tensor, len(in)-1)
	for i, w := range in[1:] {
		last := len(w.Shape) - 1
		flat, err := w.Reshape(int64(product(w.Shape[:last])), w.Shape[last])
		if err != nil {
			return nil, err
		}
		z, err := dense(x, flat, true, a.dtype())
		if err != nil {
			return nil, err
		}
		if out[i], err = z.Reshape(append([]int64{x.Shape[0]}, w.Shape[:last]...)...); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// dense multiplies the last two axes; each element is a sum over the
// contracted index in order, in float64, rounded once to the result's type.
func dense(x, y *Tensor, transB bool, dt dtype.Type) (*Tensor, error) {
	lead := len(x.Shape) - 2
	m, k := int(x.Shape[lead]), int(x.Shape[lead+1])
	yk, n := y.Shape[lead], int(y.Shape[lead+1])
	stepK, stepN := n, 1 // distances in y between neighbours along K and N
	if transB {
		yk, n = y.Shape[lead+1], int(y.Shape[lead])
		stepK, stepN = 1, k
	}
	if int64(k) != yk {
		return nil, fmt.Errorf("contracts sizes %d and %d", k, yk)
	}
	batch, err := joinShapes(x.Shape[:lead], y.Shape[:lead])
	if err != nil {
		return nil, err
	}
	z := Zeros(dt, append(batch[:lead:lead], int64(m), int64(n))...)
	// The batch elements of x and y that make batch element b of z.
	xs := walk(batch, 0, broadcastStrides(x.Shape[:lead], batch))
	ys := walk(batch, 0, broadcastStrides(y.Shape[:lead], batch))
	for b := range xs {
		for i := range m {
			row := x.F[(xs[b]*m+i)*k:][:k]
			for j := range n {
				col := y.F[ys[b]*k*n+j*stepN:]
				sum := 0.0
				for l, v := range row {
					sum += float64(v) * float64(col[l*stepK])
				}
				z.F[(b*m+i)*n+j] = round(z.DType, sum)
			}
		}
	}
	return z, nil
}

package interp

import "fmt"

// matmul multiplies the last two axes; each element is a sum over the
// contracted index in order, in float64, rounded once to the result's type.
func matmul(a attrs, in []*Tensor) ([]*Tensor, error) {
	x, y := in[0], in[1]
	lead := len(x.Shape) - 2
	m, k := int(x.Shape[lead]), int(x.Shape[lead+1])
	yk, n := y.Shape[lead], int(y.Shape[lead+1])
	stepK, stepN := n, 1 // distances in y between neighbours along K and N
	if a.op.Attr("trans_b").Bool {
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
	z := Zeros(a.dtype(), append(batch[:lead:lead], int64(m), int64(n))...)
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
	return one(z)
}

package host

import (
	"math"

	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// Element-wise nodes are operations on rows.

// broadcast checks that operands have the result's rank and that each dim of
// the result is that of every operand that does not have 1 there.
func (n *node) broadcast(y *operand, ops ...*operand) error {
	want := make([]int, len(y.dims))
	for i := range want {
		want[i] = 1
	}
	for _, o := range ops {
		if err := n.ranked(o, len(y.dims), len(y.dims)); err != nil {
			return err
		}
		for i, d := range o.dims {
			if d != 1 {
				want[i] = d
			}
		}
	}
	for _, o := range ops {
		for i, d := range o.dims {
			if d != 1 && d != want[i] {
				return n.bad(o.label, "dims", o.dims, "to broadcast with the other operands")
			}
		}
	}
	return n.shaped(y, want)
}

// floatZip and intZip are the kernels of a node of two operands.
type (
	floatZip func(k kern.Kernels) rowZip[float32, float32]
	intZip   func(k kern.Kernels) rowZip[int32, int32]
)

// zip2 are kernels for rows and for a row and a number.
func zip2[S, R any](rows func(k kern.Kernels, y []R, a, b []S), right func(k kern.Kernels, y []R, a []S, b S)) func(kern.Kernels) rowZip[S, R] {
	return func(k kern.Kernels) rowZip[S, R] {
		return rowZip[S, R]{
			rows:  func(y []R, a, b []S) { rows(k, y, a, b) },
			right: func(y []R, a []S, b S) { right(k, y, a, b) },
		}
	}
}

// zip1 is a function of integers that is the same in every tier.
func zip1(rows func(y, a, b []int32)) intZip { return plain(rowZip[int32, int32]{rows: rows}) }

// kernel1 is a kernel of one operand.
func kernel1[S, R any](f func(k kern.Kernels, y []R, x []S)) func(kern.Kernels) func(y []R, x []S) {
	return func(k kern.Kernels) func(y []R, x []S) {
		return func(y []R, x []S) { f(k, y, x) }
	}
}

// binary builds a node of two operands of the suffix' type, computed in f32 or
// i32.
func binary(f floatZip, i intZip) func(*node) (kernel, error) {
	return func(n *node) (kernel, error) {
		a, b, y := &n.in[0], &n.in[1], &n.out[0]
		if err := n.same(a, b, y); err != nil {
			return nil, err
		}
		if err := n.broadcast(y, a, b); err != nil {
			return nil, err
		}
		n.rows = func(n *node) operation {
			switch n.dt {
			case dtype.I32:
				return zip(i(n.kernels))
			case dtype.F32:
				return zip(f(n.kernels))
			}
			return zipBF16(n.kernels, f(n.kernels))
		}
		return nil, nil
	}
}

// compare builds a node that yields predicates; i are its kernels for integers.
func compare(f func(y []uint8, a, b []float32), i func(k kern.Kernels) rowZip[int32, uint8]) func(*node) (kernel, error) {
	return func(n *node) (kernel, error) {
		a, b, y := &n.in[0], &n.in[1], &n.out[0]
		if err := n.same(a, b); err != nil {
			return nil, err
		}
		if err := n.typed(y, dtype.I8); err != nil {
			return nil, err
		}
		if err := n.broadcast(y, a, b); err != nil {
			return nil, err
		}
		n.rows = func(n *node) operation {
			switch n.dt {
			case dtype.I32:
				return zip(i(n.kernels))
			case dtype.F32:
				return zip(rowZip[float32, uint8]{rows: f})
			}
			return compareBF16(n.kernels, rowZip[float32, uint8]{rows: f})
		}
		return nil, nil
	}
}

// logical builds a node of two predicates.
func logical(f func(k kern.Kernels, y, a, b []uint8)) func(*node) (kernel, error) {
	return func(n *node) (kernel, error) {
		a, b, y := &n.in[0], &n.in[1], &n.out[0]
		if err := n.same(a, b, y); err != nil {
			return nil, err
		}
		if err := n.broadcast(y, a, b); err != nil {
			return nil, err
		}
		n.rows = func(n *node) operation {
			return zip(rowZip[uint8, uint8]{rows: func(y, a, b []uint8) { f(n.kernels, y, a, b) }})
		}
		return nil, nil
	}
}

// unary builds a node of one operand; i is nil if integers have no such node.
func unary(f func(k kern.Kernels) func(y, x []float32), i func(y, x []int32)) func(*node) (kernel, error) {
	return func(n *node) (kernel, error) {
		x, y := &n.in[0], &n.out[0]
		if err := n.same(x, y); err != nil {
			return nil, err
		}
		if err := n.shaped(y, x.dims); err != nil {
			return nil, err
		}
		n.rows = func(n *node) operation {
			switch n.dt {
			case dtype.I32:
				return mapRows(i)
			case dtype.F32:
				return mapRows(f(n.kernels))
			}
			return mapBF16(n.kernels, f(n.kernels))
		}
		return nil, nil
	}
}

func buildNot(n *node) (kernel, error) {
	x, y := &n.in[0], &n.out[0]
	if err := n.same(x, y); err != nil {
		return nil, err
	}
	if err := n.shaped(y, x.dims); err != nil {
		return nil, err
	}
	n.rows = func(*node) operation {
		return mapRows(func(y, x []uint8) {
			for i, v := range x[:len(y)] {
				y[i] = truth(v == 0)
			}
		})
	}
	return nil, nil
}

// buildWhere moves bits: neither the operand not picked nor a rounding
// touches the result.
func buildWhere(n *node) (kernel, error) {
	c, a, b, y := &n.in[0], &n.in[1], &n.in[2], &n.out[0]
	if err := n.typed(c, dtype.I8); err != nil {
		return nil, err
	}
	if err := n.same(a, b, y); err != nil {
		return nil, err
	}
	if err := n.broadcast(y, c, a, b); err != nil {
		return nil, err
	}
	n.rows = func(n *node) operation {
		switch n.dt.Size() {
		case 1:
			return selected(select8, select8S)
		case 2:
			return selected(n.kernels.Select16, n.kernels.Select16S)
		}
		return selected(n.kernels.Select32, n.kernels.Select32S)
	}
	return nil, nil
}

// number is a type of arithmetic.
type number interface{ float32 | int32 }

func mult(y, a, b []int32) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = a[i] * b[i]
	}
}

// div panics on an integer division by zero, which Run reports as an error.
func div(y, a, b []int32) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = a[i] / b[i]
	}
}

func less(y []uint8, a, b []float32) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = truth(a[i] < b[i])
	}
}

func lessEqual(y []uint8, a, b []float32) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = truth(a[i] <= b[i])
	}
}

func equal(y []uint8, a, b []float32) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = truth(a[i] == b[i])
	}
}

// or is the same in every tier.
func or(_ kern.Kernels, y, a, b []uint8) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = truth(a[i] != 0 || b[i] != 0)
	}
}

// truth is a predicate's element.
func truth(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func neg[T number](y, x []T) {
	x = x[:len(y)]
	for i := range y {
		y[i] = -x[i]
	}
}

// each applies f in double precision, which leaves one rounding to f32.
func each(f func(float64) float64) func(y, x []float32) {
	return func(y, x []float32) {
		x = x[:len(y)]
		for i := range y {
			y[i] = float32(f(float64(x[i])))
		}
	}
}

// softplus is log(1 + exp(x)), written so that it neither overflows nor loses
// small results.
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

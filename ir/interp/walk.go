package interp

import (
	"fmt"
	"slices"
)

// product is the number of elements of a shape.
func product(shape []int64) int {
	n := 1
	for _, d := range shape {
		n *= int(d)
	}
	return n
}

// strides are the distances between neighbours along each axis of a row-major
// tensor.
func strides(shape []int64) []int {
	st := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		st[i] = n
		n *= int(shape[i])
	}
	return st
}

// walk lists the offset of each element of a shape, in row-major order, when
// the first lies at start and neighbours along an axis are stride apart.
func walk(shape []int64, start int, stride []int) []int {
	offsets := make([]int, product(shape))
	at := make([]int64, len(shape))
	off := start
	for i := range offsets {
		offsets[i] = off
		for a := len(shape) - 1; a >= 0; a-- { // step to the next element
			at[a]++
			off += stride[a]
			if at[a] < shape[a] {
				break
			}
			off -= stride[a] * int(shape[a])
			at[a] = 0
		}
	}
	return offsets
}

// pick makes a tensor of the elements of t at some offsets.
func pick(t *Tensor, shape []int64, offsets []int) *Tensor {
	y := Zeros(t.DType, shape...)
	for i, o := range offsets {
		if t.DType.IsFloat() {
			y.F[i] = t.F[o]
		} else {
			y.I[i] = t.I[o]
		}
	}
	return y
}

// spread repeats the size-1 axes of t to a shape of the same rank.
func spread(t *Tensor, shape []int64) *Tensor {
	if slices.Equal(t.Shape, shape) {
		return t
	}
	return pick(t, shape, walk(shape, 0, broadcastStrides(t.Shape, shape)))
}

// broadcastStrides are the strides that repeat the size-1 axes of from.
func broadcastStrides(from, to []int64) []int {
	st := strides(from)
	for i := range st {
		if from[i] == 1 && to[i] != 1 {
			st[i] = 0
		}
	}
	return st
}

// joinShapes is the shape to which all of the shapes broadcast.
func joinShapes(shapes ...[]int64) ([]int64, error) {
	out := slices.Clone(shapes[0])
	for _, s := range shapes[1:] {
		if len(s) != len(out) {
			return nil, fmt.Errorf("shapes %v have different ranks", shapes)
		}
		for i, d := range s {
			switch {
			case out[i] == 1:
				out[i] = d
			case d != 1 && d != out[i]:
				return nil, fmt.Errorf("shapes %v do not broadcast along axis %d", shapes, i)
			}
		}
	}
	return out, nil
}

// Place is the position of element i of a shape, in row-major order.
func Place(shape []int64, i int) []int64 {
	at := make([]int64, len(shape))
	for a := len(shape) - 1; a >= 0; a-- {
		at[a] = int64(i) % shape[a]
		i /= int(shape[a])
	}
	return at
}

// split views a shape as [outer, shape[axis], inner].
func split(shape []int64, axis int) (outer, n, inner int) {
	return product(shape[:axis]), int(shape[axis]), product(shape[axis+1:])
}

// withAxis is the shape with another size of one axis.
func withAxis(shape []int64, axis int, n int64) []int64 {
	out := slices.Clone(shape)
	out[axis] = n
	return out
}

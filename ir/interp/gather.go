package interp

import (
	"fmt"
	"slices"
)

// inside checks index element i against a bound.
func inside(what string, index *Tensor, i, bound int) error {
	if v := index.I[i]; v < 0 || v >= int64(bound) {
		return fmt.Errorf("%s %d at %v is outside 0…%d", what, v, Place(index.Shape, i), bound-1)
	}
	return nil
}

// rows takes rows of x, seen as [outer, n, inner] around an axis: the offsets
// of the elements that the index picks, in the order of the result.
func rows(what string, x, index *Tensor, axis int) ([]int, error) {
	outer, n, inner := split(x.Shape, axis)
	offsets := make([]int, 0, outer*len(index.I)*inner)
	for o := range outer {
		for i, v := range index.I {
			if err := inside(what, index, i, n); err != nil {
				return nil, err
			}
			for k := range inner {
				offsets = append(offsets, (o*n+int(v))*inner+k)
			}
		}
	}
	return offsets, nil
}

// gather replaces an axis by the axes of the index.
func gather(a attrs, in []*Tensor) ([]*Tensor, error) {
	x, index, axis := in[0], in[1], a.axis()
	offsets, err := rows("index", x, index, axis)
	if err != nil {
		return nil, err
	}
	return one(pick(x, slices.Concat(x.Shape[:axis], index.Shape, x.Shape[axis+1:]), offsets))
}

// gatherElements picks by an index that has its own number along the axis and
// is repeated along its other axes of size 1.
func gatherElements(a attrs, in []*Tensor) ([]*Tensor, error) {
	x, index, axis := in[0], in[1], a.axis()
	for i, d := range index.Shape {
		if i != axis && d != 1 && d != x.Shape[i] {
			return nil, fmt.Errorf("index of shape %v for x of shape %v", index.Shape, x.Shape)
		}
	}
	for i := range index.I {
		if err := inside("index", index, i, int(x.Shape[axis])); err != nil {
			return nil, err
		}
	}
	shape := withAxis(x.Shape, axis, index.Shape[axis])
	stride := strides(x.Shape)
	step := stride[axis]
	stride[axis] = 0 // the index says where along the axis
	offsets := walk(shape, 0, stride)
	for i, v := range spread(index, shape).I {
		offsets[i] += int(v) * step
	}
	return one(pick(x, shape, offsets))
}

// embedding takes row id − offset where this rank has it, else zeros.
func embedding(_ attrs, in []*Tensor) ([]*Tensor, error) {
	table, ids, offset := in[0], in[1], in[2].I[0]
	v, h := int(table.Shape[0]), int(table.Shape[1])
	y := Zeros(table.DType, ids.Shape[0], table.Shape[1])
	for t, id := range ids.I {
		if row := int(id - offset); row >= 0 && row < v {
			copy(y.F[t*h:(t+1)*h], table.F[row*h:(row+1)*h])
		}
	}
	return one(y)
}

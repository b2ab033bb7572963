package host

import (
	"fmt"
	"slices"

	"quill/recipes/dtype"
)

// indexError is an index outside the axis it picks from.
type indexError struct {
	operand  string
	position int
	index    int32
	bound    int
}

func (e *indexError) Error() string {
	return fmt.Sprintf("%s: element %d is index %d, outside 0 to %d", e.operand, e.position, e.index, e.bound-1)
}

// buildGather copies whole runs of the dims below the axis.
func buildGather(n *node) (runFunc, error) {
	x, idx, y := &n.in[0], &n.in[1], &n.out[0]
	if err := n.same(x, y); err != nil {
		return nil, err
	}
	if err := n.typed(idx, dtype.I32); err != nil {
		return nil, err
	}
	axis, err := n.axis("axis", x)
	if err != nil {
		return nil, err
	}
	if err := n.shaped(y, slices.Concat(x.dims[:axis], idx.dims, x.dims[axis+1:])); err != nil {
		return nil, err
	}
	inner, bound, outer := x.split(axis)
	run, label := inner*x.dt.Size(), idx.label
	return func(m *mem) error {
		x, idx, y := m.in[0], as[int32](m.in[1]), m.out[0]
		for o := range outer {
			from := x[o*bound*run:]
			for i, v := range idx {
				if uint64(v) >= uint64(bound) {
					return &indexError{label, i, v, bound}
				}
				copy(y[:run], from[int(v)*run:])
				y = y[run:]
			}
		}
		return nil
	}, nil
}

func buildGatherElements(n *node) (runFunc, error) {
	x, idx, y := &n.in[0], &n.in[1], &n.out[0]
	if err := n.same(x, y); err != nil {
		return nil, err
	}
	if err := n.typed(idx, dtype.I32); err != nil {
		return nil, err
	}
	axis, err := n.axis("axis", x)
	if err != nil {
		return nil, err
	}
	want := slices.Clone(x.dims)
	if axis < len(idx.dims) {
		want[axis] = idx.dims[axis]
	}
	if err := n.shaped(idx, want); err != nil {
		return nil, err
	}
	if err := n.shaped(y, want); err != nil {
		return nil, err
	}
	return sized(n.dt.Size(), pickElements[uint8](n, axis), pickElements[uint16](n, axis), pickElements[uint32](n, axis), nil), nil
}

func pickElements[T any](n *node, axis int) runFunc {
	inner, bound, outer := n.in[0].split(axis)
	length, label := n.in[1].dims[axis], n.in[1].label
	return func(m *mem) error {
		x, idx, y := as[T](m.in[0]), as[int32](m.in[1]), as[T](m.out[0])
		at := 0
		for o := range outer {
			from := x[o*bound*inner : (o+1)*bound*inner]
			for range length {
				for i := range inner {
					v := idx[at]
					if uint64(v) >= uint64(bound) {
						return &indexError{label, at, v, bound}
					}
					y[at] = from[int(v)*inner+i]
					at++
				}
			}
		}
		return nil
	}
}

// buildIndexCopy touches only the replaced slices if the result is the operand
// itself. Indices are checked before anything is written.
func buildIndexCopy(n *node) (runFunc, error) {
	x, idx, src, y := &n.in[0], &n.in[1], &n.in[2], &n.out[0]
	if err := n.same(x, src, y); err != nil {
		return nil, err
	}
	if err := n.typed(idx, dtype.I32); err != nil {
		return nil, err
	}
	if err := n.ranked(x, 1, maxRank); err != nil {
		return nil, err
	}
	if err := n.ranked(idx, 1, 1); err != nil {
		return nil, err
	}
	axis := len(x.dims) - 1
	want := slices.Clone(x.dims)
	want[axis] = idx.dims[0]
	if err := n.shaped(src, want); err != nil {
		return nil, err
	}
	if err := n.shaped(y, x.dims); err != nil {
		return nil, err
	}
	inner, bound, _ := x.split(axis)
	run, label := inner*x.dt.Size(), idx.label
	return func(m *mem) error {
		x, idx, src, y := m.in[0], as[int32](m.in[1]), m.in[2], m.out[0]
		for i, v := range idx {
			if uint64(v) >= uint64(bound) {
				return &indexError{label, i, v, bound}
			}
		}
		if len(y) == 0 {
			return nil
		}
		if &x[0] != &y[0] {
			copy(y, x)
		}
		for i, v := range idx {
			copy(y[int(v)*run:][:run], src[i*run:])
		}
		return nil
	}, nil
}

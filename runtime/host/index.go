package host

import (
	"fmt"
	"slices"

	"quill/recipes/dtype"
)

// indices are what a node picks by along an axis of bound elements.
type indices struct {
	node, bound int
	label       string // of the operand
}

// indexError is an index outside the axis. It knows its node, which may be any
// of a unit's.
type indexError struct {
	indices
	index int32
}

func (e *indexError) Error() string {
	return fmt.Sprintf("%s: index %d is outside 0 to %d", e.label, e.index, e.bound-1)
}

// indices are those of a node that picks along an axis of its first operand.
func (n *node) indices(axis int) indices {
	return indices{n.index, n.in[0].dims[axis], n.in[1].label}
}

// check reports the first index that is outside the axis.
func (x indices) check(idx []int32) error {
	for _, v := range idx {
		if uint64(v) >= uint64(x.bound) {
			return &indexError{x, v}
		}
	}
	return nil
}

// moved is what copying so many bytes costs, in operations on an element.
func moved(bytes int) int { return 4 + bytes/16 }

// buildGather copies whole runs of the dims below the axis.
func buildGather(n *node) (kernel, error) {
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
	if len(idx.dims) == 1 { // those of more would take several parts
		n.move = movement{kind: moveGather, axis: axis}
	}
	inner, bound, outer := x.split(axis)
	run, count, by := inner*x.dt.Size(), idx.elems, n.indices(axis)
	return kernel{shared(outer*count, moved(run), func(m *mem, from, to int) error {
		x, idx, y := m.in[0], as[int32](m.in[1]), m.out[0]
		if err := by.check(idx); err != nil {
			return err
		}
		for at := from; at < to; at++ {
			copy(y[at*run:][:run], x[(at/count*bound+int(idx[at%count]))*run:])
		}
		return nil
	})}, nil
}

func buildGatherElements(n *node) (kernel, error) {
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
	switch n.dt.Size() {
	case 1:
		return pickElements[uint8](n, axis), nil
	case 2:
		return pickElements[uint16](n, axis), nil
	default:
		return pickElements[uint32](n, axis), nil
	}
}

func pickElements[T any](n *node, axis int) kernel {
	inner, bound, _ := n.in[0].split(axis)
	length, by := n.in[1].dims[axis], n.indices(axis)
	if axis == 0 {
		n.rows = func(*node) operation { return pickedRows[T](by) }
	}
	rows := 0
	if inner > 0 {
		rows = n.in[1].elems / inner
	}
	return kernel{shared(rows, inner, func(m *mem, from, to int) error {
		x, idx, y := as[T](m.in[0]), as[int32](m.in[1]), as[T](m.out[0])
		for row := from; row < to; row++ {
			x := x[row/length*bound*inner:][:bound*inner]
			y := y[row*inner:][:inner]
			for i, v := range idx[row*inner:][:inner] {
				if uint64(v) >= uint64(bound) {
					return &indexError{by, v}
				}
				y[i] = x[int(v)*inner+i]
			}
		}
		return nil
	})}
}

// buildIndexCopy touches only the replaced slices if the result is the operand
// itself. Indices are checked before anything is written. Threads divide the
// slices by bytes, so that the last of equal indices wins on each.
func buildIndexCopy(n *node) (kernel, error) {
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
	run, by := product(x.dims[:axis])*x.dt.Size(), n.indices(axis)
	lines := max(1, (run+alignment-1)/alignment) // a thread checks the indices even if there is nothing to copy
	return kernel{shared(lines, idx.elems*moved(alignment), func(m *mem, from, to int) error {
		x, idx, src, y := m.in[0], as[int32](m.in[1]), m.in[2], m.out[0]
		if err := by.check(idx); err != nil {
			return err
		}
		if len(y) == 0 {
			return nil
		}
		low, high := from*alignment, min(to*alignment, run)
		if &x[0] != &y[0] {
			for at := 0; at < len(y); at += run {
				copy(y[at+low:at+high], x[at+low:])
			}
		}
		for i, v := range idx {
			copy(y[int(v)*run+low:int(v)*run+high], src[i*run+low:])
		}
		return nil
	})}, nil
}

package host

import (
	"fmt"
	"slices"

	"quill/recipes/dtype"
)

// Nodes that only move elements. Their kernels are used where the result is no
// view and needs memory of its own.

// alike checks that result and operand have the same, arbitrary type.
func (n *node) alike(x, y *operand) error { return n.typed(y, x.dt) }

// reshaped is a node whose result has its operand's elements in their order.
func (n *node) reshaped() (kernel, error) {
	n.move = movement{kind: moveReshape}
	return kernel{{1, 1, func(m *mem, _, _ int) error { copy(m.out[0], m.in[0]); return nil }}}, nil
}

func buildIdentity(n *node) (kernel, error) {
	x, y := &n.in[0], &n.out[0]
	if err := n.alike(x, y); err != nil {
		return nil, err
	}
	if err := n.shaped(y, x.dims); err != nil {
		return nil, err
	}
	return n.reshaped()
}

func buildReshape(n *node) (kernel, error) {
	x, y := &n.in[0], &n.out[0]
	if err := n.alike(x, y); err != nil {
		return nil, err
	}
	if x.elems != y.elems {
		return nil, n.bad(y.label, "dims", y.dims, fmt.Sprintf("%d elements as %s with dims %v", x.elems, x.label, x.dims))
	}
	return n.reshaped()
}

// permutation reads and checks the permutation of a transpose.
func (n *node) permutation() ([]int, error) {
	x := &n.in[0]
	dim, _ := n.params.Int("tensorDim")
	if dim != int64(len(x.dims)) {
		return nil, n.bad("parameter tensorDim", "value", dim, fmt.Sprintf("the rank of %s with dims %v", x.label, x.dims))
	}
	values := n.params.IntsOf("permutation")
	perm := make([]int, len(values))
	for i, v := range values {
		perm[i] = int(v)
	}
	sorted := slices.Sorted(slices.Values(perm))
	if len(perm) != len(x.dims) || (len(perm) > 0 && (sorted[len(perm)-1] != len(perm)-1 || len(slices.Compact(sorted)) != len(perm))) {
		return nil, n.bad("parameter permutation", "value", values, fmt.Sprintf("a permutation of %d dims", len(x.dims)))
	}
	return perm, nil
}

func buildTranspose(n *node) (kernel, error) {
	x, y := &n.in[0], &n.out[0]
	if err := n.alike(x, y); err != nil {
		return nil, err
	}
	perm, err := n.permutation()
	if err != nil {
		return nil, err
	}
	want, strides, from := make([]int, len(perm)), make([]int, len(perm)), dense(x.dims)
	for i, p := range perm {
		want[i], strides[i] = x.dims[p], from[p]
	}
	if err := n.shaped(y, want); err != nil {
		return nil, err
	}
	n.move = movement{kind: moveTranspose, perm: perm}
	return patternKernel(y, newPattern(y.dims, strides), 0), nil
}

func buildBroadcast(n *node) (kernel, error) {
	x, y := &n.in[0], &n.out[0]
	if err := n.alike(x, y); err != nil {
		return nil, err
	}
	if err := n.ranked(x, len(y.dims), len(y.dims)); err != nil {
		return nil, err
	}
	for i, d := range x.dims {
		if d != 1 && d != y.dims[i] {
			return nil, n.bad(x.label, "dims", x.dims, fmt.Sprintf("1 or the same in each of %v", y.dims))
		}
	}
	n.move = movement{kind: moveBroadcast}
	return patternKernel(y, broadcastPattern(x.dims, y.dims), 0), nil
}

func buildSlice(n *node) (kernel, error) {
	x, y := &n.in[0], &n.out[0]
	if err := n.alike(x, y); err != nil {
		return nil, err
	}
	axis, err := n.axis("axis", x)
	if err != nil {
		return nil, err
	}
	begin, _ := n.params.Int("begin")
	end, _ := n.params.Int("end")
	if begin > end || end > int64(x.dims[axis]) {
		return nil, n.bad("parameters begin, end", "range", fmt.Sprintf("[%d, %d)", begin, end),
			fmt.Sprintf("in axis %d of %s with dims %v", axis, x.label, x.dims))
	}
	want := slices.Clone(x.dims)
	want[axis] = int(end - begin)
	if err := n.shaped(y, want); err != nil {
		return nil, err
	}
	n.move = movement{kind: moveSlice, axis: axis, begin: int(begin)}
	strides := dense(x.dims)
	return patternKernel(y, newPattern(y.dims, strides), int(begin)*strides[axis]), nil
}

// patternKernel copies the elements of a pattern that begins at element at of
// the operand.
func patternKernel(y *operand, p pattern, at int) kernel {
	switch y.dt.Size() {
	case 1:
		return patternBits[uint8](y.elems, p, at)
	case 2:
		return patternBits[uint16](y.elems, p, at)
	case 4:
		return patternBits[uint32](y.elems, p, at)
	default:
		return patternBits[uint64](y.elems, p, at)
	}
}

func patternBits[T any](elems int, p pattern, at int) kernel {
	return kernel{shared(elems, 1, func(m *mem, from, to int) error {
		if from < to {
			expand(as[T](m.out[0])[from:to], as[T](m.in[0])[at:], &p, from)
		}
		return nil
	})}
}

func buildConcat(n *node) (kernel, error) {
	y := &n.out[0]
	axis, err := n.axis("axis", y)
	if err != nil {
		return nil, err
	}
	length := 0
	for i := range n.in {
		x := &n.in[i]
		if err := n.alike(x, y); err != nil {
			return nil, err
		}
		if err := n.ranked(x, len(y.dims), len(y.dims)); err != nil {
			return nil, err
		}
		want := slices.Clone(y.dims)
		want[axis] = x.dims[axis]
		if err := n.shaped(x, want); err != nil {
			return nil, err
		}
		length += x.dims[axis]
	}
	if length != y.dims[axis] {
		return nil, n.bad(y.label, "dims", y.dims, fmt.Sprintf("%d along axis %d", length, axis))
	}
	if axis == 0 {
		n.rows = func(*node) operation { return joinedRows(y.dt.Size()) }
	}
	inner, _, _ := y.split(axis)
	parts := make([]int, len(n.in)) // bytes each operand contributes to a row of y
	for i := range n.in {
		parts[i] = inner * n.in[i].dims[axis] * y.dt.Size()
	}
	lines := (y.elems*y.dt.Size() + alignment - 1) / alignment
	return kernel{shared(lines, moved(alignment), func(m *mem, from, to int) error {
		join(m.out[0], m.in, parts, from*alignment, min(to*alignment, len(m.out[0])))
		return nil
	})}, nil
}

// join fills bytes from … to−1 of y, whose rows consist of a part of each
// operand.
func join(y []byte, in [][]byte, parts []int, from, to int) {
	row := 0
	for _, w := range parts {
		row += w
	}
	for from < to {
		r, at := from/row, from%row
		for i, w := range parts {
			if at < w {
				from += copy(y[from:to], in[i][r*w+at:(r+1)*w])
				at = w
			}
			at -= w
		}
	}
}

func buildConstant(n *node) (kernel, error) {
	if err := n.same(&n.out[0]); err != nil {
		return nil, err
	}
	f, _ := n.params.FloatOf("value")
	i, _ := n.params.Int("value")
	switch n.dt {
	case dtype.I32:
		return setAll(n.out[0].elems, int32(i)), nil
	case dtype.BF16:
		return setAll(n.out[0].elems, dtype.ToBF16(f)), nil
	default:
		return setAll(n.out[0].elems, f), nil
	}
}

func setAll[T any](elems int, v T) kernel {
	return kernel{shared(elems, 1, func(m *mem, from, to int) error {
		y := as[T](m.out[0])[from:to]
		for i := range y {
			y[i] = v
		}
		return nil
	})}
}

func buildRange(n *node) (kernel, error) {
	y := &n.out[0]
	if err := n.same(y); err != nil {
		return nil, err
	}
	start, _ := n.params.Int("start")
	limit, _ := n.params.Int("limit")
	delta, _ := n.params.Int("delta")
	if delta == 0 {
		return nil, n.bad("parameter delta", "value", delta, "not 0")
	}
	step, span := delta, limit-start
	if step < 0 {
		step, span = -step, -span
	}
	if err := n.shaped(y, []int{int(max(0, (span+step-1)/step))}); err != nil {
		return nil, err
	}
	return kernel{shared(y.elems, 1, func(m *mem, from, to int) error {
		y := as[int32](m.out[0])
		for i := from; i < to; i++ {
			y[i] = int32(start + int64(i)*delta)
		}
		return nil
	})}, nil
}

package host

import (
	"math"
	"slices"

	"quill/recipes/dtype"
)

// folding is a reduction, in index order. Both forms give the same result.
type folding[T number] struct {
	slices func(y, a, b []T)    // y = a with b folded in, elementwise
	row    func(acc T, x []T) T // acc with each element of x folded in
}

func sums[T number]() folding[T] {
	return folding[T]{add[T], func(acc T, x []T) T {
		for _, v := range x {
			acc += v
		}
		return acc
	}}
}

// maxima are NaN where any element is.
func maxima[T number]() folding[T] {
	return folding[T]{maximum[T], func(acc T, x []T) T {
		for _, v := range x {
			acc = max(acc, v)
		}
		return acc
	}}
}

// reduce builds a reduction along one dim of at least least elements, in f32
// or i32.
func reduce(f folding[float32], i folding[int32], least int) func(*node) (runFunc, error) {
	return func(n *node) (runFunc, error) {
		x, y := &n.in[0], &n.out[0]
		if err := n.same(x, y); err != nil {
			return nil, err
		}
		axis, err := n.axis("reductionDimension", x)
		if err != nil {
			return nil, err
		}
		want := slices.Clone(x.dims)
		want[axis] = 1
		if err := n.shaped(y, want); err != nil {
			return nil, err
		}
		if x.dims[axis] < least {
			return nil, n.bad(x.label, "dims", x.dims, "elements to reduce")
		}
		switch inner, length, outer := x.split(axis); {
		case length == 0:
			return func(m *mem) error { clear(m.out[0]); return nil }, nil
		case n.dt == dtype.I32 && inner == 1:
			return foldRows(i, length, outer), nil
		case n.dt == dtype.I32:
			return foldSlices(i, inner, length, outer), nil
		case n.dt == dtype.F32 && inner == 1:
			return foldRows(f, length, outer), nil
		case n.dt == dtype.F32:
			return foldSlices(f, inner, length, outer), nil
		case inner == 1:
			return foldWideRows(n, f, length, outer), nil
		default:
			return foldWideSlices(n, f, inner, length, outer), nil
		}
	}
}

// foldRows reduces outer contiguous rows.
func foldRows[T number](f folding[T], length, outer int) runFunc {
	return func(m *mem) error {
		x, y := as[T](m.in[0]), as[T](m.out[0])
		for o := range outer {
			row := x[o*length : (o+1)*length]
			y[o] = f.row(row[0], row[1:])
		}
		return nil
	}
}

// foldSlices reduces a dim with inner elements below it.
func foldSlices[T number](f folding[T], inner, length, outer int) runFunc {
	return func(m *mem) error {
		x, y := as[T](m.in[0]), as[T](m.out[0])
		for o := range outer {
			acc := y[o*inner : (o+1)*inner]
			for i := range length {
				slice := x[(o*length+i)*inner:][:inner]
				if i == 0 {
					copy(acc, slice)
				} else {
					f.slices(acc, acc, slice)
				}
			}
		}
		return nil
	}
}

// foldWideRows is foldRows of bf16.
func foldWideRows(n *node, f folding[float32], length, outer int) runFunc {
	tmp := n.reserve(4 * min(chunk, length))
	return func(m *mem) error {
		x, y, buf := as[uint16](m.in[0]), as[uint16](m.out[0]), tmp.f32(m.scratch)
		for o := range outer {
			row := x[o*length : (o+1)*length]
			acc := dtype.FromBF16(row[0])
			for row = row[1:]; len(row) > 0; {
				c := min(len(buf), len(row))
				widen(buf[:c], row[:c])
				acc = f.row(acc, buf[:c])
				row = row[c:]
			}
			y[o] = dtype.ToBF16(acc)
		}
		return nil
	}
}

// foldWideSlices is foldSlices of bf16.
func foldWideSlices(n *node, f folding[float32], inner, length, outer int) runFunc {
	sum, tmp := n.reserve(4*inner), n.reserve(4*inner)
	return func(m *mem) error {
		x, y := as[uint16](m.in[0]), as[uint16](m.out[0])
		acc, buf := sum.f32(m.scratch), tmp.f32(m.scratch)
		for o := range outer {
			for i := range length {
				slice := x[(o*length+i)*inner:][:inner]
				if i == 0 {
					widen(acc, slice)
					continue
				}
				widen(buf, slice)
				f.slices(acc, acc, buf)
			}
			narrow(y[o*inner:(o+1)*inner], acc)
		}
		return nil
	}
}

// buildSoftmax works on one line along the dim at a time.
func buildSoftmax(n *node) (runFunc, error) {
	x, y := &n.in[0], &n.out[0]
	if err := n.same(x, y); err != nil {
		return nil, err
	}
	if err := n.shaped(y, x.dims); err != nil {
		return nil, err
	}
	axis, err := n.axis("dim", x)
	if err != nil {
		return nil, err
	}
	inner, length, outer := x.split(axis)
	if length == 0 {
		return func(*mem) error { return nil }, nil
	}
	tmp := n.reserve(4 * length)
	wide := x.wide()
	return func(m *mem) error {
		line := tmp.f32(m.scratch)
		for o := range outer {
			for i := range inner {
				at := o*length*inner + i
				loadLine(line, m.in[0], wide, at, inner)
				softmax(line)
				storeLine(m.out[0], wide, at, inner, line)
			}
		}
		return nil
	}, nil
}

func softmax(x []float32) {
	top := x[0]
	for _, v := range x[1:] {
		top = max(top, v)
	}
	var sum float32
	for i, v := range x {
		e := float32(math.Exp(float64(v - top)))
		x[i] = e
		sum += e
	}
	for i := range x {
		x[i] /= sum
	}
}

// loadLine reads the f32 or bf16 elements at, at+stride, … as f32.
func loadLine(line []float32, m []byte, wide bool, at, stride int) {
	if wide {
		x := as[uint16](m)[at:]
		for i := range line {
			line[i] = dtype.FromBF16(x[i*stride])
		}
		return
	}
	x := as[float32](m)[at:]
	for i := range line {
		line[i] = x[i*stride]
	}
}

// storeLine rounds line to the f32 or bf16 elements at, at+stride, ….
func storeLine(m []byte, wide bool, at, stride int, line []float32) {
	if wide {
		y := as[uint16](m)[at:]
		for i, v := range line {
			y[i*stride] = dtype.ToBF16(v)
		}
		return
	}
	y := as[float32](m)[at:]
	for i, v := range line {
		y[i*stride] = v
	}
}

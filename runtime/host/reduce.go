package host

import (
	"slices"

	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// folding is a reduction: of a row, where the reduced dim is the fastest, and
// else of slices in index order.
type folding struct {
	floats func(k kern.Kernels, x []float32) float32
	ints   func(acc int32, x []int32) int32
	// y = a with b folded in
	slices func(k kern.Kernels, y, a, b []float32)
	whole  func(k kern.Kernels, y, a, b []int32)
	least  int // elements
}

var sums = folding{
	floats: kern.Kernels.Sum,
	ints: func(acc int32, x []int32) int32 {
		for _, v := range x {
			acc += v
		}
		return acc
	},
	slices: kern.Kernels.Add,
	whole:  kern.Kernels.AddI32,
}

// maxima are NaN where any element is.
var maxima = folding{
	floats: kern.Kernels.MaxOf,
	ints: func(acc int32, x []int32) int32 {
		for _, v := range x {
			acc = max(acc, v)
		}
		return acc
	},
	slices: kern.Kernels.Max,
	whole:  kern.Kernels.MaxI32,
	least:  1,
}

// reduce builds a reduction along one dim, in f32 or i32.
func reduce(f folding) func(*node) (kernel, error) {
	return func(n *node) (kernel, error) {
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
		if x.dims[axis] < f.least {
			return nil, n.bad(x.label, "dims", x.dims, "elements to reduce")
		}
		inner, length, outer := x.split(axis)
		switch {
		case length == 0:
			return kernel{{1, 1, func(m *mem, _, _ int) error { clear(m.out[0]); return nil }}}, nil
		case axis == 0 && n.dt == dtype.I32:
			n.rows = func(*node) operation { return foldedInts(f.ints) }
			return nil, nil
		case axis == 0:
			n.rows = func(n *node) operation { return foldedRows(f.floats, x.bf16(), length) }
			return nil, nil
		case n.dt == dtype.I32:
			return foldSlices(n.kernels, f.whole, inner, length, outer), nil
		case n.dt == dtype.F32:
			return foldSlices(n.kernels, f.slices, inner, length, outer), nil
		}
		return foldBF16Slices(n, f.slices, inner, length, outer), nil
	}
}

// foldSlices reduces a dim with inner elements below it, which are taken a chunk
// at a time.
func foldSlices[T number](k kern.Kernels, f func(k kern.Kernels, y, a, b []T), inner, length, outer int) kernel {
	chunks := (inner + chunk - 1) / chunk
	return kernel{shared(outer*chunks, chunk*length, func(m *mem, from, to int) error {
		x, y := as[T](m.in[0]), as[T](m.out[0])
		for u := from; u < to; u++ {
			o, at := u/chunks, u%chunks*chunk
			c := min(chunk, inner-at)
			acc := y[o*inner+at:][:c]
			for i := range length {
				slice := x[(o*length+i)*inner+at:][:c]
				if i == 0 {
					copy(acc, slice)
				} else {
					f(k, acc, acc, slice)
				}
			}
		}
		return nil
	})}
}

// foldBF16Slices is foldSlices of bf16.
func foldBF16Slices(n *node, f func(k kern.Kernels, y, a, b []float32), inner, length, outer int) kernel {
	chunks := (inner + chunk - 1) / chunk
	sum, tmp := n.reserveOwn(4*chunk), n.reserveOwn(4*chunk)
	k := n.kernels
	return kernel{shared(outer*chunks, chunk*length, func(m *mem, from, to int) error {
		x, y := as[uint16](m.in[0]), as[uint16](m.out[0])
		for u := from; u < to; u++ {
			o, at := u/chunks, u%chunks*chunk
			c := min(chunk, inner-at)
			acc, buf := sum.f32(m.own)[:c], tmp.f32(m.own)[:c]
			for i := range length {
				slice := x[(o*length+i)*inner+at:][:c]
				if i == 0 {
					k.Widen(acc, slice)
					continue
				}
				k.Widen(buf, slice)
				f(k, acc, acc, buf)
			}
			k.Narrow(y[o*inner+at:][:c], acc)
		}
		return nil
	})}
}

// buildSoftmax works on rows, or else on one line along the dim at a time.
func buildSoftmax(n *node) (kernel, error) {
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
	bf16 := x.bf16()
	inner, length, outer := x.split(axis)
	switch {
	case length == 0:
		return nil, nil
	case axis == 0:
		n.rows = func(n *node) operation { return softmaxRows(n.kernels, bf16, length) }
		return nil, nil
	}
	tmp := n.reserveOwn(4 * length)
	k := n.kernels
	return kernel{shared(outer*inner, 8*length, func(m *mem, from, to int) error {
		line := tmp.f32(m.own)
		for u := from; u < to; u++ {
			at := u/inner*length*inner + u%inner
			loadLine(line, m.in[0], bf16, at, inner)
			softmax(k, line, k.MaxOf(line))
			storeLine(m.out[0], bf16, at, inner, line)
		}
		return nil
	})}, nil
}

// softmax of a line whose largest element is top. The sum is kern.Sum's.
func softmax(k kern.Kernels, x []float32, top float32) {
	k.SubS(x, x, top)
	k.Exp(x, x)
	k.DivS(x, x, k.Sum(x))
}

// loadLine reads the f32 or bf16 elements at, at+stride, … as f32.
func loadLine(line []float32, m []byte, bf16 bool, at, stride int) {
	if bf16 {
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
func storeLine(m []byte, bf16 bool, at, stride int, line []float32) {
	if bf16 {
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

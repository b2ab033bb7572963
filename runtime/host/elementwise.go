package host

import (
	"math"

	"quill/recipes/dtype"
)

// Elementwise nodes work on chunks of the result. Each operand's chunk is
// brought into the order of the result and into the type of the arithmetic
// first, so that every operation is one plain loop.

// source reads one operand in the order of the result.
type source struct {
	pat  pattern
	wide bool // bf16, read as f32
	buf  region
}

// newSource prepares reading o as a tensor of dims dst.
func (n *node) newSource(o *operand, dst []int, wide bool) source {
	s := source{pat: broadcastPattern(o.dims, dst), wide: wide}
	if wide || !s.pat.isDense() {
		size := o.dt.Size()
		if wide {
			size += 4 // gathered as bf16, then widened
		}
		s.buf = n.reserve(min(chunk, product(dst)) * size)
	}
	return s
}

// read returns elements start … start+n−1; start counts up from 0 in chunks.
func read[T any](s *source, m, scratch []byte, start, n int) []T {
	if s.wide {
		buf := s.buf.of(scratch)
		y := as[float32](buf)[:n]
		switch {
		case s.pat.isDense():
			widen(y, as[uint16](m)[start:start+n])
		case !s.pat.isScalar():
			tmp := as[uint16](buf[4*min(chunk, len(buf)/6):])[:n]
			expand(tmp, as[uint16](m), &s.pat, start)
			widen(y, tmp)
		case start == 0:
			v := dtype.FromBF16(as[uint16](m)[0])
			for i := range y {
				y[i] = v
			}
		}
		return as[T](buf)[:n]
	}
	if s.pat.isDense() {
		return as[T](m)[start : start+n]
	}
	y := as[T](s.buf.of(scratch))[:n]
	if !s.pat.isScalar() || start == 0 {
		expand(y, as[T](m), &s.pat, start)
	}
	return y
}

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

// binary builds a node of two operands of the suffix' type, computed in f32 or
// i32.
func binary(f func(y, a, b []float32), i func(y, a, b []int32)) func(*node) (runFunc, error) {
	return func(n *node) (runFunc, error) {
		a, b, y := &n.in[0], &n.in[1], &n.out[0]
		if err := n.same(a, b, y); err != nil {
			return nil, err
		}
		if err := n.broadcast(y, a, b); err != nil {
			return nil, err
		}
		if n.dt == dtype.I32 {
			return zip(n, i, false), nil
		}
		return zip(n, f, n.dt == dtype.BF16), nil
	}
}

// compare builds a node that yields predicates.
func compare(f func(y []int8, a, b []float32), i func(y []int8, a, b []int32)) func(*node) (runFunc, error) {
	return func(n *node) (runFunc, error) {
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
		if n.dt == dtype.I32 {
			return zip(n, i, false), nil
		}
		return zip(n, f, n.dt == dtype.BF16), nil
	}
}

// logical builds a node of two predicates.
func logical(op func(y, a, b []int8)) func(*node) (runFunc, error) {
	return func(n *node) (runFunc, error) {
		a, b, y := &n.in[0], &n.in[1], &n.out[0]
		if err := n.same(a, b, y); err != nil {
			return nil, err
		}
		if err := n.broadcast(y, a, b); err != nil {
			return nil, err
		}
		return zip(n, op, false), nil
	}
}

// zip applies op to chunks of both operands. With wide, operands are bf16 read
// as f32; a result of f32 arithmetic is then rounded to bf16.
func zip[S, R any](n *node, op func(y []R, a, b []S), wide bool) runFunc {
	y := &n.out[0]
	a := n.newSource(&n.in[0], y.dims, wide)
	b := n.newSource(&n.in[1], y.dims, wide)
	total := y.elems
	if !y.wide() {
		return func(m *mem) error {
			out := as[R](m.out[0])
			for at := 0; at < total; at += chunk {
				c := min(chunk, total-at)
				op(out[at:at+c], read[S](&a, m.in[0], m.scratch, at, c), read[S](&b, m.in[1], m.scratch, at, c))
			}
			return nil
		}
	}
	tmp := n.reserve(4 * min(chunk, total))
	return func(m *mem) error {
		out := as[uint16](m.out[0])
		buf := tmp.of(m.scratch)
		for at := 0; at < total; at += chunk {
			c := min(chunk, total-at)
			op(as[R](buf)[:c], read[S](&a, m.in[0], m.scratch, at, c), read[S](&b, m.in[1], m.scratch, at, c))
			narrow(out[at:at+c], as[float32](buf)[:c])
		}
		return nil
	}
}

// unary builds a node of one operand; i is nil if integers have no such node.
func unary(f func(y, x []float32), i func(y, x []int32)) func(*node) (runFunc, error) {
	return func(n *node) (runFunc, error) {
		x, y := &n.in[0], &n.out[0]
		if err := n.same(x, y); err != nil {
			return nil, err
		}
		if err := n.shaped(y, x.dims); err != nil {
			return nil, err
		}
		switch n.dt {
		case dtype.I32:
			return func(m *mem) error { i(as[int32](m.out[0]), as[int32](m.in[0])); return nil }, nil
		case dtype.F32:
			return func(m *mem) error { f(as[float32](m.out[0]), as[float32](m.in[0])); return nil }, nil
		}
		tmp := n.reserve(4 * min(chunk, y.elems))
		return func(m *mem) error {
			in, out, buf := as[uint16](m.in[0]), as[uint16](m.out[0]), tmp.f32(m.scratch)
			for at := 0; at < len(out); at += chunk {
				c := min(chunk, len(out)-at)
				widen(buf[:c], in[at:at+c])
				f(buf[:c], buf[:c])
				narrow(out[at:at+c], buf[:c])
			}
			return nil
		}, nil
	}
}

func buildNot(n *node) (runFunc, error) {
	x, y := &n.in[0], &n.out[0]
	if err := n.same(x, y); err != nil {
		return nil, err
	}
	if err := n.shaped(y, x.dims); err != nil {
		return nil, err
	}
	return func(m *mem) error {
		out := m.out[0]
		for i, v := range m.in[0][:len(out)] {
			out[i] = truth(v == 0)
		}
		return nil
	}, nil
}

// buildWhere moves bits: neither the operand not picked nor a rounding
// touches the result.
func buildWhere(n *node) (runFunc, error) {
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
	return sized(n.dt.Size(), choose[uint8](n), choose[uint16](n), choose[uint32](n), nil), nil
}

func choose[T any](n *node) runFunc {
	if n.dt.Size() != sizeOf[T]() {
		return nil
	}
	dims, total := n.out[0].dims, n.out[0].elems
	c := n.newSource(&n.in[0], dims, false)
	a := n.newSource(&n.in[1], dims, false)
	b := n.newSource(&n.in[2], dims, false)
	return func(m *mem) error {
		out := as[T](m.out[0])
		for at := 0; at < total; at += chunk {
			k := min(chunk, total-at)
			y := out[at : at+k]
			cond := read[uint8](&c, m.in[0], m.scratch, at, k)[:len(y)]
			yes := read[T](&a, m.in[1], m.scratch, at, k)[:len(y)]
			no := read[T](&b, m.in[2], m.scratch, at, k)[:len(y)]
			for i := range y {
				if cond[i] != 0 {
					y[i] = yes[i]
				} else {
					y[i] = no[i]
				}
			}
		}
		return nil
	}
}

// number is a type of arithmetic.
type number interface{ float32 | int32 }

func add[T number](y, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = a[i] + b[i]
	}
}

func sub[T number](y, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = a[i] - b[i]
	}
}

func mult[T number](y, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = a[i] * b[i]
	}
}

// div panics on an integer division by zero, which Run reports as an error.
func div[T number](y, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = a[i] / b[i]
	}
}

// maximum is NaN where either operand is.
func maximum[T number](y, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = max(a[i], b[i])
	}
}

// minimum is NaN where either operand is.
func minimum[T number](y, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = min(a[i], b[i])
	}
}

func less[T number](y []int8, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = int8(truth(a[i] < b[i]))
	}
}

func lessEqual[T number](y []int8, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = int8(truth(a[i] <= b[i]))
	}
}

func equal[T number](y []int8, a, b []T) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = int8(truth(a[i] == b[i]))
	}
}

func and(y, a, b []int8) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = int8(truth(a[i] != 0 && b[i] != 0))
	}
}

func or(y, a, b []int8) {
	a, b = a[:len(y)], b[:len(y)]
	for i := range y {
		y[i] = int8(truth(a[i] != 0 || b[i] != 0))
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

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func silu(x float64) float64 { return x * sigmoid(x) }

// softplus is log(1 + exp(x)), written so that it neither overflows nor loses
// small results.
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

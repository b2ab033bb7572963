package host

import (
	"errors"
	"math"
	"unsafe"

	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// Operations on rows, one for each node that computes a row of its result from
// rows of its operands. Where elements are bf16, a chunk at a time is widened,
// computed with in f32 and rounded.

// rowZip is a positional function of two operands: of rows of one length, and,
// where there is one, of a row and a number on its right.
type rowZip[S, R any] struct {
	rows  func(y []R, a, b []S)
	right func(y []R, a []S, b S)
}

// apply computes a row; an operand may have one element, which tmp, of a chunk,
// is for.
func (f *rowZip[S, R]) apply(y []R, a, b, tmp []S) {
	n := len(y)
	switch {
	case len(a) == n && len(b) == n:
		f.rows(y, a, b)
	case len(a) == 1 && len(b) == 1:
		f.rows(y[:1], a, b)
		repeat(y, y[0])
	case len(b) == 1 && f.right != nil:
		f.right(y, a, b[0])
	case len(b) == 1:
		repeat(tmp, b[0])
		for at := 0; at < n; at += chunk {
			c := min(chunk, n-at)
			f.rows(y[at:at+c], a[at:at+c], tmp[:c])
		}
	default:
		repeat(tmp, a[0])
		for at := 0; at < n; at += chunk {
			c := min(chunk, n-at)
			f.rows(y[at:at+c], tmp[:c], b[at:at+c])
		}
	}
}

func repeat[T any](y []T, v T) {
	for i := range y {
		y[i] = v
	}
}

// zip is an operation on elements that are computed with as they are.
func zip[S, R any](f rowZip[S, R]) operation {
	return operation{positional: true, tmp: chunk * sizeOf[S](), run: func(t *tile, o *operation) error {
		y, a, b := t.lanes[o.out[0]], t.lanes[o.in[0]], t.lanes[o.in[1]]
		tmp := tmpOf[S](t, 0, chunk)
		for r := range t.flat(typed{&y, sizeOf[R]()}, typed{&a, sizeOf[S]()}, typed{&b, sizeOf[S]()}) {
			f.apply(rowOf[R](&y, r), rowOf[S](&a, r), rowOf[S](&b, r), tmp)
		}
		return nil
	}}
}

// zipBF16 is zip of bf16 operands with a bf16 result.
func zipBF16(k kern.Kernels, f rowZip[float32, float32]) operation {
	return operation{positional: true, tmp: 3 * chunk * 4, run: func(t *tile, o *operation) error {
		y, a, b := t.lanes[o.out[0]], t.lanes[o.in[0]], t.lanes[o.in[1]]
		x0, x1, tmp := tmpOf[float32](t, 0, chunk), tmpOf[float32](t, 4*chunk, chunk), tmpOf[float32](t, 8*chunk, chunk)
		for r := range t.flat(typed{&y, 2}, typed{&a, 2}, typed{&b, 2}) {
			ry, ra, rb := rowOf[uint16](&y, r), rowOf[uint16](&a, r), rowOf[uint16](&b, r)
			for at := 0; at < len(ry); at += chunk {
				c := min(chunk, len(ry)-at)
				f.apply(x0[:c], widened(k, x0, ra, at, c), widened(k, x1, rb, at, c), tmp)
				k.Narrow(ry[at:at+c], x0[:c])
			}
		}
		return nil
	}}
}

// widened is elements at … at+n−1 of x, or its only one, in buf.
func widened(k kern.Kernels, buf []float32, x []uint16, at, n int) []float32 {
	if len(x) == 1 {
		buf[0] = dtype.FromBF16(x[0])
		return buf[:1]
	}
	k.Widen(buf[:n], x[at:at+n])
	return buf[:n]
}

// compareBF16 is zip of bf16 operands with predicates as result.
func compareBF16(k kern.Kernels, f rowZip[float32, uint8]) operation {
	return operation{positional: true, tmp: 3 * chunk * 4, run: func(t *tile, o *operation) error {
		y, a, b := t.lanes[o.out[0]], t.lanes[o.in[0]], t.lanes[o.in[1]]
		x0, x1, tmp := tmpOf[float32](t, 0, chunk), tmpOf[float32](t, 4*chunk, chunk), tmpOf[float32](t, 8*chunk, chunk)
		for r := range t.flat(typed{&y, 1}, typed{&a, 2}, typed{&b, 2}) {
			ry, ra, rb := rowOf[uint8](&y, r), rowOf[uint16](&a, r), rowOf[uint16](&b, r)
			for at := 0; at < len(ry); at += chunk {
				c := min(chunk, len(ry)-at)
				f.apply(ry[at:at+c], widened(k, x0, ra, at, c), widened(k, x1, rb, at, c), tmp)
			}
		}
		return nil
	}}
}

// mapRows is a positional operation of one operand.
func mapRows[S, R any](f func(y []R, x []S)) operation {
	return operation{positional: true, run: func(t *tile, o *operation) error {
		y, x := t.lanes[o.out[0]], t.lanes[o.in[0]]
		for r := range t.flat(typed{&y, sizeOf[R]()}, typed{&x, sizeOf[S]()}) {
			ys := rowOf[R](&y, r)
			if x.n == len(ys) {
				f(ys, rowOf[S](&x, r))
				continue
			}
			f(ys[:1], rowOf[S](&x, r))
			repeat(ys, ys[0])
		}
		return nil
	}}
}

// mapBF16 is mapRows for bf16 on both sides.
func mapBF16(k kern.Kernels, f func(y, x []float32)) operation {
	return operation{positional: true, tmp: chunk * 4, run: func(t *tile, o *operation) error {
		y, x := t.lanes[o.out[0]], t.lanes[o.in[0]]
		buf := tmpOf[float32](t, 0, chunk)
		for r := range t.flat(typed{&y, 2}, typed{&x, 2}) {
			ys, xs := rowOf[uint16](&y, r), rowOf[uint16](&x, r)
			for at := 0; at < len(ys); at += chunk {
				c := min(chunk, len(ys)-at)
				v := widened(k, buf, xs, at, c)
				f(v, v)
				if len(v) == c {
					k.Narrow(ys[at:at+c], v)
				} else {
					repeat(ys[at:at+c], dtype.ToBF16(v[0]))
				}
			}
		}
		return nil
	}}
}

// selected is where: it moves bits. both and right are its function with rows
// on both sides and with a number on the right, where the type has them.
func selected[T any](both func(y []T, cond []uint8, a, b []T), right func(y []T, cond []uint8, a []T, b T)) operation {
	return operation{positional: true, tmp: chunk * sizeOf[T](), run: func(t *tile, o *operation) error {
		y, c, a, b := t.lanes[o.out[0]], t.lanes[o.in[0]], t.lanes[o.in[1]], t.lanes[o.in[2]]
		size := sizeOf[T]()
		tmp := tmpOf[T](t, 0, chunk)
		for r := range t.flat(typed{&y, size}, typed{&c, 1}, typed{&a, size}, typed{&b, size}) {
			ry, cond, ra, rb := rowOf[T](&y, r), rowOf[uint8](&c, r), rowOf[T](&a, r), rowOf[T](&b, r)
			if len(cond) == 1 {
				if cond[0] != 0 {
					rb = ra
				}
				if len(rb) == 1 {
					repeat(ry, rb[0])
				} else {
					copy(ry, rb)
				}
				continue
			}
			for at := 0; at < len(ry); at += chunk {
				n := min(chunk, len(ry)-at)
				switch {
				case len(ra) == 1 && len(rb) == 1:
					repeat(tmp[:n], ra[0])
					right(ry[at:at+n], cond[at:at+n], tmp[:n], rb[0])
				case len(ra) == 1:
					repeat(tmp[:n], ra[0])
					both(ry[at:at+n], cond[at:at+n], tmp[:n], rb[at:at+n])
				case len(rb) == 1:
					right(ry[at:at+n], cond[at:at+n], ra[at:at+n], rb[0])
				default:
					both(ry[at:at+n], cond[at:at+n], ra[at:at+n], rb[at:at+n])
				}
			}
		}
		return nil
	}}
}

// select8 and select8S are kern's selections for bytes.
func select8(y, cond, a, b []uint8) {
	for i := range y {
		if cond[i] != 0 {
			y[i] = a[i]
		} else {
			y[i] = b[i]
		}
	}
}

func select8S(y, cond, a []uint8, b uint8) {
	for i := range y {
		if cond[i] != 0 {
			y[i] = a[i]
		} else {
			y[i] = b
		}
	}
}

// copied moves rows that a group has in one place to another.
func copied(size int) operation {
	return operation{positional: true, run: func(t *tile, o *operation) error {
		y, x := t.lanes[o.out[0]], t.lanes[o.in[0]]
		for r := range t.flat(typed{&y, size}, typed{&x, size}) {
			ys, xs := elems[byte](y.row(r), y.n*size), elems[byte](x.row(r), x.n*size)
			if x.n == y.n {
				copy(ys, xs)
				continue
			}
			for len(ys) > 0 {
				ys = ys[copy(ys, xs):]
			}
		}
		return nil
	}}
}

// joinedRows is concat along the rows.
func joinedRows(size int) operation {
	return operation{run: func(t *tile, o *operation) error {
		y := t.lanes[o.out[0]]
		for r := range t.rows {
			ys := elems[byte](y.row(r), y.n*size)
			for _, v := range o.in {
				x := &t.lanes[v]
				ys = ys[copy(ys, elems[byte](x.row(r), x.n*size)):]
			}
		}
		return nil
	}}
}

// widened is row r of a lane of bf16, in the operation's memory.
func (t *tile) widened(l *lane, r int) []float32 {
	buf := tmpOf[float32](t, 0, l.n)
	t.kernels.Widen(buf, rowOf[uint16](l, r))
	return buf
}

// softmaxRows is softmax along the rows. The sum is kern.Sum's.
func softmaxRows(k kern.Kernels, bf16 bool, n int) operation {
	tmp := 0
	if bf16 {
		tmp = 4 * n
	}
	return operation{tmp: tmp, run: func(t *tile, o *operation) error {
		y, x := t.lanes[o.out[0]], t.lanes[o.in[0]]
		for r := range t.rows {
			var line []float32
			if bf16 {
				line = t.widened(&x, r)
			} else {
				line = rowOf[float32](&y, r)
				if x.p != y.p {
					copy(line, rowOf[float32](&x, r))
				}
			}
			top := k.MaxOf(line)
			if top < t.least {
				return errHidden
			}
			softmax(k, line, top)
			if bf16 {
				k.Narrow(rowOf[uint16](&y, r), line)
			}
		}
		return nil
	}}
}

// foldedRows reduces rows in f32 to one element.
func foldedRows(f func(k kern.Kernels, x []float32) float32, bf16 bool, n int) operation {
	tmp := 0
	if bf16 {
		tmp = 4 * n
	}
	return operation{tmp: tmp, run: func(t *tile, o *operation) error {
		y, x := t.lanes[o.out[0]], t.lanes[o.in[0]]
		for r := range t.rows {
			if bf16 {
				rowOf[uint16](&y, r)[0] = dtype.ToBF16(f(t.kernels, t.widened(&x, r)))
			} else {
				rowOf[float32](&y, r)[0] = f(t.kernels, rowOf[float32](&x, r))
			}
		}
		return nil
	}}
}

// foldedInts reduces rows of integers.
func foldedInts(f func(acc int32, x []int32) int32) operation {
	return operation{run: func(t *tile, o *operation) error {
		y, x := t.lanes[o.out[0]], t.lanes[o.in[0]]
		for r := range t.rows {
			row := rowOf[int32](&x, r)
			rowOf[int32](&y, r)[0] = f(row[0], row[1:])
		}
		return nil
	}}
}

// normedRows is rms_norm: r = 1/sqrt(Σx²/n + eps), the sum kern.DotF32's.
func normedRows(k kern.Kernels, bf16 bool, n int, eps float32) operation {
	tmp := 0
	if bf16 {
		tmp = 10 * n
	}
	return operation{tmp: tmp, run: func(t *tile, o *operation) error {
		y, inv, x, gamma := t.lanes[o.out[0]], t.lanes[o.out[1]], t.lanes[o.in[0]], t.lanes[o.in[1]]
		for r := range t.rows {
			var line []float32
			if bf16 {
				line = t.widened(&x, r)
			} else {
				line = rowOf[float32](&x, r)
			}
			mean := k.DotF32(line, line) / float32(n)
			scale := 1 / float32(math.Sqrt(float64(mean+eps)))
			rowOf[float32](&inv, r)[0] = scale
			if !bf16 {
				ys := rowOf[float32](&y, r)
				k.MulS(ys, line, scale)
				k.Mul(ys, ys, rowOf[float32](&gamma, r))
				continue
			}
			factors, half := tmpOf[float32](t, 4*n, n), tmpOf[uint16](t, 8*n, n)
			k.MulS(line, line, scale)
			k.Narrow(half, line)
			k.Widen(line, half)
			k.Widen(factors, rowOf[uint16](&gamma, r))
			k.Mul(line, line, factors)
			k.Narrow(rowOf[uint16](&y, r), line)
		}
		return nil
	}}
}

// pickedRows is gather_elements along the rows.
func pickedRows[T any](by indices) operation {
	return operation{run: func(t *tile, o *operation) error {
		y, x, idx := t.lanes[o.out[0]], t.lanes[o.in[0]], t.lanes[o.in[1]]
		for r := range t.rows {
			ys, xs, at := rowOf[T](&y, r), rowOf[T](&x, r), rowOf[int32](&idx, r)
			ys = ys[:len(at)]
			for i, v := range at {
				if uint(v) >= uint(len(xs)) {
					return &indexError{by, v}
				}
				ys[i] = xs[v]
			}
		}
		return nil
	}}
}

// errHidden says that a tile needs the keys that it left out; see group.span.
var errHidden = errors.New("hidden keys matter")

// rowProduct multiplies the rows of a tile by a matrix, or some by each of a few.
type rowProduct struct {
	n, k       int
	transposed bool   // B is [n, k]
	bf16       bool   // operands
	bf16Y      bool   // the result
	scratch    region // for the transposed form, in tile.tmp
	sums       region // f32 rows of a bf16 result
}

// newProduct reserves memory for tiles of up to rows rows.
func newProduct(k kern.Kernels, p rowProduct, rows int) operation {
	tmp := 0
	if p.transposed {
		size := arithmetic{k, p.bf16}.dotsScratch(rows, p.k) // tiles at the end are lower
		p.scratch = region{0, size}
		tmp = align(size)
	}
	if p.bf16Y {
		p.sums = region{tmp, 4 * rows * p.n}
		tmp += p.sums.n
	}
	return operation{tmp: tmp, product: &p, run: func(t *tile, o *operation) error {
		p.multiply(t, &t.lanes[o.out[0]], &t.lanes[o.in[0]], t.lanes[o.in[1]])
		return nil
	}}
}

// multiply multiplies the rows of a tile, by matrices whose rows may lie in pieces: by
// one piece of each before the next one.
func (p *rowProduct) multiply(t *tile, y, a *lane, b lane) {
	every, length := t.rows, a.n
	if b.every != 0 {
		every = b.every
	}
	if p.transposed {
		length = y.n
	}
	for at := 0; at < length; {
		piece, n := b.piece(at, length-at)
		if b.every != 0 {
			piece.prefetch(n, t.rows/b.every)
		}
		for r := 0; r < t.rows; r += every {
			p.part(t, r, min(every, t.rows-r), y, a, &piece, at, n)
			piece.p = unsafe.Add(piece.p, b.step)
		}
		at += n
	}
	for r := 0; p.bf16Y && r < t.rows; r++ {
		t.kernels.Narrow(rowOf[uint16](y, r)[:y.n], p.sums.f32(t.tmp)[r*y.n:(r+1)*y.n])
	}
}

// part multiplies rows from r on by n rows of a matrix, from number at on: they make
// columns of the result if the matrix is transposed, and go with columns of a otherwise.
func (p *rowProduct) part(t *tile, r, rows int, y, a, b *lane, at, n int) {
	var out []float32
	ldy := y.n
	if p.bf16Y {
		out = p.sums.f32(t.tmp)[r*ldy : (r+rows)*ldy]
	} else {
		ldy = y.stride / 4
		out = elems[float32](y.row(r), (rows-1)*ldy+y.n)
	}
	with := arithmetic{t.kernels, p.bf16}
	x := lane{p: a.row(r), stride: a.stride}
	m := x.matrix(rows, a.n, with.size())
	if p.transposed {
		with.dots(out[at:], ldy, m, b.matrix(n, a.n, with.size()), rows, n, a.n, p.scratch.of(t.tmp))
		return
	}
	with.sums(out, ldy, m.from(0, at), b.matrix(n, y.n, with.size()), rows, y.n, n, at > 0)
}

// piece is the matrix from row at on, as far as its rows lie together: n rows of up to
// most.
func (l *lane) piece(at, most int) (piece lane, n int) {
	piece = *l
	if l.picks == nil {
		piece.p = l.row(at)
		return piece, most
	}
	at += l.skip
	piece.p = unsafe.Add(l.p, int(l.picks[at/l.each])*l.apart+at%l.each*l.stride)
	return piece, min(most, l.each-at%l.each)
}

// prefetch reads matrices that lie beside each other, row by row, into a near cache:
// one at a time, each would be read in pieces that lie far apart, at a fraction of
// the speed of memory.
func (l *lane) prefetch(rows, matrices int) {
	if l.stride == matrices*l.step {
		kern.Read(elems[byte](l.p, rows*l.stride))
	}
}

// matrix is rows of a lane, of n elements of size bytes.
func (l *lane) matrix(rows, n, size int) matrix {
	return matrix{data: elems[byte](l.p, (rows-1)*l.stride+n*size), ld: l.stride / size}
}

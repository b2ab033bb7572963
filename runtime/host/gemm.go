package host

import (
	"math"

	"quill/recipes/dtype"
)

// An element of a product of matrices is summed in the order of dot where B is
// transposed, as weights are, and in index order where it is not. There a term
// that is exactly 0 changes nothing wherever it stands: a product with a 0/1
// matrix does not depend on what else the matrix could have picked. Operands
// that are not f32 rows already are brought into that form a block at a time;
// how many rows a block has never changes a result.

const (
	// blockRows and blockCols are the rows of A and of Bᵀ that are brought into
	// form at a time.
	blockRows = 64
	blockCols = 16
	// axpyRows and axpyCols are the rows and columns of C that are summed at a
	// time where B is not transposed: their sums stay in the nearest cache.
	axpyRows = 8
	axpyCols = 128
)

// dot is Σ a·b with four accumulators: element i goes to accumulator i mod 4.
// Products are rounded before they are added on every processor.
func dot(a, b []float32) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	for len(a) >= 4 && len(b) >= 4 {
		s0 += float32(a[0] * b[0])
		s1 += float32(a[1] * b[1])
		s2 += float32(a[2] * b[2])
		s3 += float32(a[3] * b[3])
		a, b = a[4:], b[4:]
	}
	if len(a) > 0 && len(b) > 0 {
		s0 += float32(a[0] * b[0])
	}
	if len(a) > 1 && len(b) > 1 {
		s1 += float32(a[1] * b[1])
	}
	if len(a) > 2 && len(b) > 2 {
		s2 += float32(a[2] * b[2])
	}
	return (s0 + s1) + (s2 + s3)
}

// dotWide is dot with b in bf16, for the row that is used only once.
func dotWide(a []float32, b []uint16) float32 {
	var s0, s1, s2, s3 float32
	b = b[:len(a)]
	for len(a) >= 4 && len(b) >= 4 {
		s0 += float32(a[0] * math.Float32frombits(uint32(b[0])<<16))
		s1 += float32(a[1] * math.Float32frombits(uint32(b[1])<<16))
		s2 += float32(a[2] * math.Float32frombits(uint32(b[2])<<16))
		s3 += float32(a[3] * math.Float32frombits(uint32(b[3])<<16))
		a, b = a[4:], b[4:]
	}
	if len(a) > 0 && len(b) > 0 {
		s0 += float32(a[0] * math.Float32frombits(uint32(b[0])<<16))
	}
	if len(a) > 1 && len(b) > 1 {
		s1 += float32(a[1] * math.Float32frombits(uint32(b[1])<<16))
	}
	if len(a) > 2 && len(b) > 2 {
		s2 += float32(a[2] * math.Float32frombits(uint32(b[2])<<16))
	}
	return (s0 + s1) + (s2 + s3)
}

// matmul multiplies one pair of matrices: C [m, n] = A · B.
type matmul struct {
	m, n, k         int
	transA, transB  bool
	wide, wideC     bool   // bf16 operands, bf16 result
	rows, cols, sum region // blocks of A and B as f32, and sums of a block of C
}

// newMatmul reserves the memory for the blocks.
func newMatmul(node *node, m, n, k int, transA, transB, wide, wideC bool) matmul {
	g := matmul{m: m, n: n, k: k, transA: transA, transB: transB, wide: wide, wideC: wideC}
	if transA || wide {
		g.rows = node.reserve(4 * min(m, blockRows) * k)
	}
	if transB {
		g.sum = node.reserve(4 * min(m, blockRows) * min(n, blockCols))
	} else {
		g.sum = node.reserve(4 * min(m, axpyRows) * min(n, axpyCols))
	}
	switch {
	case wide && transB:
		g.cols = node.reserve(4 * min(n, blockCols) * k)
	case wide:
		g.cols = node.reserve(4 * min(n, axpyCols))
	}
	return g
}

// run multiplies the matrices that begin at the given elements.
func (g *matmul) run(a, b, c []byte, atA, atB, atC int, scratch []byte) {
	for m0 := 0; m0 < g.m; m0 += blockRows {
		n := min(blockRows, g.m-m0)
		rows := g.rowsA(a, atA, m0, n, scratch)
		if g.transB {
			g.dots(rows, b, c, atB, atC+m0*g.n, n, scratch)
			continue
		}
		for r := 0; r < n; r += axpyRows {
			g.axpy(rows[r*g.k:], b, c, atB, atC+(m0+r)*g.n, min(axpyRows, n-r), scratch)
		}
	}
}

// rowsA returns rows m0 … m0+n−1 of A as f32 rows.
func (g *matmul) rowsA(a []byte, at, m0, n int, scratch []byte) []float32 {
	rows := g.rows.f32(scratch)
	if !g.transA {
		return floats(a, g.wide, at+m0*g.k, n*g.k, rows)
	}
	pack(rows, a, g.wide, at+m0, g.m, n, g.k)
	return rows
}

// dots computes n rows of C from the rows of Bᵀ.
func (g *matmul) dots(rows []float32, b, c []byte, atB, atC, n int, scratch []byte) {
	for n0 := 0; n0 < g.n; n0 += blockCols {
		cols := min(blockCols, g.n-n0)
		tile := g.sum.f32(scratch)[:n*cols]
		dotBlock(tile, rows, b, g.wide, atB+n0*g.k, n, cols, g.k, g.cols.f32(scratch))
		for i := range n {
			store(c, g.wideC, atC+i*g.n+n0, tile[i*cols:(i+1)*cols])
		}
	}
}

// axpy computes n rows of C from the rows of B: each row of B, scaled, is added
// to the rows of sums, in order.
func (g *matmul) axpy(rows []float32, b, c []byte, atB, atC, n int, scratch []byte) {
	for n0 := 0; n0 < g.n; n0 += axpyCols {
		cols := min(axpyCols, g.n-n0)
		sum := g.sum.f32(scratch)[:n*cols]
		clear(sum)
		for r := range g.k {
			x := floats(b, g.wide, atB+r*g.n+n0, cols, g.cols.f32(scratch))
			for i := range n {
				scaled(sum[i*cols:][:cols], rows[i*g.k+r], x)
			}
		}
		for i := range n {
			store(c, g.wideC, atC+i*g.n+n0, sum[i*cols:][:cols])
		}
	}
}

// scaled is y += v·x.
func scaled(y []float32, v float32, x []float32) {
	x = x[:len(y)]
	for i := range y {
		y[i] += float32(v * x[i])
	}
}

// dotBlock computes a tile from rows of A and the rows of Bᵀ at element at of b.
func dotBlock(tile, a []float32, b []byte, wide bool, at, rows, cols, k int, buf []float32) {
	if wide && rows == 1 {
		x := as[uint16](b)[at : at+cols*k]
		for j := range tile {
			tile[j] = dotWide(a[:k], x[j*k:(j+1)*k])
		}
		return
	}
	dotTile(tile, a, floats(b, wide, at, cols*k, buf), rows, cols, k)
}

// dotTile computes tile[i, j] = a[i] · b[j].
func dotTile(tile, a, b []float32, rows, cols, k int) {
	for i := range rows {
		row := a[i*k : (i+1)*k]
		for j := range cols {
			tile[i*cols+j] = dot(row, b[j*k:(j+1)*k])
		}
	}
}

// pack transposes cols columns of k rows of stride elements into f32 rows.
func pack(y []float32, m []byte, wide bool, at, stride, cols, k int) {
	if wide {
		x := as[uint16](m)
		for r := range k {
			for c, v := range x[at+r*stride:][:cols] {
				y[c*k+r] = dtype.FromBF16(v)
			}
		}
		return
	}
	x := as[float32](m)
	for r := range k {
		for c, v := range x[at+r*stride:][:cols] {
			y[c*k+r] = v
		}
	}
}

// matrices checks the two fastest dims and the types of a product and returns
// its extents.
func (n *node) matrices() (m, cols, k int, transA, transB bool, err error) {
	a, b, c := &n.in[0], &n.in[1], &n.out[0]
	if err = n.typed(a, floatTypes...); err != nil {
		return
	}
	if err = n.typed(b, a.dt); err != nil {
		return
	}
	if c.dt != dtype.F32 {
		if err = n.typed(c, a.dt); err != nil {
			return
		}
	}
	flag := func(name string) bool { v, _ := n.params.Int(name); return v == 1 }
	transA, transB = flag("transpose_a"), flag("transpose_b")
	k, m = a.dims[0], a.dims[1]
	if transA {
		k, m = m, k
	}
	cols = b.dims[0]
	want := []int{cols, k}
	if transB {
		cols = b.dims[1]
		want = []int{k, cols}
	}
	if b.dims[0] != want[0] || b.dims[1] != want[1] {
		err = n.bad(b.label, "dims", b.dims, append(want, b.dims[2:]...))
	}
	return
}

func buildGemm(n *node) (runFunc, error) {
	a, b, c := &n.in[0], &n.in[1], &n.out[0]
	for _, o := range []*operand{a, b} {
		if err := n.ranked(o, 2, 2); err != nil {
			return nil, err
		}
	}
	m, cols, k, transA, transB, err := n.matrices()
	if err != nil {
		return nil, err
	}
	if err := n.shaped(c, []int{cols, m}); err != nil {
		return nil, err
	}
	g := newMatmul(n, m, cols, k, transA, transB, a.wide(), c.wide())
	return func(m *mem) error {
		g.run(m.in[0], m.in[1], m.out[0], 0, 0, 0, m.scratch)
		return nil
	}, nil
}

// buildBatchGemm walks the slow dims of the result; an operand with 1 there
// is reused.
func buildBatchGemm(n *node) (runFunc, error) {
	a, b, c := &n.in[0], &n.in[1], &n.out[0]
	for _, o := range []*operand{a, b} {
		if err := n.ranked(o, 3, 5); err != nil {
			return nil, err
		}
	}
	if err := n.ranked(b, len(a.dims), len(a.dims)); err != nil {
		return nil, err
	}
	m, cols, k, transA, transB, err := n.matrices()
	if err != nil {
		return nil, err
	}
	want := []int{cols, m}
	for i := 2; i < len(a.dims); i++ {
		d := a.dims[i]
		if d == 1 {
			d = b.dims[i]
		}
		if b.dims[i] != 1 && b.dims[i] != d {
			return nil, n.bad(b.label, "dims", b.dims, "slow dims equal to those of "+a.label+" or 1")
		}
		want = append(want, d)
	}
	if err := n.shaped(c, want); err != nil {
		return nil, err
	}
	batch := want[2:]
	count := product(batch)
	if product(b.dims[2:]) == 1 && !transA {
		// One B for all: the batch is only more rows.
		m, batch, count = m*count, nil, 1
	}
	stepA, stepB := batchStrides(a.dims, batch), batchStrides(b.dims, batch)
	g := newMatmul(n, m, cols, k, transA, transB, a.wide(), c.wide())
	return func(m *mem) error {
		var idx [maxRank]int
		atA, atB := 0, 0
		for i := range count {
			g.run(m.in[0], m.in[1], m.out[0], atA, atB, i*g.m*g.n, m.scratch)
			for j := range batch {
				idx[j]++
				atA += stepA[j]
				atB += stepB[j]
				if idx[j] < batch[j] {
					break
				}
				atA -= idx[j] * stepA[j]
				atB -= idx[j] * stepB[j]
				idx[j] = 0
			}
		}
		return nil
	}, nil
}

// batchStrides are the strides of the slow dims; 0 where the operand has 1.
func batchStrides(dims, batch []int) []int {
	s := dense(dims)[2:]
	for i := range batch {
		if dims[2+i] == 1 {
			s[i] = 0
		}
	}
	return s
}

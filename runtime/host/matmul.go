package host

import "quill/recipes/dtype"

// An element of a product is summed as kern says: in 16 lanes where B is
// transposed, as weights are, and in index order where it is not. There a term
// that is exactly 0 changes nothing wherever it stands: a product with a 0/1
// matrix does not depend on what else the matrix could have picked. How a
// product is divided changes no result.

const (
	// blockRows are the rows of A that are multiplied at a time: kern has them in
	// the second-level cache while the rows of Bᵀ pass by. Up to so many rows
	// read B once.
	blockRows = 120
	// blockElems is the size of a block of sums that are rounded afterwards.
	blockElems = 1 << 15
	// strip is what the rows and columns that threads take are multiples of,
	// orderedStrip the columns that are summed in index order: what kern sums at a
	// time.
	strip, orderedStrip = 8, 64
	// streamed is the number of rows that a weight could be multiplied with while
	// it comes from memory.
	streamed = 8
	// macs is the number of multiplications of a matrix product that take as long
	// as a simple operation on an element.
	macs = 16
)

// matmul is a product C [m, n] = A · B or several: one for each place along the
// slow dims of C, of which an operand has the same or 1.
type matmul struct {
	arithmetic
	m, n, k        int
	transA, transB bool
	rounds         bool // the result is bf16

	dims         []int // the slow ones, fastest first
	stepA, stepB []int // elements; 0 where the operand is reused

	byRows     bool // each product is divided by rows, else by columns
	step, each int  // rows or columns of a strip, strips of a product

	rows, cols          int    // of a block of C
	packed, block, work region // of a thread: rows of A if it is transposed, sums to round, kern's scratch
}

func buildGemm(n *node) (kernel, error) {
	for _, o := range []*operand{&n.in[0], &n.in[1]} {
		if err := n.ranked(o, 2, 2); err != nil {
			return nil, err
		}
	}
	g, err := n.matmul()
	if err != nil {
		return nil, err
	}
	if err := n.shaped(&n.out[0], []int{g.n, g.m}); err != nil {
		return nil, err
	}
	return n.multiply(g, nil), nil
}

// buildBatchGemm walks the slow dims of the result; an operand with 1 there
// is reused.
func buildBatchGemm(n *node) (kernel, error) {
	a, b := &n.in[0], &n.in[1]
	for _, o := range []*operand{a, b} {
		if err := n.ranked(o, 3, 5); err != nil {
			return nil, err
		}
	}
	if err := n.ranked(b, len(a.dims), len(a.dims)); err != nil {
		return nil, err
	}
	g, err := n.matmul()
	if err != nil {
		return nil, err
	}
	var dims []int
	for i := 2; i < len(a.dims); i++ {
		d := a.dims[i]
		if d == 1 {
			d = b.dims[i]
		}
		if b.dims[i] != 1 && b.dims[i] != d {
			return nil, n.bad(b.label, "dims", b.dims, "slow dims equal to those of "+a.label+" or 1")
		}
		dims = append(dims, d)
	}
	if err := n.shaped(&n.out[0], append([]int{g.n, g.m}, dims...)); err != nil {
		return nil, err
	}
	if y := &n.out[0]; !g.transA && a.elems > 0 && b.elems > 0 {
		n.rows = func(*node) operation {
			return operation{product: &rowProduct{n: g.n, k: g.k, transposed: g.transB, bf16: a.bf16(), bf16Y: y.bf16()}}
		}
	}
	return n.multiply(g, dims), nil
}

// matmul checks the two fastest dims and the types of a product.
func (n *node) matmul() (g *matmul, err error) {
	a, b, c := &n.in[0], &n.in[1], &n.out[0]
	if err := n.typed(a, floatTypes...); err != nil {
		return g, err
	}
	if err := n.typed(b, a.dt); err != nil {
		return g, err
	}
	if c.dt != dtype.F32 {
		if err := n.typed(c, a.dt); err != nil {
			return g, err
		}
	}
	g = &matmul{arithmetic: arithmetic{n.kernels, a.bf16()}, rounds: c.bf16()}
	flag := func(name string) bool { v, _ := n.params.Int(name); return v == 1 }
	g.transA, g.transB = flag("transpose_a"), flag("transpose_b")
	g.k, g.m = a.dims[0], a.dims[1]
	if g.transA {
		g.k, g.m = g.m, g.k
	}
	g.n = b.dims[0]
	want := []int{g.n, g.k}
	if g.transB {
		g.n = b.dims[1]
		want = []int{g.k, g.n}
	}
	if b.dims[0] != want[0] || b.dims[1] != want[1] {
		return g, n.bad(b.label, "dims", b.dims, append(want, b.dims[2:]...))
	}
	return g, nil
}

// multiply makes the kernel of products that were checked.
func (n *node) multiply(g *matmul, dims []int) kernel {
	a, b, c := &n.in[0], &n.in[1], &n.out[0]
	n.weightBytes = int64(b.elems * b.dt.Size())
	n.flops = 2 * int64(c.elems) * int64(g.k)
	g.dims, g.stepA, g.stepB = dims, batchStrides(a.dims, dims), batchStrides(b.dims, dims)
	// Fast dims that share a B are only more rows.
	for len(g.dims) > 0 && !g.transA && b.dims[len(b.dims)-len(g.dims)] == 1 {
		g.m *= g.dims[0]
		g.dims, g.stepA, g.stepB = g.dims[1:], g.stepA[1:], g.stepB[1:]
	}
	g.reserve(n)
	return kernel{g.stage(n.threads)}
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

// reserve reserves the memory of a block.
func (g *matmul) reserve(n *node) {
	g.rows, g.cols = max(1, min(g.m, blockRows)), max(1, g.n)
	if g.rounds {
		g.cols = min(g.cols, blockElems/g.rows/strip*strip)
		g.block = n.reserveOwn(4 * g.rows * g.cols)
	}
	if g.transA {
		g.packed = n.reserveOwn(g.size() * g.rows * g.k)
	}
	if g.transB {
		g.work = n.reserveOwn(g.dotsScratch(g.rows, g.k))
	}
}

// stage divides the products among the threads: by columns if there are enough
// of them, so that no weight is read twice, and in index order, where B is the
// smaller operand, by rows.
func (g *matmul) stage(threads int) stage {
	count := product(g.dims)
	columns := strip
	if !g.transB {
		columns = orderedStrip
	}
	cut := func(byRows bool) (step, each int) {
		if byRows {
			return strip, (g.m + strip - 1) / strip
		}
		return columns, (g.n + columns - 1) / columns
	}
	g.byRows = !g.transB
	g.step, g.each = cut(g.byRows)
	if step, each := cut(!g.byRows); count*g.each < 4*threads && g.each < each {
		g.byRows, g.step, g.each = !g.byRows, step, each
	}
	units := count * g.each
	cost := count * g.n * g.k * (g.m + streamed) / macs
	return shared(units, cost/max(1, units), g.share)
}

// share computes some strips, product by product.
func (g *matmul) share(m *mem, from, to int) error {
	for from < to {
		i := from / g.each
		end := min(to, (i+1)*g.each)
		a, b, c := g.matrices(m, i)
		first, last := (from-i*g.each)*g.step, (end-i*g.each)*g.step
		if g.byRows {
			g.run(m.own, g.rowsOf(a, first), b, c.from(first, 0), min(g.m, last)-first, g.n)
		} else {
			g.run(m.own, a, g.columnsOf(b, first), c.from(0, first), g.m, min(g.n, last)-first)
		}
		from = end
	}
	return nil
}

// matrices are the operands of product i.
func (g *matmul) matrices(m *mem, i int) (a, b, c matrix) {
	a = matrix{m.in[0], 0, g.k}
	if g.transA {
		a.ld = g.m
	}
	b = matrix{m.in[1], 0, g.n}
	if g.transB {
		b.ld = g.k
	}
	c = matrix{m.out[0], i * g.m * g.n, g.n}
	for j, d := range g.dims {
		a.at += i % d * g.stepA[j]
		b.at += i % d * g.stepB[j]
		i /= d
	}
	return a, b, c
}

// run computes rows × cols elements of C: a begins with their first row, b with
// their first column. The columns of a block are the outer loop, so that each
// weight comes from memory once.
func (g *matmul) run(own []byte, a, b, c matrix, rows, cols int) {
	for j := 0; j < cols; j += g.cols {
		for i := 0; i < rows; i += g.rows {
			g.compute(own, g.rowsOf(a, i), g.columnsOf(b, j), c.from(i, j), min(g.rows, rows-i), min(g.cols, cols-j))
		}
	}
}

func (g *matmul) rowsOf(a matrix, i int) matrix {
	if g.transA {
		return a.from(0, i)
	}
	return a.from(i, 0)
}

func (g *matmul) columnsOf(b matrix, j int) matrix {
	if g.transB {
		return b.from(j, 0)
	}
	return b.from(0, j)
}

// compute computes one block.
func (g *matmul) compute(own []byte, a, b, c matrix, rows, cols int) {
	if g.transA {
		a = g.pack(own, a, rows)
	}
	if !g.rounds {
		g.multiply(as[float32](c.data)[c.at:], c.ld, a, b, rows, cols, own)
		return
	}
	block := g.block.f32(own)[:rows*cols]
	g.multiply(block, cols, a, b, rows, cols, own)
	y := as[uint16](c.data)[c.at:]
	if cols == c.ld {
		g.Narrow(y[:len(block)], block)
		return
	}
	for i := range rows {
		g.Narrow(y[i*c.ld:][:cols], block[i*cols:][:cols])
	}
}

func (g *matmul) multiply(y []float32, ldy int, a, b matrix, rows, cols int, own []byte) {
	if g.transB {
		g.dots(y, ldy, a, b, rows, cols, g.k, g.work.of(own))
		return
	}
	g.sums(y, ldy, a, b, rows, cols, g.k, false)
}

// pack makes rows of columns of A.
func (g *matmul) pack(own []byte, a matrix, rows int) matrix {
	packed := g.packed.of(own)
	if g.bf16 {
		packColumns(as[uint16](packed), as[uint16](a.data)[a.at:], a.ld, rows, g.k)
	} else {
		packColumns(as[float32](packed), as[float32](a.data)[a.at:], a.ld, rows, g.k)
	}
	return matrix{packed, 0, g.k}
}

// packColumns transposes cols columns of k rows that are ld apart.
func packColumns[T uint16 | float32](y, x []T, ld, cols, k int) {
	for r := range k {
		for c, v := range x[r*ld:][:cols] {
			y[c*k+r] = v
		}
	}
}

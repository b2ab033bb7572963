package host

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
	// strip is what the rows and columns that threads take are multiples of.
	strip = 8
)

// matmul multiplies one pair of matrices: C [m, n] = A · B.
type matmul struct {
	arithmetic
	m, n, k        int
	transA, transB bool
	narrow         bool // the result is bf16

	rows, cols          int    // of a block of C
	packed, block, work region // of a thread: rows of A if it is transposed, sums to round, kern's scratch
}

// newMatmul reserves the memory of a block.
func newMatmul(node *node, g matmul) *matmul {
	g.arithmetic = arithmetic{node.kernels, node.in[0].wide()}
	g.narrow = node.out[0].wide()
	g.rows, g.cols = max(1, min(g.m, blockRows)), max(1, g.n)
	if g.narrow {
		g.cols = min(g.cols, blockElems/g.rows/strip*strip)
		g.block = node.reserveOwn(4 * g.rows * g.cols)
	}
	if g.transA {
		g.packed = node.reserveOwn(g.size() * g.rows * g.k)
	}
	if g.transB {
		g.work = node.reserveOwn(g.dotsScratch(g.rows, g.k))
	}
	return &g
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
	if !g.narrow {
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
	g.sums(y, ldy, a, b, rows, cols, g.k)
}

// pack makes rows of columns of A.
func (g *matmul) pack(own []byte, a matrix, rows int) matrix {
	packed := g.packed.of(own)
	if g.wide {
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

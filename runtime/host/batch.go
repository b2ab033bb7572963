package host

const (
	// wideStrip is strip for columns that are summed in index order: what kern
	// sums at a time.
	wideStrip = 64
	// streamed is the number of rows that a weight could be multiplied with while
	// it comes from memory.
	streamed = 8
	// macs is the number of multiplications of a matrix product that take as long
	// as a simple operation on an element.
	macs = 16
)

// batch is one product or several: the slow dims of C, of which an operand has
// the same or 1. Each is divided into strips of columns or of rows.
type batch struct {
	*matmul
	dims         []int // fastest first
	stepA, stepB []int // elements; 0 where the operand is reused
	byRows       bool
	step, each   int // columns or rows of a strip, strips of a product
}

// stage divides the products among the threads: by columns if there are enough
// of them, so that no weight is read twice, and in index order, where B is the
// smaller operand, by rows.
func (g *batch) stage(threads int) stage {
	count := product(g.dims)
	columns := strip
	if !g.transB {
		columns = wideStrip
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
func (g *batch) share(m *mem, from, to int) error {
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
func (g *batch) matrices(m *mem, i int) (a, b, c matrix) {
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

package kern

import "unsafe"

// MulF32 is y[i, j] = Σ_k x[i, k]·w[k, j] with f32 operands, summed in the order
// of k: x is [m, k], w is [k, n] and y is [m, n]; their rows begin ldx, ldw and
// ldy elements apart. A range of columns is w and y from its first one on.
func (s Kernels) MulF32(y []float32, ldy int, x []float32, ldx int, w []float32, ldw int, m, n, k int) {
	s.mulF32(y, ldy, x, ldx, w, ldw, m, n, k, false)
}

// AddMulF32 goes on from what is in y: products of x and w in parts of k, the first
// by MulF32, have the bits of one product.
func (s Kernels) AddMulF32(y []float32, ldy int, x []float32, ldx int, w []float32, ldw int, m, n, k int) {
	s.mulF32(y, ldy, x, ldx, w, ldw, m, n, k, true)
}

// MulBF16 is MulF32 with bf16 operands, which are widened.
func (s Kernels) MulBF16(y []float32, ldy int, x []uint16, ldx int, w []uint16, ldw int, m, n, k int) {
	s.mulBF16(y, ldy, x, ldx, w, ldw, m, n, k, false)
}

// AddMulBF16 is AddMulF32 with bf16 operands.
func (s Kernels) AddMulBF16(y []float32, ldy int, x []uint16, ldx int, w []uint16, ldw int, m, n, k int) {
	s.mulBF16(y, ldy, x, ldx, w, ldw, m, n, k, true)
}

func (s Kernels) mulF32(y []float32, ldy int, x []float32, ldx int, w []float32, ldw int, m, n, k int, on bool) {
	extents(m, n, k)
	check("x", len(x), span(m, ldx, k))
	check("w", len(w), span(k, ldw, n))
	checkY(y, ldy, m, n)
	if s.tier == Scalar {
		mulLaw(y, ldy, x, ldx, w, ldw, m, n, k, on, mulF32)
		return
	}
	p := ordered{Kernels: s, size: 4, y: y, ldy: ldy, m: m, n: n, k: k, on: on}
	p.x, p.w = matrix{ptr(x), 4 * ldx}, matrix{ptr(w), 4 * ldw}
	p.multiply()
}

func (s Kernels) mulBF16(y []float32, ldy int, x []uint16, ldx int, w []uint16, ldw int, m, n, k int, on bool) {
	extents(m, n, k)
	check("x", len(x), span(m, ldx, k))
	check("w", len(w), span(k, ldw, n))
	checkY(y, ldy, m, n)
	if s.tier == Scalar {
		mulLaw(y, ldy, x, ldx, w, ldw, m, n, k, on, mulBF16)
		return
	}
	p := ordered{Kernels: s, size: 2, y: y, ldy: ldy, m: m, n: n, k: k, on: on}
	p.x, p.w = matrix{ptr(x), 2 * ldx}, matrix{ptr(w), 2 * ldw}
	p.multiply()
}

const (
	// mulChunk is how many elements of a row of x are multiplied at a time.
	mulChunk = 512
	// mulEdge is mulChunk for columns that are copied.
	mulEdge = 128
	// mulCols is the number of columns of a tile; in 256 bits it is mulCols256,
	// and there are no masks.
	mulCols    = 64
	mulCols256 = 16
)

// mulTile are the parameters of a tile function of a product in the order of k:
//
//	y[i, j] = y[i, j]·keep + Σ_l x[i, l]·w[l, j]    i < rows, j < cols, l < k
//
// Rows of x and w are where they lie.
type mulTile struct {
	x, w, y       unsafe.Pointer
	ldx, ldw, ldy int // bytes between rows
	k, rows, cols int
	mask          uint64 // the columns
	keep          uint32 // 0 if sums begin at zero
	nan           uint32
}

// ordered is a product in the order of k. It is computed in chunks of k, whose
// sums go on from what is in y, and in tiles of rows of x and columns of w.
type ordered struct {
	Kernels
	size    int // bytes of an element of x and w
	y       []float32
	ldy     int
	x, w    matrix
	m, n, k int
	on      bool // sums go on from the start
}

func (p *ordered) multiply() {
	if p.m == 0 || p.n == 0 {
		return
	}
	if p.k == 0 {
		for i := 0; i < p.m && !p.on; i++ {
			clear(p.y[i*p.ldy:][:p.n])
		}
		return
	}
	n := p.n
	if p.tier == AVX2 {
		n &^= mulCols256 - 1
	}
	if n > 0 {
		p.columns(n)
	}
	if n < p.n {
		p.edge(n)
	}
}

// columns multiplies the first n columns.
func (p *ordered) columns(n int) {
	cols := mulCols
	if p.tier == AVX2 {
		cols = mulCols256
	}
	t := mulTile{ldx: p.x.step, ldw: p.w.step, ldy: 4 * p.ldy, nan: nan}
	for l := 0; l < p.k; l += mulChunk {
		p.start(&t, l, min(mulChunk, p.k-l))
		for b := range p.panels() {
			i := p.panel(&t, b, l)
			for j := 0; j < n; j += cols {
				t.cols = min(cols, n-j)
				t.mask = ^uint64(0) >> (64 - t.cols)
				t.w = p.w.at(l, p.size*j)
				t.y = unsafe.Pointer(&p.y[i*p.ldy+j])
				p.call(&t)
			}
		}
	}
}

// edge multiplies the columns from j on, too few for a tile. They go through
// copies of w and y that have the columns of a tile.
func (p *ordered) edge(j int) {
	var w [4 * mulCols256 * mulEdge]byte
	var y [maxRows * mulCols256]float32
	cols, row := p.n-j, p.size*mulCols256
	t := mulTile{ldx: p.x.step, ldw: row, ldy: 4 * mulCols256, nan: nan}
	t.w, t.y = unsafe.Pointer(&w), unsafe.Pointer(&y)
	for l := 0; l < p.k; l += mulEdge {
		p.start(&t, l, min(mulEdge, p.k-l))
		for at := range t.k {
			copy(w[at*row:], unsafe.Slice((*byte)(p.w.at(l+at, p.size*j)), p.size*cols))
		}
		for b := range p.panels() {
			i := p.panel(&t, b, l)
			for r := range t.rows {
				copy(y[r*mulCols256:][:cols], p.y[(i+r)*p.ldy+j:])
			}
			p.call(&t)
			for r := range t.rows {
				copy(p.y[(i+r)*p.ldy+j:][:cols], y[r*mulCols256:])
			}
		}
	}
}

// start begins the chunk of n elements of k at l.
func (p *ordered) start(t *mulTile, l, n int) {
	t.k, t.keep = n, 1
	if l == 0 && !p.on {
		t.keep = 0
	}
}

// panels is the number of tiles the rows of x are cut into; their heights differ
// by one at most.
func (p *ordered) panels() int { return ceil(p.m, maxRows) }

// panel sets the rows of x of panel b, from element l on, and returns the first
// one's number.
func (p *ordered) panel(t *mulTile, b, l int) int {
	i := b * p.m / p.panels()
	t.rows = (b+1)*p.m/p.panels() - i
	t.x = p.x.at(i, p.size*l)
	return i
}

package kern

import "unsafe"

// product is one call of gemm. For each block of x that plan cuts, it goes
// through the rows of w four at a time, through the chunks of the block, and
// through its panels: the four rows stay in the nearest cache.
type product struct {
	format
	plan
	tile   tile
	x, w   matrix
	m, n   int
	size   int // bytes of a row of x or w that count
	y      []float32
	ldy    int
	xs     unsafe.Pointer // the block of x: for each chunk, its panels
	ws     unsafe.Pointer // panel of w
	tmp    []float32      // a tile that is not in y
	c0, c1 int            // bytes of the rows that are in the block
	b0, b1 int            // panels that are in the block
	r0     int            // its first row
	height int            // its number of rows
}

// gemm multiplies m rows of size bytes by n rows.
func (f *format) gemm(y []float32, ldy int, x, w matrix, m, n, size int, scratch []byte) {
	switch {
	case m == 0 || n == 0:
		return
	case size == 0:
		for i := range m {
			clear(y[i*ldy : i*ldy+n])
		}
		return
	case m == 1:
		f.gemv(y[:n], x.first, w, size)
		return
	}
	check("scratch", len(scratch), f.scratch(m, size))
	p := product{format: *f, plan: f.plan(m, size), x: x, w: w, m: m, n: n, size: size, y: y, ldy: ldy}
	at := ptr(scratch)
	at = unsafe.Add(at, -int(uintptr(at))&(vector-1))
	p.tmp = unsafe.Slice((*float32)(at), tmpBytes/4)
	p.xs = unsafe.Add(at, tmpBytes)
	p.ws = p.xs
	p.xs = unsafe.Add(p.ws, f.panelRows(m, size)*p.width*f.grow)
	p.tile.csr = f.csr
	switch {
	case f.short(m, size) && n >= shortCols:
		p.transposed()
		return
	case f.few(p.plan, m, n, size):
		p.stream()
		return
	}
	for c := 0; c < size; c += p.chunks * chunk {
		p.c0, p.c1 = c, min(c+p.chunks*chunk, size)
		for b := 0; b < p.panels; b += p.block {
			p.b0, p.b1 = b, min(b+p.block, p.panels)
			p.r0 = p.first(b)
			p.height = p.first(p.b1) - p.r0
			p.multiply()
		}
	}
}

// first is the first row of panel b: panels differ by one row at most.
func (p *product) first(b int) int { return b * p.m / p.panels }

// panel returns the first row and the number of rows of panel b, and where
// chunk c of it lies.
func (p *product) panel(b, c int) (i, rows int, at unsafe.Pointer) {
	i = p.first(b)
	rows = p.first(b+1) - i
	return i, rows, unsafe.Add(p.xs, ((c-p.c0)/chunk*p.height+i-p.r0)*p.width*p.grow)
}

// packRows packs the block of x.
func (p *product) packRows() {
	for c := p.c0; c < p.c1; c += chunk {
		for b := p.b0; b < p.b1; b++ {
			i, rows, at := p.panel(b, c)
			p.pack(at, p.x.at(i, c), rows, rows, p.x.step, min(chunk, p.size-c))
		}
	}
}

// multiply adds what the block contributes to y.
func (p *product) multiply() {
	p.packRows()
	for j := 0; j < p.n; j += tileCols {
		for c := p.c0; c < p.c1; c += chunk {
			p.tile.start(c == 0)
			if p.packs() {
				p.fromPanel(j, c)
			} else {
				p.fromRows(j, c)
			}
		}
	}
}

// fromRows multiplies chunk c of rows j … of w by all panels.
func (p *product) fromRows(j, c int) {
	t := &p.tile
	t.span(min(chunk, p.size-c))
	if p.n-j < tileCols {
		p.fromEnd(j, c)
		return
	}
	t.b = p.w.at(j, c)
	t.ldb, t.ldy = p.w.step, 4*p.ldy
	next := p.next(j, c)
	for b := p.b0; b < p.b1; b++ {
		p.fetch(b-p.b0, next)
		p.tileOf(b, j, c)
		p.direct(t)
	}
}

// next is the distance from chunk c of rows j … to what is multiplied next.
func (p *product) next(j, c int) int {
	switch {
	case c+chunk < p.c1:
		return chunk
	case j+2*tileCols <= p.n:
		return tileCols*p.w.step - (c - p.c0)
	}
	return 0
}

// fetch has panel b fetch its share of four rows that lie next bytes further.
func (p *product) fetch(b, next int) {
	panels := p.b1 - p.b0
	for i := range p.tile.fetch {
		p.tile.fetch[i] = 0
		if i*panels/tileCols == b {
			p.tile.fetch[i] = next + i*p.w.step
		}
	}
}

// tileOf sets the panel and the place in y of a tile.
func (p *product) tileOf(b, j, c int) (i int) {
	t := &p.tile
	i, t.rows, t.a = p.panel(b, c)
	t.y = unsafe.Pointer(&p.y[i*p.ldy+j])
	return i
}

// fromEnd is fromRows for less than four rows. It takes them one by one, as
// tiles of which every row is the same one.
func (p *product) fromEnd(j, c int) {
	t := &p.tile
	p.fetch(-1, 0)
	for ; j < p.n; j++ {
		t.b = p.w.at(j, c)
		t.ldb, t.ldy = 0, 4*tileCols
		for b := p.b0; b < p.b1; b++ {
			i := p.tileOf(b, j, c)
			t.y = ptr(p.tmp)
			p.copyIn(i, j, 1)
			p.direct(t)
			p.copyOut(i, j, 1)
		}
	}
}

// fromPanel packs chunk c of rows j … of w and multiplies it by all panels.
func (p *product) fromPanel(j, c int) {
	t := &p.tile
	size := min(chunk, p.size-c)
	have := min(tileCols, p.n-j)
	p.pack(p.ws, p.w.at(j, c), have, tileCols, p.w.step, size)
	t.b, t.vecs, t.ldy = p.ws, ceil(size, vector)*p.grow, 4*p.ldy
	for b := p.b0; b < p.b1; b++ {
		i := p.tileOf(b, j, c)
		// The first tiles fetch a row each of what is packed next.
		t.pf = t.a
		if next := j + tileCols + b - p.b0; b-p.b0 < tileCols && next < p.n {
			t.pf = p.w.at(next, c)
		}
		if have == tileCols {
			p.packed(t)
			continue
		}
		t.y, t.ldy = ptr(p.tmp), 4*tileCols
		p.copyIn(i, j, have)
		p.packed(t)
		p.copyOut(i, j, have)
	}
}

// copyIn and copyOut move cols columns of a tile between y and tmp.
func (p *product) copyIn(i, j, cols int) {
	for r := range p.tile.rows {
		copy(p.tmp[tileCols*r:][:cols], p.y[(i+r)*p.ldy+j:])
	}
}

func (p *product) copyOut(i, j, cols int) {
	for r := range p.tile.rows {
		copy(p.y[(i+r)*p.ldy+j:][:cols], p.tmp[tileCols*r:])
	}
}

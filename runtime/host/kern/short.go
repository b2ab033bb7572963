package kern

import "unsafe"

// Of short rows, adding up the lanes takes longer than the products. So 16 rows
// of w are transposed, and the lanes of 16 sums are added at a time. With few
// rows of x, transposing takes too long.
const (
	shortHeight = 8 // rows of a tile, at most; at least it is 4
	shortCols   = 16
	// shortSums is the bytes of sums that wait while a tile is computed.
	shortSums = 2 * shortHeight * vector
)

// short reports whether to transpose w for m rows of size bytes.
func (f *format) short(m, size int) bool {
	switch {
	case f.packs():
		return false
	case size <= chunk/8:
		return m > shortHeight
	}
	return size <= chunk/4 && m >= 8*shortHeight
}

// transposed multiplies by transposed rows of w. Rows of x are read where they
// lie unless their last vectors have to be padded.
func (p *product) transposed() {
	p.tile.sums = ptr(p.tmp)
	p.tile.vecs = ceil(p.size, vector)
	blocks := 1
	if p.size%vector != 0 {
		blocks = ceil(p.panels, p.block)
	}
	for b := range blocks {
		r0, r1 := b*p.m/blocks, (b+1)*p.m/blocks
		x := p.x.from(r0)
		if p.size%vector != 0 {
			x = matrix{p.xs, p.width}
			for i := r0; i < r1; i++ {
				p.pack(x.at(i-r0, 0), p.x.at(i, 0), 1, 1, 0, p.size)
			}
		}
		for j := 0; j < p.n; j += shortCols {
			p.transposedRows(x, r0, r1, min(j, p.n-shortCols))
		}
	}
}

// transposedRows multiplies rows r0 … r1−1 of x by 16 rows of w.
func (p *product) transposedRows(x matrix, r0, r1, j int) {
	t := &p.tile
	transpose(p.ws, p.w.at(j, 0), p.w.step, p.size)
	t.b, t.lda, t.ldy = p.ws, x.step, 4*p.ldy
	// The first tile fetches the rows that come then.
	t.pf, t.ldb, t.ahead = p.w.at(j, 0), p.w.step, shortCols*p.w.step
	tiles := ceil(r1-r0, shortHeight)
	for b := range tiles {
		i := b * (r1 - r0) / tiles
		t.rows = (b+1)*(r1-r0)/tiles - i
		t.a = x.at(i, 0)
		t.y = unsafe.Pointer(&p.y[(r0+i)*p.ldy+j])
		p.shortTile(t)
		t.pf, t.ldb, t.ahead = p.ws, 0, 0
	}
}

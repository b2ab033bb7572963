package kern

import "unsafe"

// Few rows of x leave memory as the limit, if w is there. So w is read in
// streams, as in a GEMV, and x in panels that are low enough for six or eight
// of them.
const (
	fewRows  = 16 // rows of x, at most
	fewPanel = 4  // rows of a panel, at most; of three there are eight streams
	fewSums  = 32 // sums of a panel
	// fewAhead is the distance of fetches, in bytes of a stream, at least.
	fewAhead = 2048
	// fewShort is the length of rows of w from which each is a stream of its
	// own. Of shorter ones several are, so that no two streams are in a page.
	fewShort = 4096
)

// few reports whether to multiply m rows of x by n rows in streams: all of x
// must be packed at a time.
func (f *format) few(p plan, m, n, size int) bool {
	return !f.packs() && m <= fewRows && n >= maxStreams && p.block == p.panels && p.chunks == ceil(size, chunk)
}

// stream multiplies all rows of x by streams of rows of w.
func (p *product) stream() {
	p.panels = ceil(p.m, fewPanel)
	p.b0, p.b1, p.r0, p.height = 0, p.panels, 0, p.m
	p.c0, p.c1 = 0, p.size
	p.packRows()
	cols := 6
	if ceil(p.m, p.panels) < fewPanel {
		cols = 8
	}
	rows := 1
	if p.size < fewShort {
		rows = ceil(streamBytes, p.size)
	}
	at := 0 // the first row of w that is not done
	for p.n-at >= cols {
		n := min((p.n-at)/cols, rows)
		p.streams(at, n, cols)
		at += n * cols
	}
	if at < p.n {
		p.streams(p.n-cols, 1, cols) // some of them for a second time
	}
}

// streams multiplies rows j … of w, in cols streams of n rows.
func (p *product) streams(j, n, cols int) {
	t := &p.tile
	t.ldb, t.ldy, t.ldc, t.cols = n*p.w.step, 4*p.ldy, 4*n, cols
	for i := range n {
		next := p.nextRow(i, n, cols)
		for c := 0; c < p.size; c += chunk {
			t.start(c == 0)
			t.span(min(chunk, p.size-c))
			t.last = 0
			ahead := chunk
			if c+chunk >= p.size {
				t.last = 1
				ahead = next*p.w.step - c
			}
			p.fewTiles(j+i, c, ahead)
		}
	}
}

// nextRow is the distance, in rows of w, from row i of a stream of n rows to the
// row that is fetched with it. The last rows' are at the beginning of the
// streams that come then.
func (p *product) nextRow(i, n, cols int) int {
	next := ceil(fewAhead, p.size)
	if i+next >= n {
		next += (cols - 1) * n
	}
	return next
}

// fewTiles multiplies chunk c of the streams at row j by all panels. The first
// two panels fetch what is ahead, the even and the odd vectors in turns.
func (p *product) fewTiles(j, c, ahead int) {
	t := &p.tile
	t.b = p.w.at(j, c)
	for b := range p.panels {
		p.tileOf(b, j, c)
		t.sums = unsafe.Pointer(&p.tmp[b*fewSums])
		t.ahead = ahead + b*vector
		if b > 1 {
			t.ahead = 0
		}
		p.fewTile(t)
	}
}

package kern

import "unsafe"

const (
	// tileCols is the number of rows of w, columns of y, in a tile.
	tileCols = 4
	// maxRows is the largest number of rows of x in a tile of any tier.
	maxRows = 6
	// maxStreams is the largest number of rows of w in a GEMV of any tier.
	maxStreams = 8
	// flushCSR is the MXCSR under which an FMA computes what VDPBF16PS does:
	// denormals are zero, no exceptions, to nearest.
	flushCSR = 0x9fc0
)

// tile are the parameters of a tile function:
//
//	y[i, j] = y[i, j]·keep + Σ a[i]·b[j]    i < rows, j < 4
//
// over one chunk of the rows of x and w. A panel of r rows interleaves their
// vectors: vector v of row i begins at byte 64·(v·r + i).
type tile struct {
	a    unsafe.Pointer // panel of rows of x
	b    unsafe.Pointer // panel of four rows of w, or the first one itself
	y    unsafe.Pointer
	pf   unsafe.Pointer // a row to fetch meanwhile, or ahead bytes before one
	vecs int            // full vectors
	rows int
	lda  int    // bytes between rows of x that are not in a panel
	ldb  int    // bytes between rows of w that are not in a panel
	ldy  int    // bytes between rows of y
	tail uint32 // the 16-bit elements of the vector after the full ones
	keep uint32 // all ones or zero
	csr  uint32 // MXCSR of the FMAs; 0 leaves it

	// ahead are the bytes from b, or pf, to what to fetch meanwhile.
	ahead int
	// sums are, for few rows of x, those of the chunks before, and after; for
	// short rows, those that wait.
	sums unsafe.Pointer

	// Of tiles for few rows, whose columns are cols streams:
	cols int
	ldc  int    // bytes between columns of y
	last uint32 // 1 if sums go to y

	// fetch are the bytes from b to rows to fetch meanwhile, if b is a row.
	fetch [tileCols]int

	// pad holds, for AVX2, that vector of the row of x and of the rows of w,
	// padded with zeros.
	pad [1 + tileCols][vector]byte
}

// span sets the extent of a chunk of size bytes.
func (t *tile) span(size int) {
	t.vecs = size / vector
	t.tail = uint32(1)<<(size%vector/2) - 1
}

// start is whether sums begin at zero or go on.
func (t *tile) start(zero bool) {
	t.keep = ^uint32(0)
	if zero {
		t.keep = 0
	}
}

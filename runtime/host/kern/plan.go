package kern

const (
	// blockBytes bounds the packed block of x: half of the second-level cache
	// of the processors these tiers are for; the rest is for w and y.
	blockBytes = 512 << 10
	// tmpBytes holds a tile, or sums of panels of few rows or of short ones.
	tmpBytes = max(4*fewSums*fewRows/fewPanel, shortSums)
)

// plan is how a product is cut. No result depends on it.
type plan struct {
	panels int // panels of x
	block  int // panels that are packed at a time
	chunks int // chunks that are packed at a time
	width  int // bytes of a row in a chunk, padded
}

// plan packs as many chunks of all panels as fit, or else a block of panels of
// one chunk.
func (f *format) plan(m, size int) plan {
	p := plan{panels: ceil(m, f.rows), width: min(chunk, ceil(size, vector)*vector)}
	one := f.rows * p.width * f.grow
	p.block = ceil(p.panels, ceil(p.panels*one, blockBytes))
	p.chunks = min(ceil(size, chunk), max(1, blockBytes/(one*p.panels)))
	return p
}

// scratch is the bytes for a product of m rows of size bytes.
func (f *format) scratch(m, size int) int {
	if f.arith == law || m < 2 || size == 0 {
		return 0
	}
	p := f.plan(m, size)
	rows := p.block*p.chunks*f.rows + f.panelRows(m, size)
	return vector + tmpBytes + rows*p.width*f.grow
}

// panelRows is the number of rows of w that are copied at a time.
func (f *format) panelRows(m, size int) int {
	switch {
	case f.short(m, size):
		return shortCols
	case f.packs():
		return tileCols
	}
	return 0
}

func ceil(a, b int) int { return (a + b - 1) / b }

package runtime

import "math/bits"

// pool hands out blocks, always the lowest free ones, so that equal histories
// of requests give equal block tables.
type pool struct {
	free  []uint64 // bit set of the free blocks
	count int      // free blocks
	size  int
	held  []int32 // blocks kept back because they may hold NaN or infinities
}

func newPool(blocks int) *pool {
	p := &pool{free: make([]uint64, (blocks+63)/64), size: blocks}
	for b := range blocks {
		p.put(int32(b))
	}
	return p
}

func (p *pool) put(b int32) {
	p.free[b/64] |= 1 << (b % 64)
	p.count++
}

// take removes the n lowest free blocks; the caller has checked that there are
// as many.
func (p *pool) take(n int) []int32 {
	blocks := make([]int32, 0, n)
	for w := 0; len(blocks) < n; {
		if p.free[w] == 0 {
			w++
			continue
		}
		bit := bits.TrailingZeros64(p.free[w])
		p.free[w] &^= 1 << bit
		blocks = append(blocks, int32(w*64+bit))
	}
	p.count -= n
	return blocks
}

// give returns blocks.
func (p *pool) give(blocks []int32) {
	for _, b := range blocks {
		p.put(b)
	}
}

// hold keeps blocks back until release.
func (p *pool) hold(blocks []int32) { p.held = append(p.held, blocks...) }

// release returns the blocks that were kept back.
func (p *pool) release() {
	p.give(p.held)
	p.held = p.held[:0]
}

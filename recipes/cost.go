package recipes

import "fmt"

// Costs are what a bucket's sizes cost, so that of the buckets that cover a
// step the cheapest can be chosen. They follow from the architecture and the
// deployment, are those of one rank, and are multiply-adds: what is read counts
// as the multiply-adds that the target does meanwhile. What all buckets of a
// phase share, above all reading the weights that every token meets, is left
// out.
//
//	prefill  query · (Row + Key · (query + blocks · block size))
//	decode   seqs · Row + blocks · Block, and Pad if there are padding rows
//	logits   seqs
type Costs struct {
	// Row is the products of one row with the weights it meets. Padding rows are
	// computed like others.
	Row int64 `json:"row"`
	// Pad is reading the experts of padding rows. In a decode step they are all
	// alike and choose the same, so it counts once, however many there are. The
	// experts of other rows are read whatever the bucket.
	Pad int64 `json:"pad"`
	// Block is reading the keys and values of a block reference.
	Block int64 `json:"block"`
	// Key is the attention of one row to one key.
	Key int64 `json:"key"`
}

// costOf is the cost of executing a need by a bucket that covers it. As float64
// it tells whether int64 holds it.
func costOf[N int64 | float64](c *Costs, b, need Bucket, blockSize int) N {
	seqs, query, blocks := N(b.Seqs), N(b.Query), N(b.Blocks)
	switch b.Phase {
	case Prefill:
		return query * (N(c.Row) + N(c.Key)*(query+blocks*N(blockSize)))
	case Decode:
		cost := seqs*N(c.Row) + blocks*N(c.Block)
		if b.Seqs > need.Seqs {
			cost += N(c.Pad)
		}
		return cost
	default:
		return seqs
	}
}

// maxCost bounds each of the costs, far beyond any that makes sense.
const maxCost = 1 << 48

func (c *Costs) check() error {
	for _, f := range []struct {
		name       string
		v, atLeast int64
	}{{"row", c.Row, 1}, {"pad", c.Pad, 0}, {"block", c.Block, 1}, {"key", c.Key, 1}} {
		if f.v < f.atLeast || f.v > maxCost {
			return fmt.Errorf("%s is %d, want %d to %d", f.name, f.v, f.atLeast, int64(maxCost))
		}
	}
	return nil
}

// Hold reports whether the cost of a bucket can be counted.
func (c *Costs) Hold(b Bucket, blockSize int) bool {
	return costOf[float64](c, b, Bucket{}, blockSize) < 1<<62
}

package recipes

import (
	"cmp"
	"math"
	"slices"
)

// Selector finds the cheapest bucket that covers a step. The planner, which
// proves that every admissible step has one, and the runtime use the same. It
// may be used concurrently.
type Selector struct {
	phases [3]priced // prefill, decode, logits
	pad    int64     // what a decode step with padding rows costs more
}

// priced are the buckets of one phase, the cheapest first. The first that covers
// a step is thus the one to take, but for decode, whose padding rows cost more.
type priced []pricedBucket

type pricedBucket struct {
	rows, blocks int // rows are those of prefill and logits, the sequences of decode
	cost         int64
	index        int
}

// NewSelector prepares the selection among buckets, which are of a deployment
// with blocks of so many tokens.
func NewSelector(c *Costs, blockSize int, buckets []Bucket) *Selector {
	s := &Selector{pad: c.Pad}
	for i, b := range buckets {
		if p := phaseIndex(b.Phase); p >= 0 {
			s.phases[p] = append(s.phases[p], pricedBucket{rowsOf(b), b.Blocks, costOf[int64](c, b, b, blockSize), i})
		}
	}
	for _, p := range s.phases {
		slices.SortStableFunc(p, func(a, b pricedBucket) int {
			return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.rows, b.rows), cmp.Compare(a.blocks, b.blocks))
		})
	}
	return s
}

// Selector is that of buckets of the bundle.
func (m *Manifest) Selector(buckets []Bucket) *Selector {
	return NewSelector(&m.Costs, m.Deployment.BlockSize, buckets)
}

func phaseIndex(p Phase) int {
	switch p {
	case Prefill:
		return 0
	case Decode:
		return 1
	case Logits:
		return 2
	}
	return -1
}

// rowsOf is the one size of a bucket beside its blocks. Prefill is of one
// sequence.
func rowsOf(b Bucket) int {
	if b.Phase == Prefill {
		return b.Query
	}
	return b.Seqs
}

// Select returns the index of the cheapest bucket that covers the need, -1 if
// none does. Of equally cheap ones it is the smallest, so the choice does not
// depend on their order. It allocates nothing.
func (s *Selector) Select(need Bucket) int {
	p := phaseIndex(need.Phase)
	if p < 0 {
		return -1
	}
	list, rows := s.phases[p], rowsOf(need)
	if need.Phase == Decode && s.pad > 0 {
		return list.padded(rows, need.Blocks, s.pad)
	}
	for i := range list {
		if b := &list[i]; b.rows >= rows && b.blocks >= need.Blocks {
			return b.index
		}
	}
	return -1
}

// padded is the choice where padding rows cost pad more: the cheapest without
// any, or the cheapest with some. Equal costs go to the one without, which has
// fewer rows.
func (p priced) padded(rows, blocks int, pad int64) int {
	best, least := -1, int64(math.MaxInt64)
	for i := range p {
		b := &p[i]
		if b.rows < rows || b.blocks < blocks {
			continue
		}
		if b.rows == rows {
			if b.cost <= least {
				best = b.index
			}
			return best
		}
		if best < 0 {
			best, least = b.index, b.cost+pad
		} else if b.cost > least {
			return best
		}
	}
	return best
}

package host

import (
	"cmp"
	"slices"
)

// interval is something that needs workspace memory from its first to its last
// node, both included: a node's results never share memory with its operands.
type interval struct {
	first, last int
	bytes       int64
	at          int64 // assigned by place
}

// place assigns offsets by first fit, largest first, and returns the size of
// the workspace. Equal inputs give equal placements.
func place(items []*interval) int64 {
	order := slices.Clone(items)
	slices.SortStableFunc(order, func(a, b *interval) int {
		return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.first, b.first))
	})
	var size int64
	var placed []*interval // by offset
	for _, it := range order {
		if it.bytes == 0 {
			continue
		}
		at := int64(0)
		for _, p := range placed {
			if p.last < it.first || it.last < p.first {
				continue
			}
			if at+it.bytes <= p.at {
				break
			}
			at = max(at, align(p.at+p.bytes))
		}
		it.at = at
		size = max(size, align(at+it.bytes))
		i, _ := slices.BinarySearchFunc(placed, at, func(p *interval, at int64) int { return cmp.Compare(p.at, at) })
		placed = slices.Insert(placed, i, it)
	}
	return size
}

func align[T int | int64](n T) T { return (n + alignment - 1) &^ (alignment - 1) }

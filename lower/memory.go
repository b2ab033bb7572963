package lower

import "slices"

// alignment is the device's address alignment in bytes.
const alignment = 128

func align(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

// interval is a buffer that lives from one step to another, both inclusive.
type interval struct {
	size        int64
	first, last int
	offset      int64
	// root marks the place of a value that a launch computes and of which all that lie
	// there are parts.
	root bool
}

// placeIntervals gives every interval an offset at or above base such that
// intervals alive at the same time do not overlap; it returns the end of the
// highest. Largest first, lowest fitting offset: near the optimum for the few
// dozens of values that cross segments.
func placeIntervals(base int64, list []*interval) int64 {
	order := slices.Clone(list)
	slices.SortStableFunc(order, func(a, b *interval) int { return int(b.size - a.size) })
	end := base
	var placed []*interval
	for _, iv := range order {
		iv.offset = base
		for _, p := range placed { // sorted by offset
			if p.last < iv.first || p.first > iv.last {
				continue
			}
			if iv.offset+align(iv.size) <= p.offset {
				break
			}
			iv.offset = max(iv.offset, p.offset+align(p.size))
		}
		i, _ := slices.BinarySearchFunc(placed, iv, func(a, b *interval) int {
			if a.offset <= b.offset {
				return -1
			}
			return 1
		})
		placed = slices.Insert(placed, i, iv)
		end = max(end, iv.offset+align(iv.size))
	}
	return end
}

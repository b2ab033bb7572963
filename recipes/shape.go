package recipes

import (
	"slices"
	"strconv"
	"strings"
)

// maxBytes bounds every size and offset of a bundle, so that their sums cannot
// overflow. No device has a buffer of 2^46 bytes.
const maxBytes = 1 << 46

// elems is the number of elements of dims; ok is false when one is negative or
// the product is beyond any buffer. A zero does not excuse the other dims:
// strides are products of some of them.
func elems(dims []int64) (n int64, ok bool) {
	n = 1
	empty := false
	for _, d := range dims {
		switch {
		case d < 0:
			return 0, false
		case d == 0:
			empty = true
		case n > maxBytes/d:
			return 0, false
		default:
			n *= d
		}
	}
	if empty {
		return 0, true
	}
	return n, true
}

// within reports whether size bytes at offset lie in a range of limit bytes,
// whatever their values.
func within(offset, size, limit int64) bool {
	return offset >= 0 && size >= 0 && offset <= limit && size <= limit-offset
}

// shapeText is a shape as errors show it: [4, 16].
func shapeText(shape []int64) string {
	parts := make([]string, len(shape))
	for i, d := range shape {
		parts[i] = strconv.FormatInt(d, 10)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// span is a range of bytes and the index of what lies there.
type span struct {
	lo, hi int64
	index  int
}

// overlap finds two spans that share bytes; a and b are their indices.
func overlap(spans []span) (a, b int, ok bool) {
	spans = slices.DeleteFunc(spans, func(s span) bool { return s.lo == s.hi })
	sortSpans(spans)
	for i := 1; i < len(spans); i++ {
		if spans[i].lo < spans[i-1].hi {
			return spans[i-1].index, spans[i].index, true
		}
	}
	return 0, 0, false
}

func sortSpans(spans []span) {
	slices.SortFunc(spans, func(a, b span) int {
		switch {
		case a.lo != b.lo:
			return sign(a.lo - b.lo)
		case a.hi != b.hi:
			return sign(a.hi - b.hi)
		}
		return a.index - b.index
	})
}

func sign(n int64) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}

package recipes

import (
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

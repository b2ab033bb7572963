package lower

import (
	"testing"

	"pgregory.net/rapid"
)

// Values alive together never share a byte, and the end is not far above what
// is alive at the fullest moment.
func TestPlaceIntervals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := align(int64(rapid.IntRange(0, 1000).Draw(t, "base")))
		var list []*interval
		for range rapid.IntRange(0, 30).Draw(t, "n") {
			first := rapid.IntRange(0, 20).Draw(t, "first")
			list = append(list, &interval{
				size: int64(rapid.IntRange(1, 5000).Draw(t, "size")), first: first, last: first + rapid.IntRange(0, 6).Draw(t, "len"),
			})
		}
		end := placeIntervals(base, list)
		for i, a := range list {
			if a.offset < base || a.offset%alignment != 0 || a.offset+a.size > end {
				t.Fatalf("interval %+v outside [%d, %d)", a, base, end)
			}
			for _, b := range list[:i] {
				together := a.first <= b.last && b.first <= a.last
				if together && a.offset < b.offset+b.size && b.offset < a.offset+a.size {
					t.Fatalf("%+v and %+v overlap", a, b)
				}
			}
		}
		var peak int64
		for step := range 30 {
			var sum int64
			for _, a := range list {
				if a.first <= step && step <= a.last {
					sum += align(a.size)
				}
			}
			peak = max(peak, sum)
		}
		if end-base > 3*peak {
			t.Fatalf("%d bytes placed for a peak of %d", end-base, peak)
		}
	})
}

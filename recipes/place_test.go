package recipes

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawIntervals draws intervals as a program has them: most short, some long.
func drawIntervals(t *rapid.T) []*Interval {
	list := []*Interval{}
	for range rapid.IntRange(0, 60).Draw(t, "n") {
		first := rapid.IntRange(-1, 30).Draw(t, "first")
		length := rapid.OneOf(rapid.IntRange(0, 4), rapid.IntRange(0, 40)).Draw(t, "length")
		bytes := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 50000)).Draw(t, "bytes")
		list = append(list, &Interval{Life: Lifetime{first, first + length}, Bytes: int64(bytes)})
	}
	return list
}

// aligned are intervals of as many bytes as they take.
func aligned(list []*Interval) []*Interval {
	out := make([]*Interval, len(list))
	for i, iv := range list {
		out[i] = &Interval{Life: iv.Life, Bytes: Align(iv.Bytes)}
	}
	return out
}

// What lives together never shares a byte; the end lies between the largest cut and
// twice that; nothing could lie lower than it does; equal lists are placed alike.
func TestPlaceIntervals(t *testing.T) {
	t.Parallel()
	worst := 1.0
	rapid.Check(t, func(t *rapid.T) {
		base := Align(int64(rapid.IntRange(0, 1000).Draw(t, "base")))
		list := drawIntervals(t)
		end := PlaceIntervals(base, list)
		for i, a := range list {
			require.Zero(t, a.Offset%Alignment)
			require.True(t, base <= a.Offset && a.Offset+Align(a.Bytes) <= end, "%+v outside [%d, %d)", a, base, end)
			for _, b := range list[:i] {
				shares := a.Offset < b.Offset+b.Bytes && b.Offset < a.Offset+a.Bytes
				require.False(t, shares && a.Life.Meets(b.Life), "%+v and %+v overlap", a, b)
			}
		}
		peak, _ := PeakOf(aligned(list))
		require.GreaterOrEqual(t, end-base, peak)
		require.LessOrEqual(t, end-base, 2*peak)
		if peak > 0 {
			worst = max(worst, float64(end-base)/float64(peak))
		}
		again := make([]*Interval, len(list))
		for i, iv := range list {
			again[i] = &Interval{Life: iv.Life, Bytes: iv.Bytes}
		}
		require.Equal(t, end, PlaceIntervals(base, again))
		require.Equal(t, list, again)
	})
	t.Logf("the worst end is %.2f of the largest cut", worst)
}

// Intervals of a group have one offset, at which they meet nothing else.
func TestPlaceTogether(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list := drawIntervals(t)
		var groups [][]*Interval
		for _, iv := range list {
			at := slices.IndexFunc(groups, func(g []*Interval) bool {
				return !slices.ContainsFunc(g, func(o *Interval) bool { return o.Life.Meets(iv.Life) })
			})
			if at < 0 || rapid.Bool().Draw(t, "apart") {
				groups = append(groups, []*Interval{iv})
				continue
			}
			iv.Bytes = groups[at][0].Bytes
			groups[at] = append(groups[at], iv)
		}
		end := PlaceTogether(0, groups)
		for i, a := range list {
			require.True(t, 0 <= a.Offset && a.Offset+Align(a.Bytes) <= end, "%+v outside [0, %d)", a, end)
			for _, b := range list[:i] {
				shares := a.Offset < b.Offset+b.Bytes && b.Offset < a.Offset+a.Bytes
				require.False(t, shares && a.Life.Meets(b.Life), "%+v and %+v overlap", a, b)
			}
		}
		for _, g := range groups {
			for _, iv := range g {
				require.Equal(t, g[0].Offset, iv.Offset)
			}
		}
	})
	// The last one of the group meets what the first could lie below.
	group := []*Interval{{Life: Lifetime{0, 1}, Bytes: 128}, {Life: Lifetime{4, 5}, Bytes: 128}}
	large := &Interval{Life: Lifetime{5, 6}, Bytes: 256}
	require.EqualValues(t, 384, PlaceTogether(0, [][]*Interval{group, {large}}))
	require.EqualValues(t, 256, group[0].Offset)
}

// The cut is that of the moment where most bytes live, counted one by one.
func TestPeakOf(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		list := drawIntervals(t)
		var want int64
		at := -1
		for m := -1; m < 80; m++ {
			var now int64
			for _, iv := range list {
				if iv.Life.First <= m && m <= iv.Life.Last {
					now += iv.Bytes
				}
			}
			if now > want {
				want, at = now, m
			}
		}
		peak, moment := PeakOf(list)
		require.Equal(t, want, peak)
		if want > 0 {
			require.Equal(t, at, moment)
		}
	})
	bytes, at := PeakOf(nil)
	require.Zero(t, bytes)
	require.Equal(t, -1, at)
}

// Equal bytes in a chain take two places; a value that lives throughout is below or
// above them all, and a hole is filled.
func TestPlaceExact(t *testing.T) {
	t.Parallel()
	var list []*Interval
	for i := range 10 {
		list = append(list, &Interval{Life: Lifetime{i, i + 1}, Bytes: 200})
	}
	list = append(list, &Interval{Life: Lifetime{0, 20}, Bytes: 1000}, &Interval{Life: Lifetime{4, 4}, Bytes: 1})
	require.EqualValues(t, 128+1024+2*256+128, PlaceIntervals(128, list))
	require.EqualValues(t, 128, list[10].Offset, "the largest is lowest")
	require.EqualValues(t, 128+1024, list[0].Offset)
	require.EqualValues(t, 128+1024+256, list[1].Offset)
	require.EqualValues(t, 128+1024, list[2].Offset)
}

// A long program whose values die is placed in little time.
func TestPlaceManyIntervals(t *testing.T) {
	t.Parallel()
	var list []*Interval
	for i := range 100_000 {
		list = append(list, &Interval{Life: Lifetime{i, i + 1 + i%7}, Bytes: int64(1000 + i*7919%5000)})
	}
	begun := time.Now()
	end := PlaceIntervals(0, list)
	require.Less(t, time.Since(begun), 20*time.Second) // some 0.3 s; a minute if it were quadratic
	peak, _ := PeakOf(aligned(list))
	require.LessOrEqual(t, end, peak*3/2)
	t.Logf("%v, %.3f of the largest cut", time.Since(begun), float64(end)/float64(peak))
}

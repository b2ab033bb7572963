package recipes

import (
	"cmp"
	"slices"
)

// Alignment is the device's address alignment in bytes: of what a launch binds, and of
// what is placed in an arena or a workspace.
const Alignment = 128

// Align is the smallest multiple of Alignment that is at least n.
func Align(n int64) int64 { return (n + Alignment - 1) &^ (Alignment - 1) }

// Lifetime is a range of moments, both included: nodes of a recipe, or steps of a plan.
type Lifetime struct{ First, Last int }

// Meets reports whether two lifetimes have a moment in common.
func (l Lifetime) Meets(o Lifetime) bool { return l.First <= o.Last && o.First <= l.Last }

// Interval is something that needs Bytes of memory throughout its life. PlaceIntervals
// says at which Offset.
type Interval struct {
	Life   Lifetime
	Bytes  int64
	Offset int64
}

// PlaceIntervals gives every interval an offset from base, a multiple of Alignment, such
// that no two share a byte at one moment, and returns the end of the highest, aligned.
// Intervals of no bytes are at base. Equal lists give equal offsets.
//
// The largest are placed first, of equal ones the longest, each at the lowest offset that is free throughout its
// life: in recipes and plans that is the optimum or within a few percent of it. It
// takes time in proportion to the pairs of intervals that meet; in a program whose values
// die, these are few for each.
func PlaceIntervals(base int64, list []*Interval) (end int64) {
	groups := make([][]*Interval, len(list))
	for i := range list {
		groups[i] = list[i : i+1]
	}
	return PlaceTogether(base, groups)
}

// PlaceTogether is PlaceIntervals where all intervals of a group have one offset. Those of
// a group have equal bytes, and no two of them a moment in common.
func PlaceTogether(base int64, groups [][]*Interval) (end int64) {
	length := func(g []*Interval) (n int) {
		for _, iv := range g {
			n += iv.Life.Last - iv.Life.First
		}
		return n
	}
	order := slices.Clone(groups)
	slices.SortStableFunc(order, func(a, b []*Interval) int {
		return cmp.Or(cmp.Compare(Align(b[0].Bytes), Align(a[0].Bytes)),
			cmp.Compare(length(b), length(a)), cmp.Compare(a[0].Life.First, b[0].Life.First))
	})
	end = base
	placed := newTimeline(slices.Concat(groups...))
	var near []*Interval
	for _, g := range order {
		bytes, offset := Align(g[0].Bytes), base
		near = near[:0]
		for _, iv := range g {
			near = placed.meeting(near, iv.Life)
		}
		slices.SortFunc(near, func(a, b *Interval) int { return cmp.Compare(a.Offset, b.Offset) })
		for _, p := range near {
			if bytes == 0 || offset+bytes <= p.Offset {
				break
			}
			offset = max(offset, p.Offset+Align(p.Bytes))
		}
		for _, iv := range g {
			iv.Offset = offset
			if bytes > 0 {
				placed.add(iv)
			}
		}
		end = max(end, offset+bytes)
	}
	return end
}

// timeline finds intervals by the moments they live at. Moments are numbered by the
// beginnings of lives, since between two of them nothing new comes to life.
type timeline struct {
	moments []int         // at which a life begins
	born    [][]*Interval // by moment
	alive   [][]*Interval // by moment: those born before it
}

func newTimeline(list []*Interval) *timeline {
	t := &timeline{}
	for _, iv := range list {
		t.moments = append(t.moments, iv.Life.First)
	}
	slices.Sort(t.moments)
	t.moments = slices.Compact(t.moments)
	t.born, t.alive = make([][]*Interval, len(t.moments)), make([][]*Interval, len(t.moments))
	return t
}

// span is the moment at which a life begins, and the first one behind its end.
func (t *timeline) span(l Lifetime) (first, behind int) {
	first, _ = slices.BinarySearch(t.moments, l.First)
	behind, _ = slices.BinarySearch(t.moments, l.Last+1)
	return first, behind
}

func (t *timeline) add(iv *Interval) {
	first, behind := t.span(iv.Life)
	t.born[first] = append(t.born[first], iv)
	for m := first + 1; m < behind; m++ {
		t.alive[m] = append(t.alive[m], iv)
	}
}

// meeting appends the intervals that meet a life, each once.
func (t *timeline) meeting(to []*Interval, l Lifetime) []*Interval {
	first, behind := t.span(l)
	to = append(to, t.alive[first]...)
	for _, born := range t.born[first:behind] {
		to = append(to, born...)
	}
	return to
}

// PeakOf is the largest sum of bytes of intervals that live at one moment, which no
// placement can go below, and the first such moment. Without bytes it is at −1.
func PeakOf(list []*Interval) (bytes int64, at int) {
	type change struct {
		at    int
		bytes int64
	}
	var changes []change
	for _, iv := range list {
		if iv.Bytes > 0 {
			changes = append(changes, change{iv.Life.First, iv.Bytes}, change{iv.Life.Last + 1, -iv.Bytes})
		}
	}
	// Of one moment, what ends goes first.
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.bytes, b.bytes)) })
	at = -1
	var now int64
	for _, c := range changes {
		if now += c.bytes; now > bytes {
			bytes, at = now, c.at
		}
	}
	return bytes, at
}

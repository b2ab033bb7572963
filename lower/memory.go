package lower

import (
	"slices"

	"quill/ir"
	"quill/recipes"
)

// interval is a place in the arena that lives from one op of the entry to another, both
// inclusive.
type interval struct {
	recipes.Interval
	// root marks the place of a value that a launch computes and of which all that lie
	// there are parts.
	root bool
}

// placeIntervals gives intervals their offsets from base and returns where they end. What
// launches of a segment have at one position lies at one address in all of them, if that
// takes no more memory.
func (l *liveness) placeIntervals(base int64, list []*interval, entry *ir.Func) int64 {
	groups := l.alike(list, entry)
	apart := make([]*recipes.Interval, len(list))
	for i, iv := range list {
		apart[i] = &iv.Interval
	}
	least := recipes.PlaceIntervals(base, apart)
	if end := recipes.PlaceTogether(base, groups); end <= least {
		return end
	}
	return recipes.PlaceIntervals(base, apart)
}

// position is an operand or a result of the calls of a segment.
type position struct {
	callee *ir.Func
	result bool
	number int
}

// positions visits what a call has at the positions of its segment.
func positions(o *ir.Op, visit func(position, *ir.Value)) {
	callee := o.Attr("callee").Func
	for i, a := range o.Args {
		visit(position{callee, false, i}, a)
	}
	for i, r := range o.Results {
		visit(position{callee, true, i}, r)
	}
}

// alike groups intervals, each in one group: those of values at one position are in one,
// if they have equal sizes and no two of the group live at once. The residual stream thus
// has two groups: what the first launch of each layer writes and the second reads, and
// the reverse.
func (l *liveness) alike(list []*interval, entry *ir.Func) [][]*recipes.Interval {
	type group = []*recipes.Interval
	of := map[*interval]*group{}
	for _, iv := range list {
		of[iv] = &group{&iv.Interval}
	}
	first := map[position][]*interval{} // of each group there
	for _, o := range calls(entry) {
		positions(o, func(at position, v *ir.Value) {
			iv := l.of[v]
			if of[iv] == nil || l.at[v] != 0 {
				return
			}
			for _, other := range first[at] {
				a, b := of[other], of[iv]
				if a == b {
					return
				}
				if fit(*a, *b) {
					*a = append(*a, *b...)
					for _, moved := range list {
						if of[moved] == b {
							of[moved] = a
						}
					}
					return
				}
			}
			first[at] = append(first[at], iv)
		})
	}
	var groups [][]*recipes.Interval
	for _, iv := range list {
		if g := of[iv]; (*g)[0] == &iv.Interval {
			groups = append(groups, *g)
		}
	}
	return groups
}

// fit reports whether intervals of two groups can have one place.
func fit(a, b []*recipes.Interval) bool {
	if recipes.Align(a[0].Bytes) != recipes.Align(b[0].Bytes) {
		return false
	}
	for _, x := range a {
		if slices.ContainsFunc(b, func(y *recipes.Interval) bool { return x.Life.Meets(y.Life) }) {
			return false
		}
	}
	return true
}

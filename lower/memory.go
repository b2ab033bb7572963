package lower

import (
	"cmp"
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
	apart := placed(list)
	least := recipes.PlaceIntervals(base, apart)
	if end := recipes.PlaceTogether(base, l.alike(list, entry)); end <= least {
		return end
	}
	return recipes.PlaceIntervals(base, apart)
}

// placed is a list of intervals as packages that place them see it.
func placed(list []*interval) []*recipes.Interval {
	all := make([]*recipes.Interval, len(list))
	for i, iv := range list {
		all[i] = &iv.Interval
	}
	return all
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
	of := map[*interval]*alikes{}
	for _, iv := range list {
		of[iv] = &alikes{list: []*interval{iv}}
	}
	at := map[position][]*interval{} // one of each group there
	for _, o := range calls(entry) {
		positions(o, func(p position, v *ir.Value) {
			iv := l.of[v]
			if of[iv] == nil || l.at[v] != 0 {
				return
			}
			for _, other := range at[p] {
				a, b := of[other], of[iv]
				if a != b && !a.fits(b) {
					continue
				}
				if a != b {
					a.add(b)
					for _, moved := range b.list {
						of[moved] = a
					}
				}
				return
			}
			at[p] = append(at[p], iv)
		})
	}
	var groups [][]*recipes.Interval
	for _, iv := range list {
		if g := of[iv]; !g.listed {
			g.listed = true
			groups = append(groups, placed(g.list))
		}
	}
	return groups
}

// alikes are intervals of equal sizes in the order of their lives, no two of which meet.
type alikes struct {
	list   []*interval
	listed bool
}

// behind is the number of the first interval that lives at a moment or later.
func (a *alikes) behind(moment int) int {
	i, _ := slices.BinarySearchFunc(a.list, moment, func(iv *interval, moment int) int { return cmp.Compare(iv.Life.Last, moment) })
	return i
}

// fits reports whether intervals of two groups can have one place.
func (a *alikes) fits(b *alikes) bool {
	return recipes.Align(a.list[0].Bytes) == recipes.Align(b.list[0].Bytes) && !slices.ContainsFunc(b.list, func(iv *interval) bool {
		i := a.behind(iv.Life.First)
		return i < len(a.list) && a.list[i].Life.Meets(iv.Life)
	})
}

// add takes in intervals that fit.
func (a *alikes) add(b *alikes) {
	for _, iv := range b.list {
		a.list = slices.Insert(a.list, a.behind(iv.Life.First), iv)
	}
}

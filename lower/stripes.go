package lower

import (
	"maps"
	"slices"

	"quill/ir"
	"quill/recipes"
)

// A stripe is a place of the arena for what launches take of values of all layers, as the
// sums of the short convolutions over their history, so that a launch binds one section
// for all of it:
//
//	sums of all layers      | 0 | 1 | 2 | …   launches of layer 1 bind where 1 begins
//	new rows of all layers  | 0 | 1 | 2 | …   their new rows are a constant distance further
//
// It consists of columns: intervals behind each other of which launches of a segment take
// one part or another. Columns are in one stripe if, from launch to launch of each segment,
// what it takes of them moves by as many bytes. Only launches of segments that are launched
// again bind stripes.
type stripe struct {
	recipes.Interval
	columns [][]*interval
}

// placeLayers gives intervals that hold values of several layers their places from base
// and returns where they end. They lie in stripes unless that takes more than a third more
// memory. It takes more where states are too large for one op: what is written to the last
// of them could lie where the sums over the history of the first were.
func (p *planner) placeLayers(l *liveness, base int64, list []*interval) (end int64, err error) {
	stripes, err := l.stripes(list, p.entry)
	if err != nil {
		return 0, err
	}
	least := l.placeIntervals(base, list, p.entry)
	var all []*recipes.Interval
	in := map[*interval]*stripe{}
	for _, g := range stripes {
		all = append(all, &g.Interval)
		for _, iv := range slices.Concat(g.columns...) {
			in[iv] = g
		}
	}
	for _, iv := range list {
		if in[iv] == nil {
			all = append(all, &iv.Interval)
		}
	}
	if end = recipes.PlaceIntervals(base, all); 3*(end-base) > 4*(least-base) {
		return l.placeIntervals(base, list, p.entry), nil
	}
	for _, g := range stripes {
		g.place()
	}
	p.stripes, p.repeated = in, repeated(p.entry)
	return end, nil
}

// striper finds stripes. What it knows of the launches is by segment, of those that are
// launched more than once.
type striper struct {
	live   *liveness
	order  []*ir.Func
	calls  map[*ir.Func][]*ir.Op
	column map[*interval]int   // number of its column
	start  map[*interval]int64 // of an interval in its column
}

// stripes finds the stripes for intervals of several layers.
func (l *liveness) stripes(list []*interval, entry *ir.Func) ([]*stripe, error) {
	f := striper{live: l, calls: repeated(entry), column: map[*interval]int{}, start: map[*interval]int64{}}
	for _, o := range calls(entry) {
		if c := o.Attr("callee").Func; f.calls[c] != nil && !slices.Contains(f.order, c) {
			f.order = append(f.order, c)
		}
	}
	columns, err := f.columns(list)
	if err != nil {
		return nil, err
	}
	var stripes []*stripe
	var of [][]int // numbers of the columns of each
	for n, c := range columns {
		if !bindable(c) || !f.together([]int{n}) {
			continue
		}
		at := slices.IndexFunc(of, func(g []int) bool { return f.together(append(slices.Clone(g), n)) })
		if at < 0 {
			at = len(stripes)
			stripes, of = append(stripes, &stripe{Interval: recipes.Interval{Life: c[0].Life}}), append(of, nil)
		}
		stripes[at].add(c)
		of[at] = append(of[at], n)
	}
	return stripes, nil
}

// repeated are the calls of segments that are called more than once.
func repeated(entry *ir.Func) map[*ir.Func][]*ir.Op {
	of := map[*ir.Func][]*ir.Op{}
	for _, o := range calls(entry) {
		c := o.Attr("callee").Func
		of[c] = append(of[c], o)
	}
	for c, list := range of {
		if len(list) == 1 {
			delete(of, c)
		}
	}
	return of
}

// bindable reports whether all intervals of a column begin where the device can bind.
func bindable(column []*interval) bool {
	for i, iv := range column {
		if i < len(column)-1 && iv.Bytes%recipes.Alignment != 0 {
			return false
		}
	}
	return true
}

// add puts a column behind the others.
func (g *stripe) add(column []*interval) {
	g.columns = append(g.columns, column)
	g.Bytes = recipes.Align(g.Bytes)
	for _, iv := range column {
		g.Bytes += iv.Bytes
		g.Life.First, g.Life.Last = min(g.Life.First, iv.Life.First), max(g.Life.Last, iv.Life.Last)
	}
}

// place gives the intervals of a stripe that has its place theirs.
func (g *stripe) place() {
	at := g.Offset
	for _, c := range g.columns {
		at = recipes.Align(at)
		for _, iv := range c {
			iv.Offset = at
			at += iv.Bytes
		}
	}
}

// columns joins the intervals of which launches of a segment take something at one
// position. What such a launch has as a whole, or as one with others, is in none: it has
// a section for that.
func (f *striper) columns(list []*interval) ([][]*interval, error) {
	own, err := f.own()
	if err != nil {
		return nil, err
	}
	for i, iv := range list {
		if !own[iv] {
			f.column[iv] = i
		}
	}
	for _, callee := range f.order {
		first := map[position]*interval{}
		for _, o := range f.calls[callee] {
			positions(o, func(p position, v *ir.Value) {
				iv := f.live.blocks[v]
				if _, ok := f.column[iv]; !ok {
					return
				}
				if first[p] == nil {
					first[p] = iv
				}
				to, from := f.column[first[p]], f.column[iv]
				for other, n := range f.column {
					if n == from {
						f.column[other] = to
					}
				}
			})
		}
	}
	columns := make([][]*interval, len(list))
	for _, iv := range list {
		if n, ok := f.column[iv]; ok {
			for _, before := range columns[n] {
				f.start[iv] += before.Bytes
			}
			columns[n] = append(columns[n], iv)
		}
	}
	return columns, nil
}

// own finds the intervals that a launch of a repeated segment has a section for: of a
// value of which its results are parts, and of operands that it reads as one.
func (f *striper) own() (map[*interval]bool, error) {
	own := map[*interval]bool{}
	for _, callee := range f.order {
		list, err := partsOf(callee)
		if err != nil {
			return nil, err
		}
		joined := slices.Concat(runsOf(callee)...)
		for _, o := range f.calls[callee] {
			for i, a := range o.Args {
				own[f.live.blocks[a]] = own[f.live.blocks[a]] || slices.Contains(joined, callee.Params[i])
			}
			for _, p := range list {
				for i := range p.offsets {
					own[f.live.blocks[o.Results[i]]] = true
				}
			}
		}
	}
	return own, nil
}

// together reports whether columns can be in one stripe: what launches of each segment
// take of them moves by as many bytes, and is something.
func (f *striper) together(columns []int) bool {
	some := false
	for _, callee := range f.order {
		var first map[position]int64
		for _, o := range f.calls[callee] {
			at := f.distances(o, columns)
			if first == nil {
				first = at
			}
			if !maps.Equal(first, at) {
				return false
			}
			some = some || len(at) > 0
		}
	}
	return some
}

// distances say how far behind the first of what a call takes of columns each other is, of
// columns that all begin at 0.
func (f *striper) distances(o *ir.Op, columns []int) map[position]int64 {
	at, first := map[position]int64{}, int64(0)
	positions(o, func(p position, v *ir.Value) {
		iv := f.live.blocks[v]
		if n, ok := f.column[iv]; ok && slices.Contains(columns, n) {
			offset := f.start[iv] + f.live.at[v]
			if len(at) == 0 {
				first = offset
			}
			at[p] = offset - first
		}
	})
	return at
}

package passes

import (
	"slices"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// hoistConvPass takes the history of the short convolutions of a decode step together:
// what all layers read of their states is one op at the step's start, with the part of
// each convolution that depends on it alone, and what they write is one op at its end.
//
// Before:
//
//	%0 = conv_read %s, %from : bf16[1, 3, 8]
//	%1 = reshape %x {shape = [1, 1, 8]} : bf16[1, 1, 8]
//	%2 = concat %0, %1 {axis = 1} : bf16[1, 4, 8]
//	%3 = short_conv %2, %w : bf16[1, 1, 8]
//	%4 = slice %2 {axis = 1, start = 1, stop = 4} : bf16[1, 3, 8]
//	%5 = conv_write %s, %to, %4 : bf16[9, 3, 8]
//	%6 = silu %3 : bf16[1, 1, 8]
//	%7 = reshape %6 {shape = [1, 8]} : bf16[1, 8]
//	%8 = conv_read %t, %from : bf16[1, 3, 8]
//	%9 = reshape %7 {shape = [1, 1, 8]} : bf16[1, 1, 8]
//	%10 = concat %8, %9 {axis = 1} : bf16[1, 4, 8]
//	%11 = short_conv %10, %u : bf16[1, 1, 8]
//	%12 = slice %10 {axis = 1, start = 1, stop = 4} : bf16[1, 3, 8]
//	%13 = conv_write %t, %to, %12 : bf16[9, 3, 8]
//
// After:
//
//	%0 = conv_reads %from, %s, %t : bf16[2, 1, 3, 8] loc("conv.history")
//	%1 = slice %w {axis = 0, start = 0, stop = 3} : f32[3, 8] loc("conv.history")
//	%2 = slice %u {axis = 0, start = 0, stop = 3} : f32[3, 8] loc("conv.history")
//	%3 = concat %1, %2 {axis = 0} : f32[6, 8] loc("conv.history")
//	%4 = reshape %3 {shape = [2, 1, 3, 8]} : f32[2, 1, 3, 8] loc("conv.history")
//	%5 = cast %0 {dtype = f32} : f32[2, 1, 3, 8] loc("conv.history")
//	%6 = mul %5, %4 : f32[2, 1, 3, 8] loc("conv.history")
//	%7 = reduce_sum %6 {axis = 2} : f32[2, 1, 1, 8] loc("conv.history")
//	%8 = slice %7 {axis = 0, start = 0, stop = 1} : f32[1, 1, 1, 8] loc("conv.history")
//	%9 = reshape %8 {shape = [1, 8]} : f32[1, 8] loc("conv.history")
//	%10 = slice %7 {axis = 0, start = 1, stop = 2} : f32[1, 1, 1, 8] loc("conv.history")
//	%11 = reshape %10 {shape = [1, 1, 8]} : f32[1, 1, 8] loc("conv.history")
//	%12 = cast %x {dtype = f32} : f32[1, 8]
//	%13 = const 1 {dtype = f32} : f32[1]
//	%14 = reshape %13 {shape = [1, 1]} : f32[1, 1]
//	%15 = slice %w {axis = 0, start = 3, stop = 4} : f32[1, 8]
//	%16 = add %15, %14 : f32[1, 8]
//	%17 = mul %12, %16 : f32[1, 8]
//	%18 = add %9, %17 : f32[1, 8]
//	%19 = cast %18 {dtype = bf16} : bf16[1, 8]
//	%20 = reshape %19 {shape = [1, 1, 8]} : bf16[1, 1, 8]
//	%21 = silu %20 : bf16[1, 1, 8]
//	%22 = reshape %21 {shape = [1, 8]} : bf16[1, 8]
//	%23 = reshape %22 {shape = [1, 1, 8]} : bf16[1, 1, 8]
//	%24 = cast %23 {dtype = f32} : f32[1, 1, 8]
//	%25 = const 1 {dtype = f32} : f32[1]
//	%26 = reshape %25 {shape = [1, 1]} : f32[1, 1]
//	%27 = slice %u {axis = 0, start = 3, stop = 4} : f32[1, 8]
//	%28 = add %27, %26 : f32[1, 8]
//	%29 = reshape %28 {shape = [1, 1, 8]} : f32[1, 1, 8]
//	%30 = mul %24, %29 : f32[1, 1, 8]
//	%31 = add %11, %30 : f32[1, 1, 8]
//	%32 = cast %31 {dtype = bf16} : bf16[1, 1, 8]
//	%33 = reshape %32 {shape = [1, 1, 8]} : bf16[1, 1, 8]
//	%34 = reshape %12 {shape = [1, 1, 1, 8]} : f32[1, 1, 1, 8] loc("conv.history")
//	%35 = reshape %24 {shape = [1, 1, 1, 8]} : f32[1, 1, 1, 8] loc("conv.history")
//	%36 = concat %34, %35 {axis = 0} : f32[2, 1, 1, 8] loc("conv.history")
//	%37 = cast %36 {dtype = bf16} : bf16[2, 1, 1, 8] loc("conv.history")
//	%38 = reshape %37 {shape = [2, 1, 1, 8]} : bf16[2, 1, 1, 8] loc("conv.history")
//	%39 = slice %0 {axis = 2, start = 1, stop = 3} : bf16[2, 1, 2, 8] loc("conv.history")
//	%40 = concat %39, %38 {axis = 2} : bf16[2, 1, 3, 8] loc("conv.history")
//	%41, %42 = conv_writes %to, %40, %s, %t : bf16[9, 3, 8], bf16[9, 3, 8] loc("conv.history")
//
// The sum of the products with a row's three predecessors does not need the row. States
// of all layers lie behind each other (lower/runs.go), so reading them is one gather
// and writing them one copy of rows; their rows stay in the arena in between. A layer is
// left with y = sum + (1 + tap) · x, since the row is its own residual; fold-weights makes
// a weight of 1 + tap, and of the other taps.
// New rows cross segments in f32 and are rounded together at the end, to the same bits:
// fuse-elementwise then leaves no rounding in a layer of those that were f32 before, and
// the others lie as far from layer to layer as sums do (lower/stripes.go). What
// convolutions of one value are parts of (keys and values, after fuse-qkvr) is computed as
// one.
//
// It does not fire where an update keeps something else than the newest rows, as in
// prefill, where a chunk has many; where history or state have other readers, before the
// update or after it; and on one convolution alone. One layer's of keys and values are two. States that together have more
// than 2³¹−1 elements, which is as many as a tensor may have, are taken in several groups.
var hoistConvPass = Pass{
	Name:     "hoist-conv-history",
	Summary:  "reads and writes the history of all layers' short convolutions at once when decoding",
	Stages:   Family,
	Optional: true,
	Inexact:  true,
	Run:      hoistConv,
}

func hoistConv(c *Context, m *ir.Module) (changed bool, err error) {
	if m.Level == ops.Plan {
		return false, nil
	}
	for _, f := range m.Funcs {
		h := convHoister{ctx: c, mod: m, fn: f, uses: ir.NewUses(f), gone: map[*ir.Op]bool{}, now: map[*ir.Value]*ir.Value{}, before: map[*ir.Op][]*ir.Op{}}
		for _, g := range h.groups() {
			if len(g)*len(g[0].convs) > 1 && c.Rewrite() {
				h.hoist(g)
				changed = true
			}
		}
		h.commit()
	}
	if changed {
		m.Level = ops.Fused
	}
	return changed, nil
}

// conv is a short convolution of one new row x [S, C] a sequence:
//
//	window = [history of the state ; x]    y = short_conv(window, taps)
//	the state's next version = window without its oldest row
type conv struct {
	apply, write          *ir.Op
	state, taps, from, to *ir.Value
	x                     *ir.Value // [S, C], or [S, P, C] of which the row is part number part
	part                  int64
}

// lane is the convolutions of parts of one value that follow each other, as those of keys
// and values.
type lane struct {
	x     *ir.Value
	convs []conv
}

// whole reports whether x has no other parts.
func (l *lane) whole() bool {
	return l.x.Type.Rank() == 2 || l.x.Type.Shape[1].Is(int64(len(l.convs)))
}

type convHoister struct {
	ctx  *Context
	mod  *ir.Module
	fn   *ir.Func
	uses *ir.Uses
	gone map[*ir.Op]bool
	// now is what stands for the result of a convolution, which may be the row of
	// another one.
	now map[*ir.Value]*ir.Value
	// start and end are ops to put there, before those to put before others.
	start, end []*ir.Op
	before     map[*ir.Op][]*ir.Op
}

// groups finds lanes that can be computed together: of one type, reading and writing
// the same rows of states of one type.
func (h *convHoister) groups() [][]lane {
	var list []lane
	newest := map[*ir.Value]int{} // the last lane of a value
	for _, o := range h.fn.Ops {
		c, ok := h.match(o)
		if !ok {
			continue
		}
		// The next part of the same value goes with those before it.
		at, ok := newest[c.x]
		if !ok || list[at].convs[0].part+int64(len(list[at].convs)) != c.part {
			at = len(list)
			newest[c.x] = at
			list = append(list, lane{x: c.x})
		}
		list[at].convs = append(list[at].convs, c)
	}
	var groups [][]lane
	for _, l := range list {
		at := slices.IndexFunc(groups, func(g []lane) bool { return h.fits(g, l) })
		if at < 0 {
			at = len(groups)
			groups = append(groups, nil)
		}
		groups[at] = append(groups[at], l)
	}
	return groups
}

// maxElems is the most elements of a tensor that the target takes.
const maxElems = 1<<31 - 1

// fits reports whether a lane goes with others, all whose states together are no larger
// than a tensor may be.
func (h *convHoister) fits(g []lane, l lane) bool {
	first := g[0].convs[0]
	n, known := first.state.Type.Elems().Const()
	if !known || int64(len(g)+1)*int64(len(l.convs))*n > maxElems || len(l.convs) != len(g[0].convs) || l.x.Type.DType != g[0].x.Type.DType {
		return false
	}
	for _, c := range l.convs {
		if c.from != first.from || c.to != first.to || !c.state.Type.Equal(first.state.Type) || !c.taps.Type.Equal(first.taps.Type) {
			return false
		}
	}
	return true
}

// newRow is what a row [S, 1, C] is made of: part number part of a value [S, P, C] with
// P > 1, or a value of its own, where P is 1.
func newRow(row *ir.Value) (x *ir.Value, part int64) {
	x = bare(row)
	if s := def(x, "slice"); s != nil && s.Int("axis") == 1 && ir.SameShape(x.Type.Shape, row.Type.Shape) {
		if start, ok := s.Attr("start").Dim.Const(); ok {
			return s.Args[0], start
		}
	}
	if !ir.SameShape(x.Type.Shape, []ir.Dim{row.Type.Shape[0], row.Type.Shape[2]}) {
		return row, 0
	}
	return x, 0
}

// match finds the convolution that an op applies.
func (h *convHoister) match(o *ir.Op) (c conv, ok bool) {
	if o.Name() != "short_conv" {
		return c, false
	}
	window := o.Args[0]
	both := def(window, "concat")
	if both == nil || len(both.Args) != 2 || both.Int("axis") != 1 || window.Type.Rank() != 3 || h.uses.Count(window) != 2 {
		return c, false
	}
	read, row := def(both.Args[0], "conv_read"), both.Args[1]
	if read == nil || !row.Type.Shape[1].Is(1) || h.uses.Count(both.Args[0]) != 1 {
		return c, false
	}
	c = conv{apply: o, state: read.Args[0], taps: o.Args[1], from: read.Args[1]}
	c.x, c.part = newRow(row)
	if c.state.Param == nil || c.taps.Param == nil || c.taps.Param.Kind != ir.Weight || c.from.Param == nil {
		return c, false
	}
	for _, u := range h.uses.Of(window) {
		if u.Op == nil || u.Op.Name() != "slice" {
			continue
		}
		keep := u.Op
		next := h.only(keep.Results[0])
		if keep.Int("axis") == 1 && keep.Attr("start").Dim.Is(1) && keep.Attr("stop").Dim.Equal(window.Type.Shape[1]) && next != nil && next.Name() == "conv_write" {
			c.write, c.to = next, next.Args[1]
		}
	}
	return c, c.write != nil && c.write.Args[0] == c.state && c.to.Param != nil && h.uses.Count(c.state) == 2 && h.leaves(c.write.Results[0])
}

// leaves reports whether no op reads a value: it is a result, or nothing.
func (h *convHoister) leaves(v *ir.Value) bool {
	return !slices.ContainsFunc(h.uses.Of(v), func(u ir.Use) bool { return u.Op != nil })
}

// only is the op that is the one reader of a value, nil when there is none or are more.
func (h *convHoister) only(v *ir.Value) *ir.Op {
	if us := h.uses.Of(v); len(us) == 1 {
		return us[0].Op
	}
	return nil
}

// hoist computes the history's part of the convolutions of all lanes at the start, and
// writes the states at the end.
func (h *convHoister) hoist(g []lane) {
	first := g[0].convs[0]
	loc := ir.Loc{Layer: -1, Op: "conv.history"} // no layer's; what it takes is declared by this name
	start, startOps := h.builder(loc)
	end, endOps := h.builder(loc)
	s := newConvSums(start, g)
	var newest []*ir.Value // [1, S, P, C] of each lane
	for i, l := range g {
		if v := h.now[l.x]; v != nil {
			l.x = v
		}
		if !l.whole() {
			from := l.convs[0].part
			b, made := h.builder(l.convs[0].apply.Loc)
			l.x = b.Slice(l.x, 1, ir.D(from), ir.D(from+s.parts))
			h.before[l.convs[0].apply] = h.add(made)
		}
		row := h.apply(l, s.of(start, int64(i), l.x.Type))
		newest = append(newest, end.ReshapeShard(row, 3, ir.D(1), s.rows, ir.D(s.parts), s.channels))
	}
	h.start = append(h.start, h.add(startOps)...)
	next := end.ConvWrites(first.to, s.kept(end, newest), s.states...)
	h.end = append(h.end, h.add(endOps)...)
	for _, l := range g {
		for _, c := range l.convs {
			h.uses.ReplaceAll(c.write.Results[0], next[0])
			h.remove(c.write)
			next = next[1:]
		}
	}
}

// convSums are what the convolutions of a group make of their history, and what is kept
// of that.
type convSums struct {
	lanes, parts         int64
	rows, channels, taps ir.Dim
	states               []*ir.Value
	history              *ir.Value // [lanes·parts, S, K−1, C]
	sums                 *ir.Value // f32 [lanes, S, parts, C], or [lanes, S, 1, C]
}

func newConvSums(b *ir.Builder, g []lane) *convSums {
	first, one := g[0].convs[0], ir.D(1)
	s := &convSums{
		lanes: int64(len(g)), parts: int64(len(g[0].convs)),
		rows: g[0].x.Type.Shape[0], channels: first.taps.Type.Shape[1], taps: first.taps.Type.Shape[0],
	}
	for _, l := range g {
		for _, c := range l.convs {
			s.states = append(s.states, c.state)
		}
	}
	s.history = b.ConvReads(first.from, s.states...)
	old := s.taps.Sub(one)
	var weights []*ir.Value
	for _, l := range g {
		for _, c := range l.convs {
			weights = append(weights, b.Slice(c.taps, 0, ir.D(0), old))
		}
	}
	taps := b.ReshapeShard(b.Concat(0, weights...), 3, ir.D(s.lanes*s.parts), one, old, s.channels)
	s.sums = b.ReduceSum(b.Mul(b.CastTo(s.history, dtype.F32), taps), 2)
	if s.parts > 1 {
		s.sums = b.Transpose(b.ReshapeShard(s.sums, 3, ir.D(s.lanes), ir.D(s.parts), s.rows, s.channels), []int64{0, 2, 1, 3})
	}
	return s
}

// of is the sum over the history of lane i, in the shape of its newest row.
func (s *convSums) of(b *ir.Builder, i int64, x ir.Type) *ir.Value {
	return b.ReshapeShard(b.Slice(s.sums, 0, ir.D(i), ir.D(i+1)), x.Rank()-1, x.Shape...)
}

// kept are the rows that states have next, given the newest ones of each lane.
func (s *convSums) kept(b *ir.Builder, newest []*ir.Value) *ir.Value {
	one, x := ir.D(1), b.CastTo(b.Concat(0, newest...), s.states[0].Type.DType)
	if s.parts > 1 {
		x = b.Transpose(x, []int64{0, 2, 1, 3})
	}
	x = b.ReshapeShard(x, 3, ir.D(s.lanes*s.parts), s.rows, one, s.channels)
	if s.taps.Is(2) { // the newest row is all that there is
		return x
	}
	return b.Concat(2, b.Slice(s.history, 2, one, s.taps.Sub(one)), x)
}

// apply builds what is left of a lane's convolutions, given the sum over its history:
// y = sum + (1 + tap) · x, rounded once, as a row is its own residual. It returns x in f32.
func (h *convHoister) apply(l lane, sum *ir.Value) *ir.Value {
	first := l.convs[0]
	b, made := h.builder(first.apply.Loc)
	x := b.CastTo(l.x, dtype.F32)
	y := b.CastTo(b.Add(sum, b.Mul(x, factor(b, l))), l.x.Type.DType)
	results := make([]*ir.Value, len(l.convs))
	for k, c := range l.convs {
		part := y
		if len(l.convs) > 1 {
			part = b.Slice(y, 1, ir.D(int64(k)), ir.D(int64(k+1)))
		}
		results[k] = b.ReshapeShard(part, 2, c.apply.Results[0].Type.Shape...)
	}
	h.before[first.apply] = append(h.before[first.apply], h.add(made)...)
	for k, c := range l.convs {
		h.uses.ReplaceAll(c.apply.Results[0], results[k])
		h.now[c.apply.Results[0]] = results[k]
		h.remove(c.apply)
	}
	return x
}

// factor is 1 + tap for the newest rows of a lane: f32 [1, C], or [1, P, C] for P parts.
func factor(b *ir.Builder, l lane) *ir.Value {
	one := ir.D(1)
	ones := b.Reshape(b.Const(1, dtype.F32), []ir.Dim{one, one})
	var list []*ir.Value
	for _, c := range l.convs {
		k := c.taps.Type.Shape[0]
		list = append(list, b.Add(b.Slice(c.taps, 0, k.Sub(one), k), ones))
	}
	if l.x.Type.Rank() == 2 {
		return list[0]
	}
	f := list[0]
	if len(list) > 1 {
		f = b.Concat(0, list...)
	}
	return b.ReshapeShard(f, 2, one, ir.D(int64(len(list))), f.Type.Shape[1])
}

func (h *convHoister) builder(at ir.Loc) (*ir.Builder, *ir.Func) {
	scratch := &ir.Func{}
	return ir.NewBuilder(h.mod, scratch).At(at), scratch
}

// add makes the readers of values known that ops have become.
func (h *convHoister) add(scratch *ir.Func) []*ir.Op {
	for _, o := range scratch.Ops {
		h.uses.Add(o)
	}
	return scratch.Ops
}

// remove takes an op out, and those of its operands that nothing else reads.
func (h *convHoister) remove(o *ir.Op) {
	h.gone[o] = true
	args := o.Args
	h.uses.Remove(o)
	for _, a := range args {
		if a.Def != nil && !h.gone[a.Def] && a.Def.Def.Has(ops.Pure) && h.uses.Count(a) == 0 && len(a.Def.Results) == 1 {
			h.remove(a.Def)
		}
	}
}

func (h *convHoister) commit() {
	list := h.start
	for _, o := range h.fn.Ops {
		list = append(list, h.before[o]...)
		if !h.gone[o] {
			list = append(list, o)
		}
	}
	h.fn.Ops = append(list, h.end...)
}

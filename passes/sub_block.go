package passes

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/ir/ops"
)

// subBlockPass computes attention of many rows in sub-blocks of rows, so that the
// masks of few rows are alive at once. Keys narrow with the rows: those that no row
// of a sub-block sees are left out, and those that no bias reaches get one mask for
// all rows. What a sub-block takes a part of is sliced before the first one, so
// sub-blocks whose sizes are equal are one segment.
//
// Before:
//
//	%0 = call @seg0 %q, %k, %v, %mask : f32[1, 2, 2048, 8]
//
// After:
//
//	%0, %1, %2, %3, %4, %5 = call @seg0 %q, %mask, %k, %v : f32[1, 2, 1024, 8], f32[1, 2, 1024, 1024], f32[1, 1, 1024, 8], f32[1, 1, 1024, 8], f32[1, 2, 1024, 8], f32[1, 2, 1024, 2048]
//	graph_break "sub-block 1 of 2: sub_block_rows"
//	%6 = call @seg1 %0, %2, %3, %1 : f32[1, 2, 1024, 8]
//	graph_break "sub-block 2 of 2: sub_block_rows"
//	%7 = call @seg2 %4, %k, %v, %5 : f32[1, 2, 1024, 8]
//	graph_break "rows of sub-blocks are joined"
//	%8 = call @seg3 %6, %7 : f32[1, 2, 2048, 8]
//
// There are as many rows to a sub-block as sub_block_rows allows, and as the masks
// of one op may have bytes by mask_budget. If the mask of one row is larger, that
// is an error. It does not fire where all rows fit into one sub-block, and not on a
// batch of sequences, whose rows are few.
var subBlockPass = Pass{
	Name:     "sub-block",
	Summary:  "cuts the rows of attention into sub-blocks whose masks fit a budget",
	Stages:   Bucket,
	Optional: true,
	Inexact:  true,
	Run:      subBlock,
}

// Defaults of what a deployment says.
const (
	defaultMaskBudget   = 512 << 20
	defaultSubBlockRows = 1024
)

func subBlock(c *Context, m *ir.Module) (changed bool, err error) {
	if m.Level != ops.Plan {
		return false, nil
	}
	cut := map[*ir.Func]bool{}
	for _, f := range m.Funcs[:len(m.Funcs)-1] {
		s := &subBlocker{ctx: c, mod: m, fn: f, layer: layerOf(m, f)}
		if err := s.run(); err != nil {
			return false, err
		}
		cut[f] = s.cut
		changed = changed || s.cut
	}
	if changed {
		splitCalls(m, cut)
	}
	return changed, nil
}

// layerOf is the layer of the first call of a segment, from which its locations
// count.
func layerOf(m *ir.Module, f *ir.Func) int {
	for _, o := range m.Entry().Ops {
		if a := o.Attr("callee"); a != nil && a.Func == f {
			return max(o.Loc.Layer, 0)
		}
	}
	return 0
}

// subBlocker puts the sub-blocks of one segment between graph breaks, where
// splitCalls cuts it.
type subBlocker struct {
	ctx   *Context
	mod   *ir.Module
	fn    *ir.Func
	layer int
	cut   bool
}

func (s *subBlocker) run() error {
	done := map[*ir.Value]bool{}
	for _, o := range slices.Clone(s.fn.Ops) {
		if !isAttention(o) || len(o.Args) == 0 || o.Results[0].Type.Rank() != 4 { // gone with the sub-blocks before, or a batch
			continue
		}
		root := attentionRoot(ir.NewUses(s.fn), o)
		if done[root] {
			continue
		}
		done[root] = true
		if err := s.root(root); err != nil {
			return err
		}
	}
	return nil
}

func isAttention(o *ir.Op) bool { return o.Name() == "sdpa" || o.Name() == "sdpa_stats" }

// attentionRoot follows the result of attention through what is done to each of
// its elements.
func attentionRoot(uses *ir.Uses, o *ir.Op) *ir.Value {
	v := o.Results[0]
	for {
		list := uses.Of(v)
		if len(list) != 1 || list[0].Op == nil {
			return v
		}
		next := list[0].Op
		if !next.Def.Has(ops.Elementwise) || !ir.SameShape(next.Results[0].Type.Shape, v.Type.Shape) {
			return v
		}
		v = next.Results[0]
	}
}

// root cuts the rows of one value.
func (s *subBlocker) root(root *ir.Value) error {
	rows, ok := root.Type.Shape[2].Const()
	if !ok {
		return fmt.Errorf("@%s: the rows of attention are %s; want a number", s.fn.Name, root.Type.Shape[2])
	}
	list, through := s.attentions(root)
	per, why, err := s.rows(list, rows)
	if err != nil || per >= rows {
		return err
	}
	if !s.ctx.Rewrite() {
		return nil
	}
	s.build(root, through, rows, per, why)
	s.cut = true
	return nil
}

// attentions are the ops whose rows make a value, and all ops from them to it.
func (s *subBlocker) attentions(root *ir.Value) (list []*ir.Op, through map[*ir.Op]bool) {
	through = map[*ir.Op]bool{}
	seen := map[*ir.Op]bool{}
	var visit func(v *ir.Value) bool
	visit = func(v *ir.Value) bool {
		if v.Def == nil || v.Type.Rank() != 4 {
			return false
		}
		if seen[v.Def] {
			return through[v.Def]
		}
		seen[v.Def] = true
		found := isAttention(v.Def)
		if found {
			list = append(list, v.Def)
		} else {
			for _, a := range v.Def.Args {
				found = visit(a) || found
			}
		}
		through[v.Def] = found
		return found
	}
	visit(root)
	return list, through
}

// rows is the number of rows of a sub-block, and what limits it.
func (s *subBlocker) rows(list []*ir.Op, all int64) (per int64, why string, err error) {
	budget, most := int64(s.ctx.Params.MaskBudget), int64(s.ctx.Params.SubBlockRows)
	if budget == 0 {
		budget = defaultMaskBudget
	}
	if most == 0 {
		most = defaultSubBlockRows
	}
	bytes := func(rows int64) int64 {
		sum := int64(0)
		for _, o := range list {
			sum += s.maskBytes(o, rows)
		}
		return sum
	}
	per, why = min(most, all), "sub_block_rows"
	if bytes(per) <= budget {
		return per, why, nil
	}
	low, high := int64(0), per // bytes grow with the rows
	for high-low > 1 {
		if mid := (low + high) / 2; bytes(mid) <= budget {
			low = mid
		} else {
			high = mid
		}
	}
	if low == 0 {
		loc := list[0].Loc
		loc.Layer = s.layer + max(loc.Layer, 0)
		return 0, "", fmt.Errorf("%s: the mask of one row is %d bytes, more than mask_budget = %d: raise it to that or more", loc, bytes(1), budget)
	}
	return low, "mask_budget", nil
}

// maskBytes are those of the mask of an inner sub-block.
func (s *subBlocker) maskBytes(o *ir.Op, rows int64) int64 {
	if len(o.Args) < 4 {
		return 0
	}
	mask := o.Args[3].Type
	n := int64(mask.DType.Size())
	for axis := range 2 {
		d, _ := mask.Shape[axis].Const()
		n *= d
	}
	if all, _ := mask.Shape[2].Const(); all > 1 {
		n *= rows
	}
	keys, _ := mask.Shape[3].Const()
	if k := s.keys(o, 0, rows); k.low > minInt {
		masked := k.high - k.low
		if s.exact() && o.Attr("first") == nil {
			masked += s.history(o)
		}
		keys = min(keys, masked)
	}
	return n * keys
}

const minInt = -1 << 62

// keySpan is the keys low … high−1, of which some rows need a mask for each row. Behind
// them no row sees a key; before them each sees all that hold a token, or none.
type keySpan struct{ low, high int64 }

// keys are those of rows a … b−1 that need a mask for each row; they may begin before
// the first and end behind the last.
func (s *subBlocker) keys(o *ir.Op, a, b int64) keySpan {
	k := keySpan{minInt, 1 << 62}
	fact := func(name string) (int64, bool) {
		if d := o.Attr(name); d != nil {
			return d.Dim.Const()
		}
		return 0, false
	}
	if last, ok := fact("last"); ok {
		k.high = b + last
	}
	if first, ok := fact("first"); ok {
		k.low = a + first
	}
	// Without masks for all rows the band must say where the chunk begins, too.
	if band, ok := fact("band"); ok && s.ctx.Params.Attention != Masked && s.hides(o) && (!s.exact() || o.Attr("last") != nil) {
		k.low = max(k.low, a+band)
	}
	return k
}

// exact reports whether keys that no bias reaches have no mask for all rows: those
// of the history keep the mask for each row, those of the chunk have none.
func (s *subBlocker) exact() bool { return s.ctx.Params.Far == FarExact }

// history is the number of keys before the chunk's.
func (s *subBlocker) history(o *ir.Op) int64 {
	last, _ := o.Attr("last").Dim.Const() // keys has looked
	return last
}

// hides reports whether keys that hold no token are zeros, and a number hides them
// that absorbs their scores.
func (s *subBlocker) hides(o *ir.Op) bool {
	k, mask := def(o.Args[1], "select"), def(o.Args[3], "select")
	if k == nil || mask == nil || !byKey(k.Args[0], o.Args[1]) {
		return false
	}
	zero, okZero := s.number(k.Args[2])
	low, okLow := s.number(mask.Args[2])
	return okZero && zero == 0 && okLow && low <= -1e20
}

// number is what a value is that all calls take from a constant.
func (s *subBlocker) number(v *ir.Value) (n float64, ok bool) {
	at := slices.IndexFunc(s.fn.Params, func(p *ir.Param) bool { return p.Value == bare(v) })
	if at < 0 {
		return 0, false
	}
	for _, o := range s.mod.Entry().Ops {
		if a := o.Attr("callee"); a == nil || a.Func != s.fn {
			continue
		}
		p := o.Args[at].Param
		if p == nil || !p.Source.PerRank || p.Source.Step != 0 || ok && p.Source.Fill != n {
			return 0, false
		}
		n, ok = p.Source.Fill, true
	}
	return n, ok
}

// build replaces a value by its sub-blocks, between breaks.
func (s *subBlocker) build(root *ir.Value, through map[*ir.Op]bool, rows, per int64, why string) {
	r := newRewriter(s.ctx, s.mod, s.fn)
	before := &ir.Func{}
	loc := root.Def.Loc
	var inner []*ir.Op
	var parts []*ir.Value
	count := (rows + per - 1) / per
	whole := slices.DeleteFunc(slices.Clone(s.fn.Return), func(v *ir.Value) bool { return through[v.Def] })
	for i := range count {
		a, b := i*per, min(rows, (i+1)*per)
		r.root, r.scratch = root.Def, &ir.Func{}
		r.Builder = ir.NewBuilder(s.mod, r.scratch).At(loc)
		n := newNarrower(r)
		n.slices, n.always, n.whole = ir.NewBuilder(s.mod, before).At(loc), through, whole
		sub := &rowBlock{n, s}
		n.attention = sub.attention
		r.GraphBreak(fmt.Sprintf("sub-block %d of %d: %s", i+1, count, why))
		parts = append(parts, n.part(root, cut{2, ir.D(a), ir.D(b)}))
		if err := r.Err(); err != nil {
			panic(err)
		}
		inner = append(inner, r.scratch.Ops...)
	}
	r.scratch = &ir.Func{}
	r.Builder = ir.NewBuilder(s.mod, r.scratch).At(loc)
	r.GraphBreak("rows of sub-blocks are joined")
	joined := r.Concat(2, parts...)
	list := slices.Concat(before.Ops, inner, r.scratch.Ops)
	for _, o := range list {
		r.uses.Add(o)
	}
	r.uses.ReplaceAll(root, joined)
	// ReplaceAll must not touch what the sub-blocks are made of: they do not read
	// the root.
	r.before[root.Def] = list
	r.edits++
	r.erase(root.Def)
	r.commit()
}

// rowBlock builds attention of some rows.
type rowBlock struct {
	*narrower
	s *subBlocker
}

func (n *rowBlock) attention(o *ir.Op, c cut) []*ir.Value {
	q, k, v, scale := n.slice(o.Args[0], c), o.Args[1], o.Args[2], o.Attr("scale").Float
	stats := o.Name() == "sdpa_stats"
	if len(o.Args) < 4 {
		return n.attend(q, k, v, nil, scale, stats)
	}
	a, _ := c.start.Const()
	b, _ := c.stop.Const()
	total, _ := k.Type.Shape[2].Const()
	span := n.s.keys(o, a, b)
	low, high := max(span.low, 0), min(span.high, total)
	part := func(from, to int64, mask *ir.Value, stats bool) []*ir.Value {
		keys := cut{2, ir.D(from), ir.D(to)}
		return n.attend(q, n.slice(k, keys), n.slice(v, keys), mask, scale, stats)
	}
	// masked are keys with their part of the mask.
	masked := func(from, to int64, stats bool) []*ir.Value {
		mask := o.Args[3]
		return part(from, to, n.part(mask, append(broadcastCuts(mask, []cut{c}), cut{3, ir.D(from), ir.D(to)})...), stats)
	}
	far := int64(0) // keys before it have no mask for each row
	if o.Attr("first") == nil {
		far = low
	}
	if far == 0 {
		return masked(low, high, stats)
	}
	if !n.s.exact() {
		one, rest := ir.D(1), cut{2, ir.D(0), ir.D(far)}
		token := n.Reshape(n.slice(k.Def.Args[0], rest), []ir.Dim{one, one, one, ir.D(far)})
		hide := n.Select(token, n.scalar(k.Def.Args[2]), n.scalar(o.Args[3].Def.Args[2]))
		return n.joined(stats, masked(low, high, true), part(0, far, hide, true))
	}
	// The chunk's keys before a row that counts all hold tokens.
	history := n.s.history(o)
	if far <= history {
		return masked(0, high, stats)
	}
	parts := [][]*ir.Value{masked(low, high, true), part(history, far, nil, true)}
	if history > 0 {
		parts = append(parts, masked(0, history, true))
	}
	return n.joined(stats, parts...)
}

func (n *rowBlock) attend(q, k, v, mask *ir.Value, scale float64, stats bool) []*ir.Value {
	if !stats {
		return []*ir.Value{n.SDPA(q, k, v, mask, scale)}
	}
	o, m, linv := n.SDPAStats(q, k, v, mask, scale)
	return []*ir.Value{o, m, linv}
}

// scalar is a value of one element, built again from the weight that it is.
func (n *rowBlock) scalar(v *ir.Value) *ir.Value {
	if def(v, "reshape") != nil && v.Def.Args[0].Param != nil {
		return n.Again(v.Def, v.Def.Args...)[0]
	}
	return v
}

// joined is attention of the keys of all parts, with statistics or not. It needs
// no constants, which would become weights that have no place.
func (n *rowBlock) joined(stats bool, parts ...[]*ir.Value) []*ir.Value {
	t := parts[0][0].Type.DType
	wide := func(p []*ir.Value) attended { return attended{n.wide(p[0]), n.wide(p[1]), p[2]} }
	a := wide(parts[0])
	for i, p := range parts[1:] {
		b := wide(p)
		top := n.Max(a.m, b.m)
		// Weights by the common denominator a.linv·b.linv.
		wa, wb := n.Mul(n.Exp(n.Sub(a.m, top)), b.linv), n.Mul(n.Exp(n.Sub(b.m, top)), a.linv)
		sum := n.Add(wa, wb)
		o := n.Div(n.Add(n.Mul(a.o, wa), n.Mul(b.o, wb)), sum)
		if stats || i+2 < len(parts) {
			b.linv = n.Div(n.Mul(a.linv, b.linv), sum)
		}
		a = attended{o, top, b.linv}
	}
	if !stats {
		return []*ir.Value{n.CastTo(a.o, t)}
	}
	return []*ir.Value{n.CastTo(a.o, t), n.CastTo(a.m, t), a.linv}
}

// splitCalls cuts segments at their breaks. Breaks stay, between the calls.
func splitCalls(m *ir.Module, cut map[*ir.Func]bool) {
	old := m.Entry()
	o := &outliner{mod: m, old: old, values: map[*ir.Value]*ir.Value{}, byShape: map[string]*ir.Func{}}
	o.entry = &ir.Func{Name: old.Name, Results: old.Results, Params: old.Params, Pos: old.Pos}
	for _, p := range old.Params {
		o.values[p.Value] = p.Value
	}
	whole := map[*ir.Func]*ir.Func{} // segments that stay, each looked for once
	for _, op := range old.Ops {
		f := op.Attr("callee")
		switch {
		case f == nil:
			o.again(op, op.Attrs)
		case !cut[f.Func]:
			if whole[f.Func] == nil {
				whole[f.Func] = o.known(f.Func)
			}
			o.again(op, []ir.Attr{{Name: "callee", Func: whole[f.Func]}})
		default:
			o.split(op, f.Func)
		}
	}
	for _, v := range old.Return {
		o.entry.Return = append(o.entry.Return, o.values[v])
	}
	m.Funcs = append(o.segs, o.entry)
}

// again appends an op of the old entry to the new one.
func (o *outliner) again(op *ir.Op, attrs []ir.Attr) {
	n := &ir.Op{Def: op.Def, Attrs: attrs, Loc: op.Loc, Pos: op.Pos}
	for _, a := range op.Args {
		n.Args = append(n.Args, o.values[a])
	}
	o.add(n, op.Results)
}

// split appends a call of each part of a segment.
func (o *outliner) split(call *ir.Op, f *ir.Func) {
	sub := &outliner{mod: o.mod, old: f, entry: o.entry, segs: o.segs, values: map[*ir.Value]*ir.Value{}, byShape: o.byShape}
	for i, p := range f.Params {
		sub.values[p.Value] = o.values[call.Args[i]]
	}
	first := len(o.entry.Ops)
	sub.cut(func(op *ir.Op) { sub.again(op, op.Attrs) })
	for _, op := range o.entry.Ops[first:] {
		if call.Loc.Layer >= 0 {
			op.Loc.Layer = call.Loc.Layer + max(op.Loc.Layer, 0)
		}
	}
	o.segs = sub.segs
	for i, r := range call.Results {
		o.values[r] = sub.values[f.Return[i]]
	}
}

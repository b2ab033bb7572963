package passes

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// localWindowPass lets layers of a prefill chunk that see a window of keys read the
// blocks that it reaches, of a list of their own, instead of the whole history.
// (Capture builds such a list for decode steps.)
//
// Before:
//
//	%0 = kv_read %cache, %ctx_blocks {block_size = 4} : f32[c, 4, 1, 2]
//	%1 = reshape %0 {shape = [4*c, 2]} : f32[4*c, 2]
//	%2 = iota {size = 4*c} : i32[4*c]
//	%3 = add %2, %ctx_start : i32[4*c]
//	%4 = sub %positions, %3 : i32[4*c]
//	%5 = const 6 {dtype = i32} : i32[1]
//	%6 = lt %4, %5 : i8[4*c]
//	%7 = reshape %6 {shape = [1, 4*c]} : i8[1, 4*c]
//	%8 = matmul %q, %1 {dtype = f32, trans_b = true} : f32[1, 4*c]
//	%9 = const -30000 {dtype = f32} : f32[1]
//	%10 = reshape %9 {shape = [1, 1]} : f32[1, 1]
//	%11 = select %7, %8, %10 : f32[1, 4*c]
//	%12 = softmax %11 : f32[1, 4*c]
//	%13 = matmul %12, %1 {dtype = f32, trans_b = false} : f32[1, 2]
//
// After:
//
//	%0 = kv_read %cache, %window_blocks {block_size = 4} : f32[window, 4, 1, 2]
//	%1 = reshape %0 {shape = [4*window, 2]} : f32[4*window, 2]
//	%2 = iota {size = 4*window} : i32[4*window]
//	%3 = add %2, %window_start : i32[4*window]
//	%4 = sub %positions, %3 : i32[4*window]
//	%5 = const 6 {dtype = i32} : i32[1]
//	%6 = lt %4, %5 : i8[4*window]
//	%7 = reshape %6 {shape = [1, 4*window]} : i8[1, 4*window]
//	%8 = matmul %q, %1 {dtype = f32, trans_b = true} : f32[1, 4*window]
//	%9 = const -30000 {dtype = f32} : f32[1]
//	%10 = reshape %9 {shape = [1, 1]} : f32[1, 1]
//	%11 = select %7, %8, %10 : f32[1, 4*window]
//	%12 = softmax %11 : f32[1, 4*window]
//	%13 = matmul %12, %1 {dtype = f32, trans_b = false} : f32[1, 2]
//
// A layer's attention is a function of a list of blocks, and the same function of
// the shorter list has the same value, because keys that no window reaches count
// for nothing. The ops stay as they are; sizes and the parameters that describe the
// list are others, so a new order of work in a layer needs no new code here:
//
//	list            becomes
//	ctx_blocks [c]  window_blocks [min(c, r)], its last ones
//	ctx_start [1]   window_start [1], position of its first slot
//
// where r blocks hold a window without its newest token however it lies. The host
// makes these inputs; a plan that does not name them does without. There are never
// more blocks than before.
//
// How a layer is recognised: not by its place in the model and not by a mark, but
// by what is known of the elements that belong to keys of dropped blocks, op by op
// (local_window_facts.go): their distance is not below the window, so a predicate
// is false, so their score is the number that hides, so their probability is 0. A
// layer is rewritten if thus every sum over the list adds zeros for them. Two things
// are taken for granted, as the captured graph does: a softmax of hidden scores is of
// rows that see at least themselves, and what is left out is finite, since 0 times it
// would not be 0.
//
// Sums keep their order, so results keep their bits where adding zeros does, as in
// the interpreter; a device that sums in lanes may end with other last bits. Padding
// rows of a prefill chunk, whose position says nothing, may get other values.
//
// It does not fire on layers that see everything; where a sum counts keys in
// another way than by a softmax of hidden scores, or an op is not known to keep
// blocks apart; and where no list of the family is longer than a window. It may run
// anywhere before outlining: what layers share by then is copied.
var localWindowPass = Pass{
	Name:     "local-window",
	Summary:  "layers with a window read only the blocks of history that it reaches",
	Stages:   Family,
	Optional: true,
	Run:      localWindow,
}

func localWindow(c *Context, m *ir.Module) (changed bool, err error) {
	if m.Level == ops.Plan {
		return false, nil
	}
	for _, f := range m.Funcs {
		list := listOf(f)
		if list == nil {
			continue
		}
		w := &windower{ctx: c, mod: m, fn: f, list: list, facts: factsOf(f, list)}
		w.collect()
		done, err := w.run()
		changed = changed || done
		if err != nil {
			return changed, fmt.Errorf("@%s: %w", f.Name, err)
		}
	}
	return changed, nil
}

// blockList is the list of blocks that a step's attention reads.
type blockList struct {
	size  string // the symbol: blocks
	block int64  // tokens a block
	// What describes it.
	blocks, start, positions *ir.Value
}

// listOf finds the list of a function, nil when it has none.
func listOf(f *ir.Func) *blockList {
	input := func(name string) *ir.Value {
		if p := f.Param(name); p != nil && p.Kind == ir.Host && p.Value.Type.DType == dtype.I32 && p.Value.Type.Rank() == 1 {
			return p.Value
		}
		return nil
	}
	l := &blockList{blocks: input("ctx_blocks"), start: input("ctx_start"), positions: input("positions")}
	if l.blocks == nil || l.start == nil || l.positions == nil {
		return nil
	}
	names := l.blocks.Type.Shape[0].Symbols(nil)
	if len(names) != 1 || !l.blocks.Type.Shape[0].Equal(ir.SymDim(names[0])) {
		return nil
	}
	l.size = names[0]
	for _, o := range f.Ops {
		if o.Name() == "kv_read" && o.Args[1] == l.blocks {
			if l.block != 0 && l.block != o.Int("block_size") {
				return nil
			}
			l.block = o.Int("block_size")
		}
	}
	if l.block == 0 {
		return nil
	}
	return l
}

// short is the name of the parameter that is for the shorter list what another one is
// for the list, "" if there is none.
func (l *blockList) short(v *ir.Value) string {
	switch v {
	case l.blocks:
		return "window_blocks"
	case l.start:
		return "window_start"
	}
	return ""
}

// axis is the axis of a value along which the list lies, −1 when it is none, and
// whether it is the only one.
func (l *blockList) axis(v *ir.Value) (axis int, ok bool) {
	axis, ok = -1, true
	for i, d := range v.Type.Shape {
		if slices.Contains(d.Symbols(nil), l.size) {
			ok = axis < 0
			axis = i
		}
	}
	return axis, ok
}

func (l *blockList) has(v *ir.Value) bool {
	axis, _ := l.axis(v)
	return axis >= 0
}

// spanBlocks is the number of blocks that hold n tokens in a row, however they lie.
func spanBlocks(n, block int64) int64 { return (n+block-2)/block + 1 }

// windower rewrites one function.
type windower struct {
	ctx   *Context
	mod   *ir.Module
	fn    *ir.Func
	list  *blockList
	facts *facts

	layers []*windowed
	size   ir.Dim // of the shorter list
	// values has what stands for a value in rewritten layers: parameters of the
	// list, and copies of what layers may share.
	values map[*ir.Value]*ir.Value
	copies map[*ir.Op]*ir.Op // by original
}

// windowed is a set of ops that read each other's values of the list: the attention
// of a layer.
type windowed struct {
	ops    []*ir.Op
	window int64 // of the widest predicate that hides scores, 0 when there is none
	at     ir.Loc
}

// shared reports whether a value depends on the step's inputs only, so that a copy
// costs little and layers may read the same.
func (w *windower) shared(v *ir.Value) bool { return w.facts.invariant[v] }

// collect finds the layers in order of their first op.
func (w *windower) collect() {
	parent := map[*ir.Value]*ir.Value{}
	var root func(v *ir.Value) *ir.Value
	root = func(v *ir.Value) *ir.Value {
		if p := parent[v]; p != nil && p != v {
			parent[v] = root(p)
			return parent[v]
		}
		return v
	}
	first := func(o *ir.Op) *ir.Value {
		var of *ir.Value
		for _, vs := range [][]*ir.Value{o.Args, o.Results} {
			for _, v := range vs {
				if !w.list.has(v) || w.shared(v) {
					continue
				}
				if of == nil {
					of = v
				}
				parent[root(v)] = root(of)
			}
		}
		return of
	}
	for _, o := range w.fn.Ops {
		first(o)
	}
	byRoot := map[*ir.Value]*windowed{}
	for _, o := range w.fn.Ops {
		v := first(o)
		if v == nil {
			continue
		}
		l := byRoot[root(v)]
		if l == nil {
			l = &windowed{}
			byRoot[root(v)] = l
			w.layers = append(w.layers, l)
		}
		l.ops = append(l.ops, o)
		if by := w.facts.hides[o]; by > 0 {
			l.window, l.at = max(l.window, by), o.Loc
		}
	}
	w.layers = slices.DeleteFunc(w.layers, func(l *windowed) bool { return l.window == 0 })
}

func (w *windower) run() (changed bool, err error) {
	var todo []*windowed
	widest := int64(0)
	for _, l := range w.layers {
		if why := w.problem(l); why != "" {
			w.ctx.Remark(l.at, "not narrowed: %s", why)
			continue
		}
		todo = append(todo, l)
		widest = max(widest, l.window)
	}
	if len(todo) == 0 {
		return false, nil
	}
	if why := w.shorten(widest); why != "" {
		w.ctx.Remark(ir.NoLoc, "not narrowed: %s", why)
		return false, nil
	}
	for _, l := range todo {
		if !w.ctx.Rewrite() {
			break
		}
		if !changed {
			if err := w.declare(); err != nil {
				return false, err
			}
			changed = true
		}
		for _, o := range l.ops {
			w.rewrite(o)
		}
	}
	if changed {
		w.finish()
	}
	return changed, nil
}

// problem says why a layer cannot read the shorter list, "" if it can.
func (w *windower) problem(l *windowed) string {
	seen := map[*ir.Op]bool{}
	var of func(o *ir.Op) string
	of = func(o *ir.Op) string {
		if seen[o] {
			return ""
		}
		seen[o] = true
		if why := w.facts.problems[o]; why != "" {
			return why
		}
		for _, a := range o.Args {
			switch {
			case a.Param != nil && w.list.has(a) && w.list.short(a) == "":
				return fmt.Sprintf("%s reads %s, which has elements for all keys", o.Name(), a.Name())
			case a.Def == nil || !w.copied(a):
				continue
			}
			if why := of(a.Def); why != "" {
				return why
			}
		}
		return ""
	}
	for _, o := range l.ops {
		if why := of(o); why != "" {
			return why
		}
		for _, v := range o.Results {
			if w.list.has(v) && slices.Contains(w.fn.Return, v) {
				return "the function returns elements for all keys"
			}
		}
	}
	return ""
}

// copied reports whether a value that layers may share is another one for the
// shorter list: one with elements for it, or its start in another shape.
func (w *windower) copied(v *ir.Value) bool {
	return w.shared(v) && (w.list.has(v) || w.facts.of[v].kind == listStart)
}

// shorten chooses the size of the shorter list; it says why there is none that is
// shorter.
func (w *windower) shorten(window int64) string {
	size := w.sym(w.list.size)
	if size.Def != nil {
		return fmt.Sprintf("the size of the list is not known by itself, it is %s", size)
	}
	span := spanBlocks(max(window-1, 1), w.list.block)
	switch {
	case size.Max <= span:
		return fmt.Sprintf("no list is longer than the %d blocks that a window of %d reaches", span, window)
	case size.Min >= span:
		w.size = ir.D(span)
	default:
		w.size = derive(w.mod, "window", &ir.SymDef{Fn: "min", X: ir.SymDim(w.list.size), Y: ir.D(span)})
	}
	return ""
}

func (w *windower) sym(name string) *ir.Sym {
	return w.mod.Syms[slices.IndexFunc(w.mod.Syms, func(s *ir.Sym) bool { return s.Name == name })]
}

// derive is a derived symbol, with a number behind its name if that is taken.
func derive(m *ir.Module, name string, def *ir.SymDef) ir.Dim {
	s := &ir.Sym{Name: name, Def: def}
	for i := 2; ; i++ {
		at := slices.IndexFunc(m.Syms, func(t *ir.Sym) bool { return t.Name == s.Name })
		if at < 0 {
			break
		}
		if m.Syms[at].String() == s.String() {
			return ir.SymDim(s.Name)
		}
		s.Name = fmt.Sprint(name, i)
	}
	m.Syms = append(m.Syms, s)
	return ir.SymDim(s.Name)
}

// declare makes the parameters of the shorter list, behind those of the longer one.
func (w *windower) declare() error {
	w.values, w.copies = map[*ir.Value]*ir.Value{}, map[*ir.Op]*ir.Op{}
	last := 0
	var add []*ir.Param
	for i, p := range w.fn.Params {
		name := w.list.short(p.Value)
		if name == "" {
			continue
		}
		last = i
		t := w.typ(p.Value.Type)
		if q := w.fn.Param(name); q != nil {
			if q.Kind != ir.Host || !q.Value.Type.Equal(t) {
				return fmt.Errorf("there is a parameter %%%s already, and it is not the %s that a window needs", name, t)
			}
			w.values[p.Value] = q.Value
			continue
		}
		q := &ir.Param{Name: name, Kind: ir.Host}
		q.Value = &ir.Value{Type: t, Param: q}
		w.values[p.Value] = q.Value
		add = append(add, q)
	}
	w.fn.Params = slices.Insert(w.fn.Params, last+1, add...)
	return nil
}

func (w *windower) dim(d ir.Dim) ir.Dim {
	return d.Subst(map[string]ir.Dim{w.list.size: w.size})
}

func (w *windower) dims(ds []ir.Dim) []ir.Dim {
	var out []ir.Dim
	for _, d := range ds {
		out = append(out, w.dim(d))
	}
	return out
}

func (w *windower) typ(t ir.Type) ir.Type {
	t.Shape = w.dims(t.Shape)
	return t
}

// rewrite makes an op of a layer one of the shorter list.
func (w *windower) rewrite(o *ir.Op) {
	for i, a := range o.Args {
		o.Args[i] = w.value(a)
	}
	o.Attrs = w.attrs(o)
	for _, r := range o.Results {
		r.Type = w.typ(r.Type)
	}
}

func (w *windower) attrs(o *ir.Op) []ir.Attr {
	attrs := slices.Clone(o.Attrs)
	for i := range attrs {
		attrs[i].Dim, attrs[i].Dims = w.dim(attrs[i].Dim), w.dims(attrs[i].Dims)
	}
	// A size that becomes 1 would leave a choice that there was not before.
	_, sized := w.size.Const()
	if d := o.Results[0].Type.Dist; sized && o.Name() == "reshape" && o.Attr("shard") == nil && d.Kind == ir.Sharded {
		attrs = append(attrs, ir.Attr{Name: "shard", Dim: ir.D(int64(d.Axis))})
	}
	return attrs
}

// value is what a value is in a layer that reads the shorter list.
func (w *windower) value(v *ir.Value) *ir.Value {
	if x := w.values[v]; x != nil {
		return x
	}
	if v.Def == nil || !w.copied(v) {
		return v
	}
	n := &ir.Op{Def: v.Def.Def, Attrs: w.attrs(v.Def), Loc: v.Def.Loc, Pos: v.Def.Pos}
	for _, a := range v.Def.Args {
		n.Args = append(n.Args, w.value(a))
	}
	for i, r := range v.Def.Results {
		x := &ir.Value{Type: w.typ(r.Type), Def: n, Index: i}
		n.Results = append(n.Results, x)
		w.values[r] = x
	}
	w.copies[v.Def] = n
	return w.values[v]
}

// finish puts copies in place, and takes out originals that nothing reads any more.
func (w *windower) finish() {
	uses := map[*ir.Value]int{}
	count := func(o *ir.Op, by int) {
		for _, a := range o.Args {
			uses[a] += by
		}
	}
	var list []*ir.Op
	for _, o := range w.fn.Ops {
		list = append(list, o)
		if n := w.copies[o]; n != nil {
			list = append(list, n)
		}
	}
	for _, o := range list {
		count(o, 1)
	}
	for _, v := range w.fn.Return {
		uses[v]++
	}
	var kept []*ir.Op
	for _, o := range slices.Backward(list) {
		dead := w.copies[o] != nil && !slices.ContainsFunc(o.Results, func(r *ir.Value) bool { return uses[r] > 0 })
		if dead {
			count(o, -1)
			continue
		}
		kept = append(kept, o)
	}
	slices.Reverse(kept)
	w.fn.Ops = kept
}

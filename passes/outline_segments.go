package passes

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// outlinePass turns the entry into calls of segments and collectives. A
// segment is a run of ops between two collectives or graph breaks; weights,
// state and what crosses its border become parameters, so that the segments of
// equal layers are equal and are kept once. Constants become weights that are
// filled at load.
//
// Before:
//
//	%0 = matmul %x, %w {dtype = f32, trans_b = true} : f32[4, 8]@partial
//	%1 = all_reduce %0 : f32[4, 8]
//	%2 = silu %1 : f32[4, 8]
//
// After:
//
//	%0 = call @seg0 %x, %w : f32[4, 8]@partial
//	%1 = all_reduce %0 : f32[4, 8]
//	%2 = call @seg1 %1 : f32[4, 8]
//
// It must run last: later passes would see calls only. It does not fire on a
// module that is outlined already.
var outlinePass = Pass{
	Name:    outline,
	Summary: "cuts at breaks and collectives, makes weights and state slots, folds equal segments",
	Stages:  Family,
	Run:     outlineSegments,
}

func outlineSegments(c *Context, m *ir.Module) (bool, error) {
	if m.Level == ops.Plan {
		return false, nil
	}
	if len(m.Funcs) != 1 {
		return false, fmt.Errorf("want one function, found %d", len(m.Funcs))
	}
	c.Rewrite() // has no limit
	o := &outliner{mod: m, old: m.Entry(), values: map[*ir.Value]*ir.Value{}, byShape: map[string]*ir.Func{}}
	o.run()
	return true, nil
}

type outliner struct {
	mod   *ir.Module
	old   *ir.Func
	entry *ir.Func
	segs  []*ir.Func
	// values maps values of the old entry to values of the new one.
	values map[*ir.Value]*ir.Value
	// lastUse is the index of the last op of the old entry that uses a value,
	// len(ops) for a returned one.
	lastUse map[*ir.Value]int
	byShape map[string]*ir.Func
	runs    int // of ops between borders
}

func (o *outliner) run() {
	o.entry = &ir.Func{Name: o.old.Name, Results: o.old.Results, Params: o.old.Params, Pos: o.old.Pos}
	for _, p := range o.old.Params {
		o.values[p.Value] = p.Value
	}
	o.cut(func(op *ir.Op) {
		if op.Def.Has(ops.Collective) {
			o.collective(op)
		}
	})
	for _, v := range o.old.Return {
		o.entry.Return = append(o.entry.Return, o.values[v])
	}
	o.mod.Funcs = append(o.segs, o.entry)
	o.mod.Level = ops.Plan
}

// cut outlines what lies between the borders of the old entry; border is told what
// ends a segment.
func (o *outliner) cut(border func(*ir.Op)) {
	o.lastUse = map[*ir.Value]int{}
	for i, op := range o.old.Ops {
		for _, a := range op.Args {
			o.lastUse[a] = i
		}
	}
	for _, v := range o.old.Return {
		o.lastUse[v] = len(o.old.Ops)
	}
	start := 0
	for i, op := range o.old.Ops {
		if !ir.EndsSegment(op) {
			continue
		}
		o.segment(start, i)
		start = i + 1
		border(op)
	}
	o.segment(start, len(o.old.Ops))
}

func (o *outliner) collective(op *ir.Op) {
	n := &ir.Op{Def: op.Def, Args: []*ir.Value{o.values[op.Args[0]]}, Attrs: op.Attrs, Loc: op.Loc, Pos: op.Pos}
	o.add(n, op.Results)
}

// add appends an op to the new entry; its results stand for those of the old.
func (o *outliner) add(n *ir.Op, old []*ir.Value) {
	for i, r := range old {
		v := &ir.Value{Type: r.Type, Def: n, Index: i}
		n.Results = append(n.Results, v)
		o.values[r] = v
	}
	o.entry.Ops = append(o.entry.Ops, n)
}

// segment outlines ops[from:to] of the old entry.
func (o *outliner) segment(from, to int) {
	list := o.old.Ops[from:to]
	if len(list) == 0 {
		return
	}
	s := segment{outliner: o, run: o.runs, fn: &ir.Func{}, inner: map[*ir.Value]*ir.Value{}, base: baseLayer(list), consts: map[constant]*ir.Value{}}
	o.runs++
	for _, op := range list {
		s.op(op)
	}
	s.results(list, to)
	if len(s.out) == 0 {
		return // nothing that anyone uses, as constants that no op is left to read
	}
	callee := o.known(s.fn)
	def, _ := ops.ByName("call")
	o.add(&ir.Op{Def: def, Args: s.args, Attrs: []ir.Attr{{Name: "callee", Func: callee}}, Loc: s.loc(list)}, s.out)
}

// known is the segment that stands for all that are equal to one.
func (o *outliner) known(f *ir.Func) *ir.Func {
	shape := f.Shape()
	if g, ok := o.byShape[shape]; ok {
		return g
	}
	f.Name = "seg" + strconv.Itoa(len(o.segs))
	o.byShape[shape] = f
	o.segs = append(o.segs, f)
	return f
}

// baseLayer is the lowest layer among ops, −1 when they belong to none.
func baseLayer(list []*ir.Op) int {
	base := -1
	for _, op := range list {
		if l := op.Loc.Layer; l >= 0 && (base < 0 || l < base) {
			base = l
		}
	}
	return base
}

// segment is one segment being built.
type segment struct {
	*outliner
	run   int // its number
	fn    *ir.Func
	inner map[*ir.Value]*ir.Value // old entry's values → the segment's
	args  []*ir.Value             // arguments of the call, values of the new entry
	out   []*ir.Value             // results, values of the old entry
	base  int
	names [5]int // parameters so far, by kind
	// consts holds the first op result of each of the segment's constants, which
	// have one parameter a value.
	consts map[constant]*ir.Value
}

type constant struct {
	dtype dtype.Type
	bits  uint64 // of the value: 0 and −0 are two constants
}

// loc says which layer a call belongs to and from which op to which it goes.
func (s *segment) loc(list []*ir.Op) ir.Loc {
	first, last := list[0].Loc.Op, list[len(list)-1].Loc.Op
	for _, op := range list {
		if op.Loc.Op != "" && first == "" {
			first = op.Loc.Op
		}
		if op.Loc.Op != "" {
			last = op.Loc.Op
		}
	}
	name := first + ".." + last
	if first == last {
		name = first
	}
	return ir.Loc{Layer: s.base, Op: name}
}

func (s *segment) op(op *ir.Op) {
	if op.Name() == "const" {
		s.constant(op)
		return
	}
	n := &ir.Op{Def: op.Def, Attrs: op.Attrs, Loc: s.relative(op.Loc), Pos: op.Pos}
	for _, a := range op.Args {
		n.Args = append(n.Args, s.use(a))
	}
	for i, r := range op.Results {
		v := &ir.Value{Type: r.Type, Def: n, Index: i}
		n.Results = append(n.Results, v)
		s.inner[r] = v
	}
	s.fn.Ops = append(s.fn.Ops, n)
}

// relative is a location counted from the segment's layer, since a segment may
// serve several.
func (s *segment) relative(l ir.Loc) ir.Loc {
	if l.Layer < 0 {
		return l
	}
	l.Tensor = strings.Replace(l.Tensor, fmt.Sprintf(".layers.%d.", l.Layer), fmt.Sprintf(".layers.+%d.", l.Layer-s.base), 1)
	l.Layer -= s.base
	return l
}

// constant declares a weight of the entry that holds the constant.
func (s *segment) constant(op *ir.Op) {
	v := op.Results[0]
	key := constant{v.Type.DType, math.Float64bits(op.Attr("value").Float)}
	if first, ok := s.consts[key]; ok {
		s.inner[v] = s.inner[first]
		s.values[v] = s.values[first] // a later segment may use this one
		return
	}
	p := &ir.Param{
		Name: fmt.Sprintf("const.%d.%d", s.run, s.names[ir.Weight]), Kind: ir.Weight,
		Source: ir.Source{PerRank: true, Fill: op.Attr("value").Float},
	}
	p.Value = &ir.Value{Type: v.Type, Param: p}
	s.entry.Params = append(s.entry.Params, p)
	s.values[v] = p.Value
	s.param(v, ir.Weight)
	s.consts[key] = v
}

// use is a value inside the segment; one from outside becomes a parameter.
func (s *segment) use(v *ir.Value) *ir.Value {
	if in, ok := s.inner[v]; ok {
		return in
	}
	kind := ir.Temp
	switch outer := s.values[v]; {
	case v.State() != nil:
		kind = ir.State
	case outer.Param != nil:
		kind = outer.Param.Kind
	}
	return s.param(v, kind)
}

var kindLetter = [...]string{ir.Host: "in", ir.Carry: "carry", ir.Weight: "w", ir.State: "s", ir.Temp: "t"}

func (s *segment) param(v *ir.Value, kind ir.Kind) *ir.Value {
	p := &ir.Param{Name: kindLetter[kind] + strconv.Itoa(s.names[kind]), Kind: kind}
	s.names[kind]++
	p.Value = &ir.Value{Type: v.Type, Param: p}
	s.fn.Params = append(s.fn.Params, p)
	s.inner[v] = p.Value
	s.args = append(s.args, s.values[v])
	return p.Value
}

// results declares what later ops or the caller need of the segment.
func (s *segment) results(list []*ir.Op, to int) {
	for _, op := range list {
		if op.Name() == "const" {
			continue
		}
		for _, r := range op.Results {
			if s.lastUse[r] < to {
				continue
			}
			s.fn.Return = append(s.fn.Return, s.inner[r])
			s.out = append(s.out, r)
			s.fn.Results = append(s.fn.Results, s.result(r))
		}
	}
}

func (s *segment) result(r *ir.Value) ir.Result {
	res := ir.Result{Name: "r" + strconv.Itoa(len(s.fn.Results)), Kind: ir.Temp, Type: r.Type}
	if r.State() != nil {
		res.Kind, res.Name = ir.State, s.inner[r].State().Name
		return res
	}
	for i, v := range s.old.Return {
		if v == r {
			res.Kind = s.old.Results[i].Kind
		}
	}
	return res
}

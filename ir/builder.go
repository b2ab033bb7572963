package ir

import (
	"errors"
	"fmt"
	"slices"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

//go:generate go run quill/ir/internal/opgen -ops ops_gen.go -doc ../docs/ops.md

// Builder appends ops to a function, one method an op (generated from the op
// table). Result types are inferred. The first error sticks: later calls
// return placeholders and Err reports it.
type Builder struct {
	mod *Module
	fn  *Func
	loc Loc
	err error
	// params are the parameter names so far.
	params map[string]bool
}

// NewBuilder appends to f, a function of m.
func NewBuilder(m *Module, f *Func) *Builder {
	b := &Builder{mod: m, fn: f, loc: NoLoc, params: map[string]bool{}}
	for _, p := range f.Params {
		b.params[p.Name] = true
	}
	return b
}

// At sets the location of the ops built from now on and returns the builder.
func (b *Builder) At(l Loc) *Builder {
	b.loc = l
	return b
}

// Loc is the current location.
func (b *Builder) Loc() Loc { return b.loc }

// Err is the first error.
func (b *Builder) Err() error { return b.err }

// Param adds a parameter.
func (b *Builder) Param(kind Kind, name string, t Type, src Source) *Value {
	if b.err == nil && b.params[name] {
		b.err = fmt.Errorf("parameter %%%s is declared twice", name)
	}
	b.params[name] = true
	p := &Param{Name: name, Kind: kind, Source: src}
	p.Value = &Value{Type: t, Param: p}
	b.fn.Params = append(b.fn.Params, p)
	return p.Value
}

// Result returns a value under a name.
func (b *Builder) Result(kind Kind, name string, v *Value) {
	b.fn.Results = append(b.fn.Results, Result{Name: name, Kind: kind, Type: v.Type})
	b.fn.Return = append(b.fn.Return, v)
}

// ReshapeShard is Reshape with the axis of the result that is sharded, where
// axes of size 1 leave a choice.
func (b *Builder) ReshapeShard(x *Value, axis int, shape ...Dim) *Value {
	attrs := []Attr{{Name: "shape", Dims: shape}}
	if x.Type.Dist.Kind == Sharded {
		attrs = append(attrs, Attr{Name: "shard", Dim: D(int64(axis))})
	}
	return b.op("reshape", []*Value{x}, attrs...)[0]
}

// BroadcastTo is Broadcast to a shape and a distribution, which may be sharded where x
// is replicated.
func (b *Builder) BroadcastTo(x *Value, d Dist, shape ...Dim) *Value {
	attrs := []Attr{{Name: "shape", Dims: shape}}
	if x.Type.Dist.Kind == Replicated && d.Kind == Sharded {
		attrs = append(attrs, Attr{Name: "shard", Dim: D(int64(d.Axis))}, Attr{Name: "ways", Dim: D(int64(d.Ways))})
	}
	return b.op("broadcast", []*Value{x}, attrs...)[0]
}

// CastTo is Cast unless x has the type already.
func (b *Builder) CastTo(x *Value, t dtype.Type) *Value {
	if x.Type.DType == t {
		return x
	}
	return b.Cast(x, t)
}

// Again builds an op like another one on other operands.
func (b *Builder) Again(o *Op, args ...*Value) []*Value {
	return b.op(o.Name(), args, slices.Clone(o.Attrs)...)
}

// op appends one op.
func (b *Builder) op(name string, args []*Value, attrs ...Attr) []*Value {
	def, _ := ops.ByName(name)
	o := &Op{Def: def, Args: args, Attrs: attrs, Loc: b.loc}
	ts, err := b.types(o)
	if err != nil {
		if b.err == nil {
			b.err = fmt.Errorf("building op %d (%s): %w", len(b.fn.Ops), b.loc, err)
		}
		ts = make([]Type, len(def.Results))
	}
	o.setResults(ts)
	b.fn.Ops = append(b.fn.Ops, o)
	return o.Results
}

func (b *Builder) types(o *Op) ([]Type, error) {
	if b.err != nil {
		return nil, b.err
	}
	return typeOp(b.mod, o)
}

// typeOp checks an op against the table and infers its result types.
func typeOp(m *Module, o *Op) ([]Type, error) {
	if err := checkOperands(o); err != nil {
		return nil, err
	}
	for i, a := range o.Args {
		if msg := distProblem(m, a.Type); msg != "" {
			return nil, &ruleError{code: "V16", msg: fmt.Sprintf("%s: operand %d is %s", o.Name(), i, msg)}
		}
	}
	if err := checkAttrs(o); err != nil {
		return nil, err
	}
	return infer(m, o)
}

// ruleCode is the invariant an inference error violates.
func ruleCode(err error) (code, help string) {
	if re, ok := errors.AsType[*ruleError](err); ok {
		return re.code, re.help
	}
	return "V06", ""
}

func (o *Op) setResults(ts []Type) {
	o.Results = make([]*Value, len(ts))
	for i, t := range ts {
		o.Results[i] = &Value{Type: t, Def: o, Index: i}
	}
}

func intAttr(name string, v int64) Attr        { return Attr{Name: name, Dim: D(v)} }
func dimAttr(name string, v Dim) Attr          { return Attr{Name: name, Dim: v} }
func floatAttr(name string, v float64) Attr    { return Attr{Name: name, Float: v} }
func stringAttr(name string, v string) Attr    { return Attr{Name: name, Str: v} }
func boolAttr(name string, v bool) Attr        { return Attr{Name: name, Bool: v} }
func dimsAttr(name string, v []Dim) Attr       { return Attr{Name: name, Dims: v} }
func dtypeAttr(name string, v dtype.Type) Attr { return Attr{Name: name, DType: v} }
func funcAttr(name string, v *Func) Attr       { return Attr{Name: name, Func: v} }
func intsAttr(name string, v []int64) Attr {
	ds := make([]Dim, len(v))
	for i, n := range v {
		ds[i] = D(n)
	}
	return Attr{Name: name, Dims: ds}
}

package ir

import (
	"fmt"
	"slices"
)

// Specialise copies a module with every size evaluated for the given values of
// its base symbols; the copy has no symbols.
func Specialise(m *Module, base map[string]int64) (*Module, error) {
	env, err := m.Env(base)
	if err != nil {
		return nil, fmt.Errorf("specialising @%s: %w", m.Name, err)
	}
	sizes := make(map[string]Dim, len(env))
	for name, v := range env {
		sizes[name] = D(v)
	}
	out := &Module{Name: m.Name, Level: m.Level, TP: m.TP}
	c := cloner{sizes: sizes, funcs: map[*Func]*Func{}}
	for _, f := range m.Funcs {
		out.Funcs = append(out.Funcs, c.function(f))
	}
	return out, nil
}

// Clone copies a module, so that a pass can be undone or compared with what was
// before. What passes never change in place is shared.
func (m *Module) Clone() *Module {
	out := *m
	out.Syms, out.Funcs = slices.Clone(m.Syms), nil
	c := cloner{funcs: map[*Func]*Func{}}
	for _, f := range m.Funcs {
		out.Funcs = append(out.Funcs, c.function(f))
	}
	return &out
}

// cloner copies functions, replacing symbols by sizes.
type cloner struct {
	sizes  map[string]Dim // nil keeps symbols
	funcs  map[*Func]*Func
	values map[*Value]*Value
}

func (c *cloner) dims(ds []Dim) []Dim {
	if ds == nil || c.sizes == nil {
		return slices.Clone(ds)
	}
	out := make([]Dim, len(ds))
	for i, d := range ds {
		out[i] = d.Subst(c.sizes)
	}
	return out
}

func (c *cloner) typ(t Type) Type {
	t.Shape = c.dims(t.Shape)
	return t
}

func (c *cloner) function(f *Func) *Func {
	out := &Func{Name: f.Name, Pos: f.Pos}
	c.funcs[f] = out
	c.values = make(map[*Value]*Value, len(f.Ops))
	for _, p := range f.Params {
		q := &Param{Name: p.Name, Kind: p.Kind, Source: p.Source, Pos: p.Pos}
		q.Value = &Value{Type: c.typ(p.Value.Type), Param: q}
		c.values[p.Value] = q.Value
		out.Params = append(out.Params, q)
	}
	for _, r := range f.Results {
		r.Type = c.typ(r.Type)
		out.Results = append(out.Results, r)
	}
	for _, o := range f.Ops {
		out.Ops = append(out.Ops, c.op(o))
	}
	out.Return = c.args(f.Return)
	return out
}

func (c *cloner) args(vs []*Value) []*Value {
	out := make([]*Value, len(vs))
	for i, v := range vs {
		out[i] = c.values[v]
	}
	return out
}

func (c *cloner) op(o *Op) *Op {
	n := &Op{Def: o.Def, Args: c.args(o.Args), Attrs: make([]Attr, len(o.Attrs)), Loc: o.Loc, Pos: o.Pos}
	for i, a := range o.Attrs {
		if c.sizes != nil {
			a.Dim = a.Dim.Subst(c.sizes)
		}
		a.Dims = c.dims(a.Dims)
		if a.Func != nil {
			a.Func = c.funcs[a.Func]
		}
		n.Attrs[i] = a
	}
	ts := make([]Type, len(o.Results))
	for i, r := range o.Results {
		ts[i] = c.typ(r.Type)
	}
	// A size that becomes 1 would leave a choice that there was not before.
	if c.sizes != nil && o.Name() == "reshape" && o.Attr("shard") == nil && ts[0].Dist.Kind == Sharded {
		n.Attrs = append(n.Attrs, intAttr("shard", int64(ts[0].Dist.Axis)))
	}
	n.setResults(ts)
	for i, r := range o.Results {
		c.values[r] = n.Results[i]
	}
	return n
}

package passes

import (
	"fmt"
	"math"

	"quill/ir"
	"quill/ir/interp"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// foldPass computes what depends on constants alone and makes it a constant where
// all elements are one number: the only constants of the IR are numbers.
//
// Before:
//
//	%0 = const 3 {dtype = f32} : f32[1]
//	%1 = const 4 {dtype = f32} : f32[1]
//	%2 = mul %0, %1 : f32[1]
//	%3 = add %x, %2 : f32[4]
//
// After:
//
//	%0 = const 12 {dtype = f32} : f32[1]
//	%1 = add %x, %0 : f32[4]
//
// The reference interpreter computes, so there is one implementation of what an
// op means. It does not fire on results with different elements, as iota + 1; on
// NaN and infinities, which a constant cannot be; and on values of more elements
// than limit. A constant in another shape, a reshape or broadcast of one, is as
// simple as it gets and stays. It does not run in buckets: outline-segments has
// made weights of all constants by then, and a segment may hold none.
var foldPass = Pass{
	Name:     "fold",
	Summary:  "computes what depends on constants alone",
	Stages:   Family,
	Optional: true,
	Options:  []Option{{Name: "limit", Kind: Int, Default: "1024", Doc: "most elements of a value that is computed"}},
	Run:      fold,
}

func fold(c *Context, m *ir.Module) (changed bool, err error) {
	for _, f := range m.Funcs {
		k := folder{rewriter: newRewriter(c, m, f), known: map[*ir.Value]*interp.Tensor{}, limit: c.Int("limit")}
		for _, o := range f.Ops {
			if k.refused {
				break
			}
			if err := c.Err(); err != nil {
				return changed, err
			}
			k.op(o)
		}
		if k.commit() {
			changed = true
		}
	}
	return changed, nil
}

type folder struct {
	*rewriter
	// known has the values that depend on constants alone.
	known map[*ir.Value]*interp.Tensor
	limit int64
}

// op computes the results of an op, if it can, and makes a constant of them.
func (k *folder) op(o *ir.Op) {
	if !k.computable(o) {
		return
	}
	results, err := k.compute(o)
	if err != nil {
		// An index that is outside, as it seems: it is so at run time too, and
		// not for a pass to report.
		k.ctx.Remark(o.Loc, "%s of constants not computed: %v", o.Name(), err)
		return
	}
	for i, r := range o.Results {
		k.known[r] = results[i]
	}
	switch o.Name() {
	case "const", "reshape", "broadcast":
		return
	}
	if len(results) != 1 {
		return
	}
	n, ok := splatOf(results[0])
	if !ok {
		return
	}
	k.start(o)
	v := k.constant(n, o.Results[0].Type)
	if k.replace(v) {
		k.known[v] = results[0]
	}
}

// computable reports whether all operands are known and the results small.
func (k *folder) computable(o *ir.Op) bool {
	d := o.Def
	if !d.Has(ops.Pure) || d.Has(ops.Collective) || d.Has(ops.StateRead) {
		return false
	}
	for _, a := range o.Args {
		if k.known[a] == nil {
			return false
		}
	}
	for _, r := range o.Results {
		if n, ok := r.Type.Elems().Const(); !ok || n > k.limit || r.Type.Dist.Kind != ir.Replicated {
			return false
		}
	}
	return true
}

// compute interprets a function of the op alone.
func (k *folder) compute(o *ir.Op) ([]*interp.Tensor, error) {
	f := &ir.Func{Name: "f"}
	one := &ir.Op{Def: o.Def, Attrs: o.Attrs, Loc: o.Loc}
	args := map[string]*interp.Tensor{}
	for i, a := range o.Args {
		p := &ir.Param{Name: fmt.Sprint("v", i), Kind: ir.Temp}
		p.Value = &ir.Value{Type: a.Type, Param: p}
		f.Params = append(f.Params, p)
		one.Args = append(one.Args, p.Value)
		args[p.Name] = k.known[a]
	}
	for i, r := range o.Results {
		v := &ir.Value{Type: r.Type, Def: one, Index: i}
		one.Results = append(one.Results, v)
		f.Results = append(f.Results, ir.Result{Name: fmt.Sprint("v", i), Kind: ir.Temp, Type: r.Type})
		f.Return = append(f.Return, v)
	}
	f.Ops = []*ir.Op{one}
	m := &ir.Module{Name: "fold", Level: k.mod.Level, TP: 1, Funcs: []*ir.Func{f}}
	out, err := interp.Run(k.ctx, m, f, nil, []map[string]*interp.Tensor{args}, interp.Options{})
	if err != nil {
		return nil, err
	}
	var results []*interp.Tensor
	for _, r := range f.Results {
		results = append(results, out[0][r.Name])
	}
	return results, nil
}

// splatOf is what all elements of a tensor are, if a constant can be it.
func splatOf(t *interp.Tensor) (n float64, ok bool) {
	if t.DType.IsFloat() {
		for _, f := range t.F {
			if math.Float32bits(f) != math.Float32bits(t.F[0]) {
				return 0, false
			}
		}
		n = float64(t.F[0])
		return n, !math.IsNaN(n) && !math.IsInf(n, 0)
	}
	for _, i := range t.I {
		if i != t.I[0] {
			return 0, false
		}
	}
	n = float64(t.I[0])
	return n, t.DType != dtype.I64 || math.Abs(n) < 1<<53
}

// constant builds a number in the shape of a type.
func (k *folder) constant(n float64, t ir.Type) *ir.Value {
	v := k.Const(n, t.DType)
	if t.Rank() != 1 {
		ones := make([]ir.Dim, t.Rank())
		for i := range ones {
			ones[i] = ir.D(1)
		}
		v = k.Reshape(v, ones)
	}
	if !ir.SameShape(v.Type.Shape, t.Shape) {
		v = k.BroadcastTo(v, t.Dist, t.Shape...)
	}
	return v
}

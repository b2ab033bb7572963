package passes

import (
	"fmt"

	"quill/ir"
)

// foldWeightsPass makes a weight of what depends on one weight and on numbers alone: the
// loader computes it, once, instead of every step.
//
// Before:
//
//	%0 = slice %w {axis = 0, start = 3, stop = 4} : f32[1, 8]
//	%1 = const 1 {dtype = f32} : f32[1]
//	%2 = reshape %1 {shape = [1, 1]} : f32[1, 1]
//	%3 = add %0, %2 : f32[1, 8]
//	%4 = mul %x, %3 : f32[2, 8]
//
// After:
//
//	%0 = mul %x, %w.rows3.plus : f32[2, 8]
//
// Such are rows of a tensor of the checkpoint, its product with a number, and then its sum
// with one. The loader rounds as the ops do, so results keep their bits.
//
// It does not fire on what has more elements than the weight; on 0; on a product of a sum,
// or a second product or sum, which the loader does not know; on integers; where a function
// would return a weight; and on more than most bytes, since the whole weight stays where
// others read it.
var foldWeightsPass = Pass{
	Name:     "fold-weights",
	Summary:  "computes when loading what depends on one weight and on numbers alone",
	Stages:   Family,
	Optional: true,
	Options:  []Option{{Name: "most", Kind: Bytes, Default: "1MiB", Doc: "largest weight to make"}},
	Run:      func(c *Context, m *ir.Module) (bool, error) { return applyPatterns(c, m, loaded) },
}

var loaded = []pattern{
	{"rows of a weight", []string{"slice"}, rowsOfWeight},
	{"weight times a number", []string{"mul"}, weightTimes},
	{"weight plus a number", []string{"add"}, weightPlus},
}

func rowsOfWeight(r *rewriter, o *ir.Op) bool {
	w := stored(o.Args[0])
	start, known := o.Attr("start").Dim.Const()
	stop, too := o.Attr("stop").Dim.Const()
	if w == nil || o.Int("axis") != 0 || !known || !too {
		return false
	}
	src := w.Source
	if len(src.Rows) > 0 {
		start, stop = src.Rows[0]+start, src.Rows[0]+stop
	}
	src.Rows = []int64{start, stop}
	return r.load(w, fmt.Sprint("rows", start), src)
}

func weightTimes(r *rewriter, o *ir.Op) bool {
	w, n := weightAndNumber(o)
	if w == nil || w.Source.Times != 0 || w.Source.Plus != 0 {
		return false
	}
	src := w.Source
	src.Times = n
	return r.load(w, "times", src)
}

func weightPlus(r *rewriter, o *ir.Op) bool {
	w, n := weightAndNumber(o)
	if w == nil || w.Source.Plus != 0 {
		return false
	}
	src := w.Source
	src.Plus = n
	return r.load(w, "plus", src)
}

// stored is the parameter that a value is, if it is a tensor of the checkpoint.
func stored(v *ir.Value) *ir.Param {
	if v.Param == nil || v.Param.Source.Tensor == "" {
		return nil
	}
	return v.Param
}

// weightAndNumber are the operands of an op, if one is a weight and the other a number
// that its source can have.
func weightAndNumber(o *ir.Op) (*ir.Param, float64) {
	for i, a := range o.Args {
		n, ok := splat(o.Args[1-i])
		if w := stored(a); w != nil && ok && n != 0 && a.Type.DType.IsFloat() && a.Type.Equal(o.Results[0].Type) {
			return w, n
		}
	}
	return nil, 0
}

// load lets a weight with another source stand for the results of the op being looked at.
func (r *rewriter) load(w *ir.Param, what string, src ir.Source) bool {
	t := r.root.Results[0].Type
	elems, known := t.Elems().Const()
	if !known || elems*int64(t.DType.Size()) > r.ctx.Int("most") {
		return false
	}
	return r.replace(r.weight(w.Name+"."+what, t, src))
}

// weight is a new weight of the function under a name like the one given, or one that was
// made before with that type and source. Those that nothing reads are gone in the end.
func (r *rewriter) weight(name string, t ir.Type, src ir.Source) *ir.Value {
	if r.params == nil {
		r.params = map[string]*ir.Param{}
		for _, p := range r.fn.Params {
			r.params[p.Name] = p
		}
	}
	key := fmt.Sprint(t, " ", src) // no name: it has spaces
	if p := r.params[key]; p != nil {
		return p.Value
	}
	for r.params[name] != nil {
		name += "_"
	}
	p := &ir.Param{Name: name, Kind: ir.Weight, Source: src}
	p.Value = &ir.Value{Type: t, Param: p}
	r.params[name], r.params[key], r.weights = p, p, append(r.weights, p)
	return p.Value
}

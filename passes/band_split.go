package passes

import (
	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// bandSplitPass splits the keys of attention over a long history: those within
// reach of the relative bias have a mask for each row, all before them one mask for
// all rows, and the statistics of the softmaxes join the two.
//
// Before:
//
//	%0 = const 0 {dtype = f32} : f32[1]
//	%1 = reshape %0 {shape = [1, 1, 1, 1]} : f32[1, 1, 1, 1]
//	%2 = select %token, %k, %1 : f32[1, 1, 9, 8]
//	%3 = sdpa %q, %2, %v, %mask {band = 2, last = 6, scale = 0.125} : f32[1, 2, 3, 8]
//
// After:
//
//	%0 = const 0 {dtype = f32} : f32[1]
//	%1 = reshape %0 {shape = [1, 1, 1, 1]} : f32[1, 1, 1, 1]
//	%2 = slice %token {axis = 2, start = 2, stop = 9} : i8[1, 1, 7, 1]
//	%3 = slice %k {axis = 2, start = 2, stop = 9} : f32[1, 1, 7, 8]
//	%4 = select %2, %3, %1 : f32[1, 1, 7, 8]
//	%5 = slice %v {axis = 2, start = 2, stop = 9} : f32[1, 1, 7, 8]
//	%6 = slice %mask {axis = 3, start = 2, stop = 9} : f32[1, 2, 3, 7]
//	%7, %8, %9 = sdpa_stats %q, %4, %5, %6 {band = 0, last = 4, scale = 0.125} : f32[1, 2, 3, 8], f32[1, 2, 3, 1], f32[1, 2, 3, 1]
//	%10 = slice %token {axis = 2, start = 0, stop = 2} : i8[1, 1, 2, 1]
//	%11 = reshape %10 {shape = [1, 1, 1, 2]} : i8[1, 1, 1, 2]
//	%12 = const 0 {dtype = f32} : f32[1]
//	%13 = reshape %12 {shape = [1, 1, 1, 1]} : f32[1, 1, 1, 1]
//	%14 = const -1e+30 {dtype = f32} : f32[1]
//	%15 = reshape %14 {shape = [1, 1, 1, 1]} : f32[1, 1, 1, 1]
//	%16 = select %11, %13, %15 : f32[1, 1, 1, 2]
//	%17 = slice %k {axis = 2, start = 0, stop = 2} : f32[1, 1, 2, 8]
//	%18 = select %10, %17, %1 : f32[1, 1, 2, 8]
//	%19 = slice %v {axis = 2, start = 0, stop = 2} : f32[1, 1, 2, 8]
//	%20, %21, %22 = sdpa_stats %q, %18, %19, %16 {scale = 0.125} : f32[1, 2, 3, 8], f32[1, 2, 3, 1], f32[1, 2, 3, 1]
//	%23 = max %8, %21 : f32[1, 2, 3, 1]
//	%24 = sub %8, %23 : f32[1, 2, 3, 1]
//	%25 = exp %24 : f32[1, 2, 3, 1]
//	%26 = div %25, %9 : f32[1, 2, 3, 1]
//	%27 = sub %21, %23 : f32[1, 2, 3, 1]
//	%28 = exp %27 : f32[1, 2, 3, 1]
//	%29 = div %28, %22 : f32[1, 2, 3, 1]
//	%30 = mul %7, %26 : f32[1, 2, 3, 8]
//	%31 = mul %20, %29 : f32[1, 2, 3, 8]
//	%32 = add %30, %31 : f32[1, 2, 3, 8]
//	%33 = add %26, %29 : f32[1, 2, 3, 1]
//	%34 = div %32, %33 : f32[1, 2, 3, 8]
//
// The op says where the band begins: extent − 1 + block_size − 1 keys before the
// chunk. What lies before it has no bias, and every row sees it where it holds a
// token. A part of which all keys are hidden has a maximum that is so low that its
// weight is 0.
//
// It does not fire where the op does not say so, or where the band may begin with
// the first key; where it is not known which keys hold a token; and where the
// deployment wants plain or masked attention. Statistics as results of the node are
// unproven on cards; with far: tiled those of the far keys are spelled out.
var bandSplitPass = Pass{
	Name:     "band-split",
	Summary:  "splits keys into a band with a mask for each row and the rest with one mask for all",
	Stages:   Family,
	Optional: true,
	Inexact:  true,
	After:    []Order{{"fuse-rel-bias", "it splits the op that pass makes"}},
	Run:      bandSplit,
}

func bandSplit(c *Context, m *ir.Module) (bool, error) {
	if m.Level == ops.Plan {
		return false, nil
	}
	return applyPatterns(c, m, []pattern{{"attention over history", []string{"sdpa"}, splitBand}})
}

func splitBand(r *rewriter, o *ir.Op) bool {
	refuse := func(format string, args ...any) bool {
		r.ctx.Remark(o.Loc, "not split: "+format, args...)
		return false
	}
	if a := r.ctx.Params.Attention; a == Plain || a == Masked {
		return refuse("the deployment wants %s attention", a)
	}
	band := o.Attr("band")
	switch {
	case band == nil || o.Results[0].Type.Rank() != 4:
		return refuse("no band of keys is known to have all of the bias")
	case !r.mod.AtLeast(band.Dim, 1):
		return refuse("all keys before the chunk may be within reach of the bias")
	case tokens(o.Args[1]) == nil:
		return refuse("nothing says which keys hold a token")
	}
	y := r.joinParts(o, band.Dim)
	if err := r.Err(); err != nil {
		return refuse("%v", err)
	}
	return r.replace(y)
}

// joinParts builds attention of two parts of the keys: those before far, and the
// band.
func (r *rewriter) joinParts(o *ir.Op, far ir.Dim) *ir.Value {
	n := newNarrower(r)
	q, k, v, mask, scale := o.Args[0], o.Args[1], o.Args[2], o.Args[3], o.Attr("scale").Float
	total, t := k.Type.Shape[2], o.Results[0].Type.DType
	band, rest := cut{2, far, total}, cut{2, ir.D(0), far}
	near := r.attend(q, n.part(k, band), n.part(v, band), n.part(mask, cut{3, far, total}), scale)
	for _, a := range o.Attrs {
		if a.Name == "last" || a.Name == "band" {
			a.Dim = a.Dim.Sub(far)
			near.linv.Def.Attrs = append(near.linv.Def.Attrs, a)
		}
	}
	one := ir.D(1)
	token := r.Reshape(n.part(tokens(k), rest), []ir.Dim{one, one, one, far})
	hide := r.Select(token, r.number(0, t, 4), r.number(hiddenMask, t, 4))
	attend := r.attend
	if r.ctx.Params.Far == FarTiled {
		attend = r.spelled
	}
	y := r.join(near, attend(q, n.part(k, rest), n.part(v, rest), hide, scale))
	if t != dtype.F32 {
		y = r.Cast(y, t)
	}
	return y
}

// attended is attention of a part of the keys with its statistics, in f32.
type attended struct{ o, m, linv *ir.Value }

func (r *rewriter) attend(q, k, v, mask *ir.Value, scale float64) attended {
	o, m, linv := r.SDPAStats(q, k, v, mask, scale)
	return attended{r.wide(o), r.wide(m), linv}
}

// spelled is attend without the node that returns statistics.
func (r *rewriter) spelled(q, k, v, mask *ir.Value, scale float64) attended {
	s := r.Matmul(q, k, true, dtype.F32)
	if scale != 1 {
		s = r.Mul(s, r.number(scale, dtype.F32, 4))
	}
	s = r.Add(s, r.wide(mask))
	m := r.ReduceMax(s, 3)
	e := r.Exp(r.Sub(s, m))
	linv := r.Div(r.number(1, dtype.F32, 4), r.ReduceSum(e, 3))
	p := r.Mul(e, linv)
	if t := q.Type.DType; t != dtype.F32 {
		p = r.Cast(p, t)
	}
	return attended{r.wide(r.Matmul(p, v, false, q.Type.DType)), m, linv}
}

// join is attention of the keys of two parts: the weight of a part is the sum of
// its exponentials, relative to the larger maximum.
func (r *rewriter) join(a, b attended) *ir.Value {
	top := r.Max(a.m, b.m)
	weight := func(p attended) *ir.Value { return r.Div(r.Exp(r.Sub(p.m, top)), p.linv) }
	wa, wb := weight(a), weight(b)
	return r.Div(r.Add(r.Mul(a.o, wa), r.Mul(b.o, wb)), r.Add(wa, wb))
}

func (r *rewriter) wide(v *ir.Value) *ir.Value {
	if v.Type.DType == dtype.F32 {
		return v
	}
	return r.Cast(v, dtype.F32)
}

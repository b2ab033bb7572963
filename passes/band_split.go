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
// unproven on cards; with far: tiled those of the far keys are spelled out. With far:
// exact no mask hides far keys: whole blocks before the band are read in pieces that
// are history or padding as a whole (far_pieces.go). That does not fire where keys
// and values are made of the list of blocks in another way than capture does.
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
	s := bandSplitter{lists: map[*ir.Func]*blockList{}, pieces: map[string]*farPieces{}}
	for _, f := range m.Funcs {
		s.lists[f] = listOf(f)
	}
	return applyPatterns(c, m, []pattern{{"attention over history", []string{"sdpa"}, s.split}})
}

// bandSplitter has what attention reads, and the pieces of far blocks by function
// and number.
type bandSplitter struct {
	lists  map[*ir.Func]*blockList
	pieces map[string]*farPieces
}

func (s *bandSplitter) split(r *rewriter, o *ir.Op) bool {
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
	if r.ctx.Params.Far == FarExact {
		done, why := s.exact(r, o, band.Dim)
		if why != "" {
			return refuse("%s", why)
		}
		return done
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
	q, k, v, scale := o.Args[0], o.Args[1], o.Args[2], o.Attr("scale").Float
	t := o.Results[0].Type.DType
	band, rest := cut{2, far, k.Type.Shape[2]}, cut{2, ir.D(0), far}
	near := n.band(o, far, n.part(k, band), n.part(v, band))
	one := ir.D(1)
	token := r.Reshape(n.part(tokens(k), rest), []ir.Dim{one, one, one, far})
	hide := r.Select(token, r.number(0, t, 4), r.number(hiddenMask, t, 4))
	attend := r.attend
	if r.ctx.Params.Far == FarTiled {
		attend = r.spelled
	}
	return r.join(t, near, attend(q, n.part(k, rest), n.part(v, rest), hide, scale))
}

// band is attention of the keys from far on, k and v, with their part of the mask.
func (n *narrower) band(o *ir.Op, far ir.Dim, k, v *ir.Value) attended {
	mask := n.part(o.Args[3], cut{3, far, o.Args[1].Type.Shape[2]})
	near := n.attend(o.Args[0], k, v, mask, o.Attr("scale").Float)
	for _, a := range o.Attrs {
		if a.Name == "last" || a.Name == "band" {
			a.Dim = a.Dim.Sub(far)
			near.linv.Def.Attrs = append(near.linv.Def.Attrs, a)
		}
	}
	return near
}

// exact replaces attention by that of the blocks before all bands, in pieces, and of
// all other keys, if it can and may; it says why it cannot.
func (s *bandSplitter) exact(r *rewriter, o *ir.Op, band ir.Dim) (done bool, why string) {
	q, k, v, scale := o.Args[0], o.Args[1].Def, o.Args[2], o.Attr("scale").Float
	list := s.lists[r.fn]
	if list == nil {
		return false, "the list of blocks that attention reads is not known"
	}
	keys, values := madeOfBlocks(k.Args[1], list), madeOfBlocks(v, list)
	reach, ok := list.slots().Sub(band).Const()
	switch {
	case keys == nil || values == nil:
		return false, "keys or values are not the blocks of the list and the chunk's rows behind them"
	case !ok:
		return false, "the band begins at " + band.String() + ", which says nothing of the end of the history"
	case !heldByPosition(r.fn, list, k.Args[0]):
		return false, "slots of the history hold a token by more than their position"
	}
	// One block is in the band even if the bias reaches none, since a list is not empty.
	count := ir.SymDim(list.size).Sub(ir.D(max(1, (reach+list.block-1)/list.block)))
	if !r.mod.AtLeast(count, 1) {
		return false, "there may be no whole block before the band"
	}
	// Lists come first in the function, reads where the history was read: later
	// there may be another version of the cache.
	first := r.aside()
	key := r.fn.Name + " " + count.String()
	pieces := s.pieces[key]
	if pieces == nil {
		syms := len(r.mod.Syms)
		pieces = newFarPieces(first.Builder, r.mod, list, count)
		defer func() {
			if !done {
				r.mod.Syms = r.mod.Syms[:syms]
			}
		}()
	}
	kAt, vAt := r.aside(), r.aside()
	n := newNarrower(r)
	far := count.Mul(ir.D(list.block))
	all := k.Args[1].Type.Shape[2]
	token, zero := n.part(k.Args[0], cut{2, far, all}), k.Args[2]
	whole := func(m *madeOf, at aside) *ir.Value {
		return m.moved(r.Builder, r.Concat(0, m.of(at.Builder, pieces.near), m.join.Args[1]))
	}
	parts := []attended{n.band(o, far, r.Select(token, whole(keys, kAt), zero), whole(values, vAt))}
	for _, p := range pieces.parts {
		part := r.attend(q, keys.moved(r.Builder, keys.of(kAt.Builder, p.blocks)), values.moved(r.Builder, values.of(vAt.Builder, p.blocks)), nil, scale)
		part.m = r.Add(part.m, p.hide)
		parts = append(parts, part)
	}
	y := r.join(o.Results[0].Type.DType, parts...)
	for _, err := range []error{first.Err(), kAt.Err(), vAt.Err(), r.Err()} {
		if err != nil {
			return false, err.Error()
		}
	}
	if !r.replace(y) {
		return false, ""
	}
	r.put(first, r.fn.Ops[0])
	r.put(kAt, keys.read)
	r.put(vAt, values.read)
	s.pieces[key] = pieces
	return true, ""
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
	t := q.Type.DType
	return attended{r.wide(r.Matmul(r.CastTo(p, t), v, false, t)), m, linv}
}

// join is attention of the keys of all parts, as a type: the weight of a part is
// the sum of its exponentials, relative to the largest maximum.
func (r *rewriter) join(t dtype.Type, parts ...attended) *ir.Value {
	top := parts[0].m
	for _, p := range parts[1:] {
		top = r.Max(top, p.m)
	}
	weights := make([]*ir.Value, len(parts))
	for i, p := range parts {
		weights[i] = r.Div(r.Exp(r.Sub(p.m, top)), p.linv)
	}
	y, sum := r.Mul(parts[0].o, weights[0]), weights[0]
	for i, p := range parts[1:] {
		y, sum = r.Add(y, r.Mul(p.o, weights[i+1])), r.Add(sum, weights[i+1])
	}
	return r.CastTo(r.Div(y, sum), t)
}

func (r *rewriter) wide(v *ir.Value) *ir.Value { return r.CastTo(v, dtype.F32) }

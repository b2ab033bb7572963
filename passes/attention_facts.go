package passes

import "quill/ir"

// facts are what passes behind fuse-rel-bias rely on to leave out keys, as
// attributes of the op. They come from how the host lays a chunk out, and hold of
// its real rows: the chunk's own key of row i is the past + i-th, and history ends
// right before the chunk, but for up to block_size − 1 slots of its last block
// that are empty. So the key at distance d of row i is the one at past + i − d or
// at most block_size − 1 before it.
//
// There are none if distances are computed in another way, if rows that are
// padding have an influence, or if the predicate says more than that.
func (r *rewriter) facts(c *chain, result *ir.Value) []ir.Attr {
	if !r.onlyRealRows(result) {
		r.ctx.Remark(r.root.Loc, "no keys will be left out: rows that are padding may count")
		return nil
	}
	s, why := sight(c.visible, c.k.Type.Shape[2])
	if why != "" {
		r.ctx.Remark(r.root.Loc, "no keys will be left out: %s", why)
		return nil
	}
	past, slack := ir.D(0), ir.D(0)
	if bare(s.dist.Args[0]) != bare(s.dist.Args[1]) {
		var ok bool
		switch past, ok = pastOf(s.dist); {
		case !ok:
			r.ctx.Remark(r.root.Loc, "no keys will be left out: distances are not those of a chunk behind its history")
			return nil
		case r.ctx.Params.BlockSize == 0:
			r.ctx.Remark(r.root.Loc, "no keys will be left out: the size of a block is not known")
			return nil
		}
		slack = ir.D(int64(r.ctx.Params.BlockSize) - 1)
	}
	last := ir.Attr{Name: "last", Dim: past}
	if s.window > 0 {
		return []ir.Attr{{Name: "first", Dim: past.Sub(ir.D(s.window - 1)).Sub(slack)}, last}
	}
	if extent, ok := extentOf(c.bias, s.dist); ok {
		return []ir.Attr{last, {Name: "band", Dim: past.Sub(ir.D(extent - 1)).Sub(slack)}}
	}
	return []ir.Attr{last}
}

// sighted says which distances a row sees: from 0, and below window if there is
// one.
type sighted struct {
	dist   *ir.Op
	window int64
}

func sight(visible *ir.Value, keys ir.Dim) (s sighted, why string) {
	below := func(o *ir.Op) *ir.Op {
		d := def(bare(o.Args[0]), "sub")
		if n, ok := splat(o.Args[1]); ok && n >= 1 && s.window == 0 {
			s.window = int64(n)
			return d
		}
		return nil
	}
	from := false
	for _, p := range conjuncts(visible) {
		if ofKeys(p, keys) {
			continue
		}
		var d *ir.Op
		if le := def(p, "le"); le != nil {
			if zero, ok := splat(le.Args[0]); ok && zero == 0 {
				d, from = def(bare(le.Args[1]), "sub"), true
			}
		} else if lt := def(p, "lt"); lt != nil {
			d = below(lt)
		}
		if d == nil || s.dist != nil && s.dist != d {
			return s, "what a row sees is not told by distances alone"
		}
		s.dist = d
	}
	if !from {
		return s, "a row may see later keys"
	}
	return s, ""
}

// bare is a value without the reshapes around it.
func bare(v *ir.Value) *ir.Value {
	for def(v, "reshape") != nil {
		v = v.Def.Args[0]
	}
	return v
}

// pastOf is the number of slots of history, given the distances of keys: rows
// have the chunk's positions, keys those of consecutive slots and then the
// chunk's.
func pastOf(dist *ir.Op) (past ir.Dim, ok bool) {
	rows, keys := bare(dist.Args[0]), def(bare(dist.Args[1]), "concat")
	if keys == nil || len(keys.Args) != 2 || bare(keys.Args[1]) != rows || rows.Param == nil || rows.Param.Kind != ir.Host {
		return past, false
	}
	slots := def(bare(keys.Args[0]), "add")
	if slots == nil {
		return past, false
	}
	for i, x := range slots.Args {
		start := bare(slots.Args[1-i])
		if def(x, "iota") != nil && start.Param != nil && start.Param.Kind == ir.Host {
			return x.Type.Shape[0], true
		}
	}
	return past, false
}

// extentOf is the distance from which on a bias is 0.
func extentOf(bias *ir.Value, dist *ir.Op) (extent int64, ok bool) {
	for def(bias, "reshape") != nil || def(bias, "transpose") != nil || def(bias, "cast") != nil {
		bias = bias.Def.Args[0]
	}
	sel := def(bias, "select")
	if sel == nil {
		return 0, false
	}
	if zero, ok := splat(sel.Args[2]); !ok || zero != 0 {
		return 0, false
	}
	inside := def(bare(sel.Args[0]), "lt")
	if inside == nil || bare(inside.Args[0]) != dist.Results[0] {
		return 0, false
	}
	n, ok := splat(inside.Args[1])
	return int64(n), ok && n >= 1 && n == float64(int64(n))
}

// onlyRealRows reports whether rows behind the real ones have no influence: a
// selection replaces them by zeros.
func (r *rewriter) onlyRealRows(v *ir.Value) bool {
	uses := r.uses.Of(v)
	if len(uses) != 1 || uses[0].Op == nil || uses[0].Op.Name() != "select" || uses[0].Index != 1 {
		return false
	}
	real, other := uses[0].Op.Args[0], uses[0].Op.Args[2]
	zero, ok := splat(other)
	if !ok || zero != 0 || real.Type.Rank() != 4 || !real.Type.Shape[2].Equal(real.Type.Elems()) {
		return false
	}
	lt := def(bare(real), "lt")
	if lt == nil || def(lt.Args[0], "iota") == nil {
		return false
	}
	count := bare(lt.Args[1])
	return count.Param != nil && count.Param.Kind == ir.Host
}

// tokens is which keys hold a token, i8 with one element a key, where keys that do
// not are zeros; nil where k is not made so.
func tokens(k *ir.Value) *ir.Value {
	sel := def(k, "select")
	if sel == nil || !byKey(sel.Args[0], k) {
		return nil
	}
	if zero, ok := splat(sel.Args[2]); !ok || zero != 0 {
		return nil
	}
	return sel.Args[0]
}

// byKey reports whether a predicate over keys k, [heads, 1, Sk, D], depends on the
// key alone.
func byKey(cond, k *ir.Value) bool {
	t := cond.Type
	return t.Shape[2].Equal(k.Type.Shape[2]) && t.Elems().Equal(t.Shape[2]) && t.Dist.Kind == ir.Replicated
}

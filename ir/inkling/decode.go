package inkling

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/recipes/dtype"
)

// decode is one token each of S sequences with N block references in total:
//
//	tokens, positions, slots [S]  pad: 0, 0, a slot of the trash block
//	conv_read, conv_write [S]     block of position − 1 (zero block at 0) and of position; pad: zero, trash
//	blocks [N]                    referenced blocks, those of a sequence in one run; pad: zero block
//	owners [N]                    row of the sequence; pad 0
//	ref_start [N]                 position of the block's first slot; pad beyond any position
//
// Layers with a window read as many blocks of each sequence, W = min(N, the most blocks
// that a window lies in), so that the keys of a row are one axis:
//
//	window_blocks [S·W]           by row the newest W blocks of its sequence, in order; where there
//	                              are fewer, and in pad rows: zero block, behind those there are
//	window_start [S·W]            position of the block's first slot; pad beyond any position
func (g *graph) decode(fam Family) {
	o := g.opt
	near, most := g.cfg.NearRefs(o.BlockSize), ceilDiv(o.MaxModelLen, o.BlockSize)
	refs := &ir.Sym{Name: "n", Min: 1, Max: int64(o.MaxNumSeqs * min(near, most))}
	if fam == DecodeMany {
		refs.Min, refs.Max = int64(near+1), int64(o.MaxNumSeqs*most)
	}
	g.mod.Syms = []*ir.Sym{{Name: "s", Min: 1, Max: int64(o.MaxNumSeqs)}, refs}
	s, n := ir.SymDim("s"), ir.SymDim("n")
	g.T = s
	p := &decodePhase{graph: g, refs: n}
	g.phase = p
	g.tokens, g.positions, g.slots = g.input("tokens", s), g.input("positions", s), g.input("slots", s)
	p.convRead, p.convWrite = g.input("conv_read", s), g.input("conv_write", s)
	p.blocks, p.owners, p.refStart = g.input("blocks", n), g.input("owners", n), g.input("ref_start", n)
	if slices.Contains(g.cfg.IsLocal, true) {
		p.window = p.windowRefs(refs)
		p.windowBlocks, p.windowStart = g.input("window_blocks", s.Mul(p.window)), g.input("window_start", s.Mul(p.window))
	}
	g.body()
}

// windowRefs is how many blocks of a sequence layers with a window read.
func (p *decodePhase) windowRefs(refs *ir.Sym) ir.Dim {
	span := int64(p.cfg.WindowRefs(p.opt.BlockSize))
	switch {
	case refs.Min >= span:
		return ir.D(span)
	case refs.Max <= span:
		return p.refs
	}
	p.mod.Syms = append(p.mod.Syms, &ir.Sym{Name: "w", Def: &ir.SymDef{Fn: "min", X: p.refs, Y: ir.D(span)}})
	return ir.SymDim("w")
}

type decodePhase struct {
	*graph
	refs   ir.Dim // block references
	window ir.Dim // those of a sequence that layers with a window read

	convRead, convWrite, blocks, owners, refStart *ir.Value
	windowBlocks, windowStart                     *ir.Value // nil without such layers
}

// conv shifts each sequence's three rows by its new one.
func (p *decodePhase) conv(name string, x, taps *ir.Value) *ir.Value {
	channels := x.Type.Shape[1]
	st := p.convState(name, x)
	window := p.Concat(1, p.ConvRead(st, p.convRead), p.ReshapeShard(x, 2, p.T, ir.D(1), channels))
	y := p.ReshapeShard(p.ShortConv(window, taps), 1, p.T, channels)
	p.setState(name, p.ConvWrite(st, p.convWrite, p.Slice(window, 1, ir.D(1), ir.D(convTaps))))
	return y
}

func (p *decodePhase) attention(l int, q, k, v, rel *ir.Value) *ir.Value {
	p.at(l, "attn.cache")
	keys, values := p.write(l, "k", k), p.write(l, "v", v)
	if p.cfg.IsLocal[l] {
		return p.windowed(l, q, keys, values, rel)
	}
	return p.combined(l, q, keys, values, rel)
}

// write writes the new rows to a cache and returns it.
func (p *decodePhase) write(l int, which string, x *ir.Value) *ir.Value {
	next := p.KVWrite(p.cache(l, which, x), p.slots, x)
	p.setState(fmt.Sprintf("kv.%d.%s", l, which), next)
	return next
}

// windowed is attention to the newest blocks of each sequence.
func (p *decodePhase) windowed(l int, q, k, v, rel *ir.Value) *ir.Value {
	a, dt := p.cfg.Attention(l), p.dt()
	one, b, s := ir.D(1), ir.D(int64(p.opt.BlockSize)), p.T
	total := p.window.Mul(b)
	heads, hd, kvHeads := q.Type.Shape[1], q.Type.Shape[2], k.Type.Shape[1]
	group, _ := heads.Div(kvHeads)
	read := func(cache *ir.Value) *ir.Value { // [S, kvHeads, W·B, D]
		x := p.KVRead(cache, p.windowBlocks, int64(p.opt.BlockSize))
		return p.Transpose(p.ReshapeShard(x, 2, s, total, kvHeads, hd), []int64{0, 2, 1, 3})
	}
	keys, values := read(k), read(v)

	p.at(l, "attn.distance")
	slots := p.Add(p.Reshape(p.windowStart, []ir.Dim{s.Mul(p.window), one}), p.Reshape(p.Iota(b), []ir.Dim{one, b}))
	dist := p.Sub(p.Reshape(p.positions, []ir.Dim{s, one}), p.Reshape(slots, []ir.Dim{s, total}))
	visible := p.visible(l, dist)
	p.at(l, "attn.bias")
	bias := p.bias(l, rel, p.Reshape(dist, []ir.Dim{s, one, total}))
	bias = p.ReshapeShard(bias, 1, s, kvHeads, group, total)

	p.at(l, "attn.scores")
	scores := p.Matmul(p.ReshapeShard(q, 1, s, kvHeads, group, hd), keys, true, dtype.F32)
	scores = p.Add(p.Mul(scores, p.scalar(1/float64(a.HeadDim), dtype.F32, 4)), bias)
	scores = p.Select(p.Reshape(visible, []ir.Dim{s, one, one, total}), scores, p.scalar(hidden, dtype.F32, 4))
	p.at(l, "attn.softmax")
	probs := p.cast(p.Softmax(scores), dt)
	p.at(l, "attn.values")
	return p.ReshapeShard(p.Matmul(probs, values, false, dt), 1, s, heads.Mul(hd))
}

// combined takes the softmax of each block by itself, and combines the blocks
// of a sequence by the maxima of their scores: with m_r the maximum of block r
// and m that of all blocks,
//
//	out = Σ_r exp(m_r − m) · parts_r / Σ_r exp(m_r − m) · sums_r
//	parts_r = Σ_k exp(s_k − m_r) · v_k    sums_r = Σ_k exp(s_k − m_r)
func (p *decodePhase) combined(l int, q, k, v, rel *ir.Value) *ir.Value {
	a, dt := p.cfg.Attention(l), p.dt()
	one, b := ir.D(1), ir.D(int64(p.opt.BlockSize))
	heads, hd := q.Type.Shape[1], q.Type.Shape[2]
	kvHeads := k.Type.Shape[1]
	group, _ := heads.Div(kvHeads)
	n, s := p.refs, p.T
	read := func(cache *ir.Value) *ir.Value { // [N, kvHeads, B, D]
		return p.Transpose(p.KVRead(cache, p.blocks, int64(p.opt.BlockSize)), []int64{0, 2, 1, 3})
	}
	keys, values := read(k), read(v)

	p.at(l, "attn.distance")
	at := p.Add(p.Reshape(p.refStart, []ir.Dim{n, one}), p.Reshape(p.Iota(b), []ir.Dim{one, b}))
	dist := p.Sub(p.Reshape(p.Gather(p.positions, p.owners, 0), []ir.Dim{n, one}), at)
	visible := p.visible(l, dist)
	p.at(l, "attn.bias")
	bias := p.bias(l, p.Gather(rel, p.owners, 0), p.Reshape(dist, []ir.Dim{n, one, b}))
	bias = p.ReshapeShard(bias, 1, n, kvHeads, group, b)

	p.at(l, "attn.scores")
	qn := p.ReshapeShard(p.Gather(q, p.owners, 0), 1, n, kvHeads, group, hd)
	scores := p.Matmul(qn, keys, true, dtype.F32)
	scores = p.Add(p.Mul(scores, p.scalar(1/float64(a.HeadDim), dtype.F32, 4)), bias)
	scores = p.Select(p.Reshape(visible, []ir.Dim{n, one, one, b}), scores, p.scalar(hidden, dtype.F32, 4))

	p.at(l, "attn.softmax")
	// What is hidden lies below the floor, so a block of which nothing is visible
	// has no probability but 0, and no part in what follows.
	top := p.Max(p.ReduceMax(scores, 3), p.scalar(floor, dtype.F32, 4))
	probs := p.Exp(p.Sub(scores, top))
	sums := p.ReshapeShard(p.ReduceSum(probs, 3), 1, n, heads, one)
	p.at(l, "attn.values")
	parts := p.ReshapeShard(p.Matmul(p.cast(probs, dt), values, false, dtype.F32), 1, n, heads, hd)

	p.at(l, "attn.combine")
	// Pad rows may be NaN: a reference picks its own sequence's row, padding that
	// of row 0, which is real.
	owned := p.Eq(p.Reshape(p.owners, []ir.Dim{n, one, one}), p.Reshape(p.Iota(s), []ir.Dim{one, s, one}))
	top = p.ReshapeShard(top, 2, n, one, heads)
	highest := p.ReduceMax(p.Select(owned, top, p.scalar(hidden, dtype.F32, 3)), 0)
	highest = p.Gather(p.ReshapeShard(highest, 1, s, heads), p.owners, 0)
	share := p.Exp(p.Sub(p.ReshapeShard(top, 1, n, heads), highest))
	share = p.ReshapeShard(share, 1, n, heads, one)
	parts = p.ReshapeShard(p.Mul(parts, share), 1, n, heads.Mul(hd))
	sums = p.ReshapeShard(p.Mul(sums, share), 1, n, heads)
	mine := p.Eq(p.Reshape(p.Iota(s), []ir.Dim{s, one}), p.Reshape(p.owners, []ir.Dim{one, n}))
	pick := p.Select(mine, p.scalar(1, dtype.F32, 2), p.scalar(0, dtype.F32, 2))
	num := p.ReshapeShard(p.Matmul(pick, parts, false, dtype.F32), 1, s, heads, hd)
	den := p.ReshapeShard(p.Matmul(pick, sums, false, dtype.F32), 1, s, heads, one)
	// A real row's sum is at least 1, its largest term; a pad row's is 0.
	out := p.cast(p.Div(num, p.Max(den, p.scalar(1, dtype.F32, 3))), dt)
	return p.ReshapeShard(out, 1, s, heads.Mul(hd))
}

package inkling

import (
	"fmt"

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
// The pass local-window lets local layers read a shorter list, with M = min(N, S · the
// most blocks that a window lies in), which the host makes if a plan names it:
//
//	window_blocks, window_owners, window_start [M]
//	                              the same, of those blocks that hold a token in the window of
//	                              their sequence's new one
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
	g.body()
}

type decodePhase struct {
	*graph
	refs ir.Dim

	convRead, convWrite, blocks, owners, refStart *ir.Value
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

// attention takes the softmax of each block by itself, and combines the blocks
// of a sequence by the maxima of their scores: with m_r the maximum of block r
// and m that of all blocks,
//
//	out = Σ_r exp(m_r − m) · parts_r / Σ_r exp(m_r − m) · sums_r
//	parts_r = Σ_k exp(s_k − m_r) · v_k    sums_r = Σ_k exp(s_k − m_r)
func (p *decodePhase) attention(l int, q, k, v, rel *ir.Value) *ir.Value {
	a := p.cfg.Attention(l)
	dt := p.dt()
	one, b := ir.D(1), ir.D(int64(p.opt.BlockSize))
	heads, hd := q.Type.Shape[1], q.Type.Shape[2]
	kvHeads := k.Type.Shape[1]
	group, _ := heads.Div(kvHeads)
	n, s := p.refs, p.T

	p.at(l, "attn.cache")
	keys, values := p.keys(l, "k", k), p.keys(l, "v", v)

	p.at(l, "attn.distance")
	at := p.Add(p.Reshape(p.refStart, []ir.Dim{n, one}), p.Reshape(p.Iota(b), []ir.Dim{one, b}))
	dist := p.Sub(p.Reshape(p.Gather(p.positions, p.owners, 0), []ir.Dim{n, one}), at)
	visible := p.visible(l, dist)
	p.at(l, "attn.bias")
	bias := p.bias(p.Gather(rel, p.owners, 0), p.Reshape(dist, []ir.Dim{n, one, b}), a.Extent)
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

// keys writes the new rows and returns the referenced blocks as
// [N, kvHeads, B, D].
func (p *decodePhase) keys(l int, which string, x *ir.Value) *ir.Value {
	next := p.KVWrite(p.cache(l, which, x), p.slots, x)
	p.setState(fmt.Sprintf("kv.%d.%s", l, which), next)
	return p.Transpose(p.KVRead(next, p.blocks, int64(p.opt.BlockSize)), []int64{0, 2, 1, 3})
}

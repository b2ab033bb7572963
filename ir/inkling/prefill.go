package inkling

import (
	"fmt"

	"quill/ir"
	"quill/recipes/dtype"
)

// prefill is a chunk of Q tokens of one sequence after C blocks of history:
//
//	tokens, positions, slots [Q]  pad: 0, 0, a slot of the trash block
//	q_len [1]                     real tokens
//	conv_read [1]                 block of the token before the chunk (zero block at the start)
//	conv_rows, conv_take [W]      per touched block its row, and 1 + the chunk index of its newest
//	                              token; pad: trash block, 0
//	ctx_blocks [C]                history right-aligned, the zero block before it (only with history)
//	ctx_len, ctx_start [1]        tokens of history; position of the first listed slot
//
// The pass local-window lets local layers read a shorter list, with K = min(C, the most
// blocks that a window lies in without its last token), which the host makes if a plan
// names it:
//
//	window_blocks [K]             the last K of ctx_blocks
//	window_start [1]              position of the first slot of those
func (g *graph) prefill(fam Family) {
	o := g.opt
	g.mod.Syms = []*ir.Sym{{Name: "q", Min: 1, Max: int64(o.MaxBatchedTokens)}}
	q := ir.SymDim("q")
	g.T = q
	// A chunk of q tokens touches at most floor((q + B − 2)/B) + 1 blocks.
	g.mod.Syms = append(g.mod.Syms, &ir.Sym{Name: "w", Def: &ir.SymDef{Fn: "floor", X: q.Add(d(o.BlockSize - 2)), Y: d(o.BlockSize)}})
	p := &prefillPhase{graph: g, touched: ir.SymDim("w").Add(ir.D(1))}
	g.phase = p
	g.tokens, g.positions, g.slots = g.input("tokens", q), g.input("positions", q), g.input("slots", q)
	p.qLen = g.input("q_len", ir.D(1))
	p.convRead = g.input("conv_read", ir.D(1))
	p.convRows, p.convTake = g.input("conv_rows", p.touched), g.input("conv_take", p.touched)
	if fam != Prefill {
		near, most := g.cfg.NearBlocks(o.BlockSize), ceilDiv(o.MaxModelLen, o.BlockSize)
		sym := &ir.Sym{Name: "c", Min: 1, Max: int64(min(near, most))}
		if fam == PrefillFar {
			sym.Min, sym.Max = int64(near+1), int64(most)
		}
		g.mod.Syms = append(g.mod.Syms, sym)
		p.ctx = ir.SymDim("c")
		p.ctxBlocks = g.input("ctx_blocks", p.ctx)
		p.ctxLen, p.ctxStart = g.input("ctx_len", ir.D(1)), g.input("ctx_start", ir.D(1))
	}
	g.body()
}

type prefillPhase struct {
	*graph
	ctx     ir.Dim // history blocks, 0 without history
	touched ir.Dim // blocks a chunk can touch

	qLen, convRead, convRows, convTake *ir.Value
	ctxBlocks, ctxLen, ctxStart        *ir.Value // nil without history
}

func (p *prefillPhase) hasHistory() bool { return p.ctxBlocks != nil }

// conv joins the three history rows and the chunk, and keeps the newest three
// rows as of each touched block's newest token.
func (p *prefillPhase) conv(name string, x, taps *ir.Value) *ir.Value {
	channels := x.Type.Shape[1]
	st := p.convState(name, x)
	history := p.Reshape(p.ConvRead(st, p.convRead), []ir.Dim{ir.D(convTaps - 1), channels})
	window := p.Concat(0, history, x)
	y := p.ShortConv(window, taps)
	// Token t of the chunk is row t+3 of the window; its newest three rows
	// start at t+1, which is what conv_take holds.
	take := p.Add(p.Reshape(p.convTake, []ir.Dim{p.touched, ir.D(1)}), p.Reshape(p.Iota(ir.D(convTaps-1)), []ir.Dim{ir.D(1), ir.D(convTaps - 1)}))
	p.setState(name, p.ConvWrite(st, p.convRows, p.Gather(window, take, 0)))
	return y
}

// convState is the state of a convolution over x [T, C].
func (g *graph) convState(name string, x *ir.Value) *ir.Value {
	n, _ := x.Type.Shape[1].Const()
	dist := x.Type.Dist
	return g.state(name, 2, max(dist.Ways, 1), g.opt.Blocks+2, convTaps-1, int(n))
}

// cache is a key or value cache of a layer: [slots, heads, D].
func (g *graph) cache(l int, which string, x *ir.Value) *ir.Value {
	heads, _ := x.Type.Shape[1].Const()
	hd, _ := x.Type.Shape[2].Const()
	return g.state(fmt.Sprintf("kv.%d.%s", l, which), 1, max(x.Type.Dist.Ways, 1), (g.opt.Blocks+2)*g.opt.BlockSize, int(heads), int(hd))
}

// rowValid reports which rows of the chunk are real, i8 [Q].
func (p *prefillPhase) rowValid() *ir.Value { return p.Lt(p.Iota(p.T), p.qLen) }

func (p *prefillPhase) attention(l int, q, k, v, rel *ir.Value) *ir.Value {
	a := p.cfg.Attention(l)
	dt := p.dt()
	one := ir.D(1)
	heads, hd := q.Type.Shape[1], q.Type.Shape[2]
	kvHeads := k.Type.Shape[1]
	group, _ := heads.Div(kvHeads)

	p.at(l, "attn.pad")
	// Pad rows may hold anything, even NaN, which a zero probability would not
	// stop.
	valid := p.Reshape(p.rowValid(), []ir.Dim{p.T, one, one})
	zero := p.scalar(0, dt, 3)
	k, v = p.Select(valid, k, zero), p.Select(valid, v, zero)

	p.at(l, "attn.cache")
	keys, values := p.keys(l, "k", k), p.keys(l, "v", v)
	total := keys.Type.Shape[0]

	p.at(l, "attn.distance")
	keyPos, keyValid := p.keyPositions()
	dist := p.Sub(p.Reshape(p.positions, []ir.Dim{p.T, one}), p.Reshape(keyPos, []ir.Dim{one, total}))
	visible := p.And(p.visible(l, dist), p.Reshape(keyValid, []ir.Dim{one, total}))
	p.at(l, "attn.bias")
	bias := p.Transpose(p.bias(l, rel, p.Reshape(dist, []ir.Dim{p.T, one, total})), []int64{1, 0, 2})
	bias = p.ReshapeShard(bias, 0, kvHeads, group, p.T, total)

	p.at(l, "attn.scores")
	// Query heads are grouped by key/value head: [kvHeads, group, Q, D].
	qg := p.Transpose(p.ReshapeShard(q, 1, p.T, kvHeads, group, hd), []int64{1, 2, 0, 3})
	scores := p.Matmul(qg, p.ReshapeShard(p.Transpose(keys, []int64{1, 0, 2}), 0, kvHeads, one, total, hd), true, dtype.F32)
	scores = p.Add(p.Mul(scores, p.scalar(1/float64(a.HeadDim), dtype.F32, 4)), bias)
	scores = p.Select(p.Reshape(visible, []ir.Dim{one, one, p.T, total}), scores, p.scalar(hidden, dtype.F32, 4))
	p.at(l, "attn.softmax")
	probs := p.cast(p.Softmax(scores), dt)
	p.at(l, "attn.values")
	o := p.Matmul(probs, p.ReshapeShard(p.Transpose(values, []int64{1, 0, 2}), 0, kvHeads, one, total, hd), false, dt)
	p.at(l, "attn.rows")
	// A row that sees nothing, which only a pad row can be, gives zeros.
	o = p.Select(p.Reshape(p.rowValid(), []ir.Dim{one, one, p.T, one}), o, p.scalar(0, dt, 4))
	return p.ReshapeShard(p.Transpose(o, []int64{2, 0, 1, 3}), 1, p.T, heads.Mul(hd))
}

// keys are the history's and the chunk's rows [C·B + Q, heads, D]; the chunk's
// are written to the cache.
func (p *prefillPhase) keys(l int, which string, x *ir.Value) *ir.Value {
	st := p.cache(l, which, x)
	all := x
	if p.hasHistory() {
		b := ir.D(int64(p.opt.BlockSize))
		past := p.KVRead(st, p.ctxBlocks, int64(p.opt.BlockSize))
		past = p.ReshapeShard(past, 1, p.ctx.Mul(b), x.Type.Shape[1], x.Type.Shape[2])
		all = p.Concat(0, past, x)
	}
	p.setState(fmt.Sprintf("kv.%d.%s", l, which), p.KVWrite(st, p.slots, x))
	return all
}

// keyPositions are the positions of all keys, i32 [C·B + Q], and which of them
// hold a token, i8.
func (p *prefillPhase) keyPositions() (pos, valid *ir.Value) {
	pos, valid = p.positions, p.rowValid()
	if !p.hasHistory() {
		return pos, valid
	}
	past := p.Add(p.Iota(p.ctx.Mul(ir.D(int64(p.opt.BlockSize)))), p.ctxStart)
	pastValid := p.And(p.Le(p.scalar(0, dtype.I32, 1), past), p.Lt(past, p.ctxLen))
	return p.Concat(0, past, pos), p.Concat(0, pastValid, valid)
}

package inkling

import (
	"fmt"
	"strconv"
	"strings"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes/dtype"
)

// Family is a graph shape: phases that differ in more than sizes have graphs
// of their own.
type Family string

// Phase families.
const (
	// Prefill is the first chunk of a sequence: no history.
	Prefill Family = "prefill"
	// PrefillNear has history within reach of the relative bias.
	PrefillNear Family = "prefill-near"
	// PrefillFar has longer history.
	PrefillFar Family = "prefill-far"
	// DecodeFew has no more block references than fit the lists of those within
	// reach of the relative bias, NearRefs a sequence. (Single references may
	// still be out of reach: a long sequence beside short ones.)
	DecodeFew Family = "decode-few"
	// DecodeMany has more.
	DecodeMany Family = "decode-many"
	// Logits projects rows of the hidden state that the others carry over.
	Logits Family = "logits"
)

// Options are the parts of a deployment that shape the graph.
type Options struct {
	TP               int // tensor-parallel ranks
	BlockSize        int // tokens a cache block
	Blocks           int // usable blocks of the pool; two reserved ones follow them
	MaxModelLen      int // tokens a request
	MaxNumSeqs       int // sequences a decode step
	MaxBatchedTokens int // tokens a prefill chunk
	// Precision is the type of weights and activations: BF16 or F32.
	Precision dtype.Type
	// ShardedEmbedding splits the embedding by vocabulary instead of
	// replicating it.
	ShardedEmbedding bool
}

// NearBlocks is the number of context blocks that hold keys within reach of
// the relative bias of global layers, for any alignment of a prefill chunk.
func (c *Config) NearBlocks(blockSize int) int {
	return ceilDiv(c.Global.Extent-1+blockSize-1, blockSize)
}

// NearRefs is the same for the references of one decoding sequence.
func (c *Config) NearRefs(blockSize int) int { return spanBlocks(c.Global.Extent, blockSize) }

// WindowRefs is the number of blocks that hold the window of a decoding sequence,
// for any alignment.
func (c *Config) WindowRefs(blockSize int) int { return spanBlocks(c.Window, blockSize) }

// spanBlocks is the number of blocks that hold n tokens in a row, however they lie.
func spanBlocks(n, blockSize int) int { return (n+blockSize-2)/blockSize + 1 }

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// Families lists the families that a deployment can reach, in a fixed order.
func (c *Config) Families(o Options) []Family {
	fs := []Family{Prefill}
	maxBlocks := ceilDiv(o.MaxModelLen, o.BlockSize)
	if o.MaxModelLen > 1 {
		fs = append(fs, PrefillNear)
	}
	if maxBlocks > c.NearBlocks(o.BlockSize) {
		fs = append(fs, PrefillFar)
	}
	fs = append(fs, DecodeFew)
	if maxBlocks > c.NearRefs(o.BlockSize) {
		fs = append(fs, DecodeMany)
	}
	return append(fs, Logits)
}

// PrefillFamily is the family of a prefill bucket with the given history.
func (c *Config) PrefillFamily(blocks, blockSize int) Family {
	switch {
	case blocks == 0:
		return Prefill
	case blocks <= c.NearBlocks(blockSize):
		return PrefillNear
	}
	return PrefillFar
}

// DecodeFamily is the family of a decode bucket.
func (c *Config) DecodeFamily(seqs, refs, blockSize int) Family {
	if refs <= seqs*c.NearRefs(blockSize) {
		return DecodeFew
	}
	return DecodeMany
}

// Check reports why a deployment cannot run the model, in terms of its keys.
func (c *Config) Check(o Options) error {
	if bad := c.notDivided(o.TP); len(bad) > 0 {
		var would []string
		for tp := 1; tp <= min(c.Global.Heads, c.Local.Heads, maxTried); tp++ {
			if len(c.notDivided(tp)) == 0 {
				would = append(would, strconv.Itoa(tp))
			}
		}
		return fmt.Errorf("tensor_parallel %d does not divide %s; possible: %s", o.TP, strings.Join(bad, ", "), strings.Join(would, ", "))
	}
	if o.MaxModelLen > c.MaxLen {
		return fmt.Errorf("max_model_len %d is more than the model's model_max_length %d", o.MaxModelLen, c.MaxLen)
	}
	return nil
}

// maxTried bounds the numbers of ranks that are tried to name those that would do.
const maxTried = 1024

// notDivided lists the sizes that so many ranks cannot share.
func (c *Config) notDivided(tp int) []string {
	divides := []struct {
		key string
		n   int
	}{
		{"num_attention_heads", c.Global.Heads}, {"swa_num_attention_heads", c.Local.Heads}, {"vocab_size", c.Vocab},
	}
	if c.DenseLayers > 0 {
		divides = append(divides, struct {
			key string
			n   int
		}{"dense_intermediate_size", c.DenseWidth})
	}
	if c.DenseLayers < c.Layers {
		divides = append(divides, struct {
			key string
			n   int
		}{"intermediate_size", c.ExpertWidth})
	}
	var bad []string
	for _, d := range divides {
		if d.n%tp != 0 {
			bad = append(bad, fmt.Sprintf("%s %d", d.key, d.n))
		}
	}
	for _, a := range []struct {
		key string
		n   int
	}{{"num_key_value_heads", c.Global.KVHeads}, {"swa_num_key_value_heads", c.Local.KVHeads}} {
		if a.n%tp != 0 && tp%a.n != 0 {
			bad = append(bad, fmt.Sprintf("%s %d", a.key, a.n))
		}
	}
	return bad
}

// Capture builds the plain graph of one family: per-layer index arithmetic,
// separate projections, dense masks, a reduction for every partial sum.
//
// The host's inputs per family are documented with the inputs below; "pad" is
// what rows beyond the real ones hold.
func Capture(c *Config, o Options, fam Family) (*ir.Module, error) {
	if err := c.Check(o); err != nil {
		return nil, err
	}
	m := &ir.Module{Name: strings.ReplaceAll(string(fam), "-", "_"), Level: ops.Model, TP: o.TP}
	f := &ir.Func{Name: m.Name}
	m.Funcs = []*ir.Func{f}
	g := &graph{Builder: ir.NewBuilder(m, f), cfg: c, opt: o, mod: m, weights: map[string]*ir.Value{}, byName: map[string]int{}}
	switch fam {
	case Prefill, PrefillNear, PrefillFar:
		g.prefill(fam)
	case DecodeFew, DecodeMany:
		g.decode(fam)
	case Logits:
		g.logits()
	default:
		return nil, fmt.Errorf("there is no phase family %q", fam)
	}
	if err := g.Err(); err != nil {
		return nil, fmt.Errorf("capturing %s: %w", fam, err)
	}
	return m, nil
}

// graph builds one family.
type graph struct {
	*ir.Builder
	cfg     *Config
	opt     Options
	mod     *ir.Module
	weights map[string]*ir.Value
	states  []stateVar
	byName  map[string]int // index into states

	// T is the number of rows: chunk tokens, or sequences.
	T ir.Dim
	// tokens, positions and slots are i32 [T].
	tokens, positions, slots *ir.Value
	phase                    phase
}

// stateVar is the newest version of a state.
type stateVar struct {
	name string
	v    *ir.Value
}

// phase is what prefill and decode do differently inside a layer.
type phase interface {
	// conv runs x [T, C] through a short convolution and stores its history.
	conv(state string, x, taps *ir.Value) *ir.Value
	// attention returns softmax(q·k/D + bias)·v as [T, heads·D] from q
	// [T, heads, D], k and v [T, kvHeads, D] and rel [T, heads, extent].
	attention(l int, q, k, v, rel *ir.Value) *ir.Value
}

func (g *graph) dt() dtype.Type { return g.opt.Precision }

// at sets the location of what is built next.
func (g *graph) at(layer int, op string) { g.At(ir.Loc{Layer: layer, Op: op}) }

// weight is the rank's part of a checkpoint tensor, viewed as reshape and perm
// say, sharded along axis.
func (g *graph) weight(tensor string, t dtype.Type, view []int64, perm []int64, axis, ways int, shape ...int) *ir.Value {
	at := g.Loc()
	at.Tensor = tensor
	g.At(at)
	if v, ok := g.weights[tensor]; ok {
		return v
	}
	dims := make([]ir.Dim, len(shape))
	for i, n := range shape {
		if i == axis {
			n /= ways
		}
		dims[i] = ir.D(int64(n))
	}
	name := strings.TrimSuffix(strings.TrimPrefix(tensor, "model.llm."), ".weight")
	v := g.Param(ir.Weight, name, ir.T(t, dims...).With(ir.Shard(axis, ways)), ir.Source{Tensor: tensor, Reshape: view, Perm: perm})
	g.weights[tensor] = v
	return v
}

// plain is a replicated weight in the model's precision.
func (g *graph) plain(tensor string, shape ...int) *ir.Value {
	return g.weight(tensor, g.dt(), nil, nil, 0, 1, shape...)
}

// layerName is the prefix of a layer's tensors.
func layerName(l int, suffix string) string { return fmt.Sprintf("model.llm.layers.%d.%s", l, suffix) }

// state returns the newest version of a state, declaring it on first use.
func (g *graph) state(name string, axis, ways int, shape ...int) *ir.Value {
	if i, ok := g.byName[name]; ok {
		return g.states[i].v
	}
	dims := make([]ir.Dim, len(shape))
	for i, n := range shape {
		dims[i] = ir.D(int64(n))
	}
	v := g.Param(ir.State, name, ir.T(g.dt(), dims...).With(ir.Shard(axis, ways)), ir.Source{})
	g.byName[name] = len(g.states)
	g.states = append(g.states, stateVar{name, v})
	return v
}

func (g *graph) setState(name string, v *ir.Value) { g.states[g.byName[name]].v = v }

func (g *graph) input(name string, n ir.Dim) *ir.Value {
	return g.Param(ir.Host, name, ir.T(dtype.I32, n), ir.Source{})
}

// finish returns the hidden rows and the last versions of all states.
func (g *graph) finish(h *ir.Value) {
	g.At(ir.NoLoc)
	g.Result(ir.Carry, "hidden", h)
	for _, s := range g.states {
		g.Result(ir.State, s.name, s.v)
	}
}

// Small helpers that keep the layers readable.

func d(n int) ir.Dim { return ir.D(int64(n)) }

func (g *graph) scalar(v float64, t dtype.Type, rank int) *ir.Value {
	c := g.Const(v, t)
	if rank == 1 {
		return c
	}
	ones := make([]ir.Dim, rank)
	for i := range ones {
		ones[i] = ir.D(1)
	}
	return g.Reshape(c, ones)
}

// cast converts unless the type is right already.
func (g *graph) cast(x *ir.Value, t dtype.Type) *ir.Value {
	if x.Type.DType == t {
		return x
	}
	return g.Cast(x, t)
}

// linear is x [T, in] times a weight [out, in].
func (g *graph) linear(x, w *ir.Value, t dtype.Type) *ir.Value { return g.Matmul(x, w, true, t) }

// reduce sums a partial value over the ranks; on one rank nothing is partial.
func (g *graph) reduce(x *ir.Value) *ir.Value {
	if x.Type.Dist.Kind != ir.Partial {
		return x
	}
	return g.AllReduce(x)
}

func (g *graph) norm(x, w *ir.Value) *ir.Value { return g.RMSNorm(x, w, g.cfg.Eps) }

// embed is the normed embedding of the tokens [T, hidden].
func (g *graph) embed() *ir.Value {
	c, tp := g.cfg, g.opt.TP
	g.at(-1, "embed")
	var h *ir.Value
	if g.opt.ShardedEmbedding && tp > 1 {
		table := g.weight("model.llm.embed.weight", g.dt(), nil, nil, 0, tp, c.Vocab, c.Hidden)
		off := g.Param(ir.Weight, "vocab_offset", ir.T(dtype.I32, ir.D(1)).With(ir.Shard(0, tp)),
			ir.Source{PerRank: true, Step: float64(c.Vocab / tp)})
		h = g.AllReduce(g.Embedding(table, g.tokens, off))
	} else {
		h = g.Gather(g.plain("model.llm.embed.weight", c.Vocab, c.Hidden), g.tokens, 0)
	}
	g.at(-1, "embed_norm")
	return g.norm(h, g.plain("model.llm.embed_norm.weight", c.Hidden))
}

// body runs all layers.
func (g *graph) body() {
	h := g.embed()
	for l := range g.cfg.Layers {
		h = g.attentionLayer(l, h)
		h = g.mlpLayer(l, h)
	}
	g.finish(h)
}

// taps are a short convolution's weights as f32 [4, channels], oldest first.
// Checkpoints store [channels, 1, 4].
func (g *graph) taps(tensor string, channels, ways int) *ir.Value {
	return g.weight(tensor, dtype.F32, []int64{int64(channels), convTaps}, []int64{1, 0}, 1, ways, convTaps, channels)
}

// kvWays is the number of shards of a layer's key/value heads: the ranks, or
// fewer when groups of ranks hold the same head.
func (g *graph) kvWays(a Attention) int { return min(g.opt.TP, a.KVHeads) }

func (g *graph) attentionLayer(l int, h *ir.Value) *ir.Value {
	c, a, tp, dt := g.cfg, g.cfg.Attention(l), g.opt.TP, g.dt()
	ways := g.kvWays(a)
	heads, kvHeads, hd := a.Heads/tp, a.KVHeads/ways, a.HeadDim

	g.at(l, "attn.norm")
	x := g.norm(h, g.plain(layerName(l, "attn_norm.weight"), c.Hidden))
	g.at(l, "attn.q_proj")
	q := g.linear(x, g.weight(layerName(l, "attn.wq_du.weight"), dt, nil, nil, 0, tp, a.Heads*hd, c.Hidden), dt)
	g.at(l, "attn.k_proj")
	k := g.linear(x, g.weight(layerName(l, "attn.wk_dv.weight"), dt, nil, nil, 0, ways, a.KVHeads*hd, c.Hidden), dt)
	g.at(l, "attn.v_proj")
	v := g.linear(x, g.weight(layerName(l, "attn.wv_dv.weight"), dt, nil, nil, 0, ways, a.KVHeads*hd, c.Hidden), dt)
	g.at(l, "attn.r_proj")
	r := g.linear(x, g.weight(layerName(l, "attn.wr_du.weight"), dt, nil, nil, 0, tp, a.Heads*c.DRel, c.Hidden), dt)

	g.at(l, "attn.k_sconv")
	k = g.conv(fmt.Sprintf("conv.%d.k", l), k, g.taps(layerName(l, "attn.k_sconv.weight"), a.KVHeads*hd, ways))
	g.at(l, "attn.v_sconv")
	v = g.conv(fmt.Sprintf("conv.%d.v", l), v, g.taps(layerName(l, "attn.v_sconv.weight"), a.KVHeads*hd, ways))

	g.at(l, "attn.q_norm")
	q = g.norm(g.ReshapeShard(q, 1, g.T, d(heads), d(hd)), g.plain(layerName(l, "attn.q_norm.weight"), hd))
	g.at(l, "attn.k_norm")
	k = g.norm(g.ReshapeShard(k, 1, g.T, d(kvHeads), d(hd)), g.plain(layerName(l, "attn.k_norm.weight"), hd))
	v = g.ReshapeShard(v, 1, g.T, d(kvHeads), d(hd))

	g.at(l, "attn.rel_logits")
	proj := g.plain(layerName(l, "attn.rel_logits_proj.proj"), c.DRel, a.Extent)
	rel := g.Matmul(g.ReshapeShard(r, 1, g.T, d(heads), d(c.DRel)), g.Reshape(proj, []ir.Dim{ir.D(1), d(c.DRel), d(a.Extent)}), false, dt)
	if !c.IsLocal[l] && c.NFloor > 0 {
		g.at(l, "attn.log_position")
		tau := g.logPosition()
		q = g.cast(g.Mul(g.cast(q, dtype.F32), tau), dt)
		rel = g.cast(g.Mul(g.cast(rel, dtype.F32), tau), dt)
	}

	o := g.phase.attention(l, q, k, v, rel)

	g.at(l, "attn.o_proj")
	o = g.linear(o, g.weight(layerName(l, "attn.wo_ud.weight"), dt, nil, nil, 1, tp, c.Hidden, a.Heads*hd), dtype.F32)
	o = g.cast(g.reduce(o), dt)
	g.at(l, "attn.sconv")
	o = g.conv(fmt.Sprintf("conv.%d.attn", l), o, g.taps(layerName(l, "attn_sconv.weight"), c.Hidden, 1))
	g.at(l, "attn.residual")
	return g.Add(h, o)
}

// conv applies the phase's short convolution.
func (g *graph) conv(state string, x, taps *ir.Value) *ir.Value { return g.phase.conv(state, x, taps) }

// logPosition is tau = 1 + alpha·ln(max((position + 1)/n_floor, 1)) as f32
// [T, 1, 1]; it scales queries and relative logits of global layers.
func (g *graph) logPosition() *ir.Value {
	p := g.Cast(g.Add(g.positions, g.scalar(1, dtype.I32, 1)), dtype.F32)
	ratio := g.Max(g.Div(p, g.scalar(float64(g.cfg.NFloor), dtype.F32, 1)), g.scalar(1, dtype.F32, 1))
	tau := g.Add(g.Mul(g.Log(ratio), g.scalar(g.cfg.Alpha, dtype.F32, 1)), g.scalar(1, dtype.F32, 1))
	return g.Reshape(tau, []ir.Dim{g.T, ir.D(1), ir.D(1)})
}

// bias picks the relative logits of each distance: rel [T, heads, extent] and
// dist [T, 1, K] give f32 [T, heads, K], 0 beyond the extent.
//
// Of a window that is no longer than the extent the rest is not seen, and may be
// anything finite.
func (g *graph) bias(l int, rel, dist *ir.Value) *ir.Value {
	extent := g.cfg.Attention(l).Extent
	zero, last := g.scalar(0, dtype.I32, 3), g.scalar(float64(extent-1), dtype.I32, 3)
	picked := g.GatherElements(rel, g.Min(g.Max(dist, zero), last), 2)
	if g.cfg.IsLocal[l] && g.cfg.Window <= extent {
		return g.cast(picked, dtype.F32)
	}
	inside := g.Lt(dist, g.scalar(float64(extent), dtype.I32, 3))
	return g.cast(g.Select(inside, picked, g.scalar(0, rel.Type.DType, 3)), dtype.F32)
}

// visible reports which distances a layer sees: not the future and, on local
// layers, not beyond the window.
func (g *graph) visible(l int, dist *ir.Value) *ir.Value {
	rank := dist.Type.Rank()
	ok := g.Le(g.scalar(0, dtype.I32, rank), dist)
	if g.cfg.IsLocal[l] {
		ok = g.And(ok, g.Lt(dist, g.scalar(float64(g.cfg.Window), dtype.I32, rank)))
	}
	return ok
}

// hidden is the score of keys that are not visible: finite, so that a row of
// which nothing is visible stays finite, and so low that exp gives exactly 0
// beside any visible key.
const hidden = -30000

// floor is the least maximum of a block's scores when decoding: so far above
// hidden that the exponential of what lies between is 0.
const floor = hidden + 1000

func (g *graph) mlpLayer(l int, h *ir.Value) *ir.Value {
	c := g.cfg
	g.at(l, "mlp.norm")
	m := g.norm(h, g.plain(layerName(l, "mlp_norm.weight"), c.Hidden))
	var f *ir.Value
	if c.IsDense(l) {
		f = g.denseMLP(l, m)
	} else {
		f = g.moeMLP(l, m)
	}
	g.at(l, "mlp.sconv")
	f = g.conv(fmt.Sprintf("conv.%d.mlp", l), f, g.taps(layerName(l, "mlp_sconv.weight"), c.Hidden, 1))
	g.at(l, "mlp.residual")
	return g.Add(h, f)
}

// gated is silu(gate)·up from x [..., T, H] and a weight whose axis splits into
// gate and up: slices of that axis of x·w.
func (g *graph) gated(x, w *ir.Value, axis int64) *ir.Value {
	gu := g.linear(x, w, g.dt())
	gate := g.Slice(gu, axis, ir.D(0), ir.D(1))
	up := g.Slice(gu, axis, ir.D(1), ir.D(2))
	return g.Mul(g.Silu(gate), up)
}

// deinterleave is the view that turns gate/up rows g0, u0, g1, u1, … of a
// checkpoint into all gates, then all ups.
func deinterleave(lead []int64, width, hidden int) (reshape, perm []int64) {
	reshape = append(append([]int64{}, lead...), int64(width), 2, int64(hidden))
	n := int64(len(lead))
	for i := range n {
		perm = append(perm, i)
	}
	return reshape, append(perm, n+1, n, n+2)
}

func (g *graph) denseMLP(l int, m *ir.Value) *ir.Value {
	c, tp, dt := g.cfg, g.opt.TP, g.dt()
	width := c.DenseWidth / tp
	g.at(l, "mlp.gate_up")
	view, perm := deinterleave(nil, c.DenseWidth, c.Hidden)
	w13 := g.weight(layerName(l, "mlp.w13_dn.weight"), dt, view, perm, 1, tp, 2, c.DenseWidth, c.Hidden)
	act := g.gated(g.Reshape(m, []ir.Dim{ir.D(1), g.T, d(c.Hidden)}), w13, 0)
	act = g.ReshapeShard(act, 1, g.T, d(width))
	g.at(l, "mlp.down")
	w2 := g.weight(layerName(l, "mlp.w2_md.weight"), dt, nil, nil, 1, tp, c.Hidden, c.DenseWidth)
	f := g.cast(g.reduce(g.linear(act, w2, dtype.F32)), dt)
	g.at(l, "mlp.global_scale")
	return g.Mul(f, g.Reshape(g.plain(layerName(l, "mlp.global_scale"), 1), []ir.Dim{ir.D(1), ir.D(1)}))
}

func (g *graph) moeMLP(l int, m *ir.Value) *ir.Value {
	c, tp, dt := g.cfg, g.opt.TP, g.dt()
	experts, weights, shared := g.router(l, m)
	g.at(l, "mlp.experts")
	view, perm := deinterleave([]int64{int64(c.Experts)}, c.ExpertWidth, c.Hidden)
	w13 := g.weight(layerName(l, "mlp.experts.w13_weight"), dt, view, perm, 2, tp, c.Experts, 2, c.ExpertWidth, c.Hidden)
	w2 := g.weight(layerName(l, "mlp.experts.w2_weight"), dt, nil, nil, 2, tp, c.Experts, c.Hidden, c.ExpertWidth)
	f := g.reduce(g.cast(g.MoE(m, experts, g.cast(weights, dt), w13, w2), dtype.F32))
	if c.Shared > 0 {
		g.at(l, "mlp.shared_experts")
		f = g.Add(f, g.reduce(g.sharedExperts(l, m, shared)))
	}
	return g.cast(f, dt)
}

// router returns the chosen experts i32 [T, k], their weights f32 [T, k] and
// the shared experts' weights f32 [T, shared] (nil without shared experts).
// The bias picks winners only; weights are the normalised sigmoids of the raw
// logits of winners and shared experts, times route_scale·global_scale.
func (g *graph) router(l int, m *ir.Value) (experts, weights, shared *ir.Value) {
	c := g.cfg
	g.at(l, "mlp.router")
	z := g.linear(m, g.plain(layerName(l, "mlp.gate.weight"), c.Experts+c.Shared, c.Hidden), dtype.F32)
	routed := g.Slice(z, 1, ir.D(0), d(c.Experts))
	bias := g.weight(layerName(l, "mlp.gate.bias"), dtype.F32, nil, nil, 0, 1, c.Experts)
	_, experts = g.Topk(g.Add(g.Sigmoid(routed), g.Reshape(bias, []ir.Dim{ir.D(1), d(c.Experts)})), int64(c.TopK))
	logits := g.GatherElements(routed, experts, 1)
	if c.Shared > 0 {
		logits = g.Concat(1, logits, g.Slice(z, 1, d(c.Experts), d(c.Experts+c.Shared)))
	}
	gs := g.weight(layerName(l, "mlp.gate.global_scale"), dtype.F32, nil, nil, 0, 1, 1)
	scale := g.Mul(gs, g.scalar(c.RouteScale, dtype.F32, 1))
	// exp(logsigmoid − logsumexp) rather than sigmoid/Σ sigmoid: it stays
	// defined when all sigmoids underflow.
	w := g.Mul(g.Softmax(g.Logsigmoid(logits)), g.Reshape(scale, []ir.Dim{ir.D(1), ir.D(1)}))
	if c.Shared == 0 {
		return experts, w, nil
	}
	return experts, g.Slice(w, 1, ir.D(0), d(c.TopK)), g.Slice(w, 1, d(c.TopK), d(c.TopK+c.Shared))
}

// sharedExperts is the weighted sum of the shared experts, f32 [T, H]. Their
// weight multiplies the activation before the down projection.
func (g *graph) sharedExperts(l int, m, gamma *ir.Value) *ir.Value {
	c, tp, dt := g.cfg, g.opt.TP, g.dt()
	one := ir.D(1)
	view, perm := deinterleave([]int64{int64(c.Shared)}, c.ExpertWidth, c.Hidden)
	w13 := g.weight(layerName(l, "mlp.shared_experts.shared_w13_weight"), dt, view, perm, 2, tp, c.Shared, 2, c.ExpertWidth, c.Hidden)
	act := g.gated(g.Reshape(m, []ir.Dim{one, one, g.T, d(c.Hidden)}), w13, 1)
	weight := g.Reshape(g.Transpose(g.cast(gamma, dt), []int64{1, 0}), []ir.Dim{d(c.Shared), one, g.T, one})
	act = g.Mul(act, weight)
	w2 := g.weight(layerName(l, "mlp.shared_experts.shared_w2_weight"), dt, nil, nil, 2, tp, c.Shared, c.Hidden, c.ExpertWidth)
	y := g.linear(act, g.ReshapeShard(w2, 3, d(c.Shared), one, d(c.Hidden), d(c.ExpertWidth/tp)), dtype.F32)
	return g.Reshape(g.ReduceSum(y, 0), []ir.Dim{g.T, d(c.Hidden)})
}

// logits projects rows of the carried hidden state:
//
//	rows [R]  rows of the hidden state; pad 0
func (g *graph) logits() {
	c, dt := g.cfg, g.dt()
	g.mod.Syms = []*ir.Sym{{Name: "r", Min: 1, Max: int64(g.opt.MaxNumSeqs)}}
	r := ir.SymDim("r")
	rows := g.input("rows", r)
	h := g.Param(ir.Carry, "hidden", ir.T(dt, d(CarryRows(g.opt)), d(c.Hidden)), ir.Source{})
	g.at(-1, "head.rows")
	z := g.Gather(h, rows, 0)
	g.Result(ir.Host, "logits", g.head(z))
}

// CarryRows is the number of hidden rows that a step leaves for the logits.
func CarryRows(o Options) int { return max(o.MaxBatchedTokens, o.MaxNumSeqs) }

// head is the final norm, the muP division and the projection, cut to the ids
// that exist: f32 [R, valid vocabulary].
func (g *graph) head(z *ir.Value) *ir.Value {
	c, tp, dt := g.cfg, g.opt.TP, g.dt()
	g.at(-1, "head.norm")
	z = g.norm(z, g.plain("model.llm.norm.weight", c.Hidden))
	g.at(-1, "head.mup")
	wide := dt
	if dt == dtype.BF16 && float64(dtype.RoundBF16(float32(c.MuP))) != c.MuP {
		wide = dtype.F32 // the divisor itself must not be rounded
	}
	z = g.cast(g.Div(g.cast(z, wide), g.scalar(c.MuP, wide, 2)), dt)
	g.at(-1, "head.unembed")
	w := g.weight("model.llm.unembed.weight", dt, nil, nil, 0, tp, c.Vocab, c.Hidden)
	y := g.linear(z, w, dtype.F32)
	if tp > 1 {
		// Ranks are joined along the outermost axis, as their buffers are.
		rows, part := y.Type.Shape[0], y.Type.Shape[1]
		y = g.Transpose(g.ReshapeShard(y, 1, rows, ir.D(1), part), []int64{1, 0, 2})
		y = g.Reshape(g.Transpose(g.AllGather(y, 0), []int64{1, 0, 2}), []ir.Dim{rows, d(c.Vocab)})
	}
	g.at(-1, "head.vocab")
	if c.ValidVocab < c.Vocab {
		y = g.Slice(y, 1, ir.D(0), d(c.ValidVocab))
	}
	return y
}

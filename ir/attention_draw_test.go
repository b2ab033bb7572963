package ir_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir"
	"quill/ir/interp"
	"quill/ir/ops"
	"quill/passes"
	"quill/recipes/dtype"
)

// attention is a prefill module being drawn: one or two layers of attention as
// capture builds them, in which things are written in other ways, and often some
// are odd: what a pass looks for is missing, another one, or read elsewhere too.
//
// Only what no pass relies on may be odd. Each row that counts sees itself, inputs
// describe a chunk behind its history, and rows that do not count are zeroed in
// the end or there are none.
type attention struct {
	t *rapid.T
	m *ir.Module
	b *ir.Builder
	n int // of labels

	odd     map[string]bool
	local   int
	history bool
	block   int64
	dt      dtype.Type
	q, past ir.Dim
	total   ir.Dim

	positions, real, held, keyPositions *ir.Value
	// full is whether all rows of the chunk count.
	full bool
}

// oddities are what may be odd about a layer.
var oddities = []string{
	"keys are not padded", "no key is known to hold a token", "what holds a token differs by row", "some keys are hidden", "slots before the history are seen",
	"later keys are seen", "distances are negated", "rows have other positions", "what is seen is returned", "half of what is seen",
	"scores are hidden a little", "scores are hidden by less", "scores are not hidden", "hidden scores are read from a table",
	"no bias", "bias is 0.5 far away", "bias is 0 one key later", "bias is an input", "bias has its own distances", "bias is read twice",
	"scores are read twice", "scaled scores are read twice", "hidden scores are read twice", "probabilities are read twice", "the sum is read twice",
	"scale is an input", "scale of the sum", "softmax is spelled out", "probabilities are summed", "probabilities are scaled",
	"values are of another list", "values are not padded", "values come with doubled history", "values are f32", "keys are f32 before they are cast",
	"rows are not zeroed", "rows become 0.5", "rows count by another number", "rows are zeroed twice",
	"window is of one key", "window excludes its end", "a second window", "window of the table", "the list is counted", "the largest key is returned",
	"the history is reversed", "keys of the history are doubled",
}

// drawAttention draws a module; local is the share of layers with a window, in per cent.
func drawAttention(t *rapid.T, local int) *attention {
	a := &attention{t: t, m: &ir.Module{Name: "m", TP: 1, Level: ops.Model}, odd: map[string]bool{}, local: local}
	if a.chance("two ranks", 20) {
		a.m.TP = 2
	}
	f := &ir.Func{Name: "f"}
	a.m.Funcs = []*ir.Func{f}
	a.b = ir.NewBuilder(a.m, f)
	a.block = int64(1 + a.intn("block", 4))
	a.dt = dtype.F32
	if a.chance("bf16", 30) {
		a.dt = dtype.BF16
	}
	for range max(0, a.intn("oddities", 6)-2) {
		a.odd[rapid.SampledFrom(oddities).Draw(t, a.label("odd"))] = true
	}
	a.history = !a.chance("no history", 10)
	a.full = a.chance("full", 30) || a.odd["rows are not zeroed"] || a.odd["rows become 0.5"] || a.odd["rows count by another number"]
	a.m.Syms = []*ir.Sym{{Name: "q", Min: 1, Max: 6}}
	a.q = ir.SymDim("q")
	extent := int64(1 + a.intn("extent", 6))
	if a.history {
		near := (extent - 1 + a.block - 1 + a.block - 1) / a.block
		least := near + 1 + int64(a.intn("far", 2))
		if a.chance("near", 15) {
			least = 1
		}
		a.m.Syms = append(a.m.Syms, &ir.Sym{Name: "c", Min: least, Max: least + 9})
		a.past = ir.SymDim("c").Mul(ir.D(a.block))
	}
	a.total = a.q.Add(a.past)
	a.inputs()
	for l := range 1 + a.intn("layers", 2) {
		a.layer(l, extent)
	}
	return a
}

func (a *attention) label(s string) string {
	a.n++
	return fmt.Sprint(s, " ", a.n)
}

func (a *attention) intn(s string, n int) int { return rapid.IntRange(0, n-1).Draw(a.t, a.label(s)) }

func (a *attention) chance(s string, percent int) bool { return a.intn(s, 100) >= 100-percent }

// either builds an op of two operands in either order.
func (a *attention) either(op func(x, y *ir.Value) *ir.Value, x, y *ir.Value) *ir.Value {
	if a.chance("swapped", 40) {
		x, y = y, x
	}
	return op(x, y)
}

// number is a constant of a rank.
func (a *attention) number(v float64, t dtype.Type, rank int) *ir.Value {
	return a.b.Reshape(a.b.Const(v, t), slices.Repeat([]ir.Dim{ir.D(1)}, rank))
}

func (a *attention) host(name string, t dtype.Type, shape ...ir.Dim) *ir.Value {
	if p := a.m.Entry().Param(name); p != nil {
		return p.Value
	}
	return a.b.Param(ir.Host, name, ir.T(t, shape...), ir.Source{})
}

// result returns a value from the function.
func (a *attention) result(v *ir.Value) {
	kind := ir.Host
	if v.Type.Dist.Kind != ir.Replicated {
		kind = ir.Temp
	}
	a.b.Result(kind, fmt.Sprint("y", len(a.m.Entry().Results)), v)
}

// inputs are those of the step and what all layers read of them.
func (a *attention) inputs() {
	b, i32 := a.b, dtype.I32
	a.positions = a.host("positions", i32, a.q)
	a.real = b.Lt(b.Iota(a.q), a.host("q_len", i32, ir.D(1)))
	a.held, a.keyPositions = a.real, a.positions
	if !a.history {
		return
	}
	a.host("ctx_blocks", i32, ir.SymDim("c"))
	slots := a.either(b.Add, b.Iota(a.past), a.host("ctx_start", i32, ir.D(1)))
	held := b.Lt(slots, a.host("ctx_len", i32, ir.D(1)))
	if !a.odd["slots before the history are seen"] {
		held = a.either(b.And, b.Le(b.Const(0, i32), slots), held)
	}
	if a.odd["some keys are hidden"] {
		held = a.either(b.And, held, a.host("some", dtype.I8, a.past))
	}
	a.held, a.keyPositions = b.Concat(0, held, a.real), b.Concat(0, slots, a.positions)
}

// table is a parameter with numbers for each row of the chunk; heads are its axis of
// heads, which ranks share, −1 where it has none.
func (a *attention) table(heads int, name string, t dtype.Type, shape ...ir.Dim) *ir.Value {
	return a.b.Param(ir.Carry, name, a.shared(heads, ir.T(t, shape...)), ir.Source{})
}

// shared is a type of which each rank has some heads.
func (a *attention) shared(heads int, t ir.Type) ir.Type {
	if heads < 0 || a.m.TP == 1 {
		return t
	}
	return t.With(ir.Shard(heads, a.m.TP))
}

// layer draws attention of a layer.
func (a *attention) layer(l int, extent int64) {
	b, one := a.b, ir.D(1)
	b.At(ir.Loc{Layer: l, Op: "attn"})
	heads, group, dim := ir.D(int64(1+a.intn("heads", 2))), ir.D(int64(1+a.intn("group", 2))), ir.D(int64(1+a.intn("dim", 3)))
	keys := a.keys(l, "k", heads, dim)
	values := a.keys(l, "v", heads, dim)
	dist := a.distances()
	visible := a.visible(dist)
	if a.odd["what is seen is returned"] {
		a.result(visible)
	}
	query := a.table(0, fmt.Sprint("query", l), a.dt, heads, group, a.q, dim)
	scores := b.Matmul(query, keys, true, dtype.F32)
	a.twice("scores are read twice", scores)
	scores = a.scaled(l, scores, group)
	a.twice("scaled scores are read twice", scores)
	if !a.odd["no bias"] {
		bias := a.bias(l, dist, extent, heads, group)
		a.twice("bias is read twice", bias)
		scores = a.either(b.Add, scores, bias)
	}
	if a.odd["scale of the sum"] {
		scores = b.Mul(scores, a.number(0.5, dtype.F32, 4))
	}
	a.twice("the sum is read twice", scores)
	scores = a.hidden(l, scores, b.Reshape(visible, []ir.Dim{one, one, a.q, a.total}))
	a.twice("hidden scores are read twice", scores)
	probs := a.softmax(scores)
	out := a.dt
	if a.odd["values are f32"] {
		out, values = dtype.F32, b.Cast(values, dtype.F32)
	}
	if out != dtype.F32 {
		probs = b.Cast(probs, out)
	}
	a.twice("probabilities are read twice", probs)
	if a.odd["probabilities are summed"] {
		a.result(b.ReduceSum(probs, 3))
	}
	a.result(a.rows(b.Matmul(probs, values, false, out), out))
	if a.history && a.odd["the list is counted"] {
		a.result(b.ReduceSum(b.Cast(a.held, dtype.F32), 0))
	}
	if a.odd["the largest key is returned"] {
		a.result(b.ReduceMax(keys, 2))
	}
}

// twice reads a value a second time.
func (a *attention) twice(odd string, v *ir.Value) {
	if a.odd[odd] {
		a.result(a.b.Neg(v))
	}
}

// keys are keys or values, [heads, 1, total, dim].
func (a *attention) keys(l int, which string, heads, dim ir.Dim) *ir.Value {
	b, one := a.b, ir.D(1)
	n, _ := heads.Const()
	d, _ := dim.Const()
	rows := a.table(1, fmt.Sprint(which, l), a.dt, a.q, ir.D(n), ir.D(d))
	if a.odd["keys are f32 before they are cast"] && which == "k" {
		rows = b.Cast(b.Cast(rows, dtype.F32), a.dt)
	}
	if odd := map[string]string{"k": "keys are not padded", "v": "values are not padded"}; !a.odd[odd[which]] {
		rows = b.Select(b.Reshape(a.real, []ir.Dim{a.q, one, one}), rows, a.number(0, a.dt, 3))
	}
	if a.history {
		list := a.host("ctx_blocks", dtype.I32, ir.SymDim("c"))
		if which == "v" && a.odd["values are of another list"] {
			list = a.host("others", dtype.I32, ir.SymDim("c"))
		}
		name := fmt.Sprint("kv.", l, ".", which)
		cache := b.Param(ir.State, name, a.shared(1, ir.T(a.dt, ir.D((pool+1)*a.block), heads, dim)), ir.Source{})
		old := b.ReshapeShard(b.KVRead(cache, list, a.block), 1, a.past, heads, dim)
		if a.odd["values come with doubled history"] && which == "v" || a.odd["keys of the history are doubled"] && which == "k" {
			old = b.Add(old, old)
		}
		parts := []*ir.Value{old, rows}
		if a.odd["the history is reversed"] {
			slices.Reverse(parts)
		}
		rows = b.Concat(0, parts...)
		next := cache
		if a.chance("written", 50) {
			next = b.KVWrite(cache, a.host("slots", dtype.I32, a.q), a.table(1, fmt.Sprint("new", which, l), a.dt, a.q, heads, dim))
		}
		b.Result(ir.State, name, next)
	}
	if a.m.TP == 1 && heads.Is(1) && a.chance("no transpose", 30) {
		return b.Reshape(rows, []ir.Dim{heads, one, a.total, dim})
	}
	return b.ReshapeShard(b.Transpose(rows, []int64{1, 0, 2}), 0, heads, one, a.total, dim)
}

// pool is the number of blocks of a cache that hold tokens.
const pool = 20

// distances are how far back keys are, [q, total].
func (a *attention) distances() *ir.Value {
	b, one := a.b, ir.D(1)
	rows := a.positions
	if a.odd["rows have other positions"] {
		rows = b.Add(rows, b.Const(1, dtype.I32))
	}
	keys := a.keyPositions
	if a.history && a.odd["the history is reversed"] {
		keys = b.Concat(0, b.Slice(keys, 0, a.past, a.total), b.Slice(keys, 0, ir.D(0), a.past))
	}
	x, y := b.Reshape(rows, []ir.Dim{a.q, one}), b.Reshape(keys, []ir.Dim{one, a.total})
	if a.odd["distances are negated"] {
		return b.Neg(b.Sub(y, x))
	}
	return b.Sub(x, y)
}

// visible is which keys a row sees, [q, total].
func (a *attention) visible(dist *ir.Value) *ir.Value {
	b, i32, one := a.b, dtype.I32, ir.D(1)
	var parts []*ir.Value
	if !a.odd["later keys are seen"] {
		parts = append(parts, b.Le(a.number(0, i32, 2), dist))
	}
	window := float64(1 + a.intn("window", 7))
	if a.odd["window is of one key"] {
		window = 1
	}
	switch {
	case a.odd["window of the table"]:
		parts = append(parts, b.Lt(dist, b.Reshape(b.Add(a.host("reach", i32, a.q), b.Const(1, i32)), []ir.Dim{a.q, one})))
	case a.odd["window excludes its end"]:
		parts = append(parts, b.Le(dist, a.number(window, i32, 2)))
	case a.chance("local", a.local):
		parts = append(parts, b.Lt(dist, a.number(window, i32, 2)))
	}
	if a.odd["a second window"] {
		parts = append(parts, b.Lt(dist, a.number(window+2, i32, 2)))
	}
	if a.odd["half of what is seen"] { // which rows see is told by an input
		parts = append(parts, b.Lt(b.Sub(dist, dist), b.Reshape(b.Add(a.host("half", i32, a.q), b.Const(1, i32)), []ir.Dim{a.q, one})))
	}
	held := a.held
	if a.history && a.odd["the history is reversed"] {
		held = b.Concat(0, b.Slice(held, 0, a.past, a.total), b.Slice(held, 0, ir.D(0), a.past))
	}
	token := b.Reshape(held, []ir.Dim{one, a.total})
	if a.odd["what holds a token differs by row"] {
		token = b.And(token, b.Le(a.number(-100, i32, 2), dist))
	}
	if !a.odd["no key is known to hold a token"] || len(parts) == 0 {
		parts = append(parts, token)
	}
	all := parts[0]
	for _, p := range parts[1:] {
		all = a.either(b.And, all, p)
	}
	if all.Type.Shape[0].Is(1) { // the token's alone
		all = b.Broadcast(all, []ir.Dim{a.q, a.total})
	}
	return all
}

// bias is what distances add, f32 [heads, group, q, total].
func (a *attention) bias(l int, dist *ir.Value, extent int64, heads, group ir.Dim) *ir.Value {
	b, i32, one := a.b, dtype.I32, ir.D(1)
	wide := func(v *ir.Value) *ir.Value {
		if v.Type.DType == dtype.F32 {
			return v
		}
		return b.Cast(v, dtype.F32)
	}
	t := a.dt
	if a.chance("bias in f32", 20) {
		t = dtype.F32
	}
	if a.odd["bias is an input"] {
		return wide(a.table(0, fmt.Sprint("bias", l), t, heads, group, a.q, a.total))
	}
	if a.odd["bias has its own distances"] {
		dist = a.distances()
	}
	all := heads.Mul(group)
	rel := a.table(1, fmt.Sprint("rel", l), t, a.q, all, ir.D(extent))
	d3 := b.Reshape(dist, []ir.Dim{a.q, one, a.total})
	index := b.Min(a.either(b.Max, d3, a.number(0, i32, 3)), a.number(float64(extent-1), i32, 3))
	reach, far := float64(extent), 0.0
	if a.odd["bias is 0 one key later"] {
		reach++
	}
	if a.odd["bias is 0.5 far away"] {
		far = 0.5
	}
	near := b.Select(b.Lt(d3, a.number(reach, i32, 3)), b.GatherElements(rel, index, 2), a.number(far, t, 3))
	if a.chance("bias cast early", 50) {
		near = wide(near)
	}
	return wide(b.ReshapeShard(b.Transpose(near, []int64{1, 0, 2}), 0, heads, group, a.q, a.total))
}

func (a *attention) scaled(l int, scores *ir.Value, group ir.Dim) *ir.Value {
	b := a.b
	if a.odd["scale is an input"] {
		return b.Mul(scores, a.table(-1, fmt.Sprint("scale", l), dtype.F32, ir.D(1), group, ir.D(1), ir.D(1)))
	}
	if a.chance("no scale", 30) {
		return scores
	}
	return a.either(b.Mul, scores, a.number(rapid.SampledFrom([]float64{0.125, 0.5, 1, -0.25}).Draw(a.t, a.label("scale")), dtype.F32, 4))
}

// hidden are scores of keys that rows see, and a number elsewhere.
func (a *attention) hidden(l int, scores, visible *ir.Value) *ir.Value {
	low := rapid.SampledFrom([]float64{-30000, -10000, -1e30}).Draw(a.t, a.label("low"))
	switch {
	case a.odd["scores are not hidden"]:
		return scores
	case a.odd["scores are hidden a little"]:
		low = -5
	case a.odd["scores are hidden by less"]:
		low = -9999
	}
	other := a.number(low, dtype.F32, 4)
	if a.odd["hidden scores are read from a table"] {
		other = a.b.Sub(a.b.Reshape(a.table(-1, fmt.Sprint("low", l), dtype.F32, a.q), []ir.Dim{ir.D(1), ir.D(1), a.q, ir.D(1)}), a.number(30000, dtype.F32, 4))
	}
	return a.b.Select(visible, scores, other)
}

func (a *attention) softmax(scores *ir.Value) *ir.Value {
	b := a.b
	var p *ir.Value
	if a.odd["softmax is spelled out"] {
		e := b.Exp(b.Sub(scores, b.ReduceMax(scores, 3)))
		p = b.Div(e, b.ReduceSum(e, 3))
	} else {
		p = b.Softmax(scores)
	}
	if a.odd["probabilities are scaled"] {
		p = b.Mul(p, a.number(2, dtype.F32, 4))
	}
	return p
}

// rows are the results of rows that count, and zeros.
func (a *attention) rows(o *ir.Value, t dtype.Type) *ir.Value {
	b, one := a.b, ir.D(1)
	real, other := a.real, 0.0
	if a.odd["rows are not zeroed"] {
		return b.Neg(o)
	}
	if a.odd["rows become 0.5"] {
		other = 0.5
	}
	if a.odd["rows count by another number"] {
		real = b.Lt(b.Iota(a.q), b.Add(a.host("q_len", dtype.I32, one), b.Const(0, dtype.I32)))
	}
	if a.odd["rows are zeroed twice"] {
		a.result(b.Neg(o))
		a.full = true
	}
	return b.Select(b.Reshape(real, []ir.Dim{one, one, a.q, one}), o, a.number(other, t, 4))
}

// returnsAll reports whether something of rows that do not count is returned as it is.
func (a *attention) returnsAll() bool {
	for odd := range a.odd {
		if strings.Contains(odd, "twice") || strings.Contains(odd, "summed") {
			return true
		}
	}
	return a.full
}

// step draws sizes and the inputs that only mean something together: a chunk of
// rows behind a history in a longer list. There is garbage in slots without a token.
func (a *attention) step(after *ir.Module) (env map[string]int64, args []map[string]*interp.Tensor) {
	t := a.t
	env = map[string]int64{"q": rapid.Int64Range(1, 6).Draw(t, "q")}
	listed := int64(0)
	if a.history {
		c := a.m.Syms[1]
		listed = rapid.Int64Range(c.Min, c.Max).Draw(t, "c")
		env["c"] = listed
	}
	rows := env["q"]
	if !a.returnsAll() {
		rows = rapid.Int64Range(1, rows).Draw(t, "rows")
	}
	blocks := rapid.Int64Range(0, listed).Draw(t, "blocks of history")
	past := int64(0)
	if blocks > 0 {
		past = blocks*a.block - rapid.Int64Range(0, a.block-1).Draw(t, "empty slots")
	}
	seed := rapid.Uint64().Draw(t, "seed")
	args, err := interp.RandomArgs(a.m, a.m.Entry(), env, seed, interp.RandomOptions{})
	require.NoError(t, err)
	list := rand.New(rand.NewPCG(seed, 1)).Perm(pool)
	h := &chunk{listed: listed, blocks: blocks, past: past, rows: rows, block: a.block, list: list}
	window := int64(0)
	if x := after.Entry().Param("window_blocks"); x != nil {
		sizes, err := after.Env(env)
		require.NoError(t, err)
		window, err = x.Value.Type.Shape[0].Eval(sizes)
		require.NoError(t, err)
	}
	for _, in := range args {
		h.fill(in, window)
	}
	return env, args
}

// chunk is a step of a host: rows of a bucket behind a history.
type chunk struct {
	listed, blocks, past int64 // blocks of the list, of them history, and its tokens
	rows, block          int64
	list                 []int // blocks of the pool; the history has the first ones
}

// at is the block at a place of the list.
func (h *chunk) at(i int64) int64 {
	if i -= h.listed - h.blocks; i >= 0 {
		return int64(h.list[i])
	}
	return pool // the zero block
}

// fill makes the inputs of a rank, with a list for windows if it has blocks.
func (h *chunk) fill(in map[string]*interp.Tensor, window int64) {
	single := func(v int64) func(int64) int64 { return func(int64) int64 { return v } }
	for name, of := range map[string]func(i int64) int64{
		"q_len": single(h.rows), "ctx_len": single(h.past), "ctx_start": single((h.blocks - h.listed) * h.block), "ctx_blocks": h.at,
		"slots": func(i int64) int64 { return int64(h.list[pool-1])*h.block + i%h.block },
		"positions": func(i int64) int64 {
			if i >= h.rows {
				return 0
			}
			return h.past + i
		},
	} {
		if x := in[name]; x != nil {
			for i := range x.I {
				x.I[i] = of(int64(i))
			}
		}
	}
	for name, x := range in {
		if !strings.HasPrefix(name, "kv.") {
			continue
		}
		row := int64(x.Len()) / x.Shape[0]
		if h.blocks > 0 { // slots behind the history
			end := (h.at(h.listed-1) + 1) * h.block
			for j := (end - (h.blocks*h.block - h.past)) * row; j < end*row; j++ {
				x.F[j] = float32(int(1) << (18 + j%4))
			}
		}
		clear(x.F[pool*h.block*row:])
	}
	if window > 0 {
		ids := make([]int32, window)
		for i := range ids {
			ids[i] = int32(h.at(h.listed - window + int64(i)))
		}
		in["window_blocks"] = interp.FromI32([]int64{window}, ids...)
		in["window_start"] = interp.FromI32([]int64{1}, int32((h.blocks-window)*h.block))
	}
}

// attentionCase is what a pass of attention is run on: a drawn module after the
// passes before it, and what it is told.
type attentionCase struct {
	*attention
	before, after *ir.Module
	params        passes.Params
	env           map[string]int64
	args          []map[string]*interp.Tensor
}

// drawAttentionCase draws a module and runs a pass. It is nil where a budget is too
// small for any mask, which is an error and no rewrite.
func drawAttentionCase(t *rapid.T, pass string) *attentionCase {
	local := map[string]int{"local-window": 85, "fuse-rel-bias": 50, "band-split": 40, "sub-block": 50}
	a := drawAttention(t, local[pass])
	require.NoError(t, a.b.Err())
	require.NoError(t, ir.Verify(a.m), "%s", a.m)
	c := &attentionCase{attention: a}
	c.params = passes.Params{
		Attention: passes.Banded, Far: rapid.SampledFrom([]string{passes.FarMask, passes.FarExact, passes.FarTiled}).Draw(t, "far"),
		BlockSize: int(a.block), SubBlockRows: 1 + a.intn("rows of a sub-block", 4),
	}
	if a.chance("a budget", 30) {
		c.params.MaskBudget = 1 << (5 + a.intn("budget", 8))
	}
	if a.chance("masked", 5) {
		c.params.Attention = passes.Masked
	}
	if a.chance("block size not known", 5) {
		c.params.BlockSize = 0
	}
	first := map[string]string{
		"local-window": "", "fuse-rel-bias": "", "band-split": "fuse-rel-bias,",
		"sub-block": "fuse-rel-bias,outline-segments,",
	}[pass]
	if pass == "sub-block" && a.chance("banded", 50) {
		first = "fuse-rel-bias,band-split,outline-segments,"
	}
	if a.chance("canonical", 30) {
		first = "canonicalize,cse,dce," + first
	}
	p, err := passes.Parse(first + pass)
	require.NoError(t, err)
	mgr := func(p passes.Pipeline) *passes.Manager {
		return passes.NewManager(passes.Config{Pipeline: p, Params: c.params, Honest: true})
	}
	c.before = a.m.Clone()
	n := len(p) - 1
	require.NoError(t, mgr(p[:n]).Run(t.Context(), "", c.before))
	if pass != "sub-block" {
		c.after = c.before.Clone()
		require.NoError(t, mgr(p[n:]).Run(t.Context(), "", c.after))
		c.env, c.args = a.step(c.after)
		return c
	}
	c.env, c.args = a.step(c.before)
	c.before, err = ir.Specialise(c.before, c.env)
	require.NoError(t, err)
	c.after = c.before.Clone()
	if err := mgr(p).RunStage(t.Context(), passes.Bucket, "", c.after); err != nil {
		require.ErrorContains(t, err, "the mask of one row is", "%s", c.before)
		return nil
	}
	c.env = nil
	return c
}

// compare interprets before and after. Results of a pass that is not exact may be
// off by their rounding, relative to the largest of them.
func (c *attentionCase) compare(t *rapid.T, inexact bool) {
	run := func(m *ir.Module) []map[string]*interp.Tensor {
		require.NoError(t, interp.Complete(m, c.env, c.before.Entry(), c.args))
		out, err := interp.Run(t.Context(), m, m.Entry(), c.env, c.args, interp.Options{MaxElems: 1 << 16})
		require.NoError(t, err, "%s", m)
		return out
	}
	want, got := run(c.before), run(c.after)
	bound := 0.0
	if inexact {
		bound = c.bound() * largest(want, "y")
	}
	require.NoError(t, interp.Same(got, want, bound), "drawn:\n%s\nbefore:\n%s\nafter:\n%s\nparams %v, sizes %v, inputs %v", c.m, c.before, c.after, c.params, c.env, c.inputsText())
}

// bound is 1e-5, or what four roundings to bf16 make of values up to 4, as random
// ones are.
func (c *attentionCase) bound() float64 {
	if c.dt == dtype.BF16 {
		return 4 * 4 * math.Exp2(-9)
	}
	return 1e-5
}

func (c *attentionCase) inputsText() string {
	var list []string
	for _, p := range c.m.Entry().Params {
		if x := c.args[0][p.Name]; len(x.I) > 0 {
			list = append(list, fmt.Sprint(p.Name, x.I))
		}
	}
	return strings.Join(list, " ")
}

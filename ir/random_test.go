package ir

import (
	"fmt"
	"math"
	"slices"

	"pgregory.net/rapid"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

// drawModule draws a module that verifies: a model of many ops, or segments and
// an entry that calls them.
func drawModule(t *rapid.T) *Module {
	m := &Module{Name: rapid.SampledFrom([]string{"m", "a.0", "_x"}).Draw(t, "module"), TP: rapid.SampledFrom([]int{1, 2, 4, 6}).Draw(t, "ranks"), Level: ops.Model}
	m.Syms = symbols()
	if rapid.Bool().Draw(t, "outlined") {
		m.Level = ops.Plan
		for i := range rapid.IntRange(1, 3).Draw(t, "segments") {
			g := newGen(t, m, fmt.Sprint("seg.", i))
			g.body()
			m.Funcs = append(m.Funcs, g.fn)
		}
		g := newGen(t, m, "f")
		g.calls()
		m.Funcs = append(m.Funcs, g.fn)
		return m
	}
	if rapid.Bool().Draw(t, "fused") {
		m.Level = ops.Fused
	}
	g := newGen(t, m, "f")
	m.Funcs = append(m.Funcs, g.fn)
	g.body()
	return m
}

func symbols() []*Sym {
	return []*Sym{
		{Name: "q", Min: 2, Max: 9},
		{Name: "w", Def: &SymDef{Fn: "ceil", X: SymDim("q").Add(D(6)), Y: D(4)}},
		{Name: "sym", Min: 1, Max: 3}, // also a keyword
	}
}

// gen fills one function.
type gen struct {
	t  *rapid.T
	m  *Module
	fn *Func
	b  *Builder
	// vals are the values that ops can use, states the newest versions.
	vals   []*Value
	states []*Value
	names  []string // of states
	n      int
	// made is called with every op that was built.
	made func(o *Op)
	// lure, where set, builds ops now and then that a pass looks for.
	lure Lure
}

// Lure builds ops with b, on existing values if it likes: choose picks a number
// below n. Others may use what it builds.
type Lure func(b *Builder, m *Module, vals []*Value, choose func(n int) int)

// drawLured draws a model with ops that a lure builds, among others or alone: others
// would make much of last bits.
func drawLured(t *rapid.T, lure Lure, alone bool) *Module {
	m := &Module{Name: "m", TP: rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "ranks"), Level: ops.Model}
	m.Syms = symbols()
	g := newGen(t, m, "f")
	g.lure = lure
	m.Funcs = append(m.Funcs, g.fn)
	if !alone {
		g.body()
		return m
	}
	for range 1 + g.intn("lures", 6) {
		g.lured()
	}
	g.results()
	return m
}

func newGen(t *rapid.T, m *Module, name string) *gen {
	f := &Func{Name: name}
	return &gen{t: t, m: m, fn: f, b: NewBuilder(m, f)}
}

func (g *gen) label(s string) string {
	g.n++
	return fmt.Sprint(g.fn.Name, " ", s, " ", g.n)
}

func (g *gen) intn(s string, n int) int { return rapid.IntRange(0, n-1).Draw(g.t, g.label(s)) }

func (g *gen) chance(s string, percent int) bool { return g.intn(s, 100) < percent }

func pick[T any](g *gen, s string, list []T) T { return list[g.intn(s, len(list))] }

// segment reports whether temp parameters are allowed.
func (g *gen) segment() bool { return g.m.Level == ops.Plan && g.fn.Name != "f" }

var trickyStrings = []string{"", "a", "attn.q_proj", `say "no"`, "two\nlines", "tab\tand \\ backslash", "größer 三", "\x00\x01", "\xff\xfe", "; ERROR: x", " : f32[2] loc(1)", "{a = 1, b = 2}", "\u2028\ufeff", "%x, %y"}

func (g *gen) str() string {
	if g.chance("any string", 20) {
		return rapid.String().Draw(g.t, g.label("string"))
	}
	return pick(g, "string", trickyStrings)
}

func (g *gen) size() Dim {
	return pick(g, "size", []Dim{
		D(1), D(1), D(2), D(3), D(4), D(6), D(8), D(12), SymDim("q"), SymDim("q").Mul(D(2)), SymDim("q").Add(D(1)), SymDim("w"),
		SymDim("sym"), SymDim("sym").Mul(SymDim("q")), D(12).Sub(SymDim("q")),
	})
}

func (g *gen) shape(rank int) []Dim {
	s := make([]Dim, rank)
	for i := range s {
		s[i] = g.size()
	}
	return s
}

// dist draws a distribution of a shape.
func (g *gen) dist(rank int) Dist {
	var ways []int
	for w := 2; w <= g.m.TP; w++ {
		if g.m.TP%w == 0 {
			ways = append(ways, w)
		}
	}
	if len(ways) == 0 {
		return Dist{}
	}
	switch g.intn("distribution", 10) {
	case 0, 1, 2, 3, 4:
		if rank > 0 {
			return Shard(g.intn("axis", rank), pick(g, "ways", ways))
		}
	case 5, 6:
		if g.segment() {
			return PartialSum
		}
	}
	return Dist{}
}

// param adds a parameter of a type, of a kind that may have it.
func (g *gen) param(t Type) *Value {
	name := fmt.Sprintf("%s%d", pick(g, "name", []string{"x", "layers.3.w", "_", "return", "func.0."}), len(g.fn.Params))
	if g.segment() && (t.Dist.Kind != Replicated || g.chance("temp", 50)) {
		v := g.b.Param(Temp, name, t, Source{})
		g.vals = append(g.vals, v)
		return v
	}
	kind := pick(g, "kind", []Kind{Host, Carry, Weight})
	if t.Dist.Kind == Sharded && kind == Host {
		kind = Weight
	}
	var src Source
	if kind == Weight && !g.segment() {
		src = g.source(t)
	}
	v := g.b.Param(kind, name, t, src)
	g.vals = append(g.vals, v)
	return v
}

// offset adds the first row of each rank's part of a table.
func (g *gen) offset(d Dist, rows int64) *Value {
	t := T(dtype.I32, D(1)).With(d)
	if g.segment() {
		return g.param(t)
	}
	return g.b.Param(Weight, fmt.Sprintf("offset%d", len(g.fn.Params)), t, Source{PerRank: true, Step: float64(rows)})
}

func (g *gen) source(t Type) Source {
	if g.chance("fill", 20) {
		s := Source{PerRank: true, Fill: float64(g.intn("fill", 7)) - 3}
		if t.DType.IsFloat() {
			s.Fill = pick(g, "fill", []float64{0, -1e-06, 0.1, math.Copysign(0, -1), 1e30, math.Pi})
		}
		if t.Dist.Kind == Sharded && t.Dist.Ways == g.m.TP {
			s.Step = float64(g.intn("step", 5)) + 1
			if t.DType == dtype.U8 || t.DType == dtype.I8 {
				s.Fill = 0
			}
		} else if t.DType == dtype.U8 {
			s.Fill = math.Abs(s.Fill)
		}
		return s
	}
	s := Source{Tensor: "t" + g.str()}
	if t.Rank() == 0 || !g.chance("view", 50) {
		return s
	}
	perm := g.perm(t.Rank())
	whole := t.global().Shape
	view := make([]int64, t.Rank())
	for i, p := range perm {
		n, ok := whole[i].Const()
		if !ok {
			return s
		}
		view[p] = n
	}
	if g.chance("perm", 70) {
		s.Perm = perm
		if g.chance("reshape", 50) {
			s.Reshape = view
		}
	}
	return s
}

func (g *gen) perm(n int) []int64 {
	perm := make([]int64, n)
	for i := range perm {
		perm[i] = int64(i)
	}
	for i := n - 1; i > 0; i-- {
		j := g.intn("swap", i+1)
		perm[i], perm[j] = perm[j], perm[i]
	}
	return perm
}

func (g *gen) dtypeFor(e ops.Elem) dtype.Type {
	switch e {
	case ops.I32:
		return dtype.I32
	case ops.Pred:
		return dtype.I8
	case ops.F32:
		return dtype.F32
	case ops.AnyFloat:
		return pick(g, "type", []dtype.Type{dtype.F32, dtype.F32, dtype.BF16})
	case ops.Number:
		return pick(g, "type", []dtype.Type{dtype.F32, dtype.F32, dtype.BF16, dtype.I32})
	}
	return pick(g, "type", []dtype.Type{dtype.F32, dtype.F32, dtype.BF16, dtype.I32, dtype.I8, dtype.U8, dtype.I64})
}

// operand is an existing value, or a new parameter, that fits an operand.
func (g *gen) operand(e ops.Elem) *Value {
	var fit []*Value
	for _, v := range g.vals {
		if elemOK(e, v.Type.DType) {
			fit = append(fit, v)
		}
	}
	if len(fit) > 0 && g.chance("old value", 85) {
		if g.chance("recent", 50) {
			return fit[len(fit)-1]
		}
		return pick(g, "value", fit)
	}
	rank := g.intn("rank", 4) + 1
	return g.param(T(g.dtypeFor(e), g.shape(rank)...).With(g.dist(rank)))
}

// like is a value of a type and shape; its distribution may be any.
func (g *gen) like(t dtype.Type, shape ...Dim) *Value {
	var fit []*Value
	for _, v := range g.vals {
		if v.Type.DType == t && SameShape(v.Type.Shape, shape) {
			fit = append(fit, v)
		}
	}
	if len(fit) > 0 && g.chance("old value", 60) {
		return pick(g, "value", fit)
	}
	return g.param(T(t, shape...).With(g.dist(len(shape))))
}

// alike is a value that can be broadcast with x, often sharded as x.
func (g *gen) alike(x *Value, t dtype.Type) *Value {
	shape, d := slices.Clone(x.Type.Shape), x.Type.Dist
	for i := range shape {
		if g.chance("broadcast", 25) {
			shape[i] = D(1)
		}
	}
	if !g.chance("same distribution", 60) || d.Kind == Partial && !g.segment() {
		return g.like(t, shape...)
	}
	if d.Kind == Sharded && shape[d.Axis].Is(1) && !x.Type.Shape[d.Axis].Is(1) {
		d = Dist{}
	}
	return g.param(T(t, shape...).With(d))
}

// body builds ops and returns some of their results.
func (g *gen) body() {
	for range rapid.IntRange(0, 25).Draw(g.t, g.label("ops")) {
		if g.chance("location", 30) {
			l := NoLoc
			if g.chance("layer", 50) {
				l.Layer = g.intn("layer", 70)
			}
			l.Op, l.Tensor = g.str(), g.str()
			g.b.At(l)
		}
		var list []*ops.Op
		for i := range ops.Table {
			o := &ops.Table[i]
			if o.Levels&(&verifier{mod: g.m, fn: g.fn}).allowed() != 0 && o.Name != "call" && !(g.segment() && (o.Has(ops.Collective) || o.Has(ops.Break))) {
				list = append(list, o)
			}
		}
		g.op(pick(g, "op", list))
		if g.lure != nil && g.chance("lure", 30) {
			g.lured()
		}
	}
	if g.lure != nil {
		g.lured()
	}
	g.results()
}

// lured lets the lure build.
func (g *gen) lured() {
	g.try(func() {
		g.lure(g.b, g.m, slices.Clone(g.vals), func(n int) int { return g.intn("lure", n) })
	})
}

func (g *gen) results() {
	for i, s := range g.states {
		if s.Param == nil || g.chance("return state", 50) {
			g.b.Result(State, g.names[i], s)
		}
	}
	for range g.intn("results", 4) {
		if len(g.vals) == 0 {
			break
		}
		v := pick(g, "result", g.vals)
		kind := pick(g, "kind", []Kind{Host, Carry, Temp})
		if v.Type.Dist.Kind != Replicated {
			kind = Temp
		}
		g.b.Result(kind, fmt.Sprint(pick(g, "name", []string{"y", "out.", "output"}), len(g.fn.Results)), v)
	}
}

// op tries to add one op.
func (g *gen) op(def *ops.Op) { g.try(func() { g.build(def) }) }

// try adds ops; what the rules refuse is taken back.
func (g *gen) try(build func()) {
	before, states := len(g.fn.Ops), slices.Clone(g.states)
	build()
	made := g.fn.Ops[before:]
	bad := g.b.err != nil
	for _, o := range made {
		for _, r := range o.Results {
			bad = bad || g.tooLarge(r.Type)
		}
	}
	if v := (&verifier{mod: g.m, fn: g.fn, corners: g.m.corners()}); !bad {
		for _, o := range made {
			v.constant(o)
			v.inside(o)
		}
		bad = len(v.diags) > 0
	}
	if bad {
		g.b.err = nil
		g.fn.Ops = g.fn.Ops[:before]
		copy(g.states, states)
		for i := len(states); i < len(g.states); i++ { // declared just now
			g.states[i] = g.fn.Param(g.names[i]).Value
		}
		return
	}
	for _, o := range made {
		for _, r := range o.Results {
			if !o.Def.Has(ops.StateWrite) {
				g.vals = append(g.vals, r)
			}
		}
		if g.made != nil {
			g.made(o)
		}
	}
}

// tooLarge refuses sizes that the verifier refuses, and large ones.
func (g *gen) tooLarge(t Type) bool {
	v := verifier{mod: g.m, ranges: map[string]bounds{}}
	for _, s := range g.m.Syms {
		v.sym(s)
	}
	return t.Rank() > 6 || !v.typ(t, Pos{}, "") || t.Elems().bound(v.ranges).hi > 1<<40
}

// axis is an axis of a shape.
func (g *gen) axis(x *Value) int64 {
	if x.Type.Rank() == 0 {
		return 0
	}
	return int64(g.intn("axis", x.Type.Rank()))
}

func (g *gen) build(def *ops.Op) {
	b := g.b
	operand := func(i int) *Value { return g.operand(def.Operands[i].Elem) }
	switch def.Name {
	case "const":
		t := g.dtypeFor(ops.Any)
		v := pick(g, "constant", []float64{0, math.Copysign(0, -1), 1, -1e-06, 0.1, 1e30, -30000, 1e-45, 123456789, math.Pi})
		if !t.IsFloat() {
			v = float64(g.intn("constant", 100))
		}
		b.Const(v, t)
	case "iota":
		b.Iota(g.size())
	case "select":
		x := operand(1)
		b.Select(g.alike(x, dtype.I8), x, g.alike(x, x.Type.DType))
	case "cast":
		b.Cast(operand(0), g.dtypeFor(ops.Any))
	case "reshape":
		x := operand(0)
		to := g.regroup(x.Type.Shape)
		if g.chance("shard", 50) {
			b.ReshapeShard(x, g.intn("shard", len(to)+1), to...)
		} else {
			b.Reshape(x, to)
		}
	case "transpose":
		x := operand(0)
		b.Transpose(x, g.perm(x.Type.Rank()))
	case "broadcast":
		x := operand(0)
		to := slices.Clone(x.Type.Shape)
		for i := range to {
			if to[i].Is(1) && x.Type.Dist != Shard(i, x.Type.Dist.Ways) {
				to[i] = g.size()
			}
		}
		if a := int64(g.axis(x)); g.m.TP > 1 && x.Type.Rank() > 0 && x.Type.Shape[a].Is(1) && g.chance("shard", 50) {
			b.BroadcastTo(x, Shard(int(a), g.m.TP), to...)
			return
		}
		b.Broadcast(x, to)
	case "slice":
		x := operand(0)
		a := g.axis(x)
		if x.Type.Rank() == 0 {
			return
		}
		start := D(int64(g.intn("start", 3)))
		stop := pick(g, "stop", []Dim{x.Type.Shape[a], x.Type.Shape[a].Sub(D(1)), start.Add(D(1)), SymDim("q").Add(start)})
		b.Slice(x, a, start, stop)
	case "concat":
		x := operand(0)
		a := g.axis(x)
		list := []*Value{x}
		for range g.intn("more", 3) {
			shape, d := slices.Clone(x.Type.Shape), x.Type.Dist
			if len(shape) > 0 {
				shape[a] = g.size()
			}
			if d.Kind == Partial && !g.segment() {
				d = Dist{}
			}
			y := g.like(x.Type.DType, shape...)
			if g.chance("same distribution", 50) {
				y = g.param(T(x.Type.DType, shape...).With(d))
			}
			list = append(list, y)
		}
		b.Concat(a, list...)
	case "reduce_sum":
		x := operand(0)
		b.ReduceSum(x, g.axis(x))
	case "reduce_max":
		x := operand(0)
		b.ReduceMax(x, g.axis(x))
	case "topk":
		b.Topk(operand(0), int64(g.intn("k", 4)))
	case "gather":
		x, i := operand(0), operand(1)
		b.Gather(x, i, g.axis(x))
	case "gather_elements":
		x := operand(0)
		a := g.axis(x)
		i := g.alike(x, dtype.I32)
		b.GatherElements(x, i, a)
	case "matmul":
		g.matmul(operand(0))
	case "matmul_joined":
		t, rows, k, n := g.dtypeFor(ops.AnyFloat), g.size(), g.size(), g.size()
		weights := []*Value{g.like(t, n, k), g.like(t, g.size(), n, k)}
		if g.m.TP > 1 {
			weights = append(weights, g.param(T(t, n, k).With(Shard(0, g.m.TP))))
		}
		b.MatmulJoined(g.param(T(t, rows, k)), pick(g, "dtype", []dtype.Type{t, dtype.F32}), weights...)
	case "rms_norm":
		x := operand(0)
		if r := x.Type.Rank(); r > 0 {
			b.RMSNorm(x, g.like(x.Type.DType, x.Type.Shape[r-1]), pick(g, "eps", []float64{1e-06, 1e-5, 0, 0.001}))
		}
	case "short_conv":
		x := operand(0)
		if r := x.Type.Rank(); r > 0 {
			taps := g.like(dtype.F32, D(int64(g.intn("taps", 3)+1)), x.Type.Shape[r-1])
			if d := x.Type.Dist; d.Kind == Sharded && d.Axis == r-1 && g.chance("same distribution", 70) {
				taps = g.param(T(dtype.F32, D(2), x.Type.Shape[r-1]).With(Shard(1, d.Ways)))
			}
			b.ShortConv(x, taps)
		}
	case "moe":
		t, rows, h, k, e, i := g.dtypeFor(ops.AnyFloat), g.size(), g.size(), g.size(), g.size(), g.size()
		d := Dist{}
		if g.m.TP > 1 && g.chance("sharded", 50) {
			d = Shard(2, g.m.TP)
		}
		var banks []*Value
		for range g.intn("banks", 2) + 1 {
			banks = append(banks, g.param(T(t, e, D(2), i, h).With(d)), g.param(T(t, e, h, i).With(d)))
			e = g.size()
		}
		y := b.MoE(g.like(t, rows, h), g.like(dtype.I32, rows, k), g.like(t, rows, k), banks...)
		if g.chance("part", 40) {
			y.Def.Attrs = append(y.Def.Attrs, intAttr("first", int64(g.intn("first", 3))))
		}
	case "sdpa", "sdpa_stats":
		t, heads, group, rows, keys, dim := g.dtypeFor(ops.AnyFloat), g.size(), g.size(), g.size(), g.size(), g.size()
		d := g.dist(1)
		if d.Kind == Partial {
			d = Dist{}
		}
		one := D(1)
		var batch []Dim
		if g.chance("batch", 50) {
			batch = []Dim{g.size()}
			if d.Kind == Sharded {
				d.Axis++
			}
		}
		typ := func(shape ...Dim) Type { return T(t, append(batch[:len(batch):len(batch)], shape...)...).With(d) }
		mask := typ(heads, group, rows, keys)
		if g.chance("row mask", 50) {
			mask = T(t, append(slices.Repeat([]Dim{one}, len(batch)+3), keys)...)
		}
		q, k, v, m := g.param(typ(heads, group, rows, dim)), g.param(typ(heads, one, keys, dim)), g.param(typ(heads, one, keys, g.size())), g.param(mask)
		if g.chance("no mask", 20) {
			m = nil
		}
		if scale := pick(g, "scale", []float64{1, 0.125, 1e-06}); def.Name == "sdpa" {
			b.SDPA(q, k, v, m, scale)
		} else {
			b.SDPAStats(q, k, v, m, scale)
		}
	case "embedding":
		d := g.dist(1)
		if g.m.TP > 1 && g.chance("sharded", 70) {
			d = Shard(0, g.m.TP)
		}
		if d.Kind != Sharded || d.Ways != g.m.TP {
			return // ranks that hold the same part have no fill of their own
		}
		rows := int64(g.intn("rows", 4) + 1)
		table := g.param(T(g.dtypeFor(ops.AnyFloat), D(rows), g.size()).With(d))
		b.Embedding(table, g.like(dtype.I32, g.size()), g.offset(d, rows))
	case "kv_read":
		b.KVRead(g.state(), g.like(dtype.I32, g.size()), int64(g.intn("block", 4)+1))
	case "conv_read":
		b.ConvRead(g.state(), g.like(dtype.I32, g.size()))
	case "conv_reads":
		_, states := g.likeStates()
		b.ConvReads(g.like(dtype.I32, g.size()), states...)
	case "kv_write", "conv_write":
		g.write(def.Name)
	case "conv_writes":
		g.writes()
	case "all_reduce":
		var x *Value
		for _, v := range g.vals {
			if v.Type.Dist.Kind == Partial && v.Type.DType.IsFloat() {
				x = v
			}
		}
		switch {
		case x == nil && g.m.Level != ops.Plan && g.m.TP > 1:
			x = b.ReduceSum(g.param(T(dtype.BF16, g.size(), g.size()).With(Shard(1, g.m.TP))), 1)
		case x == nil:
			x = operand(0)
		}
		b.AllReduce(x)
	case "all_gather":
		x := operand(0)
		b.AllGather(x, int64(max(x.Type.Dist.Axis, 0)))
	case "graph_break":
		b.GraphBreak(g.str())
	default: // unary and binary ops have no attributes
		x := operand(0)
		args := []*Value{x}
		if len(def.Operands) == 2 {
			args = append(args, g.alike(x, x.Type.DType))
			if g.chance("swap", 30) {
				slices.Reverse(args)
			}
		}
		if b.op(def.Name, args) == nil && b.Err() == nil {
			panic("no result")
		}
	}
}

// regroup joins and splits axes of a shape.
func (g *gen) regroup(shape []Dim) []Dim {
	out := []Dim{}
	for _, d := range shape {
		n, ok := d.Const()
		switch g.intn("regroup", 6) {
		case 0:
			out = append(out, D(1), d)
		case 1:
			if len(out) > 0 {
				out[len(out)-1] = out[len(out)-1].Mul(d)
				continue
			}
			out = append(out, d)
		case 2:
			if ok && n%2 == 0 {
				out = append(out, D(2), D(n/2))
				continue
			}
			out = append(out, d)
		case 3:
			if !d.Is(1) {
				out = append(out, d)
			}
		default:
			out = append(out, d)
		}
	}
	return out
}

func (g *gen) matmul(x *Value) {
	r := x.Type.Rank()
	if r < 2 {
		return
	}
	shape := slices.Clone(x.Type.Shape)
	for i := range shape[:r-2] {
		if g.chance("broadcast", 40) {
			shape[i] = D(1)
		}
	}
	k, n := x.Type.Shape[r-1], g.size()
	transposed := g.chance("transposed", 50)
	shape[r-2], shape[r-1] = k, n
	ka, na := r-2, r-1
	if transposed {
		shape[r-2], shape[r-1] = n, k
		ka, na = r-1, r-2
	}
	y := g.like(x.Type.DType, shape...)
	if d := x.Type.Dist; d.Kind == Sharded && g.chance("same distribution", 70) {
		switch d.Axis {
		case r - 1:
			d.Axis = ka
		case r - 2:
			d = Dist{}
		default:
			if g.chance("coarser", 30) && d.Ways%2 == 0 {
				d = Shard(d.Axis, d.Ways/2)
			}
		}
		y = g.param(T(x.Type.DType, shape...).With(d))
	} else if d.Kind == Replicated && g.m.TP > 1 && g.chance("sharded columns", 50) {
		y = g.param(T(x.Type.DType, shape...).With(Shard(na, g.m.TP)))
	}
	g.b.Matmul(x, y, transposed, pick(g, "type", []dtype.Type{dtype.F32, x.Type.DType}))
}

// state is the newest version of some state.
func (g *gen) state() *Value {
	if len(g.states) == 0 || g.chance("new state", 20) {
		d := g.dist(3)
		if d.Kind == Partial {
			d = Dist{}
		}
		name := fmt.Sprint("state.", len(g.states))
		v := g.b.Param(State, name, T(g.dtypeFor(ops.AnyFloat), D(12), g.size(), g.size()).With(d), Source{})
		g.states, g.names = append(g.states, v), append(g.names, name)
		return v
	}
	return pick(g, "state", g.states)
}

func (g *gen) write(name string) {
	s := g.state()
	n := g.size()
	i := slices.Index(g.states, s)
	rows := g.like(s.Type.DType, n, s.Type.Shape[1], s.Type.Shape[2])
	if s.Type.Dist.Kind == Sharded && g.chance("same distribution", 70) {
		rows = g.param(T(s.Type.DType, n, s.Type.Shape[1], s.Type.Shape[2]).With(s.Type.Dist))
	}
	next := g.b.op(name, []*Value{s, g.like(dtype.I32, n), rows})[0]
	if g.b.err == nil {
		g.states[i] = next
	}
}

// likeStates are newest versions of some states of one type, and their numbers.
func (g *gen) likeStates() (numbers []int, states []*Value) {
	first := g.state()
	for i, s := range g.states {
		if s.Type.Equal(first.Type) && (s == first || g.chance("another state", 70)) {
			numbers, states = append(numbers, i), append(states, s)
		}
	}
	if len(states) == 1 && g.chance("another state", 50) {
		name := fmt.Sprint("state.", len(g.states))
		v := g.b.Param(State, name, first.Type, Source{})
		numbers, states = append(numbers, len(g.states)), append(states, v)
		g.states, g.names = append(g.states, v), append(g.names, name)
	}
	return numbers, states
}

func (g *gen) writes() {
	numbers, states := g.likeStates()
	t, n := states[0].Type, g.size()
	rows := T(t.DType, D(int64(len(states))), n, t.Shape[1], t.Shape[2])
	if t.Dist.Kind == Sharded {
		rows.Dist = Shard(t.Dist.Axis+1, t.Dist.Ways)
	}
	next := g.b.ConvWrites(g.like(dtype.I32, n), g.param(rows), states...)
	for i, at := range numbers {
		if g.b.err == nil {
			g.states[at] = next[i]
		}
	}
}

// calls builds an entry of calls and collectives.
func (g *gen) calls() {
	for range rapid.IntRange(0, 6).Draw(g.t, g.label("calls")) {
		if def, _ := ops.ByName(pick(g, "op", []string{"all_reduce", "all_gather", "", "", ""})); def != nil {
			if len(g.vals) > 0 {
				g.op(def)
			}
			continue
		}
		g.call(pick(g, "callee", g.m.Funcs))
	}
	g.results()
}

func (g *gen) call(f *Func) {
	var args []*Value
	used := map[*Value]bool{}
	for _, p := range f.Params {
		t := p.Value.Type
		if p.Kind == State {
			v := g.callState(t, used)
			used[v] = true
			args = append(args, v)
			continue
		}
		var fit []*Value
		for _, v := range g.vals {
			if v.Type.Equal(t) {
				fit = append(fit, v)
			}
		}
		switch {
		case len(fit) > 0 && g.chance("old value", 80):
			args = append(args, pick(g, "value", fit))
		case t.Dist.Kind == Partial:
			return
		default:
			args = append(args, g.param(t))
		}
	}
	results := g.b.Call(f, args...)
	for i, r := range f.Results {
		if r.Kind != State {
			g.vals = append(g.vals, results[i])
			continue
		}
		for j, p := range f.Params {
			if p.Name == r.Name && p.Kind == State {
				g.states[slices.Index(g.states, args[j])] = results[i]
			}
		}
	}
}

func (g *gen) callState(t Type, used map[*Value]bool) *Value {
	for _, s := range g.states {
		if s.Type.Equal(t) && !used[s] && g.chance("old state", 70) {
			return s
		}
	}
	name := fmt.Sprint("state.", len(g.states))
	v := g.b.Param(State, name, t, Source{})
	g.states, g.names = append(g.states, v), append(g.names, name)
	return v
}

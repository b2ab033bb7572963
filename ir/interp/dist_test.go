package interp

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir"
	"quill/recipes/dtype"
)

// twin builds a program twice: for several ranks, and for one that holds whole
// values. What the ranks compute, joined as its distribution says, must be what
// the single rank computes: a distribution rule that lets through an op that
// does not commute with the distribution shows as a difference.
type twin struct {
	t            *rapid.T
	many, single *ir.Module
	args         []map[string]*Tensor // of many
	whole        map[string]*Tensor
	vs, ws       []*ir.Value // the same values in both
}

func newTwin(t *rapid.T, tp int) *twin {
	w := &twin{t: t, whole: map[string]*Tensor{}}
	w.many = &ir.Module{Name: "many", TP: tp, Funcs: []*ir.Func{{Name: "f"}}}
	w.single = &ir.Module{Name: "single", TP: 1, Funcs: []*ir.Func{{Name: "f"}}}
	w.args = make([]map[string]*Tensor, tp)
	for r := range w.args {
		w.args[r] = map[string]*Tensor{}
	}
	return w
}

func TestDistributionsAreSound(t *testing.T) {
	tried, taken, partial, sharded := map[string]int{}, map[string]int{}, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := newTwin(t, rapid.SampledFrom([]int{2, 4}).Draw(t, "ranks"))
		w.param()
		for range rapid.IntRange(1, 10).Draw(t, "ops") {
			if rapid.IntRange(0, 3).Draw(t, "new") == 0 {
				w.param()
			}
			name, ok := w.op()
			tried[name]++
			if ok {
				taken[name]++
			}
		}
		for _, v := range w.vs {
			switch v.Type.Dist.Kind {
			case ir.Partial:
				partial++
			case ir.Sharded:
				sharded++
			}
		}
		w.compare()
	})
	for name, n := range tried { // the test is worth something
		if n >= 500 {
			require.Greater(t, taken[name]*20, n, "%s: %d of %d", name, taken[name], n)
		}
	}
	require.Greater(t, partial, 10)
	require.Greater(t, sharded, 10)
	if testing.Verbose() {
		t.Log(taken, partial, sharded)
	}
}

// compare runs both programs and compares all values.
func (w *twin) compare() {
	run := func(m *ir.Module, vs []*ir.Value, args []map[string]*Tensor) []map[string]*Tensor {
		b := ir.NewBuilder(m, m.Entry())
		for i, v := range vs {
			b.Result(ir.Temp, fmt.Sprint("r", i), v)
		}
		out, err := Run(context.Background(), m, m.Entry(), nil, args, Options{})
		if err != nil {
			w.t.Fatalf("%v\n%s", err, m)
		}
		return out
	}
	got := run(w.many, w.vs, w.args)
	want := run(w.single, w.ws, []map[string]*Tensor{w.whole})
	for i, v := range w.vs {
		name := fmt.Sprint("r", i)
		parts := make([]*Tensor, len(got))
		for r := range parts {
			parts[r] = got[r][name]
		}
		d := v.Type.Dist
		var joined *Tensor
		if d.Kind == ir.Partial && v.Type.DType == dtype.I32 { // integers wrap
			joined = Zeros(dtype.I32, parts[0].Shape...)
			for _, p := range parts {
				for k := range p.I {
					joined.I[k] = wrap(dtype.I32, joined.I[k]+p.I[k])
				}
			}
		} else {
			var err error
			joined, err = Join(parts, d)
			require.NoError(w.t, err)
		}
		// Sums are of small integers and exact, but for the sign of a zero.
		if diff, err := MaxAbsDiff(joined, want[0][name]); err != nil || diff != 0 {
			w.t.Fatalf("%s (%s): joined %v, whole %v: %v\n%s\n%s", v.Name(), v.Type, joined, want[0][name], err, w.many, w.single)
		}
	}
}

// param adds a parameter of random type and distribution.
func (w *twin) param() int {
	t := rapid.SampledFrom([]dtype.Type{dtype.F32, dtype.F32, dtype.F32, dtype.I32}).Draw(w.t, "type")
	shape := rapid.SliceOfN(rapid.Int64Range(1, 4), 1, 4).Draw(w.t, "shape")
	return w.paramOf(t, shape, w.dist(len(shape)), 3)
}

// dist draws a distribution of a value of some rank.
func (w *twin) dist(rank int) ir.Dist {
	switch rapid.IntRange(0, 4).Draw(w.t, "dist") {
	case 0:
		return ir.Dist{}
	case 1:
		return ir.PartialSum
	}
	ways := rapid.SampledFrom([]int{w.many.TP, w.many.TP, 2}).Draw(w.t, "ways")
	return ir.Shard(rapid.IntRange(0, rank-1).Draw(w.t, "axis"), ways)
}

// paramOf adds a parameter with values 0 … n−1 or, if not an index, −n+2 … n−1.
func (w *twin) paramOf(t dtype.Type, shape []int64, d ir.Dist, n int64) int {
	lo := int64(0)
	if t == dtype.F32 {
		lo = 2 - n
	}
	draw := func(shape []int64) *Tensor {
		return Cast(RandomInts(rapid.Uint64().Draw(w.t, "seed"), dtype.I32, lo, n, shape...), t)
	}
	var whole *Tensor
	var parts []*Tensor
	if d.Kind == ir.Partial {
		whole = Zeros(t, shape...)
		for range w.many.TP {
			part := draw(shape)
			parts = append(parts, part)
			sum, err := arithmetic(func(x, y float64) float64 { return x + y }, func(x, y int64) int64 { return x + y })(attrs{}, in(whole, part))
			require.NoError(w.t, err)
			whole = sum[0]
		}
	} else {
		whole = draw(global(shape, d))
		var err error
		parts, err = Shard(whole, d, w.many.TP)
		require.NoError(w.t, err)
	}
	name := fmt.Sprint("p", len(w.whole))
	w.whole[name] = whole
	for r := range parts {
		w.args[r][name] = parts[r]
	}
	ty := ir.T(t, dims(shape)...).With(d)
	w.vs = append(w.vs, ir.NewBuilder(w.many, w.many.Entry()).Param(ir.Temp, name, ty, ir.Source{}))
	w.ws = append(w.ws, ir.NewBuilder(w.single, w.single.Entry()).Param(ir.Temp, name, ir.T(t, dims(whole.Shape)...), ir.Source{}))
	return len(w.vs) - 1
}

// global is the shape of the whole of which a rank has shape.
func global(shape []int64, d ir.Dist) []int64 {
	out := slices.Clone(shape)
	if d.Kind == ir.Sharded {
		out[d.Axis] *= int64(d.Ways)
	}
	return out
}

func shapeOf(v *ir.Value) []int64 {
	shape, err := evalShape(v.Type.Shape, nil)
	if err != nil {
		panic(err)
	}
	return shape
}

// build adds an op to both programs if the rules of the many ranks allow it.
// after makes attributes of the single rank's op, which may depend on the type
// of the others' result.
func (w *twin) build(operands []int, many func(b *ir.Builder, v []*ir.Value) []*ir.Value, single func(b *ir.Builder, v []*ir.Value, out ir.Type) []*ir.Value) bool {
	pick := func(from []*ir.Value) (vs []*ir.Value) {
		for _, i := range operands {
			vs = append(vs, from[i])
		}
		return vs
	}
	f := w.many.Entry()
	before := len(f.Ops)
	b := ir.NewBuilder(w.many, f)
	vs := many(b, pick(w.vs))
	if b.Err() != nil {
		f.Ops = f.Ops[:before]
		return false
	}
	sb := ir.NewBuilder(w.single, w.single.Entry())
	ws := single(sb, pick(w.ws), vs[0].Type)
	if sb.Err() != nil {
		w.t.Fatalf("allowed on ranks but not whole: %v\n%s", sb.Err(), w.many)
	}
	w.vs, w.ws = append(w.vs, vs...), append(w.ws, ws...)
	return true
}

// plain adds an op that is the same on many ranks as on one.
func (w *twin) plain(f func(b *ir.Builder, v []*ir.Value) []*ir.Value, operands ...int) bool {
	return w.build(operands, f, func(b *ir.Builder, v []*ir.Value, _ ir.Type) []*ir.Value { return f(b, v) })
}

func list(v ...*ir.Value) []*ir.Value { return v }

// like adds a parameter that could go along with value k: of its distribution,
// or another one.
func (w *twin) like(k int, change func(shape []int64)) int {
	v := w.vs[k]
	shape, d := shapeOf(v), v.Type.Dist
	if rapid.IntRange(0, 3).Draw(w.t, "other") == 0 {
		d = w.dist(len(shape))
	}
	change(shape)
	return w.paramOf(v.Type.DType, shape, d, 3)
}

// narrow makes some axes 1.
func (w *twin) narrow(shape []int64) {
	for a := range shape {
		if rapid.IntRange(0, 2).Draw(w.t, "narrow") == 0 {
			shape[a] = 1
		}
	}
}

// op tries one random op and reports its name and whether it was allowed.
func (w *twin) op() (string, bool) {
	k := rapid.IntRange(0, len(w.vs)-1).Draw(w.t, "operand")
	v := w.vs[k]
	shape, isFloat := shapeOf(v), v.Type.DType.IsFloat()
	rank := len(shape)
	axis := rapid.IntRange(0, rank-1).Draw(w.t, "axis")
	a := int64(axis)
	kinds := []string{"add", "sub", "mul", "max", "select", "neg", "reshape", "transpose", "broadcast", "slice", "concat", "gather", "gather_elements"}
	if isFloat {
		kinds = append(kinds, "sigmoid", "cast", "reduce_sum", "reduce_sum", "reduce_max", "softmax", "topk", "rms_norm", "short_conv", "matmul", "matmul", "matmul", "all_reduce", "all_gather")
	}
	kind := rapid.SampledFrom(kinds).Draw(w.t, "kind")
	return kind, w.try(kind, k, shape, axis, a)
}

func (w *twin) try(kind string, k int, shape []int64, axis int, a int64) bool {
	rank := len(shape)
	switch kind {
	case "add", "sub", "mul", "max":
		o := w.like(k, w.narrow)
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value {
			switch kind {
			case "add":
				return list(b.Add(v[0], v[1]))
			case "sub":
				return list(b.Sub(v[1], v[0]))
			case "mul":
				return list(b.Mul(v[0], v[1]))
			}
			return list(b.Max(v[0], v[1]))
		}, k, o)
	case "select":
		o := w.like(k, w.narrow)
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value {
			c := b.Lt(v[0], v[1])
			return list(b.Select(c, v[1], v[0]))
		}, k, o)
	case "neg":
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.Neg(v[0])) }, k)
	case "sigmoid":
		// Back to integers, which stay exact.
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value {
			s := b.Sigmoid(v[0])
			c := b.Const(2, dtype.F32)
			ones := make([]ir.Dim, rank)
			for i := range ones {
				ones[i] = ir.D(1)
			}
			return list(b.Cast(b.Cast(b.Mul(s, b.Reshape(c, ones)), dtype.I32), dtype.F32))
		}, k)
	case "cast":
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.Cast(v[0], dtype.I32)) }, k)
	case "reshape":
		to := refactor(w.t, shape)
		return w.build([]int{k}, func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.Reshape(v[0], dims(to))) },
			func(b *ir.Builder, v []*ir.Value, out ir.Type) []*ir.Value {
				return list(b.Reshape(v[0], dims(global(to, out.Dist))))
			})
	case "transpose":
		perm := rapid.Permutation(axes(rank)).Draw(w.t, "perm")
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.Transpose(v[0], perm)) }, k)
	case "broadcast":
		to := slices.Clone(shape)
		for i := range to {
			if to[i] == 1 {
				to[i] = rapid.Int64Range(1, 3).Draw(w.t, "repeat")
			}
		}
		return w.build([]int{k}, func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.Broadcast(v[0], dims(to))) },
			func(b *ir.Builder, v []*ir.Value, out ir.Type) []*ir.Value {
				return list(b.Broadcast(v[0], dims(global(to, out.Dist))))
			})
	case "slice":
		start := rapid.Int64Range(0, shape[axis]-1).Draw(w.t, "start")
		stop := rapid.Int64Range(start+1, shape[axis]).Draw(w.t, "stop")
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value {
			return list(b.Slice(v[0], a, ir.D(start), ir.D(stop)))
		}, k)
	case "concat":
		o := w.like(k, func(s []int64) { s[axis] = 2 })
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.Concat(a, v[0], v[1])) }, k, o)
	case "gather":
		idx := w.paramOf(dtype.I32, rapid.SliceOfN(rapid.Int64Range(1, 2), 1, 2).Draw(w.t, "index"), w.mostly(ir.Dist{}, 1), shape[axis])
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.Gather(v[0], v[1], a)) }, k, idx)
	case "gather_elements":
		s, d := slices.Clone(shape), w.vs[k].Type.Dist
		if d.Kind == ir.Partial {
			d = ir.Dist{}
		}
		for i := range s {
			if i != axis && rapid.Bool().Draw(w.t, "one") && (d.Kind != ir.Sharded || d.Axis != i) {
				s[i] = 1
			}
		}
		idx := w.paramOf(dtype.I32, s, w.mostly(d, rank), shape[axis])
		return w.build([]int{k, idx}, func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.GatherElements(v[0], v[1], a)) },
			func(b *ir.Builder, v []*ir.Value, _ ir.Type) []*ir.Value {
				// A size-1 axis of x stands for all shards of the index.
				x, to := v[0], shapeOf(v[0])
				for i, n := range shapeOf(v[1]) {
					if i != axis && to[i] == 1 {
						to[i] = n
					}
				}
				return list(b.GatherElements(b.Broadcast(x, dims(to)), v[1], a))
			})
	case "reduce_sum":
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.ReduceSum(v[0], a)) }, k)
	case "reduce_max":
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.ReduceMax(v[0], a)) }, k)
	case "softmax":
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value {
			return list(b.Cast(b.Cast(b.Softmax(v[0]), dtype.I32), dtype.F32))
		}, k)
	case "topk":
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value {
			x, i := b.Topk(v[0], 1)
			return list(x, i)
		}, k)
	case "rms_norm":
		o := w.paramOf(dtype.F32, shape[rank-1:], w.mostly(ir.Dist{}, 1), 3)
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value {
			return list(b.Cast(b.Cast(b.RMSNorm(v[0], v[1], 0.1), dtype.I32), dtype.F32))
		}, k, o)
	case "short_conv":
		d := w.vs[k].Type.Dist
		switch {
		case d.Kind == ir.Sharded && d.Axis == rank-1:
			d.Axis = 1
		default:
			d = ir.Dist{}
		}
		o := w.paramOf(dtype.F32, []int64{1, shape[rank-1]}, w.mostly(d, 2), 3)
		return w.plain(func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.ShortConv(v[0], v[1])) }, k, o)
	case "matmul":
		trans := rapid.Bool().Draw(w.t, "trans")
		o := w.matmulPartner(k, shape, trans)
		if !w.grouped(k, o) {
			return false
		}
		return w.build([]int{k, o}, func(b *ir.Builder, v []*ir.Value) []*ir.Value {
			return list(b.Matmul(v[0], v[1], trans, dtype.F32))
		}, func(b *ir.Builder, v []*ir.Value, _ ir.Type) []*ir.Value {
			x, y := group(b, v[0], v[1])
			return list(b.Matmul(x, y, trans, dtype.F32))
		})
	case "all_reduce":
		return w.build([]int{k}, func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.AllReduce(v[0])) }, wholeAlready)
	}
	return w.build([]int{k}, func(b *ir.Builder, v []*ir.Value) []*ir.Value { return list(b.AllGather(v[0], a)) }, wholeAlready)
}

// wholeAlready is what the single rank does for a collective.
func wholeAlready(_ *ir.Builder, v []*ir.Value, _ ir.Type) []*ir.Value { return v }

// mostly is d or, now and then, another distribution.
func (w *twin) mostly(d ir.Dist, rank int) ir.Dist {
	if rapid.IntRange(0, 5).Draw(w.t, "other") == 0 {
		return w.dist(rank)
	}
	return d
}

// grouped leaves out operands of which the coarser sharding has several elements
// a rank along the batch axis: ranks then pair elements in a way that no whole
// program does.
func (w *twin) grouped(k, o int) bool {
	x, y := w.vs[k].Type, w.vs[o].Type
	if x.Dist.Ways > y.Dist.Ways {
		x, y = y, x
	}
	both := x.Dist.Kind == ir.Sharded && y.Dist.Kind == ir.Sharded && x.Dist.Ways != y.Dist.Ways
	return !both || x.Dist.Axis != y.Dist.Axis || x.Shape[x.Dist.Axis].Is(1)
}

// group repeats batch elements where the other operand has more: ranks that hold
// several heads and one that all of them use, or hold the same one, compute what
// a whole does whose heads are repeated one by one.
func group(b *ir.Builder, x, y *ir.Value) (*ir.Value, *ir.Value) {
	for a := range len(x.Type.Shape) - 2 {
		n, m := shapeOf(x)[a], shapeOf(y)[a]
		switch {
		case n > m && m > 1 && n%m == 0:
			y = repeat(b, y, a, n/m)
		case m > n && n > 1 && m%n == 0:
			x = repeat(b, x, a, m/n)
		}
	}
	return x, y
}

// repeat repeats every element along an axis.
func repeat(b *ir.Builder, x *ir.Value, axis int, times int64) *ir.Value {
	shape := shapeOf(x)
	split := slices.Insert(slices.Clone(shape), axis+1, 1)
	x = b.Broadcast(b.Reshape(x, dims(split)), dims(withAxis(split, axis+1, times)))
	return b.Reshape(x, dims(withAxis(shape, axis, shape[axis]*times)))
}

// matmulPartner adds a second operand for a matmul of value k.
func (w *twin) matmulPartner(k int, shape []int64, trans bool) int {
	rank := len(shape)
	s := slices.Clone(shape)
	w.narrow(s)
	n := rapid.Int64Range(1, 3).Draw(w.t, "n")
	ka, na := max(rank-2, 0), rank-1
	if trans {
		ka, na = na, ka
	}
	s[na], s[ka] = n, shape[rank-1]
	d := w.vs[k].Type.Dist
	if d.Kind == ir.Sharded && d.Axis == rank-1 {
		d.Axis = ka
	}
	if d.Kind == ir.Sharded && d.Axis < rank-2 && rapid.Bool().Draw(w.t, "coarser") {
		d.Ways, s[d.Axis] = 2, 1 // groups of ranks hold one head
	}
	return w.paramOf(dtype.F32, s, w.mostly(d, rank), 3)
}

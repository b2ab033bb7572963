package ir_test

import (
	"fmt"

	"quill/ir"
	"quill/recipes/dtype"
)

// fresh declares a parameter whose name nothing else has.
func fresh(b *ir.Builder, m *ir.Module, kind ir.Kind, t ir.Type) *ir.Value {
	name := fmt.Sprint("lure", len(m.Entry().Params))
	src := ir.Source{}
	if kind == ir.Weight {
		src.Tensor = name
	}
	return b.Param(kind, name, t, src)
}

// lureQKVR builds products of one value with several weights, some of which cannot be
// joined.
func lureQKVR(b *ir.Builder, m *ir.Module, _ []*ir.Value, choose func(int) int) {
	t := []dtype.Type{dtype.F32, dtype.BF16}[choose(2)]
	k := ir.D(int64(2 + choose(3)))
	x := fresh(b, m, ir.Weight, ir.T(t, ir.SymDim("q"), k))
	if m.TP > 1 && choose(8) == 0 { // a part of a sum
		x = fresh(b, m, ir.Weight, ir.T(t, ir.D(3), k).With(ir.Shard(1, m.TP)))
	}
	odd := choose(12)
	for i := range 2 + choose(3) {
		n := ir.D(int64(2 + choose(2)))
		w := ir.T(t, n, k)
		if x.Type.Dist.Kind == ir.Sharded {
			w = w.With(ir.Shard(1, m.TP))
		} else if choose(2) == 0 {
			w = w.With(ir.Shard(0, m.TP))
		}
		out := t
		if odd == 0 && i == 1 {
			out = dtype.F32
		}
		v := fresh(b, m, ir.Weight, w)
		if odd == 1 && i == 1 {
			b.Silu(v)
		}
		b.Silu(b.Cast(v, dtype.F32)) // which reads it: nothing is joined in a third of all
		if odd > 3 {
			v = fresh(b, m, ir.Weight, w)
		}
		if odd == 2 && i == 1 {
			v = b.Neg(v)
		}
		b.Matmul(x, v, true, out)
	}
}

// lureElementwise builds values that are rounded in between and weights of experts.
func lureElementwise(b *ir.Builder, m *ir.Module, vals []*ir.Value, choose func(int) int) {
	z := fresh(b, m, ir.Weight, ir.T(dtype.F32, ir.SymDim("q"), ir.D(6)))
	switch choose(6) {
	case 0:
		x := b.Cast(z, dtype.BF16)
		if choose(2) == 0 {
			x = b.Reshape(x, []ir.Dim{ir.SymDim("q"), ir.D(1), ir.D(6)})
		}
		b.Sigmoid(b.Cast(x, dtype.F32))
	case 1:
		i := fresh(b, m, ir.Host, ir.T(dtype.I32, ir.SymDim("q"), ir.D(2)))
		b.Softmax(b.Logsigmoid(b.GatherElements(z, i, 1)))
	case 2:
		b.Softmax(b.Logsigmoid(z))
	case 3: // of another axis: nothing to do
		b.Softmax(b.Logsigmoid(b.Cast(z, dtype.BF16)))
	case 4:
		x := b.Cast(z, dtype.BF16)
		b.GraphBreak("border")
		b.Sigmoid(b.Cast(x, dtype.F32))
	default:
		if fit := floats(vals); len(fit) > 0 {
			x := b.Cast(b.Cast(fit[choose(len(fit))], dtype.F32), dtype.BF16)
			b.Sigmoid(b.Cast(x, dtype.F32))
		}
	}
}

// lureWeights builds what a loader can compute of a weight, and what it cannot.
func lureWeights(b *ir.Builder, m *ir.Module, vals []*ir.Value, choose func(int) int) {
	t := []dtype.Type{dtype.F32, dtype.BF16}[choose(2)]
	w := ir.T(t, ir.D(4), ir.D(3))
	if choose(2) == 0 {
		w = w.With(ir.Shard(choose(2), m.TP))
	}
	x := fresh(b, m, ir.Weight, w)
	for range 1 + choose(4) {
		n := b.Reshape(b.Const([]float64{1, -0.3, 8, 0, 3e38}[choose(5)], t), []ir.Dim{ir.D(1), ir.D(1)})
		switch choose(5) {
		case 0:
			if rows, _ := x.Type.Shape[0].Const(); rows > 1 && (x.Type.Dist.Kind != ir.Sharded || x.Type.Dist.Axis == 1) {
				first := int64(choose(int(rows)))
				x = b.Slice(x, 0, ir.D(first), ir.D(rows-int64(choose(int(rows-first)))))
			}
		case 1:
			x = b.Mul(x, n)
		case 2:
			x = b.Add(n, x)
		case 3:
			x = b.Add(x, x)
		default:
			x = b.Mul(x, x)
		}
		if choose(3) == 0 {
			b.Silu(x)
		}
	}
	b.Silu(x)
}

// lureExperts builds a router with routed and shared experts, odd in one way or none.
func lureExperts(b *ir.Builder, m *ir.Module, _ []*ir.Value, choose func(int) int) {
	f32, q := dtype.F32, ir.SymDim("q")
	e, s, h, width, k := int64(3+choose(3)), int64(1+choose(2)), int64(2+choose(3)), int64(2+choose(2)), int64(1+choose(3))
	odd := choose(14)
	dist := ir.Shard(2, m.TP)
	weight := func(d ir.Dist, shape ...int64) *ir.Value {
		dims := make([]ir.Dim, len(shape))
		for i, n := range shape {
			dims[i] = ir.D(n)
		}
		return fresh(b, m, ir.Weight, ir.T(f32, dims...).With(d))
	}
	x := fresh(b, m, ir.Weight, ir.T(f32, q, ir.D(h)))
	z := fresh(b, m, ir.Weight, ir.T(f32, q, ir.D(e+s)))
	bias := weight(ir.Dist{}, e)
	cut := func(v *ir.Value, from, to int64) *ir.Value { return b.Slice(v, 1, ir.D(from), ir.D(to)) }
	routed := cut(z, 0, e)
	score := b.Add(b.Sigmoid(routed), b.Reshape(bias, []ir.Dim{ir.D(1), ir.D(e)}))
	if odd == 0 {
		score = b.Neg(score)
	}
	_, ids := b.Topk(score, k)
	logits := b.GatherElements(routed, ids, 1)
	both := b.Concat(1, logits, cut(z, e, e+s))
	if odd == 1 {
		both = b.Concat(1, cut(z, e, e+s), logits) // in another order
	}
	w := b.Softmax(both)
	if choose(2) == 0 {
		w = b.Softmax(b.Logsigmoid(both))
	}
	if odd == 2 {
		w = b.Mul(w, fresh(b, m, ir.Weight, ir.T(f32, q, ir.D(k+s)))) // depends on the order
	}
	y := b.MoE(x, ids, cut(w, 0, k), weight(dist, e, 2, width, h), weight(dist, e, h, width))

	one := ir.D(1)
	in := x
	if odd == 3 {
		in = b.Neg(x)
	}
	gu := b.Matmul(b.Reshape(in, []ir.Dim{one, one, q, ir.D(h)}), weight(dist, s, 2, width, h), true, f32)
	gate, up := cut(gu, 0, 1), cut(gu, 1, 2)
	if odd == 4 {
		gate, up = up, gate
	}
	act := b.Mul(b.Silu(gate), up)
	gamma := b.Reshape(b.Transpose(cut(w, k, k+s), []int64{1, 0}), []ir.Dim{ir.D(s), one, q, one})
	act = b.Mul(act, gamma)
	down := b.ReshapeShard(weight(dist, s, h, width), 3, ir.D(s), one, ir.D(h), ir.D(width))
	shared := b.Reshape(b.ReduceSum(b.Matmul(act, down, true, f32), 0), []ir.Dim{q, ir.D(h)})
	if m.TP > 1 && odd == 5 {
		y, shared = b.AllReduce(y), b.AllReduce(shared)
	}
	sum := b.Add(y, shared)
	if odd == 6 {
		sum = b.Add(shared, y)
	}
	if m.TP > 1 && odd != 5 {
		sum = b.AllReduce(sum)
	}
	b.Neg(sum)
}

// lureConv builds short convolutions of decoding, odd in one way or none.
func lureConv(b *ir.Builder, m *ir.Module, _ []*ir.Value, choose func(int) int) {
	t := []dtype.Type{dtype.F32, dtype.BF16}[choose(2)]
	q, one, c := ir.SymDim("q"), ir.D(1), int64(2+choose(3))
	taps, blocks := int64(2+choose(3)), int64(5)
	d := ir.Dist{}
	if choose(2) == 0 {
		d = ir.Shard(2, m.TP)
	}
	from, to := fresh(b, m, ir.Host, ir.T(dtype.I32, q)), fresh(b, m, ir.Host, ir.T(dtype.I32, q))
	odd := choose(8)
	// Keys and values may be parts of one value.
	var row *ir.Value
	width := int64(1 + choose(2))
	for l := range 1 + choose(3) {
		whole := fresh(b, m, ir.Weight, ir.T(t, q, ir.D(width), ir.D(c)).With(d))
		if row != nil && width == 1 {
			if whole = row; choose(3) > 0 {
				whole = b.Silu(row)
			}
		}
		for p := range width {
			row = whole
			if width > 1 {
				row = b.Slice(whole, 1, ir.D(p), ir.D(p+1))
			}
			st := fresh(b, m, ir.State, ir.T(t, ir.D(blocks), ir.D(taps-1), ir.D(c)).With(d))
			w := fresh(b, m, ir.Weight, ir.T(dtype.F32, ir.D(taps), ir.D(c)).With(ir.Shard(1, max(d.Ways, 1))))
			rows := from
			if odd == 0 && l == 1 {
				rows = to
			}
			window := b.Concat(1, b.ConvRead(st, rows), row)
			y := b.ShortConv(window, w)
			keep := b.Slice(window, 1, one, ir.D(taps))
			if odd == 1 {
				keep = b.Slice(window, 1, ir.D(0), ir.D(taps-1))
			}
			if odd == 2 {
				b.Silu(window)
			}
			b.Result(ir.State, st.Param.Name, b.ConvWrite(st, to, keep))
			row = y
		}
	}
}

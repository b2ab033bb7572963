package interp

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/recipes/dtype"
)

// transformer builds a model of the usual kind: layers of grouped attention and
// experts over tokens, on tp ranks with one query head each.
func transformer(layers int, tokens, hidden int64, tp int) *ir.Module {
	const experts, width, topK, dim = 16, 32, 4, 16
	m := &ir.Module{Name: "m", TP: tp}
	f := &ir.Func{Name: "f"}
	m.Funcs = []*ir.Func{f}
	b := ir.NewBuilder(m, f)
	d := ir.D
	weight := func(name string, dist ir.Dist, shape ...int64) *ir.Value {
		return b.Param(ir.Weight, name, ir.T(dtype.BF16, dims(shape)...).With(dist), ir.Source{})
	}
	x := b.Param(ir.Host, "x", ir.T(dtype.BF16, d(tokens), d(hidden)), ir.Source{})
	mask := b.Param(ir.Host, "mask", ir.T(dtype.F32, d(1), d(tokens), d(tokens)), ir.Source{})
	inner := ir.Shard(0, tp)
	for l := range layers {
		b.At(ir.Loc{Layer: l, Op: "attn"})
		name := func(s string) string { return fmt.Sprintf("%d.%s", l, s) }
		n := b.RMSNorm(x, weight(name("n1"), ir.Dist{}, hidden), 1e-6)
		heads := func(s string) *ir.Value {
			p := b.Matmul(n, weight(name(s), inner, dim, hidden), true, dtype.BF16)
			return b.Transpose(b.ReshapeShard(p, 1, d(tokens), d(1), d(dim)), []int64{1, 0, 2})
		}
		scores := b.Matmul(heads("q"), heads("k"), true, dtype.F32)
		scores = b.Mul(scores, b.Reshape(b.Const(0.25, dtype.F32), []ir.Dim{d(1), d(1), d(1)}))
		p := b.Cast(b.Softmax(b.Add(scores, mask)), dtype.BF16)
		a := b.Reshape(b.Transpose(b.Matmul(p, heads("v"), false, dtype.BF16), []int64{1, 0, 2}), []ir.Dim{d(tokens), d(dim)})
		o := b.Matmul(a, weight(name("o"), ir.Shard(1, tp), hidden, dim), true, dtype.BF16)
		x = b.Add(x, b.AllReduce(o))

		b.At(ir.Loc{Layer: l, Op: "mlp"})
		n = b.RMSNorm(x, weight(name("n2"), ir.Dist{}, hidden), 1e-6)
		logits := b.Matmul(n, weight(name("router"), ir.Dist{}, experts, hidden), true, dtype.F32)
		top, index := b.Topk(logits, topK)
		y := b.MoE(n, index, b.Cast(b.Softmax(top), dtype.BF16),
			weight(name("w13"), ir.Shard(2, tp), experts, 2, width, hidden), weight(name("w2"), ir.Shard(2, tp), experts, hidden, width))
		x = b.Add(x, b.AllReduce(y))
	}
	b.Result(ir.Host, "y", x)
	if b.Err() != nil {
		panic(b.Err())
	}
	return m
}

// Ranks agree on everything that a whole model leaves replicated.
func TestTransformer(t *testing.T) {
	m := transformer(2, 9, 32, 4)
	out, err := Run(context.Background(), m, m.Entry(), nil, randomArgs(t, m, m.Entry()), Options{})
	require.NoError(t, err)
	for _, f := range out[3]["y"].F {
		require.False(t, f != f)
	}
}

func BenchmarkTransformer(b *testing.B) {
	m := transformer(12, 200, 64, 8)
	args := randomArgs(b, m, m.Entry())
	for b.Loop() {
		_, err := Run(context.Background(), m, m.Entry(), nil, args, Options{})
		require.NoError(b, err)
	}
}

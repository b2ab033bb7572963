package e2e

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/ir/interp"
	"quill/recipes/dtype"
)

// argument makes a value of a parameter for each rank. Ranks that hold the same
// part of a value get the same one.
func (e *experiment) argument(i int, p *ir.Param) []*interp.Tensor {
	outer, rng := e.call.Args[i], rand.New(rand.NewPCG(uint64(i), 5))
	if outer.Param != nil && outer.Param.Kind == ir.Host { // the same for all that is computed of it
		name := fnv.New64a()
		_, _ = name.Write([]byte(outer.Param.Name))
		rng = rand.New(rand.NewPCG(name.Sum64(), 5))
	}
	if outer.Param != nil && outer.Param.Source.PerRank {
		w, err := interp.Weight(e.mod, outer.Param, nil, nil)
		require.NoError(e.t, err)
		return w
	}
	if outer.Def != nil && (!p.Value.Type.DType.IsFloat() || ofInputs(outer)) {
		return e.computed(outer)
	}
	ways := max(p.Value.Type.Dist.Ways, 1)
	parts := make([]*interp.Tensor, ways)
	for part := range parts {
		parts[part] = e.draw(outer, p.Value.Type, rng)
	}
	out := make([]*interp.Tensor, e.mod.TP)
	for rank := range out {
		out[rank] = parts[rank*ways/e.mod.TP]
	}
	return out
}

// ofInputs reports whether a call computes a value of nothing but the step's inputs, such
// as a mask or which block belongs to which sequence.
func ofInputs(v *ir.Value) bool {
	if v.Def.Name() != "call" {
		return false
	}
	fn := v.Def.Attr("callee").Func
	var visit func(x *ir.Value) bool
	visit = func(x *ir.Value) bool {
		if x.Param == nil {
			return !slices.ContainsFunc(x.Def.Args, func(a *ir.Value) bool { return !visit(a) })
		}
		outer := v.Def.Args[slices.Index(fn.Params, x.Param)]
		return x.Param.Kind == ir.Host || outer.Param != nil && outer.Param.Source.PerRank
	}
	return visit(fn.Return[v.Index])
}

// computed is a value that has a meaning: of integers, most of which would be no index,
// or made of the step's inputs. It is what the call before makes of arguments of its own.
func (e *experiment) computed(v *ir.Value) []*interp.Tensor {
	require.Equal(e.t, "call", v.Def.Name(), "no launch makes it")
	out, known := e.made[v.Def]
	if !known {
		before := *e
		before.call = v.Def
		var err error
		out, err = interp.Run(e.t.Context(), e.mod, before.segment(), nil, before.arguments(), interp.Options{})
		require.NoError(e.t, err)
		e.made[v.Def] = out
	}
	parts := make([]*interp.Tensor, e.mod.TP)
	for rank := range parts {
		parts[rank] = out[rank][v.Def.Attr("callee").Func.Results[v.Index].Name]
	}
	return parts
}

// draw makes a random value: of an input one that can occur, of a weight one
// that keeps magnitudes, else anything.
func (e *experiment) draw(outer *ir.Value, typ ir.Type, rng *rand.Rand) *interp.Tensor {
	shape := make([]int64, typ.Rank())
	for i, d := range typ.Shape {
		shape[i], _ = d.Const()
	}
	x := interp.Zeros(typ.DType, shape...)
	if outer.Param != nil && outer.Param.Kind == ir.Host {
		e.index(x, outer.Param.Name, rng)
		return x
	}
	size, shift := 1.0, 0.0
	if outer.Param != nil && outer.Param.Kind == ir.Weight {
		if name := outer.Param.Source.Tensor; strings.Contains(name, "norm.weight") {
			size, shift = 0.1, 1
		} else {
			size = 1 / math.Sqrt(float64(shape[len(shape)-1]))
		}
	}
	for i := range x.F {
		x.F[i] = float32(shift + size*rng.NormFloat64())
		if typ.DType == dtype.BF16 {
			x.F[i] = dtype.RoundBF16(x.F[i])
		}
	}
	return x
}

// index draws an input from the values that it can have; rows that are written
// differ, since of two writes to one row either may win.
func (e *experiment) index(x *interp.Tensor, name string, rng *rand.Rand) {
	o, blocks := e.opt, e.opt.Blocks+2
	below := func(n int) func(int) int64 { return func(int) int64 { return int64(rng.IntN(n)) } }
	once := func(n int) func(int) int64 {
		perm := rng.Perm(n)
		return func(i int) int64 { return int64(perm[i]) }
	}
	owners := func(i int) int64 { // each sequence has a block: attention of none is not a number
		if i < e.bucket.Seqs {
			return int64(i)
		}
		return int64(rng.IntN(max(e.bucket.Seqs, 1)))
	}
	value := map[string]func(int) int64{
		"tokens": below(e.cfg.Vocab), "positions": below(o.MaxModelLen), "slots": once(blocks * o.BlockSize),
		"q_len": func(int) int64 { return int64(1 + rng.IntN(e.bucket.Query)) }, "conv_read": below(blocks),
		"conv_rows": once(blocks), "conv_take": below(max(e.bucket.Query, 1) + 1), "conv_write": once(blocks),
		"ctx_len": below(o.MaxModelLen), "ctx_blocks": below(blocks),
		"ctx_start": func(int) int64 { return -int64(rng.IntN(e.bucket.Blocks) * o.BlockSize) },
		"blocks":    below(blocks), "owners": owners,
		"ref_start":     func(int) int64 { return int64(rng.IntN(o.MaxModelLen/o.BlockSize) * o.BlockSize) },
		"rows":          below(inkling.CarryRows(o)),
		"window_blocks": below(blocks),
	}[strings.Replace(name, "window_start", "ref_start", 1)]
	require.NotNil(e.t, value, "input %s", name)
	for i := range x.I {
		x.I[i] = value(i)
	}
}

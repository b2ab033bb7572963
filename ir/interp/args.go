package interp

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"quill/ir"
	"quill/recipes/dtype"
)

// RandomOptions changes what RandomArgs makes; the zero value is the usual way.
type RandomOptions struct {
	// Specials puts −0, NaN, infinities and tiny numbers among floats.
	Specials bool
}

// RandomArgs makes parameters of a function for each rank, which depend on the
// seed alone. Weights that are the same view of a checkpoint tensor, or rows of one that is
// there, are made of one. Integers that are used as an index everywhere lie within what is
// indexed, others are 0 or 1, which most indices may be.
func RandomArgs(m *ir.Module, f *ir.Func, base map[string]int64, seed uint64, opt RandomOptions) ([]map[string]*Tensor, error) {
	env, err := m.Env(base)
	if err != nil {
		return nil, err
	}
	bounds := indexBounds(m, f, env)
	args := make([]map[string]*Tensor, m.TP)
	for r := range args {
		args[r] = map[string]*Tensor{}
	}
	for i, p := range f.Params {
		parts, err := randomParam(m, p, base, env, seed*1009+uint64(i), bounds[p.Value], opt)
		if err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
		for r := range args {
			args[r][p.Name] = parts[r]
		}
	}
	return args, shareTensors(f, args)
}

// shareTensors makes weights of one checkpoint tensor agree, as those that are loaded do.
func shareTensors(f *ir.Func, args []map[string]*Tensor) error {
	for _, p := range f.Params {
		of, take := viewOf(f, p)
		if of == nil || of == p || !p.Value.Type.DType.IsFloat() { // an index has a bound of its own
			continue
		}
		for r := range args {
			var err error
			if args[r][p.Name], err = part(args[r][of.Name], take, p.Value.Type.DType); err != nil {
				return fmt.Errorf("%%%s: %w", p.Name, err)
			}
		}
	}
	return nil
}

func randomParam(m *ir.Module, p *ir.Param, base, env map[string]int64, seed uint64, bound int64, opt RandomOptions) ([]*Tensor, error) {
	if p.Source.PerRank {
		return Weight(m, p, base, nil)
	}
	t := p.Value.Type
	shape, err := evalShape(t.Shape, env)
	if err != nil {
		return nil, err
	}
	if t.Dist.Kind == ir.Partial { // each rank has its own
		parts := make([]*Tensor, m.TP)
		for r := range parts {
			parts[r] = random(seed+uint64(r)<<32, t.DType, bound, opt, shape)
		}
		return parts, nil
	}
	if t.Dist.Kind == ir.Sharded {
		shape[t.Dist.Axis] *= int64(t.Dist.Ways)
	}
	return Shard(random(seed, t.DType, bound, opt, shape), t.Dist, m.TP)
}

func random(seed uint64, t dtype.Type, bound int64, opt RandomOptions, shape []int64) *Tensor {
	if !t.IsFloat() {
		return RandomInts(seed, t, 0, max(bound, 1), shape...)
	}
	x := Random(seed, t, shape...)
	if opt.Specials {
		specials := []float32{float32(math.Copysign(0, -1)), 0, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e-40, 1, 3e38}
		choice := RandomInts(seed, dtype.I32, 0, 4*int64(len(specials)), shape...)
		for i, c := range choice.I {
			if c < int64(len(specials)) {
				x.F[i] = round(t, float64(specials[c]))
			}
		}
	}
	return x
}

// indexBounds gives each integer parameter the number that its elements must stay
// below.
func indexBounds(m *ir.Module, f *ir.Func, env map[string]int64) map[*ir.Value]int64 {
	type use struct {
		op  *ir.Op
		arg int
	}
	uses := map[*ir.Value][]use{}
	for _, f := range m.Funcs {
		for _, o := range f.Ops {
			for i, a := range o.Args {
				uses[a] = append(uses[a], use{o, i})
			}
		}
	}
	// bound is 0 where nothing needs one, else the smallest; arithmetic may take
	// an index anywhere.
	var bound func(v *ir.Value) int64
	bound = func(v *ir.Value) int64 {
		least := int64(0)
		for _, u := range uses[v] {
			n := int64(0)
			switch u.op.Name() {
			case "lt", "le", "eq", "and", "select", "cast":
			case "reshape", "broadcast", "transpose", "slice":
				n = bound(u.op.Results[0])
			case "call":
				n = bound(u.op.Attr("callee").Func.Params[u.arg].Value)
			default:
				if n = indexed(u.op, u.arg, env); n == 0 {
					n = 2
				}
			}
			if n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
		return least
	}
	bounds := map[*ir.Value]int64{}
	for _, p := range f.Params {
		if n := bound(p.Value); n > 0 {
			bounds[p.Value] = n
		} else {
			bounds[p.Value] = 2
		}
	}
	return bounds
}

// indexed is the number of things that an operand chooses from, 0 when it is no
// index.
func indexed(o *ir.Op, operand int, env map[string]int64) int64 {
	if several := o.Name() == "conv_reads" || o.Name() == "conv_writes"; several != (operand == 0) || operand > 1 {
		return 0
	}
	axis, per := int64(0), int64(1)
	x := o.Args[0].Type
	switch o.Name() {
	case "gather", "gather_elements":
		axis = o.Int("axis")
	case "kv_read":
		per = o.Int("block_size")
	case "kv_write", "conv_read", "conv_write":
	case "conv_reads", "conv_writes":
		x = o.Args[len(o.Args)-1].Type
	case "moe":
		n := int64(0)
		for i := 3; i < len(o.Args); i += 2 {
			bank, err := o.Args[i].Type.Shape[0].Eval(env)
			if err != nil {
				return 0
			}
			n += bank
		}
		if o.Attr("first") != nil {
			n += o.Int("first")
		}
		return n
	case "embedding":
		n, err := x.Shape[0].Eval(env)
		if err != nil {
			return 0
		}
		return n * int64(max(x.Dist.Ways, 1)) // the whole table
	default:
		return 0
	}
	n, err := x.Shape[axis].Eval(env)
	if err != nil {
		return 0
	}
	return n / per
}

// Same compares the results of two functions on all ranks: bit by bit, or within
// atol where that is not 0. Results are compared by name.
func Same(got, want []map[string]*Tensor, atol float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("results of %d ranks, want %d", len(got), len(want))
	}
	for rank := range want {
		for _, name := range slices.Sorted(maps.Keys(want[rank])) {
			g, w := got[rank][name], want[rank][name]
			if g == nil {
				return fmt.Errorf("rank %d: there is no result %s", rank, name)
			}
			if atol == 0 && Equal(g, w) {
				continue
			}
			if err := Close(g, w, atol, 0); err != nil {
				return fmt.Errorf("rank %d result %s: %w", rank, name, err)
			}
			if atol == 0 {
				return fmt.Errorf("rank %d result %s: got %s, want %s: a zero has another sign", rank, name, g, w)
			}
		}
	}
	return nil
}

package ir_test

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir"
	"quill/ir/interp"
	"quill/passes"
	"quill/recipes/dtype"
)

// floats are the values that arithmetic on floats may use.
func floats(vals []*ir.Value) []*ir.Value {
	var out []*ir.Value
	for _, v := range vals {
		if v.Type.DType.IsFloat() && v.Type.Dist.Kind != ir.Partial && v.Type.Rank() > 0 {
			out = append(out, v)
		}
	}
	return out
}

// lures build what each pass looks for.
var lures = map[string]ir.Lure{
	"fuse-qkvr": lureQKVR,
	"outline-segments": func(b *ir.Builder, _ *ir.Module, vals []*ir.Value, choose func(int) int) {
		b.GraphBreak("border")
		if fit := floats(vals); len(fit) > 0 {
			x := fit[choose(len(fit))]
			b.Add(b.Silu(x), x)
		}
	},
	"fold-weights":       lureWeights,
	"join-experts":       lureExperts,
	"hoist-conv-history": lureConv,
	"fuse-elementwise":   lureElementwise,
	"canonicalize": func(b *ir.Builder, m *ir.Module, vals []*ir.Value, choose func(int) int) {
		fit := floats(vals)
		if len(fit) == 0 {
			return
		}
		x := fit[choose(len(fit))]
		rank := x.Type.Rank()
		perm, back := make([]int64, rank), make([]int64, rank)
		for i := range perm {
			perm[i] = int64((i + 1) % rank)
			back[(i+1)%rank] = int64(i)
		}
		ones := make([]ir.Dim, rank)
		for i := range ones {
			ones[i] = ir.D(1)
		}
		one := func(v float64) *ir.Value { return b.Reshape(b.Const(v, x.Type.DType), ones) }
		switch choose(8) {
		case 0:
			b.Neg(b.Neg(x))
		case 1:
			b.Transpose(b.Transpose(x, perm), back)
		case 2:
			b.Mul(x, one(1))
		case 3:
			b.Add(one(2), x)
		case 4:
			b.Max(x, x)
		case 5:
			b.Slice(x, 0, ir.D(0), x.Type.Shape[0])
		case 6:
			b.Sub(x, one(0))
		default:
			b.Slice(b.Concat(0, x, x), 0, ir.D(0), x.Type.Shape[0])
		}
	},
	"fold": func(b *ir.Builder, m *ir.Module, vals []*ir.Value, choose func(int) int) {
		x, y := b.Const(float64(choose(5)), dtype.F32), b.Const(float64(choose(5)), dtype.F32)
		switch choose(4) {
		case 0:
			b.Add(x, y)
		case 1:
			b.Exp(b.Mul(x, y))
		case 2:
			b.Cast(x, dtype.BF16)
		default:
			b.Select(b.Lt(x, y), x, y)
		}
	},
	"cse": func(b *ir.Builder, m *ir.Module, vals []*ir.Value, choose func(int) int) {
		fit := floats(vals)
		if len(fit) == 0 {
			return
		}
		x, y := fit[choose(len(fit))], fit[choose(len(fit))]
		for range 2 {
			switch {
			case x.Type.Equal(y.Type):
				b.Add(x, y)
				x, y = y, x
			default:
				b.Silu(x)
			}
		}
	},
	"dce": func(b *ir.Builder, m *ir.Module, vals []*ir.Value, choose func(int) int) {
		if fit := floats(vals); len(fit) > 0 {
			b.Silu(b.Exp(fit[choose(len(fit))]))
		}
	},
	"collapse-reduces": func(b *ir.Builder, m *ir.Module, vals []*ir.Value, choose func(int) int) {
		sum := func() *ir.Value {
			param := func(rows int64) *ir.Value {
				return fresh(b, m, ir.Weight, ir.T(dtype.F32, ir.D(rows), ir.D(3)).With(ir.Shard(1, m.TP)))
			}
			return b.AllReduce(b.Matmul(param(4), param(6), true, dtype.F32))
		}
		if m.TP == 1 {
			return
		}
		switch x, y := sum(), sum(); choose(3) {
		case 0:
			b.Sub(x, y)
		case 1:
			b.Add(b.Reshape(x, []ir.Dim{ir.D(24)}), b.Reshape(y, []ir.Dim{ir.D(24)}))
		default:
			b.Add(x, y)
		}
	},
	"split-experts": func(b *ir.Builder, m *ir.Module, _ []*ir.Value, choose func(int) int) {
		y := mixture(b, m, choose, 1+choose(2))
		if choose(3) > 0 { // else the sum of f32 or bf16 itself is wanted
			b.Cast(y, dtype.F32)
		}
	},
	"expand-moe": func(b *ir.Builder, m *ir.Module, _ []*ir.Value, choose func(int) int) { mixture(b, m, choose, 1) },
	"hoist-step-invariant": func(b *ir.Builder, m *ir.Module, vals []*ir.Value, choose func(int) int) {
		positions := b.Param(ir.Host, fmt.Sprint("positions", len(m.Entry().Params)), ir.T(dtype.I32, ir.SymDim("q")), ir.Source{})
		b.GraphBreak("border")
		p := b.Cast(b.Add(positions, b.Const(1, dtype.I32)), dtype.F32)
		p = b.Reshape(p, []ir.Dim{ir.SymDim("q"), ir.D(1)})
		if fit := floats(vals); len(fit) > 0 {
			if x := fit[choose(len(fit))]; x.Type.DType == dtype.F32 && x.Type.Rank() == 2 && x.Type.Shape[0].Equal(ir.SymDim("q")) {
				b.Mul(x, p)
			}
		}
	},
}

// mixture builds an op of up to 5 experts a bank on parameters of its own.
func mixture(b *ir.Builder, m *ir.Module, choose func(int) int, banks int) *ir.Value {
	size := func() ir.Dim { return ir.D(int64(1 + choose(5))) }
	t, tokens, k, hidden, width := []dtype.Type{dtype.F32, dtype.BF16}[choose(2)], size(), size(), size(), size()
	var d ir.Dist
	if m.TP > 1 {
		d = ir.Shard(2, m.TP)
	}
	var list []*ir.Value
	for range banks {
		e := size()
		list = append(list, fresh(b, m, ir.Weight, ir.T(t, e, ir.D(2), width, hidden).With(d)), fresh(b, m, ir.Weight, ir.T(t, e, hidden, width).With(d)))
	}
	y := b.MoE(fresh(b, m, ir.Host, ir.T(t, tokens, hidden)), fresh(b, m, ir.Host, ir.T(dtype.I32, tokens, k)), fresh(b, m, ir.Host, ir.T(t, tokens, k)), list...)
	if m.TP > 1 {
		y = b.AllReduce(y)
	}
	return y
}

// lured says how a pass with a lure runs; the zero value is as by itself.
type lured struct {
	options []string // one run of all modules for each
	params  passes.Params
	// bound is on differences, relative to the largest magnitude, of a pass that is not
	// exact.
	bound float64
}

var runs = map[string]lured{
	"fuse-elementwise": {bound: 1. / 128}, // a rounding to bf16 less
	// Sums of parts, or what experts give, are rounded to bf16.
	"split-experts": {params: passes.Params{ExpertsPerNode: 2}, bound: 1. / 64},
	"expand-moe": {
		params: passes.Params{MoE: passes.GatheredExperts}, bound: 1. / 64,
		options: []string{"", "{form=pairs,bytes=100}", "{form=all,bytes=100}", "{form=sorted,rows=2,bytes=100}"},
	},
}

// ofAttention are the passes that look for the attention of a whole layer.
var ofAttention = []string{"local-window", "fuse-rel-bias", "band-split", "sub-block"}

// Each pass, on modules with what it looks for among other ops, and with what is
// almost that: it fires on many and no result changes a bit, or more than rounding
// does after a pass that is not exact.
func TestTranslationValidation(t *testing.T) {
	checks := flag.Lookup("rapid.checks").Value
	was := checks.String()
	defer func() { require.NoError(t, checks.Set(was)) }()
	const modules = 1000
	require.NoError(t, checks.Set(strconv.Itoa(modules)))
	t.Setenv("TMPDIR", t.TempDir()) // for reproducers
	for _, p := range passes.Passes() {
		check := onAttention
		if lures[p.Name] != nil {
			check = onLures
		} else if !slices.Contains(ofAttention, p.Name) {
			continue
		}
		run := runs[p.Name]
		if run.options == nil {
			run.options = []string{""}
		}
		for _, options := range run.options {
			t.Run(p.Name+options, func(t *testing.T) {
				drawn, fired, compared := 0, 0, 0
				rapid.Check(t, func(t *rapid.T) {
					drawn++
					changed, same := check(t, &p, options, run)
					if changed {
						fired++
					}
					if changed && same {
						compared++
					}
				})
				t.Logf("%d modules, fired on %d (%d %%), of which %d interpreted", drawn, fired, 100*fired/drawn, compared)
				if !t.Failed() {
					require.GreaterOrEqual(t, drawn, modules)
					require.Greater(t, 10*fired, 3*drawn, "the pass fires too seldom for this to say much")
					require.Greater(t, 2*compared, fired, "most modules can be interpreted")
				}
			})
		}
	}
}

// onLures runs a pass on a random module with lures.
func onLures(t *rapid.T, p *passes.Pass, options string, run lured) (changed, compared bool) {
	text, stage := p.Name+options, passes.Family
	if p.Stages == passes.Bucket {
		text, stage = "outline-segments,"+text, passes.Bucket
	}
	pipeline, err := passes.Parse(text)
	require.NoError(t, err)
	before := ir.DrawLured(t, lures[p.Name], p.Inexact)
	require.NoError(t, ir.Verify(before))
	after := before.Clone()
	require.NoError(t, passes.NewManager(passes.Config{Pipeline: pipeline.Stage(stage), Params: run.params, Honest: true}).Run(t.Context(), "", after))
	env := map[string]int64{"q": rapid.Int64Range(2, 4).Draw(t, "q"), "sym": rapid.Int64Range(1, 3).Draw(t, "sym")}
	if before.String() == after.String() {
		return false, false
	}
	bound := 0.0
	if p.Inexact {
		bound = cmp.Or(run.bound, 1e-4)
		if strings.Contains(before.String(), "bf16") {
			bound = max(bound, 1./128) // a sum near the middle of two may be rounded to either
		}
	}
	return true, same(t, before, after, env, bound)
}

// onAttention runs a pass on random attention.
func onAttention(t *rapid.T, p *passes.Pass, _ string, _ lured) (changed, compared bool) {
	c := drawAttentionCase(t, p.Name)
	if c == nil {
		return false, false
	}
	if c.before.String() == c.after.String() {
		return false, false
	}
	c.compare(t, p.Inexact)
	return true, true
}

// same interprets two modules on the same random inputs and compares their bits, or,
// after a pass that is not exact, whether they are within bound of the largest magnitude, of
// results or partial sums, times it;
// false if the first cannot be interpreted, as when an index is outside.
func same(t *rapid.T, before, after *ir.Module, env map[string]int64, bound float64) bool {
	specials := rapid.Bool().Draw(t, "specials") && bound == 0
	args, err := interp.RandomArgs(before, before.Entry(), env, rapid.Uint64().Draw(t, "seed"), interp.RandomOptions{Specials: specials})
	require.NoError(t, err)
	opt := interp.Options{MaxElems: 1 << 16}
	scale := 0.0 // of partial sums, which may cancel over the ranks
	tapped := opt
	tapped.Tap = func(_ int, o *ir.Op, i int, x *interp.Tensor) {
		if o.Results[i].Type.Dist.Kind == ir.Partial {
			scale = max(scale, largest([]map[string]*interp.Tensor{{"": x}}, ""))
		}
	}
	want, err := interp.Run(t.Context(), before, before.Entry(), env, args, tapped)
	if err != nil {
		return false
	}
	require.NoError(t, interp.Complete(after, env, before.Entry(), args))
	got, err := interp.Run(t.Context(), after, after.Entry(), env, args, opt)
	require.NoError(t, err, "before:\n%s\nafter:\n%s", before, after)
	if bound > 0 {
		bound *= max(scale, largest(want, ""))
	}
	require.NoError(t, interp.Same(got, want, bound), "before:\n%s\nafter:\n%s", before, after)
	return true
}

// largest is the largest magnitude of finite numbers of results whose names begin
// with a prefix, at least 1.
func largest(results []map[string]*interp.Tensor, prefix string) float64 {
	most := 1.0
	for _, r := range results {
		for name, x := range r {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			for _, v := range x.F {
				if a := math.Abs(float64(v)); !math.IsInf(a, 1) {
					most = max(most, a)
				}
			}
		}
	}
	return most
}

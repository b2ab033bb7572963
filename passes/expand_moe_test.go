package passes

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/interp"
	"quill/recipes/dtype"
)

// mixture is an op of experts of some sizes, alone in a function.
type mixture struct {
	tokens, k, experts, width, hidden int64
	tp                                int
	dt                                dtype.Type
	shared                            int64 // of k and experts
}

func (c mixture) module(t *testing.T) *ir.Module {
	t.Helper()
	d, shard := "f32", ""
	if c.dt == dtype.BF16 {
		d = "bf16"
	}
	result := "  %1 = neg %0\n"
	if c.tp > 1 {
		shard = fmt.Sprintf("@shard(2, %d)", c.tp)
		result = "  %1 = all_reduce %0\n"
	}
	m, err := ir.VerifyText("mixture", fmt.Appendf(nil, `module @m {level = model, tp = %d}
func @f(
  input %%x: %[2]s[%[3]d, %[7]d], input %%e: i32[%[3]d, %[4]d], input %%w: %[2]s[%[3]d, %[4]d],
  weight %%w13: %[2]s[%[5]d, 2, %[6]d, %[7]d]%[8]s = "w13", weight %%w2: %[2]s[%[5]d, %[7]d, %[6]d]%[8]s = "w2"
) -> (output y: %[2]s[%[3]d, %[7]d]) {
  %%0 = moe %%x, %%e, %%w, %%w13, %%w2 {shared = %[10]d}
%[9]s  return %%1
}
`, c.tp, d, c.tokens, c.k, c.experts, c.width, c.hidden, shard, result, c.shared))
	require.NoError(t, err)
	return m
}

// expanded is the module with experts in one form, in small groups and buffers.
func expanded(t *testing.T, m *ir.Module, options string) *ir.Module {
	t.Helper()
	p := pipelineOf(t, outline+",expand-moe{"+options+"}").Stage(Bucket)
	after := m.Clone()
	mgr := NewManager(Config{Pipeline: p, Params: Params{MoE: GatheredExperts}, Honest: true})
	require.NoError(t, mgr.Run(t.Context(), "", after))
	require.Equal(t, 1, mgr.Stats()[0].Rewrites)
	require.NotContains(t, after.String(), "moe ")
	return after
}

func interpreted(t *testing.T, m *ir.Module, args []map[string]*interp.Tensor) []map[string]*interp.Tensor {
	t.Helper()
	y, err := interp.Run(t.Context(), m, m.Entry(), nil, args, interp.Options{})
	require.NoError(t, err)
	return y
}

// choices of experts, of some kinds.
var choices = map[string]func(c mixture, r *rand.Rand, token, j int64) int64{
	"any":      func(c mixture, r *rand.Rand, _, _ int64) int64 { return r.Int64N(c.experts) },
	"one":      func(c mixture, _ *rand.Rand, _, _ int64) int64 { return c.experts - 1 },
	"first":    func(mixture, *rand.Rand, int64, int64) int64 { return 0 },
	"in turns": func(c mixture, _ *rand.Rand, t, j int64) int64 { return (t + j) % c.experts },
	"few":      func(c mixture, r *rand.Rand, _, _ int64) int64 { return r.Int64N(min(2, c.experts)) * (c.experts - 1) },
}

// choose gives every token its choices: those of shared experts, then others of a kind.
func (c mixture) choose(r *rand.Rand, kind string) *interp.Tensor {
	chosen := interp.Zeros(dtype.I32, c.tokens, c.k)
	others := c
	others.experts -= c.shared
	for n := range chosen.I {
		token, j := int64(n)/c.k, int64(n)%c.k
		if j < c.shared {
			chosen.I[n] = others.experts + j
		} else {
			chosen.I[n] = choices[kind](others, r, token, j-c.shared)
		}
	}
	return chosen
}

// Every form computes what the op does, whatever is chosen: all of one expert, an expert
// twice by one token, experts that nobody chooses, some that all share; for any number of
// tokens.
func TestFormsOfExpertsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		c := mixture{
			tokens: 1 + r.Int64N(40), k: 1 + r.Int64N(4), experts: 1 + r.Int64N(9), width: 1 + r.Int64N(5), hidden: 1 + r.Int64N(9),
			tp: 1 + i%2, dt: []dtype.Type{dtype.F32, dtype.BF16}[i/2%2],
		}
		if i%3 > 0 {
			c.shared = r.Int64N(min(c.k, c.experts) + 1)
		}
		if c.shared == c.experts {
			c.k = c.shared // there are no others to choose
		}
		m := c.module(t)
		kinds := []string{"any", "one", "first", "in turns", "few"}
		kind := kinds[i%len(kinds)]
		args, err := interp.RandomArgs(m, m.Entry(), nil, uint64(i), interp.RandomOptions{})
		require.NoError(t, err)
		chosen := c.choose(r, kind)
		for rank := range args {
			args[rank]["e"] = chosen
		}
		want := interpreted(t, m, args)
		for _, options := range []string{
			"form=pairs", "form=pairs,bytes=1", "form=all", "form=all,bytes=700", "form=sorted", "form=sorted,rows=1,bytes=900", "form=sorted,rows=3,bytes=1",
			"form=sorted,rows=8,bytes=2KiB", "rows=4",
		} {
			got := interpreted(t, expanded(t, m, options), args)
			near := 1e-5
			if c.dt == dtype.BF16 {
				near = 1. / 128
			}
			require.NoError(t, interp.Same(got, want, near*largestOf(want)), "%+v, %s, choices %s", c, options, kind)
		}
	}
}

func largestOf(results []map[string]*interp.Tensor) float64 {
	most := 1.0
	for _, r := range results {
		for _, v := range r["y"].F {
			most = max(most, math.Abs(float64(v)))
		}
	}
	return most
}

// Tokens that are padding may hold anything, and experts that a token did not choose may
// overflow: other tokens keep their bits.
func TestRowsOfExpertsKeepApart(t *testing.T) {
	for shared := range int64(2) {
		rowsOfExpertsKeepApart(t, mixture{tokens: 11, k: 2 + shared, experts: 5 + shared, width: 4, hidden: 6, tp: 1, dt: dtype.F32, shared: shared})
	}
}

func rowsOfExpertsKeepApart(t *testing.T, c mixture) {
	t.Helper()
	m := c.module(t)
	args, err := interp.RandomArgs(m, m.Entry(), nil, 3, interp.RandomOptions{})
	require.NoError(t, err)
	chosen := c.choose(nil, "in turns")
	for n := range chosen.I {
		if last := c.experts - c.shared - 1; chosen.I[n] == last { // the last one that is not shared is not chosen
			chosen.I[n] = 0
		}
	}
	args[0]["e"] = chosen
	last := *args[0]["w13"]
	last.F = slices.Clone(last.F)
	matrix := int(2 * c.width * c.hidden)
	for i := range matrix {
		last.F[len(last.F)-(int(c.shared)+1)*matrix+i] = 1e38
	}
	for _, options := range []string{"form=pairs", "form=all", "form=sorted,rows=4"} {
		after := expanded(t, m, options)
		clean := interpreted(t, after, args)[0]["y"].F
		spoilt := map[string]*interp.Tensor{}
		for name, v := range args[0] {
			spoilt[name] = v
		}
		spoilt["w13"] = &last
		pads := []int64{0, 4, c.tokens - 1}
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			for name, n := range map[string]int64{"x": c.hidden, "w": c.k} {
				v := *spoilt[name]
				v.F = slices.Clone(v.F)
				for _, p := range pads {
					for i := range n {
						v.F[p*n+i] = bad
					}
				}
				spoilt[name] = &v
			}
			wrong := *chosen // a router without numbers chooses any experts
			wrong.I = slices.Clone(chosen.I)
			for _, p := range pads {
				for j := range c.k {
					wrong.I[p*c.k+j] = c.experts - c.k + j
				}
			}
			spoilt["e"] = &wrong
			got := interpreted(t, after, []map[string]*interp.Tensor{spoilt})[0]["y"].F
			for i := range got {
				if !slices.Contains(pads, int64(i)/c.hidden) {
					require.Equal(t, math.Float32bits(clean[i]), math.Float32bits(got[i]), "%s: element %d", options, i)
				}
			}
		}
	}
}

func TestExpandMoERefusesOptions(t *testing.T) {
	m := mixture{tokens: 1, k: 1, experts: 1, width: 1, hidden: 1, tp: 1}.module(t)
	t.Setenv("TMPDIR", t.TempDir()) // for reproducers
	for options, want := range map[string]string{
		"rows=0":        "option rows is 0, want 1 to 16777215",
		"rows=16777216": "option rows is 16777216, want 1 to 16777215",
		"bytes=0":       "option bytes is 0, want a number from 1",
	} {
		p := pipelineOf(t, outline+",expand-moe{"+options+"}").Stage(Bucket)
		require.ErrorContains(t, NewManager(Config{Pipeline: p, Params: Params{MoE: GatheredExperts}}).Run(t.Context(), "", m), want)
	}
}

// The form is the cheapest by what of the experts it reads: a few tokens gather, more
// take all experts, and many are sorted where there are many experts.
func TestFormOfExpertsByCost(t *testing.T) {
	for _, c := range []struct {
		tokens, k, experts int64
		want               string
	}{
		{1, 6, 256, "pairs"},
		{14, 6, 256, "pairs"},
		{15, 6, 256, "all"},
		{512, 6, 256, "all"},
		{640, 6, 256, "sorted"},
		{8192, 6, 256, "sorted"},
		{1, 3, 16, "pairs"},
		{2, 3, 16, "all"},
		{8192, 4, 12, "all"},     // with few experts padding costs more
		{1 << 22, 6, 256, "all"}, // more than f32 can count
	} {
		for shared := range int64(3) { // which each form has once
			g := &gatherer{tokens: c.tokens, k: c.k + shared, count: c.experts + shared, shared: shared, rows: 128}
			require.Equal(t, c.want, g.form("auto"), "%+v", c)
		}
	}
	g := &gatherer{tokens: 1 << 22, k: 6, count: 256, rows: 128}
	require.Equal(t, "all", g.form("sorted"), "it cannot be sorted")
}

package passes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/ir"
)

// Patterns that undo each other end with an error that names one of them.
func TestPatternsThatUndoEachOtherEnd(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // for the reproducer
	swap := []pattern{{"swap", []string{"add"}, func(r *rewriter, o *ir.Op) bool { return r.replace(r.Add(o.Args[1], o.Args[0])) }}}
	p := only("swap", func(c *Context, m *ir.Module) (bool, error) { return applyPatterns(c, m, swap) })
	err := Run(t.Context(), parse(t, sample), p)
	require.ErrorContains(t, err, "no end after")
	require.ErrorContains(t, err, "the last one swap of add")
}

// What a pattern builds and does not use, or builds wrong, leaves no trace.
func TestRefusedPatternsLeaveNoTrace(t *testing.T) {
	bad := []pattern{
		{"another type", nil, func(r *rewriter, o *ir.Op) bool { return r.replace(r.Iota(ir.D(3))) }},
		{"wrong", nil, func(r *rewriter, o *ir.Op) bool { return r.replace(r.ReduceSum(o.Args[0], 7)) }},
		{"unused", nil, func(r *rewriter, o *ir.Op) bool { r.Neg(o.Args[0]); return false }},
	}
	m := parse(t, sample)
	changed, err := applyPatterns(&Context{Context: t.Context(), step: Step{Pass: &Pass{}}}, m, bad)
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, parse(t, sample).String(), m.String())
}

// long is a function of a chain of n groups of ops, of which every other one
// does nothing; all groups use one constant.
func long(n int) string {
	var b strings.Builder
	b.WriteString("module @m {level = model, tp = 1}\nfunc @f(input %x: f32[4]) -> (output y: f32[4]) {\n  %one = const 1 {dtype = f32}\n  %v0 = exp %x\n")
	for i := range n {
		fmt.Fprintf(&b, "  %%a%d = mul %%one, %%v%d\n  %%b%d = exp %%a%d\n  %%c%d = exp %%a%d\n  %%v%d = sub %%b%d, %%c%d\n", i, i, i, i, i, i, i+1, i, i)
	}
	fmt.Fprintf(&b, "  return %%v%d\n}\n", n)
	return b.String()
}

// Time grows about as the number of ops does.
func TestPassesAreNearLinear(t *testing.T) {
	if testing.Short() {
		t.Skip("measures time")
	}
	best := func(m *ir.Module) time.Duration {
		best := time.Hour
		for range 3 {
			mgr := NewManager(Config{Pipeline: pipelineOf(t, "fold,canonicalize,cse,dce")})
			require.NoError(t, mgr.Run(t.Context(), "", m.Clone()))
			var sum time.Duration
			for _, s := range mgr.Stats() {
				sum += s.Time
			}
			best = min(best, sum)
		}
		return best
	}
	small, large := best(parse(t, long(500))), best(parse(t, long(8000)))
	t.Logf("2,000 ops: %v, 32,000 ops: %v", small, large)
	require.Less(t, large, 100*small, "16 times the ops")
}

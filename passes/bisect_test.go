package passes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
)

// many is a function of n sums, each of two equal terms.
func many(n int) string {
	var b strings.Builder
	b.WriteString("module @m {level = model, tp = 1}\nfunc @f(input %v0: f32[4]) -> (output y: f32[4]) {\n")
	for i := range n {
		fmt.Fprintf(&b, "  %%v%d = add %%v%d, %%v%d\n", i+1, i, i)
	}
	fmt.Fprintf(&b, "  return %%v%d\n}\n", n)
	return b.String()
}

// wrong turns every sum into a product, one rewrite each.
func wrong(c *Context, m *ir.Module) (bool, error) {
	return applyPatterns(c, m, []pattern{{"wrong", []string{"add"}, func(r *rewriter, o *ir.Op) bool {
		return r.replace(r.Mul(o.Args[0], o.Args[1]))
	}}})
}

// The first rewrite that breaks a check is found, wherever it is, with what it
// changed; steps before and after it are not blamed.
func TestBisect(t *testing.T) {
	const n = 13
	m := parse(t, many(n))
	p := Pipeline{{Pass: Passes().Find("cse")}, {Pass: &Pass{Name: "wrong", Stages: Family, Optional: true, Run: wrong}}, {Pass: Passes().Find("dce")}}
	for bad := 1; bad <= n; bad++ {
		check := func(_ context.Context, _ *Step, m *ir.Module) error {
			if c := strings.Count(m.String(), " = mul "); c >= bad {
				return fmt.Errorf("%d products", c)
			}
			return nil
		}
		c, err := Bisect(t.Context(), m, Config{Pipeline: p}, check)
		require.NoError(t, err)
		require.Equal(t, "wrong", c.Step.Pass.Name)
		require.Equal(t, bad, c.Rewrite)
		require.EqualError(t, c.Err, fmt.Sprintf("%d products", bad))
		require.Contains(t, c.Diff, " = mul ")
	}
	c, err := Bisect(t.Context(), m, Config{Pipeline: p}, func(context.Context, *Step, *ir.Module) error { return nil })
	require.NoError(t, err)
	require.Nil(t, c)
	_, err = Bisect(t.Context(), m, Config{Pipeline: p}, func(context.Context, *Step, *ir.Module) error { return errors.New("no") })
	require.EqualError(t, err, "the check does not hold before any pass, so none can break it: no")
}

// A pass that cannot be limited, or that fails itself, is blamed as a whole.
func TestBisectBlamesWholePasses(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // for reproducers
	m := parse(t, many(3))
	check := func(_ context.Context, _ *Step, m *ir.Module) error {
		if strings.Contains(m.String(), " = mul ") {
			return errors.New("a product")
		}
		return nil
	}
	must := Pipeline{{Pass: &Pass{Name: "must", Stages: Family, Run: wrong}}}
	c, err := Bisect(t.Context(), m, Config{Pipeline: must}, check)
	require.NoError(t, err)
	require.Zero(t, c.Rewrite)
	require.EqualError(t, c.Err, "a product")
	require.Equal(t, 3, strings.Count(c.Diff, " = mul "), c.Diff)

	fails := Pipeline{{Pass: &Pass{Name: "fails", Stages: Family, Optional: true, Run: func(*Context, *ir.Module) (bool, error) { panic("oh") }}}}
	c, err = Bisect(t.Context(), m, Config{Pipeline: fails}, check)
	require.NoError(t, err)
	require.Zero(t, c.Rewrite)
	require.ErrorContains(t, c.Err, "panicked: oh")
	require.Empty(t, c.Diff)
}

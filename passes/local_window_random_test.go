package passes

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir"
	"quill/ir/inkling"
	"quill/ir/interp"
	"quill/ir/ops"
)

// Attention in which something is changed at random, most of it nonsense, computes
// the same bits if the pass takes it for attention with a window.
func TestWhatIsNarrowedKeepsBits(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "local-window", "basic.qir"))
	require.NoError(t, err)
	first, _, _ := strings.Cut(string(text), "; -----")
	valid, fired, compared := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		for range 5 {
			m, err := ir.VerifyText("basic", []byte(first))
			require.NoError(t, err)
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				mutate(t, m)
			}
			if ir.Verify(m) != nil {
				continue
			}
			valid++
			after := m.Clone()
			require.NoError(t, NewManager(Config{Pipeline: Pipeline{{Pass: &localWindowPass}}, Honest: true}).Run(t.Context(), "", after))
			if after.String() == m.String() {
				continue
			}
			fired++
			if narrowedAlike(t, m, after) {
				compared++
			}
		}
	})
	t.Logf("%d modules, narrowed %d, compared %d", valid, fired, compared)
	require.Positive(t, compared)
}

// mutate changes an operand, an operation or a number.
func mutate(t *rapid.T, m *ir.Module) {
	f := m.Entry()
	at := rapid.IntRange(0, len(f.Ops)-1).Draw(t, "op")
	o := f.Ops[at]
	alike := map[string][]string{
		"add": {"sub", "mul", "max", "min"}, "sub": {"add", "mul", "max"}, "mul": {"add", "sub", "max"}, "max": {"min", "add", "mul"},
		"lt": {"le", "eq"}, "le": {"lt", "eq"}, "eq": {"lt", "le"}, "reduce_sum": {"reduce_max"}, "reduce_max": {"reduce_sum"}, "exp": {"neg", "silu"}, "softmax": {"exp", "neg"},
	}
	switch names := alike[o.Name()]; {
	case o.Name() == "const":
		v := rapid.SampledFrom([]float64{-40000, -30000, -29000, -28000, -12, -1, 0, 1, 2, 3, 5, 6, 7}).Draw(t, "number")
		o.Attr("value").Float = v
	case len(names) > 0 && rapid.Bool().Draw(t, "operation"):
		o.Def, _ = ops.ByName(rapid.SampledFrom(names).Draw(t, "name"))
	case len(o.Args) > 0:
		i := rapid.IntRange(0, len(o.Args)-1).Draw(t, "operand")
		var fit []*ir.Value
		for _, p := range f.Params {
			if p.Value.Type.Equal(o.Args[i].Type) {
				fit = append(fit, p.Value)
			}
		}
		for _, q := range f.Ops[:at] {
			for _, r := range q.Results {
				if r.Type.Equal(o.Args[i].Type) {
					fit = append(fit, r)
				}
			}
		}
		o.Args[i] = rapid.SampledFrom(fit).Draw(t, "value")
	}
}

// narrowedAlike compares results, unless there is one that is not finite.
func narrowedAlike(t *rapid.T, before, after *ir.Module) bool {
	env := map[string]int64{"q": 3, "c": 7}
	seed := rapid.Uint64().Draw(t, "seed")
	args, err := interp.RandomArgs(before, before.Entry(), env, seed, interp.RandomOptions{})
	require.NoError(t, err)
	step, err := inkling.RandomStep(after, env, seed)
	require.NoError(t, err)
	for name, v := range step {
		args[0][name] = interp.FromI32([]int64{int64(len(v))}, v...)
	}
	want, err := interp.Run(t.Context(), before, before.Entry(), env, args, interp.Options{})
	if err != nil {
		return false // an index is outside
	}
	for _, v := range want[0]["y"].F {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return false
		}
	}
	got, err := interp.Run(t.Context(), after, after.Entry(), env, args, interp.Options{})
	require.NoError(t, err)
	require.NoError(t, interp.Same(got, want, 0), "before:\n%s\nafter:\n%s", before, after)
	return true
}

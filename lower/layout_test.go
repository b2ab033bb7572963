package lower

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/passes"
	"quill/recipes"
)

func planOf(t *testing.T, text string) (*planner, *layout, error) {
	t.Helper()
	m, err := ir.VerifyText("test.qir", []byte(text))
	require.NoError(t, err)
	require.NoError(t, passes.Run(t.Context(), m, passes.Default()))
	lay := newLayout()
	if err := lay.reserve([]*ir.Module{m}); err != nil {
		return nil, lay, err
	}
	p, err := newPlan(m, recipes.Bucket{Phase: recipes.Prefill, Query: 1}, lay)
	return p, lay, err
}

// Equal layers share a recipe although they share a weight as well, and every
// view of a tensor has a slot of its own.
func TestSharedWeightsKeepRecipesShared(t *testing.T) {
	p, lay, err := planOf(t, `module @m {level = model, tp = 1}
func @f(
  input %x: i32[2],
  weight %s: f32[4, 4] = "shared",
  weight %st: f32[4, 4] = "shared" {perm = [1, 0]},
  weight %e: f32[8, 4] = "embed",
  weight %w0: f32[4, 4] = "w0",
  weight %w1: f32[4, 4] = "w1",
  weight %w2: f32[4, 4] = "w2"
) -> (output y: f32[2, 4]) {
  %h = gather %e, %x {axis = 0}
  %t = matmul %h, %st {trans_b = false, dtype = f32}
  graph_break "layer"
  %a = matmul %t, %s {trans_b = false, dtype = f32}
  %b = matmul %a, %w0 {trans_b = false, dtype = f32}
  graph_break "layer"
  %c = matmul %b, %s {trans_b = false, dtype = f32}
  %d = matmul %c, %w1 {trans_b = false, dtype = f32}
  graph_break "layer"
  %f = matmul %d, %s {trans_b = false, dtype = f32}
  %g = matmul %f, %w2 {trans_b = false, dtype = f32}
  graph_break "end"
  %y = silu %g
  return %y
}
`)
	require.NoError(t, err)
	require.Len(t, p.recipes, 5)
	require.Same(t, p.recipes[2], p.recipes[3], "layers after the one that placed the shared weight")
	lay.finish()
	seen := map[int64]bool{}
	for _, w := range lay.weightsMap() {
		require.False(t, seen[w.Offset], "%+v", w)
		seen[w.Offset] = true
	}
	require.Len(t, seen, 6)
}

// Weights that only one family has lie behind the newest that its launch has to itself in
// every family, and apart where it shares all with others of its family.
func TestWeightsOfOneFamily(t *testing.T) {
	t.Parallel()
	const layer = "  %%%[1]s = matmul %%%[2]s, %%%[3]s {trans_b = false, dtype = f32}\n"
	module := func(body string, weights ...string) *ir.Module {
		text := "module @m {level = model, tp = 1}\nfunc @f(input %x: i32[2], weight %e: f32[8, 4] = \"e\""
		for _, w := range weights {
			text += fmt.Sprintf(", weight %%%[1]s: f32[4, 4] = %[1]q", w)
		}
		m, err := ir.VerifyText("test.qir", []byte(text+") -> (output y: f32[2, 4]) {\n  %h = gather %e, %x {axis = 0}\n  graph_break \"layer\"\n"+body+"  graph_break \"end\"\n  %y = silu %z\n  return %y\n}\n"))
		require.NoError(t, err)
		require.NoError(t, passes.Run(t.Context(), m, passes.Default()))
		return m
	}
	of := func(to, from, w string) string { return fmt.Sprintf(layer, to, from, w) }
	const next = "  graph_break \"layer\"\n"
	lay := newLayout()
	require.NoError(t, lay.reserve([]*ir.Module{
		module(of("a", "h", "w0")+next+of("b", "a", "w1")+next+of("z", "b", "s"), "w0", "w1", "s"),
		module(of("a", "h", "w0")+of("b", "a", "w1")+of("c", "b", "new")+next+of("d", "c", "s")+next+of("g", "d", "s")+of("z", "g", "far"), "w0", "w1", "new", "s", "far"),
	}))
	at := map[string]*place{}
	for _, s := range lay.list {
		at[s.Tensor] = s.at
	}
	require.Same(t, at["w1"].group, at["new"].group)
	require.Greater(t, at["new"].offset, at["w1"].offset)
	require.NotSame(t, at["w0"].group, at["w1"].group)
	require.NotSame(t, at["s"].group, at["far"].group, "two launches of a family have it")
}

// What a plan cannot express is an error, not a wrong plan.
func TestWhatAPlanCannotDo(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`module @m {level = model, tp = 1}
func @f(input %x: f32[4]) -> (carry a: f32[4], carry b: f32[4]) {
  %0 = silu %x
  %1 = exp %x
  return %0, %1
}
`, "one carried value"},
		{`module @m {level = model, tp = 1}
func @f(input %x: f32[4]) -> (carry a: f32[4], output y: f32[4]) {
  %0 = silu %x
  return %0, %0
}
`, "output y"},
		{`module @m {level = model, tp = 2}
func @f(weight %x: f32[4]@shard(0, 2) = "x") -> (output y: f32[8]) {
  %0 = all_gather %x {axis = 0}
  return %0
}
`, "all_gather works on values that launches compute"},
		{`module @m {level = model, tp = 1}
func @f(input %i: i32[1], input %x: f32[1, 1, 4], state %cache: f32[8, 1, 4]) -> (state cache: f32[8, 1, 4]) {
  %0 = kv_write %cache, %i, %x
  return %0
}
`, "belongs to no buffer"},
	} {
		_, _, err := planOf(t, c.text)
		require.ErrorContains(t, err, c.want)
	}
}

// An all-reduce works in place only if nothing else reads its operand.
func TestAllReduceInPlace(t *testing.T) {
	const head = `module @m {level = model, tp = 2}
func @f(input %x: i32[3], weight %e: f32[5, 4] = "e", weight %u: f32[4, 4]@shard(0, 2) = "u", weight %d: f32[4, 4]@shard(1, 2) = "d") -> (output y: f32[3, 4]) {
  %h = gather %e, %x {axis = 0}
  %a = matmul %h, %u {trans_b = true, dtype = f32}
  %p = matmul %a, %d {trans_b = true, dtype = f32}
  %r = all_reduce %p
`
	for _, c := range []struct {
		rest    string
		inPlace bool
	}{
		{"%y = silu %r\nreturn %y\n}\n", true},
		{"%q = add %p, %p\n%s = all_reduce %q\n%y = mul %r, %s\nreturn %y\n}\n", false},
	} {
		p, _, err := planOf(t, head+c.rest)
		require.NoError(t, err)
		var first *recipes.Collective
		for _, s := range p.plan.Steps {
			if s.Collective != nil && first == nil {
				first = s.Collective
			}
		}
		require.Equal(t, c.inPlace, first.In == first.Out)
	}
}

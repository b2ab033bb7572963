package lower

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// requireComputed checks that nodes of each launch write all of what it returns, and
// nothing of the arena beside what is alive in it.
func requireComputed(t *testing.T, p *planner) {
	t.Helper()
	requireApart(t, p)
	for l, s := range p.segments {
		r := p.recipes[l]
		for i, res := range s.Fn.Results {
			n, err := typeBytes(res.Type)
			require.NoError(t, err)
			at := s.Results[i]
			for b := at.Offset; b < at.Offset+n; b++ {
				require.True(t, writes(r, at.Section, b), "launch %d (@%s): byte %d of result %d is not written", l, s.Name, b-at.Offset, i)
			}
		}
	}
}

// writes reports whether a node of a recipe writes a byte of a section.
func writes(r *recipes.Recipe, section int, b int64) bool {
	for _, n := range r.Nodes {
		for _, out := range n.Out {
			if x := r.Tensors[out]; x.Section == section && x.Offset <= b && b < x.Offset+x.Bytes() {
				return true
			}
		}
	}
	return false
}

// A part that is no range of bytes is computed, beside others that lie in their value.
func TestPartThatIsNoRange(t *testing.T) {
	p, _, err := planOf(t, `module @m {level = model, tp = 1}
func @f(input %i: i32[4], weight %e: f32[9, 64] = "e") -> (output y: f32[2, 64], output z: f32[4, 32], output v: f32[1, 32]) {
  %g = gather %e, %i {axis = 0}
  %m = exp %g
  %a = slice %m {axis = 0, start = 0, stop = 2}
  %b = slice %m {axis = 0, start = 2, stop = 4}
  %c = slice %m {axis = 1, start = 0, stop = 32}
  %d = slice %c {axis = 0, start = 1, stop = 2}
  graph_break "layer"
  %u = mul %a, %b
  %v = exp %c
  %w = exp %d
  return %u, %v, %w
}
`)
	require.NoError(t, err)
	requireComputed(t, p)
	require.Len(t, p.segments[0].Inner, 1)
}

// Values that a later launch joins lie together though the one that they are parts of
// cannot lie there: they begin at no address in it.
func TestPartsInAnotherOrder(t *testing.T) {
	p, _, err := planOf(t, `module @m {level = model, tp = 1}
func @f(input %i: i32[8], weight %e: f32[9, 16] = "e") -> (output y: f32[4, 16]) {
  %g = gather %e, %i {axis = 0}
  %m = exp %g
  %a = slice %m {axis = 0, start = 1, stop = 3}
  %b = slice %m {axis = 0, start = 3, stop = 5}
  graph_break "layer"
  %d = concat %b, %a {axis = 0}
  %y = exp %d
  return %y
}
`)
	require.NoError(t, err)
	requireComputed(t, p)
	require.Empty(t, p.segments[0].Inner)
	require.Zero(t, guids(p)["concat"])
}

// Parts that are summed over the ranks in place share no byte.
func TestPartsThatOverlap(t *testing.T) {
	p, _, err := planOf(t, `module @m {level = model, tp = 2}
func @f(
  input %x: f32[3, 64], weight %w: f32[64, 64]@shard(1, 2) = "w", weight %v: f32[64, 64]@shard(0, 2) = "v"
) -> (output y: f32[2, 64], output z: f32[2, 64]) {
  %h = matmul %x, %v {trans_b = true, dtype = f32}
  %m = matmul %h, %w {trans_b = true, dtype = f32}
  %a = slice %m {axis = 0, start = 0, stop = 2}
  %b = slice %m {axis = 0, start = 1, stop = 3}
  %c = slice %m {axis = 0, start = 2, stop = 3}
  %d = all_reduce %a
  %e = all_reduce %b
  %f = all_reduce %c
  %y = mul %d, %f
  %z = exp %e
  return %y, %z
}
`)
	require.NoError(t, err)
	requireComputed(t, p)
	require.Len(t, p.segments[0].Inner, 1, "the first and the last row")
}

// Values that a later launch joins lie together where they are summed over the ranks in
// place, too; one whose part of a rank is read too has two places.
func TestReducedValuesThatAreJoined(t *testing.T) {
	const text = `module @m {level = model, tp = 2}
func @f(
  input %%x: f32[2, 64], weight %%w: f32[64, 64]@shard(1, 2) = "w", weight %%v: f32[64, 64]@shard(0, 2) = "v"
) -> (output y: f32[4, 64]%s) {
  %%g = matmul %%x, %%v {trans_b = true, dtype = f32}
  %%a = matmul %%g, %%w {trans_b = true, dtype = f32}
  %%b = all_reduce %%a
  %%h = matmul %%b, %%v {trans_b = true, dtype = f32}
  %%c = matmul %%h, %%w {trans_b = true, dtype = f32}
  %%d = all_reduce %%c%s
  %%e = concat %%b, %%d {axis = 0}
  %%y = exp %%e
  return %%y%s
}
`
	p, _, err := planOf(t, fmt.Sprintf(text, "", "", ""))
	require.NoError(t, err)
	requireComputed(t, p)
	require.Zero(t, guids(p)["concat"])

	p, _, err = planOf(t, fmt.Sprintf(text, ", output z: f32[2, 64]", `
  %n = add %c, %c
  %o = all_reduce %n`, ", %o"))
	require.NoError(t, err)
	requireComputed(t, p)
	require.Equal(t, 1, guids(p)["concat"])
}

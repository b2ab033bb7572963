//go:build linux && amd64

package hpu

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/runtime/devicetest"
)

// A thousand replays on a card take no memory, neither of the card nor of the
// process, and touch launch tables only where a section has moved.
func TestReplaysTakeNothing(t *testing.T) {
	s := simulate(t, "")
	w := devicetest.NewWork(t, subject(s), 1)
	mem, err := newShared(1)
	require.NoError(t, err)
	c := card{ranks: 1, where: mem.place(0), programs: make(map[recipes.Hash]*program)}
	require.NoError(t, c.acquire(s.library, 7, 0))
	for h, r := range w.Compiled.Recipes {
		native, err := w.Compiled.Native.Recipe(h)
		require.NoError(t, err)
		require.NoError(t, c.load(h, r, native))
	}
	require.NoError(t, c.allocate(w.Set.Info.Bytes))
	var plans []*bound
	for i := range w.Set.Plans[:2] {
		b, err := c.bind(i, &w.Set.Plans[i], w.Compiled.Recipes)
		require.NoError(t, err)
		plans = append(plans, b)
	}
	require.NoError(t, c.run(plans[0]))
	moved := c.moved.Load()
	made := c.where.allocations.Load()
	free, _, err := c.dev.Memory()
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if err := c.run(plans[0]); err != nil {
			panic(err)
		}
	}))
	require.Equal(t, moved, c.moved.Load(), "the same plan again moves nothing")
	now, _, err := c.dev.Memory()
	require.NoError(t, err)
	require.Equal(t, free, now)
	require.Equal(t, made, c.where.allocations.Load())

	// The other plan has the same recipes and another place in the arena: x and z move
	// for the first, z, the order and g for the second.
	require.NoError(t, c.run(plans[1]))
	require.Equal(t, moved+5, c.moved.Load())
	require.NoError(t, c.run(plans[1]))
	require.Equal(t, moved+5, c.moved.Load())
	require.Equal(t, int64(1+1001+2), c.where.runs.Load()) // AllocsPerRun runs once more
	require.NoError(t, c.release())
	require.NoError(t, mem.close())
}

// A native recipe that is not of its recipe is refused, whatever differs.
func TestNativeRecipeOfAnother(t *testing.T) {
	s := simulate(t, "")
	w := devicetest.NewWork(t, subject(s), 1)
	mem, err := newShared(1)
	require.NoError(t, err)
	c := card{ranks: 1, where: mem.place(0), programs: make(map[recipes.Hash]*program)}
	require.NoError(t, c.acquire(s.library, 6, 0))
	defer func() { require.NoError(t, errors.Join(c.release(), mem.close())) }()
	for _, k := range []struct {
		step   int // of the first plan
		tensor string
		change func(r *recipes.Recipe, x *recipes.Tensor)
		want   string
	}{
		{0, "x", func(_ *recipes.Recipe, x *recipes.Tensor) { x.Name = "y" }, `tensor "x" is not in it`},
		{0, "x", func(_ *recipes.Recipe, x *recipes.Tensor) { x.DType = dtype.I32 }, `tensor "x" is f32 [4 3] at byte 0, want i32 [4 3] at byte 0`},
		{0, "x", func(_ *recipes.Recipe, x *recipes.Tensor) { x.Dims = []int64{3, 4} }, `tensor "x" is f32 [4 3] at byte 0, want f32 [3 4] at byte 0`},
		{0, "x", func(_ *recipes.Recipe, x *recipes.Tensor) { x.Offset = 4 }, `at byte 0, want f32 [4 3] at byte 4`},
		{2, "state2", func(_ *recipes.Recipe, x *recipes.Tensor) { x.Section++ }, `tensor "state2" is in section state, want z`},
		{0, "product", func(r *recipes.Recipe, x *recipes.Tensor) { x.Section = 0 }, `it has no tensor "product"`},
	} {
		l := w.Set.Plans[0].Steps[k.step].Launch
		native, err := w.Compiled.Native.Recipe(l.Recipe)
		require.NoError(t, err)
		r := *w.Compiled.Recipes[l.Recipe]
		r.Tensors = slices.Clone(r.Tensors)
		i := slices.IndexFunc(r.Tensors, func(x recipes.Tensor) bool { return x.Name == k.tensor })
		k.change(&r, &r.Tensors[i])
		require.ErrorContains(t, c.load(l.Recipe, &r, native), k.want)
	}
}

package host

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// divided runs a case on so many threads, each of which gets a part of every
// stage however small it is, and returns the outputs' bytes.
func (c *testCase) divided(t testing.TB, threads int) [][]byte {
	t.Helper()
	r, offsets := c.recipe()
	d, err := New(Options{Ranks: 1, Bytes: map[recipes.Buffer]int64{recipes.Arena: r.Sections[0].Size}, Threads: threads, Unfused: true})
	require.NoError(t, err)
	defer d.Close()
	p, err := d.Load(r)
	require.NoError(t, err)
	for _, u := range p.units {
		for s := range u.stages {
			u.stages[s].threads = max(1, min(threads, u.stages[s].units))
		}
	}
	mem := d.Bytes(0, recipes.Arena)
	fill(mem, 0xff)
	fill(d.ranks[0].workspace, 0xff)
	k := 0
	for _, v := range c.in {
		if v != nil {
			v.encode(mem[offsets[k]:])
			k++
		}
	}
	require.NoError(t, d.launchOnce(context.Background(), p, []recipes.Binding{{Buffer: recipes.Arena}}))
	var out [][]byte
	for i, v := range c.out {
		at := offsets[k+i]
		out = append(out, slices.Clone(mem[at:at+int64(len(v.x)*v.dt.Size())]))
	}
	return out
}

// sameOnThreads checks that the number of threads changes no bit.
func (c *testCase) sameOnThreads(t testing.TB) {
	t.Helper()
	want := c.divided(t, 1)
	for _, threads := range []int{2, 3, 5} {
		for o, got := range c.divided(t, threads) {
			if !slices.Equal(got, want[o]) {
				t.Fatalf("%s: output %d of dims %v differs on %d threads\nparams %+v\noperands %s",
					c.guid, o, c.out[o].dims, threads, c.params, c.operands())
			}
		}
	}
}

// How the threads divide a node changes nothing.
func TestThreadsChangeNothing(t *testing.T) {
	for name, spec := range table {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGen(21)
			for range 25 {
				c := oracles[name](g)
				c.guid = guidOf(name, &spec, c)
				c.sameOnThreads(t)
			}
		})
	}
}

// guidOf is a drawn case's GUID.
func guidOf(name string, spec *spec, c *testCase) string {
	if spec.types != nil {
		return name + "_" + c.guid
	}
	return name
}

// Sizes that neither strips nor blocks divide, with blocks of every kind in
// more than one piece.
func TestThreadsChangeNoProduct(t *testing.T) {
	g := newGen(22)
	for _, dt := range floatTypes {
		x := func(dims ...int) *val { return g.values(dt, false, dims...) }
		for _, sh := range [][3]int{{1, 1003, 37}, {3, 67, 130}, {130, 533, 20}, {133, 5, 40}, {500, 70, 3}} {
			m, n, k := sh[0], sh[1], sh[2]
			for _, out := range []*val{newVal(dt, n, m), newVal(f32, n, m)} {
				for i, a := range []*val{x(k, m), x(m, k)} {
					for j, b := range []*val{x(n, k), x(k, n)} {
						t.Run(fmt.Sprintf("%v→%v/%v/%d%d", dt, out.dt, sh, i, j), func(t *testing.T) {
							c := testCase{guid: "gemm", params: gemmP(int64(i), int64(j)), in: []*val{a, b}, out: []*val{out}}
							c.sameOnThreads(t)
						})
					}
				}
			}
		}
		for j, b := range []*val{x(33, 20, 1, 3), x(20, 33, 1, 3)} {
			c := testCase{guid: "batch_gemm", params: gemmP(0, int64(j)), in: []*val{x(20, 7, 5, 1), b}, out: []*val{newVal(dt, 33, 7, 5, 3)}}
			c.sameOnThreads(t)
		}
	}
}

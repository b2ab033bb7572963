package host

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

func TestNew(t *testing.T) {
	d, err := newDevice(3, map[recipes.Buffer]int64{recipes.KV: 100, recipes.Conv: 7, recipes.Arena: 0}, 0)
	require.NoError(t, err)
	require.Equal(t, 3, d.Ranks())
	for r := range 3 {
		for _, b := range recipes.Buffers() {
			m := d.Bytes(r, b)
			require.Len(t, m, map[recipes.Buffer]int{recipes.KV: 100, recipes.Conv: 7}[b])
			require.Zero(t, uintptr(unsafe.Pointer(unsafe.SliceData(m)))%alignment)
			for _, v := range m {
				require.Zero(t, v)
			}
		}
	}
	require.Nil(t, d.Bytes(3, recipes.KV))
	require.Nil(t, d.Bytes(0, "heap"))
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())

	for _, c := range []struct {
		ranks int
		bytes map[recipes.Buffer]int64
	}{{0, nil}, {1 << 20, nil}, {1, map[recipes.Buffer]int64{"heap": 1}}, {1, map[recipes.Buffer]int64{recipes.KV: -1}}, {1, map[recipes.Buffer]int64{recipes.KV: 1 << 50}}} {
		_, err := newDevice(c.ranks, c.bytes, 0)
		require.Error(t, err)
	}
}

func TestClosed(t *testing.T) {
	c := testCase{guid: "neg_fwd_f32", in: []*val{newVal(f32, 8)}, out: []*val{newVal(f32, 8)}}
	r, _ := c.recipe()
	d, err := newDevice(2, map[recipes.Buffer]int64{recipes.Arena: 4096}, 0)
	require.NoError(t, err)
	p, err := d.Load(r)
	require.NoError(t, err)
	l, err := d.Bind(p, bindings(r))
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.ErrorIs(t, l.Run(context.Background()), ErrClosed)
	_, err = d.Bind(p, bindings(r))
	require.ErrorIs(t, err, ErrClosed)
	_, err = d.Load(r)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, d.Collective(context.Background(), &recipes.Collective{}), ErrClosed)
	require.Nil(t, d.Bytes(0, recipes.Arena))
}

func TestCancelled(t *testing.T) {
	c := testCase{guid: "neg_fwd_f32", in: []*val{newVal(f32, 1)}, out: []*val{newVal(f32, 1)}}
	r, offsets := c.recipe()
	d := testDevice(t, 2)
	p, err := d.Load(r)
	require.NoError(t, err)
	l, err := d.Bind(p, bindings(r))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	as[float32](d.Bytes(1, recipes.Arena))[0] = 3
	require.NoError(t, l.Run(ctx))
	require.EqualValues(t, -3, as[float32](d.Bytes(1, recipes.Arena)[offsets[1]:])[0])
	cancel()
	as[float32](d.Bytes(1, recipes.Arena))[0] = 4
	require.ErrorIs(t, l.Run(ctx), context.Canceled)
	require.ErrorIs(t, d.launchOnce(ctx, p, bindings(r)), context.Canceled)
	require.ErrorIs(t, d.Collective(ctx, &recipes.Collective{}), context.Canceled)
	require.EqualValues(t, -3, as[float32](d.Bytes(1, recipes.Arena)[offsets[1]:])[0])
}

// Ranks execute on their own memory; how many goroutines share them changes
// nothing.
func TestRanksAndWorkers(t *testing.T) {
	g := newGen(5)
	c := testCase{guid: "gemm", params: gemmP(0, 1), in: []*val{g.values(f32, false, 70, 9), g.values(f32, false, 70, 33)}, out: []*val{newVal(f32, 33, 9)}}
	r, offsets := c.recipe()
	var first [][]byte
	for workers := 1; workers <= 6; workers++ {
		d, err := newDevice(5, map[recipes.Buffer]int64{recipes.Arena: r.Sections[0].Size}, workers)
		require.NoError(t, err)
		p, err := d.Load(r)
		require.NoError(t, err)
		l, err := d.Bind(p, bindings(r))
		require.NoError(t, err)
		var out [][]byte
		for rank := range 5 {
			m := d.Bytes(rank, recipes.Arena)
			c.in[0].encode(m)
			c.in[1].encode(m[offsets[1]:])
			as[float32](m)[rank] = 1000
		}
		for range 3 {
			require.NoError(t, l.Run(context.Background()))
		}
		for rank := range 5 {
			out = append(out, slices.Clone(d.Bytes(rank, recipes.Arena)))
		}
		require.NoError(t, d.Close())
		if first == nil {
			first = out
		}
		require.Equal(t, first, out)
		require.NotEqual(t, out[0], out[1])
	}
}

// A workspace that grows after a launch was bound moves under it.
func TestWorkspaceGrows(t *testing.T) {
	d := testDevice(t, 2)
	build := func(n int) *Launch {
		m := newMaker(section(recipes.Arena, 1<<14))
		x := m.tensor(f32, 0, 0, n)
		y := m.node("neg_fwd_f32", nil, []int{x}, m.tmp(f32, n))
		m.node("neg_fwd_f32", nil, []int{y}, m.tensor(f32, 0, 1<<13, n))
		p, err := d.Load(&m.Recipe)
		require.NoError(t, err)
		l, err := d.Bind(p, bindings(&m.Recipe))
		require.NoError(t, err)
		return l
	}
	small, large := build(4), build(1000)
	require.EqualValues(t, 128, small.program.workspace)
	require.EqualValues(t, 4096, large.program.workspace)
	for r := range 2 {
		require.Len(t, d.ranks[r].workspace, 4096)
		m := as[float32](d.Bytes(r, recipes.Arena))
		for i := range 1000 {
			m[i] = float32(i + r)
		}
		for _, l := range []*Launch{small, large} {
			fill(d.Bytes(r, recipes.Arena)[1<<13:], 0)
			require.NoError(t, l.Run(context.Background()))
			require.EqualValues(t, 3+r, m[1<<11+3])
		}
		require.EqualValues(t, 999+r, m[1<<11+999])
	}
}

func TestRunReportsTheNode(t *testing.T) {
	idx := func(v ...float64) *val { return &val{i32, []int{len(v)}, v} }
	for _, c := range []struct {
		testCase
		want string
	}{
		{testCase{
			guid: "gather_fwd_f32", params: axisP("ns_GatherKernel::Params", "axis", recipes.I32, 1),
			in: []*val{newVal(f32, 2, 3), idx(0, 3)}, out: []*val{newVal(f32, 2, 2)},
		}, `in[1] "x1": index 3 is outside 0 to 2`},
		{testCase{
			guid: "gather_fwd_f32", params: axisP("ns_GatherKernel::Params", "axis", recipes.I32, 1),
			in: []*val{newVal(f32, 2, 3), idx(-1)}, out: []*val{newVal(f32, 2, 1)},
		}, `in[1] "x1": index -1 is outside 0 to 2`},
		{testCase{
			guid: "gather_elements_fwd_f32", params: axisP("ns_GatherElementsKernel::Params", "axis", recipes.I32, 0),
			in: []*val{newVal(f32, 3), idx(2, 1, 7, 0)}, out: []*val{newVal(f32, 4)},
		}, `in[1] "x1": index 7 is outside 0 to 2`},
		{testCase{
			guid: "index_copy_fwd_f32", params: indexCopyP(),
			in: []*val{newVal(f32, 2, 3), idx(0, math.MinInt32), newVal(f32, 2, 2)}, out: []*val{newVal(f32, 2, 3)},
		}, `in[1] "x1": index -2147483648 is outside 0 to 2`},
		{testCase{guid: "div_fwd_i32", in: []*val{newVal(i32, 2), newVal(i32, 2)}, out: []*val{newVal(i32, 2)}}, `panic: runtime error: integer divide by zero`},
	} {
		r, offsets := c.recipe()
		withProgram(t, 3, r, func(d *Device, run func() error) {
			for rank := range 3 {
				for i, v := range c.in {
					if rank > 0 || i != 1 { // rank 0 has valid indices
						v.encode(d.Bytes(rank, recipes.Arena)[offsets[i]:])
					} else if v.dt == i32 && c.guid == "div_fwd_i32" {
						fill(d.Bytes(rank, recipes.Arena)[offsets[i]:][:8], 1)
					}
				}
			}
			err := run()
			require.ErrorContains(t, err, `recipe case: node 0 "n" (`+c.guid+`, from model.op), rank 1: `+c.want)
			for rank := range 3 { // and the device still works
				fill(d.Bytes(rank, recipes.Arena), 0)
				if c.guid == "div_fwd_i32" {
					fill(d.Bytes(rank, recipes.Arena), 1)
				}
			}
			require.NoError(t, run())
		})
	}
}

// Nothing is written by an update with a bad index.
func TestIndexCopyChecksFirst(t *testing.T) {
	s := newState()
	s.Tensors[s.idx].Dims = []int64{2}
	s.Tensors[s.row].Dims = []int64{4, 2}
	s.update()
	withProgram(t, 1, &s.Recipe, func(d *Device, run func() error) {
		as[int32](d.Bytes(0, recipes.Arena))[1] = 8
		fill(d.Bytes(0, recipes.Arena)[64:], 1)
		require.Error(t, run())
		require.Equal(t, make([]byte, 128), d.Bytes(0, recipes.KV))
	})
}

func TestConcurrentUse(t *testing.T) {
	d := testDevice(t, 3)
	c := testCase{guid: "neg_fwd_f32", in: []*val{newVal(f32, 64)}, out: []*val{newVal(f32, 64)}}
	r, _ := c.recipe()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				p, err := d.Load(r)
				if err == nil {
					err = d.launchOnce(context.Background(), p, bindings(r))
				}
				if err == nil {
					err = d.Collective(context.Background(), &recipes.Collective{Kind: recipes.AllReduce, DType: f32, Count: 64})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A bound launch and a collective run without allocating.
func TestRunAllocatesNothing(t *testing.T) {
	r := benchProgram()
	for _, ranks := range []int{1, 3} {
		withProgram(t, ranks, r, func(d *Device, run func() error) {
			require.Zero(t, testing.AllocsPerRun(50, func() {
				if err := run(); err != nil {
					t.Error(err)
				}
			}))
			c := &recipes.Collective{Kind: recipes.AllReduce, DType: bf16, Count: 100}
			g := &recipes.Collective{Kind: recipes.AllGather, DType: f32, Count: 8, Out: 64}
			require.Zero(t, testing.AllocsPerRun(50, func() {
				if d.Collective(context.Background(), c) != nil || d.Collective(context.Background(), g) != nil {
					t.Error("collective failed")
				}
			}))
		})
	}
}

// Every GUID's kernels run without allocating.
func TestKernelsAllocateNothing(t *testing.T) {
	for name, spec := range table {
		g := newGen(11)
		for range 10 {
			c := oracles[name](g)
			if spec.types != nil {
				name := name + "_" + c.guid
				c.guid = name
			} else {
				c.guid = name
			}
			r, offsets := c.recipe()
			withProgram(t, 1, r, func(d *Device, run func() error) {
				k := 0
				for _, v := range c.in {
					if v != nil {
						v.encode(d.Bytes(0, recipes.Arena)[offsets[k]:])
						k++
					}
				}
				require.Zero(t, testing.AllocsPerRun(2, func() { _ = run() }), c.guid)
			})
		}
	}
}

func TestCollectives(t *testing.T) {
	for ranks := 1; ranks <= 8; ranks++ {
		d, err := newDevice(ranks, map[recipes.Buffer]int64{recipes.Arena: 1 << 16}, 0)
		require.NoError(t, err)
		g := newGen(uint64(ranks))
		for _, count := range []int{0, 1, 3, chunk, 1300} {
			for _, dt := range []dtype.Type{f32, bf16, i32} {
				for _, out := range []int64{0, 1 << 15} {
					vs := make([]*val, ranks)
					for r := range vs {
						vs[r] = g.values(dt, true, count)
						vs[r].encode(d.Bytes(r, recipes.Arena))
					}
					// f32 in rank order, one rounding.
					want := make([]float64, count)
					for i := range want {
						sum := vs[0].x[i]
						for _, v := range vs[1:] {
							if dt == i32 {
								sum = float64(int32(int64(sum + v.x[i])))
							} else {
								sum = float64(float32(sum) + float32(v.x[i]))
							}
						}
						want[i] = rounded(dt, sum)
					}
					c := &recipes.Collective{Kind: recipes.AllReduce, DType: dt, Count: int64(count), Out: out}
					require.NoError(t, d.Collective(context.Background(), c))
					for r := range ranks {
						m := d.Bytes(r, recipes.Arena)[out:]
						got := vs[0].decode(m)
						same := slices.EqualFunc(got, want, func(a, b float64) bool { return a == b || a != a && b != b })
						require.True(t, same, "%v, %d ranks: got %v, want %v", dt, ranks, got, want)
						require.True(t, slices.Equal(d.Bytes(0, recipes.Arena)[out:][:count*dt.Size()], m[:count*dt.Size()]), "same bits on every rank")
					}
				}
			}
			for _, dt := range []dtype.Type{f32, bf16, i32, i8} {
				want := []byte{}
				for r := range ranks {
					m := d.Bytes(r, recipes.Arena)
					for i := range m {
						m[i] = byte(g.Uint32())
					}
					want = append(want, m[64:64+count*dt.Size()]...)
				}
				if 1<<14+len(want) > 1<<16 {
					continue
				}
				c := &recipes.Collective{Kind: recipes.AllGather, DType: dt, Count: int64(count), In: 64, Out: 1 << 14}
				require.NoError(t, d.Collective(context.Background(), c))
				for r := range ranks {
					require.True(t, slices.Equal(want, d.Bytes(r, recipes.Arena)[1<<14:][:len(want)]))
				}
			}
		}
		require.NoError(t, d.Close())
	}
}

// The sum is in rank order, and rounds only at the end.
func TestReduceOrder(t *testing.T) {
	d := testDevice(t, 4)
	sum := func(dt dtype.Type, x ...float64) float64 {
		for r, v := range x {
			(&val{dt, []int{1}, []float64{v}}).encode(d.Bytes(r, recipes.Arena))
		}
		require.NoError(t, d.Collective(context.Background(), &recipes.Collective{Kind: recipes.AllReduce, DType: dt, Count: 1}))
		return newVal(dt, 1).decode(d.Bytes(3, recipes.Arena))[0]
	}
	require.EqualValues(t, 1, sum(f32, 1e8, -1e8, 1, 0))
	require.EqualValues(t, 0, sum(f32, 1, 1e8, -1e8, 0))
	require.EqualValues(t, 258, sum(bf16, 256, 0.75, 0.75, 0))
	require.EqualValues(t, math.MinInt32, sum(i32, math.MaxInt32, 1, 0, 0))
}

func TestCollectiveRefuses(t *testing.T) {
	d := testDevice(t, 2)
	for _, c := range []struct {
		recipes.Collective
		want string
	}{
		{recipes.Collective{Kind: "scan", DType: f32}, "unknown kind"},
		{recipes.Collective{Kind: recipes.AllReduce}, "no element type"},
		{recipes.Collective{Kind: recipes.AllReduce, DType: i8}, "want bf16, f32 or i32"},
		{recipes.Collective{Kind: recipes.AllReduce, DType: f32, Count: -1}, "-1 elements"},
		{recipes.Collective{Kind: recipes.AllReduce, DType: f32, Count: 1 << 62}, "elements"},
		{recipes.Collective{Kind: recipes.AllReduce, DType: f32, Count: 1 << 40}, "input of"},
		{recipes.Collective{Kind: recipes.AllReduce, DType: f32, Count: 1, In: -4}, "input of"},
		{recipes.Collective{Kind: recipes.AllReduce, DType: f32, Count: 1, Out: 1 << 16}, "output of"},
		{recipes.Collective{Kind: recipes.AllReduce, DType: f32, Count: 1, Out: 2}, "multiple of 4"},
		{recipes.Collective{Kind: recipes.AllReduce, DType: f32, Count: 4, Out: 8}, "overlap"},
		{recipes.Collective{Kind: recipes.AllGather, DType: f32, Count: 4}, "overlap"},
		{recipes.Collective{Kind: recipes.AllGather, DType: f32, Count: 4, In: 0, Out: 1<<16 - 16}, "output of 32 bytes"},
	} {
		c.Label = "here"
		err := d.Collective(context.Background(), &c.Collective)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, `"here"`)
	}
}

// benchProgram is a chain of 100 small nodes of many kinds.
func benchProgram() *recipes.Recipe {
	m := newMaker(section(recipes.Arena, 1<<14))
	x := m.tensor(bf16, 0, 0, 64, 4)
	gamma := m.tensor(bf16, 0, 512, 64)
	w := m.tensor(bf16, 0, 1024, 64, 64)
	for range 20 {
		y := m.tmp(bf16, 64, 4)
		m.node("rms_norm_fwd_bf16", normP(1e-6), []int{x, gamma}, y, m.tmp(f32, 1, 4))
		z := m.node("gemm", gemmP(0, 1), []int{y, w}, m.tmp(f32, 64, 4))
		s := m.node("softmax_fwd_f32", axisP("ns_Softmax::Params", "dim", recipes.I32, 0), []int{z}, m.tmp(f32, 64, 4))
		h := m.node("cast_f32_to_bf16", axisP("ns_CastKernel::Params", "round_mode", recipes.I32, 0), []int{s}, m.tmp(bf16, 64, 4))
		x = m.node("add_fwd_bf16", nil, []int{x, h}, m.tmp(bf16, 64, 4))
	}
	m.node("neg_fwd_bf16", nil, []int{x}, m.tensor(bf16, 0, 12288, 64, 4))
	return &m.Recipe
}

// BenchmarkNodes is the cost of a node that does almost nothing.
func BenchmarkNodes(b *testing.B) {
	m := newMaker(section(recipes.Arena, 1<<14))
	x := m.tensor(f32, 0, 0, 16)
	const nodes = 100
	for range nodes {
		x = m.node("add_fwd_f32", nil, []int{x, x}, m.tmp(f32, 16))
	}
	for _, ranks := range []int{1, 2, 8} {
		b.Run(fmt.Sprint("ranks=", ranks), func(b *testing.B) {
			withProgram(b, ranks, &m.Recipe, func(_ *Device, run func() error) {
				for b.Loop() {
					if err := run(); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*nodes*ranks), "ns/node")
		})
	}
}

func BenchmarkGemm(b *testing.B) {
	for _, c := range []struct {
		dt      dtype.Type
		m, n, k int
		tb      int64
	}{
		{f32, 1, 2048, 2048, 1},
		{bf16, 1, 2048, 2048, 1},
		{f32, 64, 1024, 1024, 1},
		{bf16, 64, 1024, 1024, 1},
		{bf16, 1, 128, 2048, 0},
		{bf16, 8, 128, 2048, 0},
		{f32, 64, 1024, 1024, 0},
	} {
		b.Run(fmt.Sprintf("%v/m=%d,n=%d,k=%d,tb=%d", c.dt, c.m, c.n, c.k, c.tb), func(b *testing.B) {
			w := []int{c.n, c.k}
			if c.tb == 1 {
				w = []int{c.k, c.n}
			}
			one := testCase{guid: "gemm", params: gemmP(0, c.tb), in: []*val{newVal(c.dt, c.k, c.m), newVal(c.dt, w...)}, out: []*val{newVal(c.dt, c.n, c.m)}}
			r, _ := one.recipe()
			withProgram(b, 1, r, func(_ *Device, run func() error) {
				for b.Loop() {
					if err := run(); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(2*float64(c.m*c.n*c.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

func BenchmarkElementwise(b *testing.B) {
	for _, c := range []struct {
		guid string
		b    []int
	}{
		{"add_fwd_f32", []int{1024, 64}},
		{"add_fwd_bf16", []int{1024, 64}},
		{"mult_fwd_f32", []int{1024, 1}},
		{"mult_fwd_f32", []int{1, 64}},
		{"mult_fwd_f32", []int{1, 1}},
		{"mult_fwd_bf16", []int{1, 64}},
	} {
		b.Run(fmt.Sprintf("%s/%v", c.guid, c.b), func(b *testing.B) {
			dt := f32
			if c.guid[len(c.guid)-1] == '6' {
				dt = bf16
			}
			one := testCase{guid: c.guid, in: []*val{newVal(dt, 1024, 64), newVal(dt, c.b...)}, out: []*val{newVal(dt, 1024, 64)}}
			r, _ := one.recipe()
			withProgram(b, 1, r, func(_ *Device, run func() error) {
				for b.Loop() {
					if err := run(); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*1024*64), "ns/elem")
		})
	}
}

func TestCloseStopsWorkers(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		d, err := newDevice(8, map[recipes.Buffer]int64{recipes.Arena: 64}, 8)
		require.NoError(t, err)
		require.NoError(t, d.Close())
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before)
}

// An index outside its axis is the fault of the node that picks, also where it
// executes in one unit with nodes that come after it.
func TestFusedIndexErrorNamesItsNode(t *testing.T) {
	for name, c := range map[string]struct {
		pick func(m *maker, x, idx int) int // rows 0 … 2 of x {4, 3}
		node string
	}{
		"gather": {func(m *maker, x, idx int) int {
			return m.node("gather_fwd_f32", axisP("ns_GatherKernel::Params", "axis", recipes.I32, 1), []int{x, idx}, m.tmp(f32, 4, 3))
		}, `node 0 "n0" (gather_fwd_f32`},
		"gather_elements": {func(m *maker, x, idx int) int {
			wide := m.node("reshape", nil, []int{idx}, m.tmp(i32, 3, 1))
			wide = m.node("broadcast", nil, []int{wide}, m.tmp(i32, 3, 3))
			return m.node("gather_elements_fwd_f32", axisP("ns_GatherElementsKernel::Params", "axis", recipes.I32, 0), []int{x, wide}, m.tmp(f32, 3, 3))
		}, `node 2 "n2" (gather_elements_fwd_f32`},
	} {
		m := newMaker(section(recipes.Arena, 1<<10))
		x, idx := m.tensor(f32, 0, 0, 4, 3), m.tensor(i32, 0, 128, 3)
		picked := c.pick(m, x, idx)
		m.node("add_fwd_f32", nil, []int{picked, picked}, m.tensor(f32, 0, 256, m.dims(picked)...))
		for _, unfused := range []bool{false, true} {
			d, err := New(Options{Ranks: 1, Bytes: map[recipes.Buffer]int64{recipes.Arena: 1 << 10}, Unfused: unfused})
			require.NoError(t, err)
			defer d.Close()
			p, err := d.Load(&m.Recipe)
			require.NoError(t, err)
			require.Equal(t, unfused, len(p.units) > 1, name)
			copy(as[int32](d.Bytes(0, recipes.Arena)[128:]), []int32{0, 5, 1})
			err = d.launchOnce(context.Background(), p, bindings(&m.Recipe))
			require.ErrorContains(t, err, c.node, "%s, unfused %v", name, unfused)
			require.ErrorContains(t, err, ": index 5 is outside 0 to ", name)
		}
	}
}

package host

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// runOn executes a recipe on a device with the given options over the given
// memory, and returns the memory after it.
func runOn(t testing.TB, o Options, r *recipes.Recipe, mem map[recipes.Buffer][]byte) map[recipes.Buffer][]byte {
	t.Helper()
	o.Ranks, o.Bytes = 1, make(map[recipes.Buffer]int64)
	for b, m := range mem {
		o.Bytes[b] = int64(len(m))
	}
	d, err := New(o)
	require.NoError(t, err)
	defer d.Close()
	p, err := d.Load(r)
	require.NoError(t, err)
	for b, m := range mem {
		copy(d.Bytes(0, b), m)
	}
	fill(d.ranks[0].workspace, 0xff)
	require.NoError(t, d.launchOnce(context.Background(), p, bindings(r)))
	out := make(map[recipes.Buffer][]byte)
	for b := range mem {
		out[b] = slices.Clone(d.Bytes(0, b))
	}
	return out
}

// attend is a recipe with the attention of a prefill: relative logits picked by
// distance, scores of grouped heads, a mask, softmax and values, in type dt. With
// mask set it is one node, and what hides keys is its mask.
func attend(g gen, dt dtype.Type, mask bool, keys, rows, groups, heads, dim, reach, window int) (*recipes.Recipe, map[recipes.Buffer][]byte) {
	m := newMaker(section(recipes.Arena, 1<<22))
	mem := make([]byte, 1<<22)
	at := int64(0)
	put := func(v *val) int {
		t := m.tensor(v.dt, 0, at, v.dims...)
		v.encode(mem[at:])
		at = align(at + m.Tensors[t].Bytes())
		return t
	}
	s := "_" + dt.String()
	all := groups * heads
	distance := newVal(i32, keys, rows)
	distance.each(func(i int, x []int) { distance.x[i] = float64(x[1] + keys - rows - x[0]) })
	d := put(distance)
	zero, limit, low := put(&val{i32, []int{1, 1}, []float64{0}}), put(&val{i32, []int{1, 1}, []float64{float64(reach - 1)}}), put(&val{f32, []int{1, 1, 1, 1}, []float64{-30000}})
	wide := put(&val{i32, []int{1, 1}, []float64{float64(window)}})
	scale := put(&val{f32, []int{1, 1, 1, 1}, []float64{1 / float64(dim)}})
	nothing := put(&val{dt, []int{1, 1, 1}, []float64{0}})
	visible := m.node("and_fwd_i8", nil, []int{
		m.node("less_equal_fwd_i32", nil, []int{zero, d}, m.tmp(i8, keys, rows)),
		m.node("less_fwd_i32", nil, []int{d, wide}, m.tmp(i8, keys, rows)),
	}, m.tmp(i8, keys, rows))
	near := m.node("less_equal_fwd_i32", nil, []int{d, limit}, m.tmp(i8, keys, rows))
	idx := m.node("max_fwd_i32", nil, []int{m.node("min_fwd_i32", nil, []int{d, limit}, m.tmp(i32, keys, rows)), zero}, m.tmp(i32, keys, rows))
	spread := m.node("broadcast", nil, []int{m.node("reshape", nil, []int{idx}, m.tmp(i32, keys, 1, rows))}, m.tmp(i32, keys, all, rows))
	relative := m.node("batch_gemm", gemmP(0, 0), []int{put(g.values(dt, false, 4, all, rows)), put(g.values(dt, false, reach, 4, 1))}, m.tmp(dt, reach, all, rows))
	bias := m.node("gather_elements"+"_fwd"+s, axisP("ns_GatherElementsKernel::Params", "axis", recipes.I32, 0), []int{relative, spread}, m.tmp(dt, keys, all, rows))
	bias = m.node("where_fwd"+s, nil, []int{m.node("reshape", nil, []int{near}, m.tmp(i8, keys, 1, rows)), bias, nothing}, m.tmp(dt, keys, all, rows))
	wider := dt
	if dt == bf16 && !mask {
		bias = m.node("cast_bf16_to_f32", castP(), []int{bias}, m.tmp(f32, keys, all, rows))
		wider = f32
	}
	bias = m.node("transpose", transposeP([]int{0, 2, 1}), []int{bias}, m.tmp(wider, keys, rows, all))
	bias = m.node("reshape", nil, []int{bias}, m.tmp(wider, keys, rows, groups, heads))
	q := m.node("reshape", nil, []int{put(g.values(dt, false, dim, all, rows))}, m.tmp(dt, dim, groups, heads, rows))
	q = m.node("transpose", transposeP([]int{0, 3, 1, 2}), []int{q}, m.tmp(dt, dim, rows, groups, heads))
	matrix := func() int {
		k := m.node("transpose", transposeP([]int{0, 2, 1}), []int{put(g.values(dt, false, dim, heads, keys))}, m.tmp(dt, dim, keys, heads))
		return m.node("reshape", nil, []int{k}, m.tmp(dt, dim, keys, 1, heads))
	}
	if mask {
		sees := m.node("reshape", nil, []int{visible}, m.tmp(i8, keys, rows, 1, 1))
		hide := put(&val{dt, []int{1, 1, 1, 1}, []float64{rounded(dt, -1e30)}})
		bias = m.node("where_fwd"+s, nil, []int{sees, bias, hide}, m.tmp(dt, keys, rows, groups, heads))
		y := m.node(sdpaGUID+s, sdpaP(1/float64(dim), 1), []int{q, matrix(), matrix(), bias}, m.tmp(dt, dim, rows, groups, heads))
		m.node("transpose", transposeP([]int{0, 2, 3, 1}), []int{y}, m.tensor(dt, 0, at, dim, groups, heads, rows))
		return &m.Recipe, map[recipes.Buffer][]byte{recipes.Arena: mem}
	}
	scores := m.node("batch_gemm", gemmP(0, 1), []int{q, matrix()}, m.tmp(f32, keys, rows, groups, heads))
	scores = m.node("mult_fwd_f32", nil, []int{scores, scale}, m.tmp(f32, keys, rows, groups, heads))
	scores = m.node("add_fwd_f32", nil, []int{scores, bias}, m.tmp(f32, keys, rows, groups, heads))
	scores = m.node("where_fwd_f32", nil, []int{m.node("reshape", nil, []int{visible}, m.tmp(i8, keys, rows, 1, 1)), scores, low}, m.tmp(f32, keys, rows, groups, heads))
	p := m.node("softmax_fwd_f32", axisP("ns_Softmax::Params", "dim", recipes.I32, 0), []int{scores}, m.tmp(f32, keys, rows, groups, heads))
	if dt == bf16 {
		p = m.node("cast_f32_to_bf16", castP(), []int{p}, m.tmp(bf16, keys, rows, groups, heads))
	}
	y := m.node("batch_gemm", gemmP(0, 0), []int{p, matrix()}, m.tmp(dt, dim, rows, groups, heads))
	m.node("transpose", transposeP([]int{0, 2, 3, 1}), []int{y}, m.tensor(dt, 0, at, dim, groups, heads, rows))
	return &m.Recipe, map[recipes.Buffer][]byte{recipes.Arena: mem}
}

func castP() *recipes.Params {
	return params("ns_CastKernel::Params", ints("round_mode", recipes.I32, 0))
}

// Attention is one unit, which computes a tile of rows after the other and
// leaves out hidden keys; its result has the bits that nodes have alone, on any
// number of threads. Windows and reaches lie on both sides of tiles and lanes,
// and rows that see nothing take everything.
func TestAttentionIsOneUnit(t *testing.T) {
	for i, dt := range []dtype.Type{f32, bf16, f32, bf16} {
		g, mask := newGen(3), i > 1
		for _, c := range []struct{ keys, rows, groups, heads, dim, reach, window int }{
			{64, 64, 2, 2, 16, 8, 64},
			{100, 100, 4, 2, 32, 200, 17},
			{131, 70, 1, 3, 16, 5, 33},
			{96, 96, 2, 1, 8, 96, 0}, // nobody sees anything
			{160, 33, 3, 2, 20, 64, 40},
			{40, 60, 2, 2, 16, 16, 20}, // the first rows see nothing
		} {
			r, mem := attend(g, dt, mask, c.keys, c.rows, c.groups, c.heads, c.dim, c.reach, c.window)
			want := runOn(t, Options{Unfused: true, Threads: 1}, r, mem)
			for _, threads := range []int{1, 2, 3} {
				require.Equal(t, want, runOn(t, Options{Threads: threads}, r, mem), "%v %+v, %d threads", dt, c, threads)
			}
			d := testDevice(t, 1)
			d.sizes[recipes.Arena] = 1 << 22
			p, err := d.Load(r)
			require.NoError(t, err)
			spans := 0
			for i := range p.units {
				if p.units[i].info.Kind == "rows and products" {
					spans++
					require.Greater(t, p.units[i].info.Nodes, 8)
					require.True(t, p.units[i].info.Span, "%+v", c)
				}
			}
			require.Equal(t, 1, spans, "units: %d", len(p.units))
		}
	}
}

// The number that hides keys may be any: where it is not far below every score, or
// no number, all keys are computed with.
func TestAnyNumberHides(t *testing.T) {
	for _, hidden := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e30, -1e30, -1 << 33, -1, 0} {
		for was, mask := range map[float32]bool{-30000: false, -1e30: true} {
			r, mem := attend(newGen(1), f32, mask, 160, 160, 2, 2, 16, 8, 40)
			changed := 0
			for i, x := range as[float32](mem[recipes.Arena]) {
				if x == was {
					as[float32](mem[recipes.Arena])[i] = hidden
					changed++
				}
			}
			require.Equal(t, 1, changed)
			want := runOn(t, Options{Unfused: true, Threads: 1}, r, mem)
			require.Equal(t, want, runOn(t, Options{Threads: 2}, r, mem), "%v, mask %v", hidden, mask)
		}
	}
}

// Random programs give fused what they give node by node, on any number of
// threads.
func TestFusedAsUnfused(t *testing.T) {
	fused := 0
	for seed := range 400 {
		g := newGen(uint64(seed))
		r := randomProgram(g)
		mem := map[recipes.Buffer][]byte{recipes.Arena: make([]byte, 1<<14), recipes.KV: make([]byte, 1<<12)}
		for _, m := range mem {
			for i, x := 0, as[int32](m); i < len(x); i++ {
				x[i] = int32(g.IntN(4))
			}
		}
		want := runOn(t, Options{Unfused: true, Threads: 1}, r, mem)
		require.Equal(t, want, runOn(t, Options{Threads: 1 + seed%3}, r, mem), "seed %d", seed)
		d := testDevice(t, 1)
		p, err := d.Load(r)
		require.NoError(t, err)
		for i := range p.units {
			if p.units[i].info.Nodes > 1 {
				fused++
			}
		}
	}
	require.Greater(t, fused, 200, "hardly anything was fused")
}

package host

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// references is the attention of decoding: a row of queries a sequence, and
// references to blocks of a cache, each owned by a sequence.
type references struct {
	seqs, refs, slots, pool   int
	groups, heads, dim, reach int
	window                    int // 0: unlimited
	hidden, floor             float32
	twist                     string // what is done otherwise
}

// attention is a recipe with what is computed for each reference: the maximum of
// its scores, the sum of their exponentials, and that of values times these, both
// sums relative to the maximum of all references. at is where the operands lie in
// the arena or in the cache.
func (c references) attention(dt dtype.Type) (r *recipes.Recipe, at map[string]int64) {
	at = make(map[string]int64)
	m := newMaker(section(recipes.Arena, 0), section(recipes.KV, 0))
	put := func(sec int, name string, dt dtype.Type, dims ...int) int {
		at[name] = m.Sections[sec].Size
		t := m.tensor(dt, sec, at[name], dims...)
		m.Sections[sec].Size = align(at[name] + m.Tensors[t].Bytes())
		return t
	}
	input := func(name string, dt dtype.Type, dims ...int) int { return put(0, name, dt, dims...) }
	s := "_" + dt.String()
	all, n, b := c.groups*c.heads, c.refs, c.slots
	q := input("q", dt, c.dim, all, c.seqs)
	relative := input("relative", dt, c.reach, all, c.seqs)
	positions, blocks, owners, starts := input("positions", i32, c.seqs), input("blocks", i32, n), input("owners", i32, n), input("starts", i32, n)
	zero, extent, last, window := input("zero", i32, 1, 1), input("extent", i32, 1, 1), input("last", i32, 1, 1), input("window", i32, 1, 1)
	nothing := input("nothing", dt, 1, 1, 1)
	scale, hidden, floor := input("scale", f32, 1, 1, 1, 1), input("hidden", f32, 1, 1, 1, 1), input("floor", f32, 1, 1, 1, 1)

	slots := m.node("range_i32", rangeP(0, b), nil, m.tmp(i32, b))
	slots = m.node("reshape", nil, []int{slots}, m.tmp(i32, b, 1))
	places := m.node("add_fwd_i32", nil, []int{m.node("reshape", nil, []int{starts}, m.tmp(i32, 1, n)), slots}, m.tmp(i32, b, n))
	mine := m.node("gather_fwd_i32", axisP("ns_GatherKernel::Params", "axis", recipes.I32, 0), []int{positions, owners}, m.tmp(i32, n))
	distance := m.node("sub_fwd_i32", nil, []int{m.node("reshape", nil, []int{mine}, m.tmp(i32, 1, n)), places}, m.tmp(i32, b, n))
	visible := m.node("less_equal_fwd_i32", nil, []int{zero, distance}, m.tmp(i8, b, n))
	if c.window != 0 {
		visible = m.node("and_fwd_i8", nil, []int{visible, m.node("less_fwd_i32", nil, []int{distance, window}, m.tmp(i8, b, n))}, m.tmp(i8, b, n))
	}
	near := m.node("less_fwd_i32", nil, []int{distance, extent}, m.tmp(i8, b, n))
	idx := m.node("min_fwd_i32", nil, []int{m.node("max_fwd_i32", nil, []int{distance, zero}, m.tmp(i32, b, n)), last}, m.tmp(i32, b, n))
	idx = m.node("broadcast", nil, []int{m.node("reshape", nil, []int{idx}, m.tmp(i32, b, 1, n))}, m.tmp(i32, b, all, n))
	owned := func(x, row int) int {
		return m.node("gather_fwd"+s, axisP("ns_GatherKernel::Params", "axis", recipes.I32, 2), []int{x, owners}, m.tmp(dt, row, all, n))
	}
	bias := m.node("gather_elements_fwd"+s, axisP("ns_GatherElementsKernel::Params", "axis", recipes.I32, 0), []int{owned(relative, c.reach), idx}, m.tmp(dt, b, all, n))
	bias = m.node("where_fwd"+s, nil, []int{m.node("reshape", nil, []int{near}, m.tmp(i8, b, 1, n)), bias, nothing}, m.tmp(dt, b, all, n))
	if dt == bf16 {
		bias = m.node("cast_bf16_to_f32", castP(), []int{bias}, m.tmp(f32, b, all, n))
	}
	shape := func(x int) []int { return []int{x, c.groups, c.heads, n} }
	bias = m.node("reshape", nil, []int{bias}, m.tmp(f32, shape(b)...))
	matrix := func(name string) int {
		x := put(1, name, dt, c.dim, c.heads, b, c.pool)
		x = m.node("gather_fwd"+s, axisP("ns_GatherKernel::Params", "axis", recipes.I32, 3), []int{x, blocks}, m.tmp(dt, c.dim, c.heads, b, n))
		return m.node("transpose", transposeP([]int{0, 2, 1, 3}), []int{x}, m.tmp(dt, c.dim, b, c.heads, n))
	}
	rows := m.node("reshape", nil, []int{owned(q, c.dim)}, m.tmp(dt, shape(c.dim)...))
	scores := m.node("batch_gemm", gemmP(0, 1), []int{rows, matrix("k")}, m.tmp(f32, shape(b)...))
	scores = m.node("mult_fwd_f32", nil, []int{scores, scale}, m.tmp(f32, shape(b)...))
	scores = m.node("add_fwd_f32", nil, []int{scores, bias}, m.tmp(f32, shape(b)...))
	scores = m.node("where_fwd_f32", nil, []int{m.node("reshape", nil, []int{visible}, m.tmp(i8, b, 1, 1, n)), scores, hidden}, m.tmp(f32, shape(b)...))
	top := m.node("reduce_max_fwd_f32", axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 0), []int{scores}, m.tmp(f32, shape(1)...))
	switch c.twist {
	case "no floor":
		top = m.node("add_fwd_f32", nil, []int{top, floor}, input("top", f32, shape(1)...))
	case "two maxima":
		m.node("identity", nil, []int{top}, input("first", f32, shape(1)...))
		fallthrough
	default:
		top = m.node("max_fwd_f32", nil, []int{top, floor}, input("top", f32, shape(1)...))
	}
	p := m.node("sub_fwd_f32", nil, []int{scores, top}, m.tmp(f32, shape(b)...))
	if c.twist == "lifted" {
		p = m.node("max_fwd_f32", nil, []int{p, scale}, m.tmp(f32, shape(b)...))
	}
	p = m.node("exp_fwd_f32", nil, []int{p}, m.tmp(f32, shape(b)...))
	switch c.twist {
	case "scaled":
		p = m.node("mult_fwd_f32", nil, []int{scale, p}, m.tmp(f32, shape(b)...))
	case "raised":
		p = m.node("add_fwd_f32", nil, []int{p, scale}, m.tmp(f32, shape(b)...))
	case "lowest":
		p = m.node("neg_fwd_f32", nil, []int{p}, m.tmp(f32, shape(b)...))
		m.node("reduce_max_fwd_f32", axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 0), []int{p}, input("least", f32, shape(1)...))
	case "sum of scores":
		m.node("reduce_sum_fwd_f32", axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 0), []int{scores}, input("scores", f32, shape(1)...))
	}
	sum := m.node("reduce_sum_fwd_f32", axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 0), []int{p}, m.tmp(f32, shape(1)...))
	if dt == bf16 {
		p = m.node("cast_f32_to_bf16", castP(), []int{p}, m.tmp(bf16, shape(b)...))
	}
	parts := m.node("batch_gemm", gemmP(0, 0), []int{p, matrix("v")}, m.tmp(f32, shape(c.dim)...))
	most := m.node("reduce_max_fwd_f32", axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, 3), []int{top}, m.tmp(f32, 1, c.groups, c.heads, 1))
	share := m.node("exp_fwd_f32", nil, []int{m.node("sub_fwd_f32", nil, []int{top, most}, m.tmp(f32, shape(1)...))}, m.tmp(f32, shape(1)...))
	m.node("mult_fwd_f32", nil, []int{parts, share}, input("parts", f32, shape(c.dim)...))
	m.node("mult_fwd_f32", nil, []int{sum, share}, input("sum", f32, shape(1)...))
	return &m.Recipe, at
}

// fill sets the operands: sequences have as many references each, of blocks in
// any order, and are in the middle of their last one.
func (c references) fill(g gen, dt dtype.Type, arena, kv []byte, at map[string]int64) {
	set := func(m []byte, name string, v *val) { v.encode(m[at[name]:]) }
	one := func(name string, dt dtype.Type, x float64) { set(arena, name, &val{dt, []int{1}, []float64{x}}) }
	set(arena, "q", g.values(dt, false, c.dim, c.groups*c.heads, c.seqs))
	set(arena, "relative", g.values(dt, false, c.reach, c.groups*c.heads, c.seqs))
	each := (c.refs + c.seqs - 1) / c.seqs
	positions, blocks, owners, starts := newVal(i32, c.seqs), newVal(i32, c.refs), newVal(i32, c.refs), newVal(i32, c.refs)
	for i, b := range g.Perm(c.pool)[:c.refs] {
		blocks.x[i], owners.x[i], starts.x[i] = float64(b), float64(i/each), float64(i%each*c.slots)
		positions.x[i/each] = starts.x[i] + float64(g.IntN(c.slots))
	}
	set(arena, "positions", positions)
	set(arena, "blocks", blocks)
	set(arena, "owners", owners)
	set(arena, "starts", starts)
	one("zero", i32, 0)
	one("extent", i32, float64(c.reach))
	one("last", i32, float64(c.reach-1))
	one("window", i32, float64(c.window))
	one("nothing", dt, 0)
	one("scale", f32, 1/float64(c.dim))
	one("hidden", f32, float64(c.hidden))
	one("floor", f32, float64(c.floor))
	if kv != nil {
		set(kv, "k", g.values(dt, false, c.dim, c.heads, c.slots, c.pool))
		set(kv, "v", g.values(dt, false, c.dim, c.heads, c.slots, c.pool))
	}
}

func rangeP(from, to int) *recipes.Params {
	return params("ns_RangeKernel::Params", ints("start", recipes.I32, int64(from)), ints("limit", recipes.I32, int64(to)), ints("delta", recipes.I32, 1))
}

// units counts the units of a recipe that compute products by rows, and those of
// them that leave keys out.
func (c references) units(t *testing.T, r *recipes.Recipe) (n, spans int) {
	d, err := New(Options{Ranks: 1, Bytes: map[recipes.Buffer]int64{recipes.Arena: r.Sections[0].Size, recipes.KV: r.Sections[1].Size}})
	require.NoError(t, err)
	defer d.Close()
	p, err := d.Load(r)
	require.NoError(t, err)
	for i := range p.units {
		if p.units[i].info.Kind == "rows and products" {
			n++
		}
		if p.units[i].info.Span {
			spans++
		}
	}
	return n, spans
}

// same requires a recipe to give fused the bits that its nodes give alone.
func (c references) same(t *testing.T, dt dtype.Type, seed uint64) *recipes.Recipe {
	r, at := c.attention(dt)
	mem := map[recipes.Buffer][]byte{recipes.Arena: make([]byte, r.Sections[0].Size), recipes.KV: make([]byte, r.Sections[1].Size)}
	c.fill(newGen(seed), dt, mem[recipes.Arena], mem[recipes.KV], at)
	want := runOn(t, Options{Unfused: true, Threads: 1}, r, mem)
	for _, threads := range []int{1, 2, 3} {
		require.Equal(t, want, runOn(t, Options{Threads: threads}, r, mem), "%v %+v, %d threads", dt, c, threads)
	}
	return r
}

// The attention of a reference is one unit, whose results have the bits that
// nodes have alone, whatever is left out: nothing, some slots, whole blocks. A
// floor that is not above what is hidden leaves nothing out.
func TestReferencesAreOneUnit(t *testing.T) {
	for _, dt := range []dtype.Type{f32, bf16} {
		for i, c := range []references{
			{1, 5, 64, 9, 2, 3, 16, 100, 0, -30000, -29000, ""},
			{2, 7, 64, 9, 4, 2, 16, 40, 130, -30000, -29000, ""},
			{3, 9, 100, 9, 1, 3, 32, 1000, 70, -30000, -29000, ""},
			{2, 6, 33, 12, 2, 1, 20, 5, 10, -30000, -29000, ""},
			{1, 12, 128, 12, 4, 8, 8, 200, 1, -30000, -29000, ""},
			{1, 12, 64, 12, 4, 8, 8, 200, 20, -1, -0.5, ""},
			{1, 12, 64, 12, 4, 8, 8, 200, 20, -30000, -30000, ""},
			{1, 12, 64, 12, 4, 8, 8, 200, 20, float32(math.NaN()), -29000, ""},
			{2, 12, 64, 12, 4, 8, 8, 200, 20, -1e30, -1e30, ""},
			{2, 12, 64, 12, 4, 8, 8, 200, 20, -1 << 33, -1 << 33, ""},
		} {
			units, spans := c.units(t, c.same(t, dt, uint64(i)))
			require.Equal(t, 1, units)
			require.Equal(t, 1, spans)
		}
	}
}

// Keys are left out only where hidden ones add nothing but zeros.
func TestHiddenKeysThatCount(t *testing.T) {
	for twist, spans := range map[string]int{
		"scaled": 0, "no floor": 0, "two maxima": 0, "lifted": 0, "raised": 0, "lowest": 0, "sum of scores": 0,
	} {
		for _, dt := range []dtype.Type{f32, bf16} {
			c := references{2, 12, 64, 12, 4, 8, 8, 200, 20, -30000, -29000, twist}
			_, got := c.units(t, c.same(t, dt, 7))
			require.Equal(t, spans, got, twist)
		}
	}
}

// Decoding reads the cache at the speed of memory; blocks beyond a window are
// not read.
func BenchmarkReferences(b *testing.B) {
	for _, window := range []int{0, 512} {
		for threads := 1; threads <= 2; threads++ {
			b.Run(fmt.Sprintf("window=%d/threads=%d", window, threads), func(b *testing.B) {
				c := references{1, 64, 128, 256, 4, 8, 128, 1024, window, -30000, -29000, ""}
				r, at := c.attention(bf16)
				d, err := New(Options{Ranks: 1, Threads: threads, Bytes: map[recipes.Buffer]int64{recipes.Arena: r.Sections[0].Size, recipes.KV: r.Sections[1].Size}})
				require.NoError(b, err)
				b.Cleanup(func() { require.NoError(b, d.Close()) })
				p, err := d.Load(r)
				require.NoError(b, err)
				l, err := d.Bind(p, bindings(r))
				require.NoError(b, err)
				arena, g := d.Bytes(0, recipes.Arena), newGen(1)
				c.fill(g, bf16, arena, nil, at)
				copy(d.Bytes(0, recipes.KV), benchWeights(r.Sections[1].Size))
				seen := c.refs * c.slots
				if window != 0 {
					seen = window
				}
				rng := rand.New(rand.NewPCG(1, 1))
				roofed(b, threads, func() (j job, t time.Duration) {
					for range 20 {
						for i, x := range rng.Perm(c.pool)[:c.refs] {
							as[int32](arena[at["blocks"]:])[i] = int32(x)
						}
						j.bytes += seen * c.heads * c.dim * 2 * 2
						t += timed(func() { require.NoError(b, l.Run(b.Context())) })
					}
					return j, t
				})
			})
		}
	}
}

package host

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// windows is the attention of decoding over a list of blocks of each sequence.
type windows struct {
	seqs, blocks, slots, pool int
	groups, heads, dim        int
	seen                      int  // keys that a row sees, the last ones but for the newest two
	whole                     bool // keys are no list of blocks but lie in one piece
}

// attention is a recipe whose keys and values are rows of a cache, in blocks that an
// index picks. at is where the operands lie in the arena or in the cache.
func (c windows) attention(dt dtype.Type) (r *recipes.Recipe, at map[string]int64) {
	at = make(map[string]int64)
	m := newMaker(section(recipes.Arena, 0), section(recipes.KV, 0))
	put := func(sec int, name string, dt dtype.Type, dims ...int) int {
		at[name] = m.Sections[sec].Size
		t := m.tensor(dt, sec, at[name], dims...)
		m.Sections[sec].Size = align(at[name] + m.Tensors[t].Bytes())
		return t
	}
	s, keys := "_"+dt.String(), c.blocks*c.slots
	q, bias := put(0, "q", dt, c.dim, 1, c.groups, c.heads, c.seqs), put(0, "bias", dt, keys, 1, c.groups, c.heads, c.seqs)
	visible, hidden := put(0, "visible", i8, keys, 1, 1, 1, c.seqs), put(0, "hidden", dt, 1, 1, 1, 1, 1)
	blocks := put(0, "blocks", i32, c.seqs*c.blocks)
	matrix := func(name string) int {
		if c.whole {
			return put(1, name, dt, c.dim, keys, 1, c.heads, c.seqs)
		}
		x := put(1, name, dt, c.dim, c.heads, c.slots, c.pool)
		x = m.node("gather_fwd"+s, axisP("ns_GatherKernel::Params", "axis", recipes.I32, 3), []int{x, blocks}, m.tmp(dt, c.dim, c.heads, c.slots, c.seqs*c.blocks))
		x = m.node("reshape", nil, []int{x}, m.tmp(dt, c.dim, c.heads, keys, c.seqs))
		x = m.node("transpose", transposeP([]int{0, 2, 1, 3}), []int{x}, m.tmp(dt, c.dim, keys, c.heads, c.seqs))
		return m.node("reshape", nil, []int{x}, m.tmp(dt, c.dim, keys, 1, c.heads, c.seqs))
	}
	mask := m.node("where_fwd"+s, nil, []int{visible, bias, hidden}, m.tmp(dt, keys, 1, c.groups, c.heads, c.seqs))
	m.node(sdpaGUID+s, sdpaP(1/float64(c.dim), 1), []int{q, matrix("k"), matrix("v"), mask}, put(0, "o", dt, c.dim, 1, c.groups, c.heads, c.seqs))
	return &m.Recipe, at
}

func (c windows) memory(dt dtype.Type, seed uint64, r *recipes.Recipe, at map[string]int64) map[recipes.Buffer][]byte {
	g := newGen(seed)
	arena, kv := make([]byte, r.Sections[0].Size), make([]byte, r.Sections[1].Size)
	keys := c.blocks * c.slots
	g.values(dt, false, c.dim, c.groups, c.heads, c.seqs).encode(arena[at["q"]:])
	g.values(dt, false, keys, c.groups, c.heads, c.seqs).encode(arena[at["bias"]:])
	shape := []int{c.dim, c.heads, c.slots, c.pool}
	if c.whole {
		shape = []int{c.dim, keys, c.heads, c.seqs}
	}
	g.values(dt, false, shape...).encode(kv[at["k"]:])
	g.values(dt, false, shape...).encode(kv[at["v"]:])
	(&val{dt, []int{1}, []float64{rounded(dt, -1e30)}}).encode(arena[at["hidden"]:])
	blocks, visible := newVal(i32, c.seqs*c.blocks), newVal(i8, keys, c.seqs)
	for i, b := range g.Perm(c.pool)[:len(blocks.x)] {
		blocks.x[i] = float64(b)
	}
	for row := range c.seqs {
		for i := max(0, keys-2-c.seen); i < keys-2; i++ {
			visible.x[row*keys+i] = 1
		}
	}
	blocks.encode(arena[at["blocks"]:])
	visible.encode(arena[at["visible"]:])
	return map[recipes.Buffer][]byte{recipes.Arena: arena, recipes.KV: kv}
}

// Keys in blocks that an index picks are read where they lie: attention is one unit,
// with the bits that its nodes have alone, whatever is left out at both ends.
func TestWindowsAreOneUnit(t *testing.T) {
	for _, dt := range []dtype.Type{f32, bf16} {
		for i, c := range []windows{
			{1, 5, 16, 9, 4, 2, 16, 70, false},
			{3, 5, 16, 20, 4, 2, 16, 40, false},
			{4, 3, 40, 12, 1, 8, 32, 37, false},
			{2, 2, 100, 5, 2, 1, 20, 3, false},
			{5, 4, 33, 31, 3, 3, 33, 90, false},
			{3, 9, 64, 30, 8, 1, 128, 560, false},
			{3, 1, 64, 4, 2, 2, 24, 50, false},
			{2, 70, 1, 150, 2, 2, 24, 50, false},
			{2, 3, 16, 9, 2, 2, 16, 0, false}, // a row that sees nothing
		} {
			r, at := c.attention(dt)
			mem := c.memory(dt, uint64(i), r, at)
			want := runOn(t, Options{Unfused: true, Threads: 1}, r, mem)
			for _, threads := range []int{1, 2, 3} {
				require.Equal(t, want, runOn(t, Options{Threads: threads}, r, mem), "%v %+v, %d threads", dt, c, threads)
			}
			d, err := New(Options{Ranks: 1, Bytes: map[recipes.Buffer]int64{recipes.Arena: r.Sections[0].Size, recipes.KV: r.Sections[1].Size}})
			require.NoError(t, err)
			p, err := d.Load(r)
			require.NoError(t, err)
			var kinds []string
			span := false
			for j := range p.units {
				kinds = append(kinds, p.units[j].info.Kind)
				span = span || p.units[j].info.Span
			}
			if c.slots > 1 {
				require.NotContains(t, fmt.Sprint(kinds), "gather", "%+v", c)
				require.NotContains(t, fmt.Sprint(kinds), "transpose", "%+v", c)
			}
			require.Contains(t, kinds, "rows and products", "%+v", c)
			require.True(t, span, "%+v", c)
			require.NoError(t, d.Close())
		}
	}
}

// A block outside the cache is an error that names the node.
func TestWindowsCheckBlocks(t *testing.T) {
	c := windows{3, 5, 16, 20, 4, 2, 16, 40, false}
	r, at := c.attention(f32)
	mem := c.memory(f32, 1, r, at)
	as[int32](mem[recipes.Arena][at["blocks"]:])[7] = 20
	d, err := New(Options{Ranks: 1, Bytes: map[recipes.Buffer]int64{recipes.Arena: r.Sections[0].Size, recipes.KV: r.Sections[1].Size}})
	require.NoError(t, err)
	defer d.Close()
	p, err := d.Load(r)
	require.NoError(t, err)
	l, err := d.Bind(p, bindings(r))
	require.NoError(t, err)
	for b, x := range mem {
		copy(d.Bytes(0, b), x)
	}
	err = l.Run(t.Context())
	require.ErrorContains(t, err, "gather_fwd_f32")
	require.ErrorContains(t, err, "index 20 is outside 0 to 19")
}

// What a unit knows of pieces is not taken for another one's, which a thread executes
// in the same memory.
func TestPiecesAreThoseOfTheirUnit(t *testing.T) {
	c := windows{2, 3, 16, 9, 2, 2, 16, 20, false}
	dense := c
	dense.whole = true
	r, at := c.attention(f32)
	s, to := dense.attention(f32)
	mem := dense.memory(f32, 2, s, to)
	want := runOn(t, Options{Unfused: true, Threads: 1}, s, mem)
	d, err := New(Options{Ranks: 1, Threads: 1, Bytes: map[recipes.Buffer]int64{
		recipes.Arena: max(r.Sections[0].Size, s.Sections[0].Size), recipes.KV: max(r.Sections[1].Size, s.Sections[1].Size),
	}})
	require.NoError(t, err)
	defer d.Close()
	run := func(r *recipes.Recipe, mem map[recipes.Buffer][]byte) {
		p, err := d.Load(r)
		require.NoError(t, err)
		l, err := d.Bind(p, bindings(r))
		require.NoError(t, err)
		for b, x := range mem {
			copy(d.Bytes(0, b), x)
		}
		require.NoError(t, l.Run(t.Context()))
	}
	run(r, c.memory(f32, 1, r, at))
	run(s, mem)
	for b, x := range want {
		require.Equal(t, x, d.Bytes(0, b)[:len(x)], "%s", b)
	}
}

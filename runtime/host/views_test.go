package host

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// maker builds a recipe node by node.
type maker struct{ recipes.Recipe }

func newMaker(sections ...recipes.Section) *maker {
	return &maker{recipes.Recipe{Name: "r", Sections: sections}}
}

// tensor adds a tensor; section Workspace ignores the offset.
func (m *maker) tensor(dt dtype.Type, section int, offset int64, dims ...int) int {
	t := recipes.Tensor{Name: fmt.Sprintf("t%d", len(m.Tensors)), DType: dt, Section: section, Offset: offset}
	for _, d := range dims {
		t.Dims = append(t.Dims, int64(d))
	}
	m.Tensors = append(m.Tensors, t)
	return len(m.Tensors) - 1
}

func (m *maker) tmp(dt dtype.Type, dims ...int) int {
	return m.tensor(dt, recipes.Workspace, 0, dims...)
}

func (m *maker) node(guid string, p *recipes.Params, in []int, out ...int) int {
	m.Nodes = append(m.Nodes, recipes.Node{Name: fmt.Sprintf("n%d", len(m.Nodes)), GUID: guid, Params: p, In: in, Out: out})
	return out[0]
}

func (m *maker) dims(t int) []int {
	var d []int
	for _, v := range m.Tensors[t].Dims {
		d = append(d, int(v))
	}
	return d
}

func section(b recipes.Buffer, size int64) recipes.Section {
	return recipes.Section{Name: string(b), Buffer: b, Size: size}
}

func indexCopyP() *recipes.Params { return axisP("ns_IndexCopy::Params", "axis", recipes.I32, 0) }

// state is a recipe with a state {4, 8} before and after an update of one row.
type state struct {
	*maker
	old, new, idx, row, out int
}

func newState() state {
	m := newMaker(section(recipes.KV, 128), section(recipes.Arena, 1024))
	return state{
		m,
		m.tensor(f32, 0, 0, 4, 8), m.tensor(f32, 0, 0, 4, 8),
		m.tensor(i32, 1, 0, 1), m.tensor(f32, 1, 64, 4, 1), m.tensor(f32, 1, 128, 4, 8),
	}
}

func (s state) update() {
	s.node("index_copy_fwd_f32", indexCopyP(), []int{s.old, s.idx, s.row}, s.new)
}

// run executes the state's recipe with state 0…31, row 100…103 at index 2 and
// returns the output and the state.
func (s state) run(t *testing.T) (out, kv []float32, p *Program) {
	withProgram(t, 1, &s.Recipe, func(d *Device, run func() error) {
		kv = as[float32](d.Bytes(0, recipes.KV))
		for i := range kv {
			kv[i] = float32(i)
		}
		arena := d.Bytes(0, recipes.Arena)
		as[int32](arena)[0] = 2
		for i := range 4 {
			as[float32](arena)[16+i] = float32(100 + i)
		}
		require.NoError(t, run())
		out, kv = slices.Clone(as[float32](arena)[32:64]), slices.Clone(kv)
		var err error
		p, err = d.Load(&s.Recipe)
		require.NoError(t, err)
	})
	return out, kv, p
}

func count(from, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(from + i)
	}
	return x
}

func TestUpdateInPlaceThroughViews(t *testing.T) {
	s := newState()
	flat := s.node("reshape", nil, []int{s.old}, s.tmp(f32, 2, 2, 8))
	row := s.node("reshape", nil, []int{s.row}, s.tmp(f32, 2, 2, 1))
	after := s.tensor(f32, 0, 0, 2, 2, 8)
	s.node("index_copy_fwd_f32", indexCopyP(), []int{flat, s.idx, row}, after)
	back := s.node("reshape", nil, []int{after}, s.tmp(f32, 4, 8))
	s.node("neg_fwd_f32", nil, []int{back}, s.out)
	out, kv, p := s.run(t)
	want := count(0, 32)
	copy(want[8:], count(100, 4))
	require.Equal(t, want, kv)
	for i := range want {
		require.Equal(t, -want[i], out[i])
	}
	require.Len(t, p.units, 2, "views cost nothing")
	require.Zero(t, p.workspace)
}

// The view of a state keeps the value it had, even after the update.
func TestViewReadAfterUpdateIsACopy(t *testing.T) {
	s := newState()
	old := s.node("reshape", nil, []int{s.old}, s.tmp(f32, 32))
	again := s.node("reshape", nil, []int{old}, s.tmp(f32, 4, 8))
	s.update()
	s.node("neg_fwd_f32", nil, []int{again}, s.out)
	out, kv, p := s.run(t)
	for i, v := range count(0, 32) {
		require.Equal(t, -v, out[i])
	}
	require.Equal(t, count(100, 4), kv[8:12])
	require.Len(t, p.units, 3)
	require.EqualValues(t, 128, p.workspace)
}

// A slice of the state that is written back elsewhere is copied first.
func TestSourceViewOfTheUpdatedState(t *testing.T) {
	s := newState()
	row := s.node("slice_axis", sliceP(1, 5, 6), []int{s.old}, s.tmp(f32, 4, 1))
	s.node("index_copy_fwd_f32", indexCopyP(), []int{s.old, s.idx, row}, s.new)
	_, kv, _ := s.run(t)
	want := count(0, 32)
	copy(want[8:], count(20, 4))
	require.Equal(t, want, kv)
}

func TestStateReadAfterUpdateIsRefused(t *testing.T) {
	s := newState()
	s.update()
	s.node("neg_fwd_f32", nil, []int{s.old}, s.out)
	_, err := testDevice(t, 1).Load(&s.Recipe)
	require.ErrorContains(t, err, `recipe r: node 1 "n1" (neg_fwd_f32): reads "t0" after node 0 "n0" wrote "t1" in its memory`)
}

// A result that is already where it belongs costs nothing; if its operand had
// to be copied meanwhile, it is written back.
func TestViewIntoASection(t *testing.T) {
	s := newState()
	flat := s.node("reshape", nil, []int{s.old}, s.tmp(f32, 32))
	s.update()
	restored := s.tensor(f32, 0, 0, 4, 8)
	s.node("reshape", nil, []int{flat}, restored)
	s.node("neg_fwd_f32", nil, []int{restored}, s.out)
	out, kv, _ := s.run(t)
	require.Equal(t, count(0, 32), kv)
	for i, v := range count(0, 32) {
		require.Equal(t, -v, out[i])
	}
}

func TestWhatIsAView(t *testing.T) {
	for _, c := range []struct {
		name string
		p    *recipes.Params
		x, y []int
		view bool
	}{
		{"reshape", nil, []int{4, 6}, []int{3, 8}, true},
		{"transpose", transposeP([]int{0, 2, 1}), []int{4, 1, 6}, []int{4, 6, 1}, true},
		{"transpose", transposeP([]int{1, 0}), []int{4, 6}, []int{6, 4}, false},
		{"transpose", transposeP([]int{2, 0, 1}), []int{1, 4, 6}, []int{6, 1, 4}, false},
		{"slice_axis", sliceP(1, 2, 5), []int{4, 6}, []int{4, 3}, true},
		{"slice_axis", sliceP(1, 2, 5), []int{4, 6, 1}, []int{4, 3, 1}, true},
		{"slice_axis", sliceP(1, 2, 5), []int{4, 6, 2}, []int{4, 3, 2}, false},
		{"slice_axis", sliceP(0, 0, 4), []int{4, 6}, []int{4, 6}, true},
		{"broadcast", nil, []int{4, 6}, []int{4, 6}, true},
		{"broadcast", nil, []int{4, 1}, []int{4, 6}, false},
	} {
		m := newMaker(section(recipes.Arena, 4096))
		x := m.tensor(bf16, 0, 0, c.x...)
		v := m.node(c.name, c.p, []int{x}, m.tmp(bf16, c.y...))
		m.node("neg_fwd_bf16", nil, []int{v}, m.tensor(bf16, 0, 2048, c.y...))
		d := testDevice(t, 1)
		d.unfused = true
		p, err := d.Load(&m.Recipe)
		require.NoError(t, err)
		require.Equal(t, c.view, len(p.units) == 1, "%s of %v as %v", c.name, c.x, c.y)
	}
}

// Random programs give, on the real placement, what they give with private
// memory for every tensor.
func TestPlacementKeepsValues(t *testing.T) {
	saved := 0
	for seed := range 400 {
		r := randomProgram(newGen(uint64(seed)))
		results := make(map[bool][]byte)
		sizes := make(map[bool]int64)
		for _, private := range []bool{false, true} {
			d, err := newDevice(1, map[recipes.Buffer]int64{recipes.Arena: 1 << 14, recipes.KV: 1 << 12}, 0)
			require.NoError(t, err)
			p, err := d.load(r, private, false)
			require.NoError(t, err, "seed %d", seed)
			g := newGen(uint64(seed))
			for _, b := range []recipes.Buffer{recipes.Arena, recipes.KV} {
				for i, m := 0, as[int32](d.Bytes(0, b)); i < len(m); i++ {
					m[i] = int32(g.IntN(4))
				}
			}
			fill(d.ranks[0].workspace, 0xa5)
			for range 2 { // the second time over what the first left
				require.NoError(t, d.launchOnce(context.Background(), p, bindings(r)), "seed %d", seed)
			}
			results[private] = slices.Concat(d.Bytes(0, recipes.Arena), d.Bytes(0, recipes.KV))
			sizes[private] = p.workspace
			require.NoError(t, d.Close())
		}
		require.True(t, slices.Equal(results[false], results[true]), "seed %d", seed)
		require.LessOrEqual(t, sizes[false], sizes[true])
		saved += int(sizes[true] - sizes[false])
	}
	require.NotZero(t, saved)
}

// randomProgram mixes views, arithmetic, states updated in place and copies
// out of the workspace; all elements are i32.
func randomProgram(g gen) *recipes.Recipe {
	m := newMaker(section(recipes.Arena, 1<<14), section(recipes.KV, 1<<12))
	var arena, kv int64
	persistent := func(dims ...int) int {
		t := m.tensor(i32, 0, arena, dims...)
		arena = align(arena + m.Tensors[t].Bytes())
		return t
	}
	values := []int{persistent(4, 6), persistent(6), persistent(2, 3, 4)}
	idx := persistent(2) // memory holds 0…3
	type st struct{ offset, cur int64 }
	var states []*st
	shapes := map[int64][]int{}
	for range 2 {
		dims := []int{g.IntN(4) + 1, 4 + g.IntN(3)}
		t := m.tensor(i32, 1, kv, dims...)
		states = append(states, &st{kv, int64(t)})
		shapes[kv] = dims
		kv = align(kv + m.Tensors[t].Bytes())
	}
	result := func(dims ...int) int {
		if g.IntN(5) == 0 && arena < 1<<13 {
			return persistent(dims...)
		}
		return m.tmp(i32, dims...)
	}
	keep := func(t int) { values = append(values, t) }
	for range 3 + g.IntN(25) {
		x := pick(g, values...)
		if g.IntN(4) == 0 {
			x = int(pick(g, states...).cur)
		}
		d := m.dims(x)
		n := product(d)
		switch g.IntN(9) {
		case 0, 1:
			keep(m.node("reshape", nil, []int{x}, result(n)))
		case 2:
			if n%2 == 0 {
				keep(m.node("reshape", nil, []int{x}, result(n/2, 2)))
			}
		case 3:
			axis := g.IntN(len(d))
			begin := g.IntN(d[axis])
			end := begin + 1 + g.IntN(d[axis]-begin)
			y := slices.Clone(d)
			y[axis] = end - begin
			keep(m.node("slice_axis", sliceP(axis, begin, end), []int{x}, result(y...)))
		case 4:
			perm := g.Perm(len(d))
			y := slices.Clone(d)
			for i, p := range perm {
				y[i] = d[p]
			}
			keep(m.node("transpose", transposeP(perm), []int{x}, result(y...)))
		case 5:
			keep(m.node("add_fwd_i32", nil, []int{x, x}, result(d...)))
		case 6:
			if n < 100 {
				y := slices.Clone(d)
				y[0] *= 2
				keep(m.node("concat", axisP("synConcatenateParams", "axis", recipes.U32, 0), []int{x, x}, result(y...)))
			}
		case 7: // update a state, sometimes through a view, with what we have
			s := pick(g, states...)
			d := shapes[s.offset]
			var src int
			if y := pick(g, values...); product(m.dims(y)) >= 2*d[0] {
				flat := m.node("reshape", nil, []int{y}, m.tmp(i32, product(m.dims(y))))
				cut := m.node("slice_axis", sliceP(0, 0, 2*d[0]), []int{flat}, m.tmp(i32, 2*d[0]))
				src = m.node("reshape", nil, []int{cut}, m.tmp(i32, d[0], 2))
			} else {
				break
			}
			x := int(s.cur)
			if g.IntN(2) == 0 {
				x = m.node("reshape", nil, []int{x}, m.tmp(i32, d...))
			}
			after := m.tensor(i32, 1, s.offset, d...)
			m.node("index_copy_fwd_i32", indexCopyP(), []int{x, idx, src}, after)
			s.cur = int64(after)
		case 8: // rows of the current state
			s := pick(g, states...)
			d := shapes[s.offset]
			keep(m.node("gather_fwd_i32", axisP("ns_GatherKernel::Params", "axis", recipes.I32, 1),
				[]int{int(s.cur), idx}, result(d[0], 2)))
		}
	}
	for _, v := range values[max(0, len(values)-4):] {
		m.node("neg_fwd_i32", nil, []int{v}, persistent(m.dims(v)...))
	}
	return &m.Recipe
}

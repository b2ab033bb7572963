package host

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
)

// floatArena is an arena of numbers around 0.
func floatArena(g gen, dt dtype.Type, bytes int) map[recipes.Buffer][]byte {
	m := make([]byte, bytes)
	g.values(dt, false, bytes/dt.Size()).encode(m)
	return map[recipes.Buffer][]byte{recipes.Arena: m}
}

func reductionP(axis int) *recipes.Params {
	return axisP("ns_Reduction::Params", "reductionDimension", recipes.U32, axis)
}

func gatherP(axis int) *recipes.Params {
	return axisP("ns_GatherKernel::Params", "axis", recipes.I32, axis)
}

// Recipes in which nodes must not simply be fused, or not in the simplest way. Each
// gives fused, on any number of threads, what its nodes give one by one.
func TestWhatFusionMustNotBreak(t *testing.T) {
	const far = 1 << 18
	for name, build := range map[string]func(m *maker){
		"axes of one length are not the same": func(m *maker) {
			x := m.node("neg_fwd_f32", nil, []int{m.tensor(f32, 0, 0, 4, 6, 6)}, m.tmp(f32, 4, 6, 6))
			tr := m.node("transpose", transposeP([]int{0, 2, 1}), []int{x}, m.tmp(f32, 4, 6, 6))
			m.node("add_fwd_f32", nil, []int{x, tr}, m.tensor(f32, 0, far, 4, 6, 6))
		},
		"nor when they are joined first": func(m *maker) {
			x := m.node("neg_fwd_f32", nil, []int{m.tensor(f32, 0, 0, 4, 6, 6)}, m.tmp(f32, 4, 6, 6))
			tr := m.node("transpose", transposeP([]int{0, 2, 1}), []int{x}, m.tmp(f32, 4, 6, 6))
			a, b := m.node("reshape", nil, []int{x}, m.tmp(f32, 4, 36)), m.node("reshape", nil, []int{tr}, m.tmp(f32, 4, 36))
			m.node("add_fwd_f32", nil, []int{a, b}, m.tensor(f32, 0, far, 4, 36))
		},
		"a gather in between reads what a unit makes later": func(m *maker) {
			x, idx := m.tensor(f32, 0, 0, 8, 6, 1), m.tensor(i32, 1, 0, 4)
			n := m.node("neg_fwd_f32", nil, []int{x}, m.tmp(f32, 8, 6, 1))
			ga := m.node("gather_fwd_f32", gatherP(0), []int{n, idx}, m.tmp(f32, 4, 6, 1))
			m.node("reshape", nil, []int{ga}, m.tensor(f32, 0, far, 4, 6))
			m.node("exp_fwd_f32", nil, []int{n}, m.tensor(f32, 0, 2*far, 8, 6, 1))
		},
		"and one that is read as it is": func(m *maker) {
			x, idx := m.tensor(f32, 0, 0, 1, 6), m.tensor(i32, 1, 0, 3)
			n := m.node("neg_fwd_f32", nil, []int{x}, m.tmp(f32, 1, 6))
			ga := m.node("gather_fwd_f32", gatherP(1), []int{n, idx}, m.tmp(f32, 1, 3))
			tr := m.node("transpose", transposeP([]int{1, 0}), []int{ga}, m.tmp(f32, 3, 1))
			m.node("exp_fwd_f32", nil, []int{n}, m.tensor(f32, 0, far, 1, 6))
			m.node("exp_fwd_f32", nil, []int{tr}, m.tensor(f32, 0, 2*far, 3, 1))
		},
		"a number stands for a row until it is stored": func(m *maker) {
			n := m.node("reduce_max_fwd_f32", reductionP(0), []int{m.tensor(f32, 0, 0, 4, 6)}, m.tmp(f32, 1, 6))
			m.node("broadcast", nil, []int{n}, m.tensor(f32, 0, far, 4, 6))
		},
		"or a part of the row is taken": func(m *maker) {
			n := m.node("reduce_max_fwd_f32", reductionP(0), []int{m.tensor(f32, 0, 0, 16, 29)}, m.tmp(f32, 1, 29))
			br := m.node("broadcast", nil, []int{n}, m.tmp(f32, 4, 29))
			sl := m.node("slice_axis", sliceP(0, 1, 3), []int{br}, m.tmp(f32, 2, 29))
			m.node("neg_fwd_f32", nil, []int{sl}, m.tensor(f32, 0, far, 2, 29))
		},
		"or the row is reduced": func(m *maker) {
			n := m.node("broadcast", nil, []int{m.tensor(f32, 0, 0, 1, 6)}, m.tmp(f32, 4, 6))
			m.node("reduce_sum_fwd_f32", reductionP(0), []int{n}, m.tensor(f32, 0, far, 1, 6))
		},
		"an element of a row that is overwritten": func(m *maker) {
			n := m.node("neg_fwd_bf16", nil, []int{m.tensor(bf16, 0, 0, 1500, 20)}, m.tmp(bf16, 1500, 20))
			s := m.node("slice_axis", sliceP(0, 0, 1), []int{n}, m.tmp(bf16, 1, 20))
			d := m.node("sub_fwd_bf16", nil, []int{n, s}, m.tmp(bf16, 1500, 20))
			m.node("exp_fwd_bf16", nil, []int{d}, m.tensor(bf16, 0, far, 1500, 20))
		},
		"in place, but read transposed as well": func(m *maker) {
			x := m.tensor(f32, 0, 0, 4, 100, 100)
			tr := m.node("transpose", transposeP([]int{0, 2, 1}), []int{x}, m.tmp(f32, 4, 100, 100))
			m.node("add_fwd_f32", nil, []int{x, tr}, m.tensor(f32, 0, 0, 4, 100, 100))
		},
		"in place, but one row is read by all": func(m *maker) {
			x := m.tensor(f32, 0, 0, 64, 3000)
			b := m.node("broadcast", nil, []int{m.node("slice_axis", sliceP(1, 0, 1), []int{x}, m.tmp(f32, 64, 1))}, m.tmp(f32, 64, 3000))
			m.node("add_fwd_f32", nil, []int{x, b}, m.tensor(f32, 0, 0, 64, 3000))
		},
		"results lie some rows after operands": func(m *maker) {
			n := m.node("neg_fwd_f32", nil, []int{m.tensor(f32, 0, 0, 64, 3000)}, m.tmp(f32, 64, 3000))
			m.node("exp_fwd_f32", nil, []int{n}, m.tensor(f32, 0, 64*4*5, 64, 3000))
		},
		"results overlap each other": func(m *maker) {
			n := m.node("neg_fwd_f32", nil, []int{m.tensor(f32, 0, 3*far, 64, 300)}, m.tmp(f32, 64, 300))
			m.node("identity", nil, []int{n}, m.tensor(f32, 0, 0, 64, 300))
			m.node("exp_fwd_f32", nil, []int{n}, m.tensor(f32, 0, 64*4*5, 64, 300))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMaker(section(recipes.Arena, 1<<20), section(recipes.KV, 64))
			build(m)
			dt := f32
			if m.Tensors[0].DType == bf16 {
				dt = bf16
			}
			mem := floatArena(newGen(1), dt, 1<<20)
			mem[recipes.KV] = make([]byte, 64)
			for i := range 16 {
				as[int32](mem[recipes.KV])[i] = int32(i * 7 % 5)
			}
			want := runOn(t, Options{Unfused: true, Threads: 1}, &m.Recipe, mem)
			for _, threads := range []int{1, 2, 3} {
				require.Equal(t, want, runOn(t, Options{Threads: threads}, &m.Recipe, mem), "%d threads", threads)
			}
		})
	}
}

// A long chain of picks from what is picked loads in no time.
func TestChainsOfGathersLoad(t *testing.T) {
	m := newMaker(section(recipes.Arena, 1<<16))
	x := m.tensor(i32, 0, 0, 4)
	for range 60 {
		x = m.node("gather_fwd_i32", gatherP(0), []int{x, x}, m.tmp(i32, 4))
	}
	m.node("neg_fwd_i32", nil, []int{x}, m.tensor(i32, 0, 1024, 4))
	done := make(chan error, 1)
	go func() {
		d := testDevice(t, 1)
		_, err := d.Load(&m.Recipe)
		done <- err
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it takes for ever")
	}
}

// Units that bindings would put out of order are refused.
func TestBindingsKeepUnitsInOrder(t *testing.T) {
	named := func(name string) recipes.Section {
		return recipes.Section{Name: name, Buffer: recipes.Arena, Size: 4096}
	}
	m := newMaker(named("a"), named("b"), named("c"))
	n := m.node("neg_fwd_f32", nil, []int{m.tensor(f32, 0, 0, 16, 16)}, m.tmp(f32, 16, 16))
	m.node("neg_fwd_f32", nil, []int{m.tensor(f32, 2, 0, 16, 4)}, m.tensor(f32, 1, 0, 16, 4))
	m.node("exp_fwd_f32", nil, []int{n}, m.tensor(f32, 2, 2048, 16, 16))
	bind := func(unfused bool, b int64) error {
		d, err := New(Options{Ranks: 1, Threads: 1, Unfused: unfused, Bytes: map[recipes.Buffer]int64{recipes.Arena: 1 << 16}})
		require.NoError(t, err)
		defer d.Close()
		p, err := d.Load(&m.Recipe)
		require.NoError(t, err)
		_, err = d.Bind(p, []recipes.Binding{{Buffer: recipes.Arena}, {Buffer: recipes.Arena, Offset: b}, {Buffer: recipes.Arena, Offset: 8192}})
		return err
	}
	require.NoError(t, bind(false, 4096))
	require.NoError(t, bind(true, 0))
	err := bind(false, 0)
	require.ErrorContains(t, err, `reads "t0" after recipe r: node 1 "n1" (neg_fwd_f32) wrote "t3" in its memory`)
	require.ErrorContains(t, err, "Options.Unfused")
}

// floatProgram is a recipe of arithmetic, reductions, products and movements of all
// kinds.
func floatProgram(g gen, bytes int64) *recipes.Recipe {
	m := newMaker(section(recipes.Arena, bytes), section(recipes.KV, 64))
	at := int64(0)
	stored := func(dt dtype.Type, dims ...int) int {
		t := m.tensor(dt, 0, at, dims...)
		at = align(at + m.Tensors[t].Bytes())
		return t
	}
	dt := pick(g, f32, bf16)
	s := "_" + dt.String()
	row, a, b := pick(g, 1, 3, 8, 33, 40, 600), 1+g.IntN(6), 1+g.IntN(9)
	shapes := [][]int{{row, a, b}, {row, a * b}, {row, b, a}, {row, a, 1}, {1, a, b}}
	var values []int
	for range 3 {
		values = append(values, stored(dt, pick(g, shapes...)...))
	}
	index := func(n int) int { return m.tensor(i32, 1, 0, n) } // 0 … 3
	result := func(dims ...int) int {
		if g.IntN(6) == 0 {
			return stored(dt, dims...)
		}
		return m.tmp(dt, dims...)
	}
	node := func(guid string, p *recipes.Params, in []int, dims ...int) {
		values = append(values, m.node(guid, p, in, result(dims...)))
	}
	// fits finds a value that an element-wise node takes beside one with dims d.
	fits := func(d []int) int {
		var list []int
		for _, v := range values {
			y := m.dims(v)
			ok := len(y) == len(d)
			for i := range y {
				ok = ok && (y[i] == d[i] || y[i] == 1)
			}
			if ok {
				list = append(list, v)
			}
		}
		return pick(g, list...)
	}
	for range 4 + g.IntN(30) {
		x := values[len(values)-1-g.IntN(min(len(values), 5))]
		d := m.dims(x)
		n := product(d)
		if at > bytes/2 {
			break
		}
		switch axis := g.IntN(len(d)); g.IntN(14) {
		case 0:
			node("neg_fwd"+s, nil, []int{x}, d...)
		case 1:
			node("sigmoid_fwd"+s, nil, []int{x}, d...)
		case 2, 3:
			node(pick(g, "add_fwd", "sub_fwd", "max_fwd")+s, nil, []int{x, fits(d)}, d...)
		case 4:
			perm := g.Perm(len(d))
			y := make([]int, len(d))
			for i, p := range perm {
				y[i] = d[p]
			}
			node("transpose", transposeP(perm), []int{x}, y...)
		case 5:
			if len(d) == 3 {
				node("reshape", nil, []int{x}, d[0], d[1]*d[2])
			} else if len(d) == 2 && d[1]%a == 0 {
				node("reshape", nil, []int{x}, d[0], a, d[1]/a)
			}
		case 6:
			begin := g.IntN(d[axis])
			y := slices.Clone(d)
			y[axis] = 1 + g.IntN(d[axis]-begin)
			node("slice_axis", sliceP(axis, begin, begin+y[axis]), []int{x}, y...)
		case 7:
			if d[axis] == 1 && n < 1000 {
				y := slices.Clone(d)
				y[axis] = pick(g, a, b, row)
				node("broadcast", nil, []int{x}, y...)
			}
		case 8:
			y := slices.Clone(d)
			y[axis] = 1
			node(pick(g, "reduce_sum_fwd", "reduce_max_fwd")+s, reductionP(axis), []int{x}, y...)
		case 9:
			node("softmax_fwd"+s, axisP("ns_Softmax::Params", "dim", recipes.I32, 0), []int{x}, d...)
		case 10:
			if d[axis] >= 4 {
				y := slices.Clone(d)
				y[axis] = 3
				node("gather_fwd"+s, gatherP(axis), []int{x, index(3)}, y...)
			}
		case 11:
			if n < 2000 {
				y := slices.Clone(d)
				y[0] *= 2
				node("concat", axisP("synConcatenateParams", "axis", recipes.U32, 0), []int{x, x}, y...)
			}
		case 12, 13:
			if len(d) == 3 && n < 5000 {
				k := 1 + g.IntN(12)
				if trans := g.IntN(2); trans == 1 {
					node("batch_gemm", gemmP(0, 1), []int{x, stored(dt, d[0], k, d[2])}, k, d[1], d[2])
				} else {
					node("batch_gemm", gemmP(0, 0), []int{x, stored(dt, k, d[0], 1)}, k, d[1], d[2])
				}
			}
		}
	}
	for _, v := range values[max(0, len(values)-4):] {
		m.node("neg_fwd"+s, nil, []int{v}, stored(dt, m.dims(v)...))
	}
	return &m.Recipe
}

// Random programs of floats give fused what they give node by node, on any number
// of threads, and few of them cannot be fused at all.
func TestFusedFloatsAsUnfused(t *testing.T) {
	const bytes = 1 << 20
	programs, fused, refused := 0, 0, 0
	for seed := range 500 {
		g := newGen(uint64(seed))
		r := floatProgram(g, bytes)
		if r.Check() != nil {
			continue // too large
		}
		programs++
		mem := floatArena(g, r.Tensors[0].DType, bytes)
		mem[recipes.KV] = make([]byte, 64)
		for i := range 16 {
			as[int32](mem[recipes.KV])[i] = int32(g.IntN(4))
		}
		want := runOn(t, Options{Unfused: true, Threads: 1}, r, mem)
		require.Equal(t, want, runOn(t, Options{Threads: 1 + seed%3}, r, mem), fmt.Sprintf("seed %d", seed))
		d, err := New(Options{Ranks: 1, Threads: 1, Bytes: map[recipes.Buffer]int64{recipes.Arena: bytes, recipes.KV: 64}})
		require.NoError(t, err)
		p, err := d.Load(r)
		require.NoError(t, err)
		if p.unfused {
			refused++
		}
		for i := range p.units {
			if p.units[i].info.Nodes > 1 {
				fused++
			}
		}
		require.NoError(t, d.Close())
	}
	t.Logf("%d programs, %d units of several nodes, %d programs node by node", programs, fused, refused)
	require.Greater(t, programs, 400)
	require.Greater(t, fused, programs)
	require.Less(t, 20*refused, programs)
}

package recipes

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes/dtype"
)

// recipeDraw draws recipes of nodes that compute, reshape, slice and update a state.
type recipeDraw struct {
	*rapid.T
	r      Recipe
	values []int // tensors that may be read
	state  int   // the newest version
}

func (d *recipeDraw) tensor(section int, dims ...int64) int {
	d.r.Tensors = append(d.r.Tensors, Tensor{Name: fmt.Sprint("t", len(d.r.Tensors)), DType: dtype.F32, Dims: dims, Section: section})
	return len(d.r.Tensors) - 1
}

// result is a new tensor, some of them in the section of results.
func (d *recipeDraw) result(dims ...int64) int {
	t := d.tensor(Workspace, dims...)
	if rapid.IntRange(0, 5).Draw(d.T, "stored") == 0 {
		d.r.Tensors[t].Section, d.r.Tensors[t].Offset = 1, d.r.Sections[1].Size
		d.r.Sections[1].Size += d.r.Tensors[t].Bytes()
	}
	return t
}

func (d *recipeDraw) node(guid string, in []int, out int, fields ...Field) {
	d.r.Nodes = append(d.r.Nodes, Node{GUID: guid, In: in, Out: []int{out}, Params: &Params{Fields: fields}})
}

func (d *recipeDraw) step() {
	pick := func() int { return rapid.SampledFrom(d.values).Draw(d.T, "value") }
	dim := rapid.Int64Range(0, 9)
	var out int
	switch rapid.IntRange(0, 5).Draw(d.T, "kind") {
	case 0: // an update of the state in place
		out = d.tensor(0, d.r.Tensors[d.state].Dims...)
		d.node("index_copy_fwd_f32", []int{d.state, pick(), pick()}, out)
		d.values[slices.Index(d.values, d.state)] = out
		d.state = out
		return
	case 1, 2:
		out = d.result(dim.Draw(d.T, "d0"), dim.Draw(d.T, "d1"), dim.Draw(d.T, "d2"))
		d.node("add_fwd_f32", []int{pick(), Absent, pick()}, out)
	case 3:
		in := pick()
		out = d.result(d.r.Tensors[in].Elems())
		d.node("reshape", []int{in}, out)
	default:
		in := pick()
		dims := slices.Clone(d.r.Tensors[in].Dims)
		axis := rapid.IntRange(0, len(dims)-1).Draw(d.T, "axis")
		begin := rapid.Int64Range(0, dims[axis]).Draw(d.T, "begin")
		dims[axis] = rapid.Int64Range(0, dims[axis]-begin).Draw(d.T, "length")
		out = d.result(dims...)
		d.node("slice_axis", []int{in}, out, Field{Name: "axis", Type: U32, Ints: []int64{int64(axis)}},
			Field{Name: "begin", Type: U64, Ints: []int64{begin}}, Field{Name: "end", Type: U64, Ints: []int64{begin + dims[axis]}})
	}
	d.values = append(d.values, out)
}

func drawPlaced(t *rapid.T) *Recipe {
	d := recipeDraw{T: t}
	d.r.Sections = []Section{{Name: "state", Buffer: KV, Size: 4 * 24}, {Name: "results", Buffer: Arena}, {Name: "x", Buffer: Arena, Size: 4 * 60}}
	d.state = d.tensor(0, 4, 3, 2)
	d.values = []int{d.state, d.tensor(2, 3, 4, 5)}
	for range rapid.IntRange(0, 25).Draw(t, "nodes") {
		d.step()
	}
	require.NoError(t, d.r.Check())
	return &d.r
}

// memories holds, for each section and the workspace, which element of which value lies
// in each four bytes.
type memories struct {
	r        *Recipe
	p        *Placement
	sections [][]int
	space    []int
	next     int
}

// of is a tensor's memory.
func (m *memories) of(t int) []int {
	at, list := m.p.At[t], m.space
	if s := m.r.Tensors[m.p.Owner[t]].Section; s == Workspace {
		at = m.p.Offset[t]
	} else {
		at += m.r.Tensors[m.p.Owner[t]].Offset
		list = m.sections[s]
	}
	return list[at/4 : at/4+m.r.Tensors[t].Elems()]
}

// fresh is a value that is nowhere else.
func (m *memories) fresh(n int64) []int {
	v := make([]int, n)
	for i := range v {
		m.next++
		v[i] = m.next
	}
	return v
}

// sliced is the part of a value that a slice_axis node takes.
func sliced(n *Node, x *Tensor, v []int) []int {
	axis, _ := n.Params.Int("axis")
	begin, _ := n.Params.Int("begin")
	end, _ := n.Params.Int("end")
	inner := int64(1)
	for _, d := range x.Dims[:axis] {
		inner *= d
	}
	out := []int{}
	for i := range v {
		if at := int64(i) / inner % x.Dims[axis]; begin <= at && at < end {
			out = append(out, v[i])
		}
	}
	return out
}

// Executed node by node with each tensor where it was placed, every read finds what was
// written; results lie apart from operands; the size is at least the largest cut.
func TestPlaceWorkspace(t *testing.T) {
	t.Parallel()
	views := 0
	rapid.Check(t, func(t *rapid.T) {
		r := drawPlaced(t)
		p := r.PlaceWorkspace()
		require.Equal(t, p, r.PlaceWorkspace())
		require.Zero(t, p.Bytes%Alignment)
		m := memories{r: r, p: p, space: make([]int, p.Bytes/4)}
		for _, s := range r.Sections {
			m.sections = append(m.sections, m.fresh(s.Size/4))
		}
		values := make([][]int, len(r.Tensors))
		for i := range r.Nodes {
			n := &r.Nodes[i]
			out := n.Out[0]
			for _, in := range n.In {
				if in == Absent {
					continue
				}
				if values[in] == nil {
					values[in] = slices.Clone(m.of(in))
				}
				require.Equal(t, values[in], m.of(in), "node %d reads %s", i, r.Tensors[in].Name)
			}
			switch {
			case n.Computes():
				values[out] = m.fresh(r.Tensors[out].Elems())
			case n.GUID == "slice_axis":
				values[out] = sliced(n, &r.Tensors[n.In[0]], values[n.In[0]])
			default:
				values[out] = values[n.In[0]]
			}
			if p.Owner[out] != out {
				views++
				require.Equal(t, values[out], m.of(out), "%s is a view", r.Tensors[out].Name)
				continue
			}
			copy(m.of(out), values[out])
			for _, in := range n.In {
				if in != Absent && r.Tensors[in].Section == Workspace && r.Tensors[out].Section == Workspace {
					require.Equal(t, values[in], m.of(in), "node %d overwrites its operand", i)
				}
			}
		}
		require.GreaterOrEqual(t, p.Bytes, largestCut(r, p))
	})
	require.Positive(t, views)
}

// largestCut is what lives at the fullest node, views in their owners.
func largestCut(r *Recipe, p *Placement) (most int64) {
	for i := range r.Nodes {
		alive := map[int]int64{}
		for t, life := range p.Life {
			if o := p.Owner[t]; r.Tensors[o].Section == Workspace && life.First <= i && i <= life.Last {
				alive[o] = Align(r.Tensors[o].Bytes())
			}
		}
		var sum int64
		for _, n := range alive {
			sum += n
		}
		most = max(most, sum)
	}
	return most
}

// Views of a section take no workspace, unless the section changes under them.
func TestViewsOfSections(t *testing.T) {
	t.Parallel()
	tensor := func(section int, dims ...int64) Tensor {
		return Tensor{Name: "t", DType: dtype.BF16, Dims: dims, Section: section}
	}
	slice := func(in, out int, axis, begin int64) Node {
		return Node{GUID: "slice_axis", In: []int{in}, Out: []int{out}, Params: &Params{Fields: []Field{
			{Name: "axis", Type: U32, Ints: []int64{axis}}, {Name: "begin", Type: U64, Ints: []int64{begin}},
		}}}
	}
	r := &Recipe{
		Sections: []Section{{Buffer: KV, Size: 2 * 256 * 4}},
		Tensors:  []Tensor{tensor(0, 256, 4), tensor(Workspace, 256, 2), tensor(Workspace, 512), tensor(Workspace, 512), tensor(0, 256, 4), tensor(Workspace, 4, 4)},
		Nodes: []Node{
			slice(0, 1, 1, 2), // the second half
			{GUID: "reshape", In: []int{1}, Out: []int{2}},
			{GUID: "exp_fwd_bf16", In: []int{2}, Out: []int{3}},
		},
	}
	require.NoError(t, r.Check())
	p := r.PlaceWorkspace()
	require.Equal(t, []int64{-1, -1, -1, 0, -1, -1}, p.Offset)
	require.Equal(t, []int{0, 0, 0, 3, 4, 5}, p.Owner)
	require.Equal(t, []int64{0, 1024, 1024, 0, 0, 0}, p.At)
	require.Equal(t, []Lifetime{{0, 0}, {0, 1}, {1, 2}, {2, 2}, {-1, -1}, {-1, -1}}, p.Life)
	require.EqualValues(t, 1024, p.Bytes)

	// A part of every row is no range of bytes: a copy.
	r.Nodes = append(r.Nodes, slice(0, 5, 0, 3))
	p = r.PlaceWorkspace()
	require.Equal(t, 5, p.Owner[5])
	require.NotEqual(t, int64(-1), p.Offset[5])
	r.Nodes = r.Nodes[:3]

	// The state is overwritten after the slice and before what reads its view.
	update := Node{GUID: "index_copy_fwd_bf16", In: []int{0, 0, 0}, Out: []int{4}}
	r.Nodes = []Node{r.Nodes[0], r.Nodes[1], update, r.Nodes[2]}
	p = r.PlaceWorkspace()
	require.Equal(t, []int{0, 1, 1, 3, 4, 5}, p.Owner)
	require.EqualValues(t, 2048, p.Bytes)

	// The update itself reads the view: a node's result shares nothing with its operands.
	into := update
	into.In = []int{0, 0, 1}
	r.Nodes = []Node{slice(0, 1, 1, 2), into}
	require.Equal(t, []int{0, 1, 2, 3, 4, 5}, r.PlaceWorkspace().Owner)
	r.Nodes = []Node{slice(0, 1, 1, 2), {GUID: "reshape", In: []int{1}, Out: []int{2}}, update, {GUID: "exp_fwd_bf16", In: []int{2}, Out: []int{3}}}

	// After the last read it may change.
	r.Nodes = []Node{r.Nodes[0], r.Nodes[1], r.Nodes[3], update}
	require.Equal(t, []int{0, 0, 0, 3, 4, 5}, r.PlaceWorkspace().Owner)
}

// A slice without the fields of one, or beyond its operand, is not a view.
func TestViewsOfBadParams(t *testing.T) {
	t.Parallel()
	for _, fields := range [][]Field{
		nil,
		{{Name: "axis", Ints: []int64{0}}},
		{{Name: "axis", Ints: []int64{3}}, {Name: "begin", Ints: []int64{0}}},
		{{Name: "axis", Ints: []int64{-1}}, {Name: "begin", Ints: []int64{0}}},
		{{Name: "axis", Ints: []int64{0}}, {Name: "begin", Ints: []int64{1 << 62}}},
		{{Name: "axis", Ints: []int64{0}}, {Name: "begin", Ints: []int64{-1}}},
		{{Name: "axis", Ints: []int64{0}}, {Name: "begin", Ints: []int64{7}}},
	} {
		r := &Recipe{
			Sections: []Section{{Size: 32}},
			Tensors:  []Tensor{{DType: dtype.F32, Dims: []int64{8}}, {DType: dtype.F32, Dims: []int64{2}, Section: Workspace}},
			Nodes:    []Node{{GUID: "slice_axis", In: []int{0}, Out: []int{1}, Params: &Params{Fields: fields}}},
		}
		require.NoError(t, r.Check())
		require.Equal(t, 1, r.PlaceWorkspace().Owner[1], "%v", fields)
	}
}

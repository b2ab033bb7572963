package ir

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

func newFunc(tp int) (*Module, *Func, *Builder) {
	f := &Func{Name: "f"}
	m := &Module{Name: "m", Level: ops.Model, TP: tp, Funcs: []*Func{f}}
	return m, f, NewBuilder(m, f)
}

// The first error stays, and what is built after it can be passed on.
func TestBuilderKeepsTheFirstError(t *testing.T) {
	_, _, b := newFunc(1)
	x := b.Param(Host, "x", T(dtype.F32, D(4), D(8)), Source{})
	require.NoError(t, b.Err())
	y := b.At(Loc{Layer: 2, Op: "mlp"}).Add(x, b.Reshape(x, []Dim{D(32)}))
	require.EqualError(t, b.Err(), "building op 1 (layer 2 mlp): add: operands have ranks 2 and 1; ranks must be equal")
	values, indices := b.Topk(b.Neg(y), 3)
	require.NotNil(t, values)
	require.NotNil(t, indices)
	b.GraphBreak("x")
	b.Param(Host, "x", T(dtype.F32), Source{})
	require.ErrorContains(t, b.Err(), "building op 1")
}

func TestBuilderRefusesParametersOfOneName(t *testing.T) {
	m, f, b := newFunc(1)
	b.Param(Host, "x", T(dtype.F32, D(4)), Source{})
	b.Param(Host, "x", T(dtype.F32, D(4)), Source{})
	require.EqualError(t, b.Err(), "parameter %x is declared twice")
	again := NewBuilder(m, f)
	again.Param(Host, "x", T(dtype.F32, D(4)), Source{})
	require.EqualError(t, again.Err(), "parameter %x is declared twice")
}

func TestBuilderLocations(t *testing.T) {
	_, f, b := newFunc(1)
	require.Equal(t, NoLoc, b.Loc())
	x := b.Param(Host, "x", T(dtype.F32, D(4)), Source{})
	b.Neg(x)
	l := Loc{Layer: 0, Op: "a"}
	b.At(l).Neg(x)
	require.Equal(t, l, b.Loc())
	require.Equal(t, []Loc{NoLoc, l}, []Loc{f.Ops[0].Loc, f.Ops[1].Loc})
}

func TestReshapeShard(t *testing.T) {
	_, f, b := newFunc(2)
	x := b.Param(Weight, "x", T(dtype.F32, D(4)).With(Shard(0, 2)), Source{Tensor: "x"})
	y := b.Param(Host, "y", T(dtype.F32, D(4)), Source{})
	require.Equal(t, "f32[1, 1, 4]@shard(1, 2)", b.ReshapeShard(x, 1, D(1), D(1), D(4)).Type.String())
	require.Equal(t, "f32[1, 1, 4]@shard(2, 2)", b.Reshape(x, []Dim{D(1), D(1), D(4)}).Type.String())
	require.Equal(t, "f32[1, 4]", b.ReshapeShard(y, 1, D(1), D(4)).Type.String())
	require.Nil(t, f.Ops[2].Attr("shard"), "a replicated value needs none")
	b.ReshapeShard(x, 3, D(1), D(4), D(1))
	require.ErrorContains(t, b.Err(), "axis 3 cannot be the sharded one, only 0 to 1")
}

// Typed views name operands and attributes.
func TestViews(t *testing.T) {
	_, f, b := newFunc(1)
	x := b.Param(Host, "x", T(dtype.F32, D(4), D(8)), Source{})
	b.Slice(x, 1, D(2), D(5))
	b.Transpose(x, []int64{1, 0})
	b.GraphBreak("why")
	b.Matmul(x, x, true, dtype.F32)
	require.NoError(t, b.Err())
	s, ok := AsSlice(f.Ops[0])
	require.True(t, ok)
	require.Equal(t, int64(1), s.Axis())
	require.Same(t, x, s.X())
	require.True(t, s.Stop().Is(5))
	p, ok := AsTranspose(f.Ops[1])
	require.True(t, ok)
	require.Equal(t, []int64{1, 0}, p.Perm())
	g, ok := AsGraphBreak(f.Ops[2])
	require.True(t, ok)
	require.Equal(t, "why", g.Reason())
	mm, ok := AsMatmul(f.Ops[3])
	require.True(t, ok)
	require.True(t, mm.TransB())
	require.Equal(t, dtype.F32, mm.Dtype())
	_, ok = AsMatmul(f.Ops[0])
	require.False(t, ok)
}

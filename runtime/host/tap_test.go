package host

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// A tapped launch executes what no one reads too, keeps every tensor, and leaves
// what the launch leaves.
func TestTap(t *testing.T) {
	m := newMaker(section(recipes.Arena, 4096))
	x := m.tensor(f32, 0, 0, 4, 2)
	double := m.node("add_fwd_f32", nil, []int{x, x}, m.tmp(f32, 4, 2))
	turned := m.node("transpose", transposeP([]int{1, 0}), []int{double}, m.tmp(f32, 2, 4))
	flat := m.node("reshape", nil, []int{double}, m.tmp(f32, 8)) // that no one reads
	y := m.node("neg_fwd_f32", nil, []int{turned}, m.tensor(f32, 0, 64, 2, 4))

	d := testDevice(t, 2)
	for rank := range 2 {
		memory := as[float32](d.Bytes(rank, recipes.Arena))
		for i := range 8 {
			memory[i] = float32(10*rank + i)
		}
	}
	p, err := d.LoadTapped(&m.Recipe)
	require.NoError(t, err)
	require.Len(t, p.units, 4)
	l, err := d.Bind(p, bindings(&m.Recipe))
	require.NoError(t, err)
	require.NoError(t, l.Run(t.Context()))
	for rank := range 2 {
		want := make([]float32, 8)
		for i := range want {
			want[i] = 2 * float32(10*rank+i)
		}
		read := func(tensor int) []float32 {
			data, err := l.Tensor(rank, tensor)
			require.NoError(t, err)
			return as[float32](data)
		}
		require.Equal(t, want, read(double))
		require.Equal(t, want, read(flat))
		require.Equal(t, []float32{want[0], want[4], want[1], want[5], want[2], want[6], want[3], want[7]}, read(turned))
		require.Equal(t, -want[4], read(y)[1])
	}
	for _, at := range [][2]int{{-1, 0}, {2, 0}, {0, -1}, {0, 99}} {
		_, err := l.Tensor(at[0], at[1])
		require.ErrorContains(t, err, "no tensor")
	}

	plain, err := d.Load(&m.Recipe)
	require.NoError(t, err)
	require.Less(t, len(plain.units), 4)
	served, err := d.Bind(plain, bindings(&m.Recipe))
	require.NoError(t, err)
	_, err = served.Tensor(0, y)
	require.ErrorContains(t, err, "want a recipe loaded to be tapped")
}

// Weights are read where they lie.
func TestDeviceWeights(t *testing.T) {
	spans := []Span{{Offset: 8, Data: []byte{1, 2, 3, 4}}, {Offset: 16, Data: []byte{5, 6}}}
	d, err := New(Options{Ranks: 1, Bytes: map[recipes.Buffer]int64{recipes.Weights: 32}, Weights: func(int) []Span { return spans }})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	data, ok := d.Weights(0, 9, 3)
	require.True(t, ok)
	require.Equal(t, []byte{2, 3, 4}, data)
	for _, at := range [][3]int64{{0, 9, 4}, {0, 0, 1}, {0, 12, 4}, {1, 8, 1}, {-1, 8, 1}, {0, -1, 1}, {0, 8, -1}} {
		_, ok := d.Weights(int(at[0]), at[1], at[2])
		require.False(t, ok, "%v", at)
	}
}

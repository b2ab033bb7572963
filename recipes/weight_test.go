package recipes

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// naive evaluates a slot element by element, with the definition of each field
// spelled out: unravel the output index, undo slice, rows, perm and reshape, convert.
func naive(w *Weight, t *safetensors.Tensor, rank, tp int) []byte {
	shape := t.Shape
	if len(w.Reshape) > 0 {
		shape = w.Reshape
	}
	perm := w.Perm
	if len(perm) == 0 {
		for i := range shape {
			perm = append(perm, i)
		}
	}
	var out []byte
	n, _ := elems(w.Shape)
	for i := range n {
		index := make([]int64, len(w.Shape)) // in the view
		rest := i
		for a := len(w.Shape) - 1; a >= 0; a-- {
			index[a] = rest % w.Shape[a]
			rest /= w.Shape[a]
		}
		if w.Ways > 1 {
			part := int64(math.Floor(float64(rank) * float64(w.Ways) / float64(tp)))
			index[w.Axis] += part * w.Shape[w.Axis]
		}
		if len(w.Rows) > 0 {
			index[0] += w.Rows[0]
		}
		source := make([]int64, len(shape))
		for a, p := range perm {
			source[p] = index[a]
		}
		flat := int64(0)
		for a, d := range shape {
			flat = flat*d + source[a]
		}
		out = append(out, convert(t, flat, w.DType, w)...)
	}
	return out
}

func convert(t *safetensors.Tensor, i int64, to dtype.Type, w *Weight) []byte {
	le := binary.LittleEndian
	var v float32
	switch from, _ := t.Type(); {
	case w.Times == 0 && w.Plus == 0 && from == to: // keeps even the payload of a NaN
		size := int64(to.Size())
		return t.Data[size*i : size*i+size]
	case from == dtype.BF16:
		v = dtype.FromBF16(le.Uint16(t.Data[2*i:]))
	default:
		v = math.Float32frombits(le.Uint32(t.Data[4*i:]))
	}
	stored := func() []byte {
		if to == dtype.BF16 {
			bits := dtype.ToBF16(v)
			v = dtype.FromBF16(bits)
			return le.AppendUint16(nil, bits)
		}
		return le.AppendUint32(nil, math.Float32bits(v))
	}
	out := stored()
	if w.Times != 0 {
		v *= float32(w.Times)
		out = stored()
	}
	if w.Plus != 0 { // −0 + 0 is 0
		v += float32(w.Plus)
		out = stored()
	}
	return out
}

func TestFillWeightAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rank4 := rapid.SliceOfN(rapid.Int64Range(1, 6), 1, 4)
		view := rank4.Draw(t, "view")
		tp := rapid.IntRange(1, 8).Draw(t, "tp")
		w := &Weight{Tensor: "x", Ways: rapid.IntRange(1, tp).Draw(t, "ways"), DType: dtype.F32}
		w.Axis = rapid.IntRange(0, len(view)-1).Draw(t, "axis")
		if rapid.Bool().Draw(t, "permuted") {
			axes := make([]int, len(view))
			for i := range axes {
				axes[i] = i
			}
			w.Perm = rapid.Permutation(axes).Draw(t, "perm")
		}
		source := w.Axis
		if w.Perm != nil {
			source = w.Perm[w.Axis]
		}
		view[source] *= int64(w.Ways)
		for i := range view {
			from := i
			if w.Perm != nil {
				from = w.Perm[i]
			}
			w.Shape = append(w.Shape, view[from])
		}
		if rapid.Bool().Draw(t, "rows") {
			from := 0
			if w.Perm != nil {
				from = w.Perm[0]
			}
			first := rapid.Int64Range(0, 3).Draw(t, "first")
			w.Rows = []int64{first, first + view[from]}
			view[from] += first + rapid.Int64Range(0, 2).Draw(t, "more")
		}
		w.Shape[w.Axis] /= int64(w.Ways)
		n, _ := elems(view)
		shape := view
		if rapid.Bool().Draw(t, "reshaped") {
			w.Reshape, shape = view, []int64{n}
		}

		in := rapid.SampledFrom([]string{"BF16", "F32", "I32"}).Draw(t, "from")
		w.DType = rapid.SampledFrom([]dtype.Type{dtype.BF16, dtype.F32}).Draw(t, "to")
		size := int64(4)
		switch in {
		case "BF16":
			size = 2
		case "I32":
			w.DType = dtype.I32
		}
		if w.DType.IsFloat() {
			w.Times = rapid.SampledFrom([]float64{0, 0, 8, -0.3}).Draw(t, "times")
			w.Plus = rapid.SampledFrom([]float64{0, 0, 1, -0.3}).Draw(t, "plus")
		}
		data := make([]byte, n*size)
		seed := rapid.Uint64().Draw(t, "seed")
		for i := range data {
			seed = seed*6364136223846793005 + 1442695040888963407
			data[i] = byte(seed >> 56)
		}
		ten := &safetensors.Tensor{Name: "x", DType: in, Shape: shape, Data: data}
		for rank := range tp {
			dst := make([]byte, w.Bytes())
			require.NoError(t, FillWeight(dst, w, ten, rank, tp))
			require.Equal(t, naive(w, ten, rank, tp), dst)
		}
	})
}

func TestFillConstant(t *testing.T) {
	for _, c := range []struct {
		d    dtype.Type
		want []byte
	}{
		{dtype.F32, []byte{0, 0, 0xc0, 0x40, 0, 0, 0xc0, 0x40}}, // 6
		{dtype.BF16, []byte{0xc0, 0x40, 0xc0, 0x40}},
		{dtype.I32, []byte{6, 0, 0, 0, 6, 0, 0, 0}},
		{dtype.I8, []byte{6, 6}},
	} {
		w := &Weight{Fill: -2, Step: 4, DType: c.d, Shape: []int64{2}}
		dst := make([]byte, len(c.want))
		require.NoError(t, FillWeight(dst, w, nil, 2, 4))
		require.Equal(t, c.want, dst, "%v", c.d)
	}
	neg := &Weight{Fill: -3, DType: dtype.I32, Shape: []int64{1}}
	dst := make([]byte, 4)
	require.NoError(t, FillWeight(dst, neg, nil, 0, 1))
	require.Equal(t, []byte{0xfd, 0xff, 0xff, 0xff}, dst)
	zero := &Weight{Fill: math.Copysign(0, -1), DType: dtype.F32, Shape: []int64{1}}
	require.NoError(t, FillWeight(dst, zero, nil, 1, 2))
	require.Equal(t, []byte{0, 0, 0, 0x80}, dst, "-0 keeps its sign")
	data, err := json.Marshal(zero)
	require.NoError(t, err)
	read := &Weight{}
	require.NoError(t, json.Unmarshal(data, read))
	require.True(t, math.Signbit(read.Fill), "%s", data)
	neg.DType = dtype.U8
	require.ErrorContains(t, FillWeight(dst[:1], neg, nil, 0, 1), "constant -3 is no u8")
}

func TestFillWeightErrors(t *testing.T) {
	x := safetensors.FromF32("x", []int64{2, 2}, []float32{1, 2, 3, 4})
	whole := Weight{Tensor: "x", Ways: 1, DType: dtype.F32, Shape: []int64{2, 2}}
	dst := make([]byte, 16)
	require.NoError(t, FillWeight(dst, &whole, &x, 0, 1))
	require.Equal(t, x.Data, dst)

	require.ErrorContains(t, FillWeight(dst[:8], &whole, &x, 0, 1), "weight x, rank 0 of 1: 8 bytes for a slot of [2, 2] f32")
	require.ErrorContains(t, FillWeight(dst, &whole, &x, 1, 1), "no such rank")
	require.ErrorContains(t, FillWeight(dst, &whole, nil, 0, 1), "missing")
	short := x
	short.Data = x.Data[:12]
	require.ErrorContains(t, FillWeight(dst, &whole, &short, 0, 1), "12 bytes for a tensor")
	ints := whole
	ints.DType = dtype.I32
	require.ErrorContains(t, FillWeight(dst, &ints, &x, 0, 1), "cannot make i32 of F32")
	half := x
	half.DType = "F16"
	require.ErrorContains(t, FillWeight(dst, &whole, &half, 0, 1), "cannot make f32 of F16")
	for _, rows := range [][]int64{{1}, {-1, 1}, {1, 1}, {1, 3}} {
		part := whole
		part.Rows = rows
		require.ErrorContains(t, FillWeight(dst, &part, &x, 0, 1), fmt.Sprintf("rows %v of a view of shape [2, 2]", rows))
	}
	x.DType, ints.Plus = "I32", 1
	require.ErrorContains(t, FillWeight(dst, &ints, &x, 0, 1), "times and plus are for floats, not for i32")
}

// A part of a tensor lies in it as it is, unless its numbers are others.
func TestRowsLieInTheirTensor(t *testing.T) {
	x := safetensors.FromF32("x", []int64{3, 2}, []float32{1, 2, 3, 4, 5, 6})
	w := Weight{Tensor: "x", Rows: []int64{1, 3}, Ways: 1, DType: dtype.F32, Shape: []int64{2, 2}}
	data, ok := w.Direct(&x, 0, 1)
	require.True(t, ok)
	require.Equal(t, x.Data[8:], data)
	w.Plus = 1
	_, ok = w.Direct(&x, 0, 1)
	require.False(t, ok)
	dst := make([]byte, 16)
	require.NoError(t, FillWeight(dst, &w, &x, 0, 1))
	require.Equal(t, safetensors.FromF32("x", []int64{2, 2}, []float32{4, 5, 6, 7}).Data, dst)
}

func BenchmarkFillWeight(b *testing.B) {
	const n = 1024
	x := safetensors.Tensor{Name: "x", DType: "BF16", Shape: []int64{n, n}, Data: make([]byte, 2*n*n)}
	for _, w := range []Weight{
		{Tensor: "x", Ways: 1, DType: dtype.BF16, Shape: []int64{n, n}},
		{Tensor: "x", Ways: 1, DType: dtype.F32, Shape: []int64{n, n}},
		{Tensor: "x", Ways: 1, DType: dtype.BF16, Shape: []int64{n, n}, Perm: []int{1, 0}},
	} {
		dst := make([]byte, w.Bytes())
		b.Run(fmt.Sprintf("%v-perm=%v", w.DType, w.Perm), func(b *testing.B) {
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				if err := FillWeight(dst, &w, &x, 0, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

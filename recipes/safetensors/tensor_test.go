package safetensors

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dtype"
)

func TestType(t *testing.T) {
	want := map[string]dtype.Type{
		"F32": dtype.F32, "BF16": dtype.BF16, "I64": dtype.I64, "I32": dtype.I32,
		"U8": dtype.U8, "I8": dtype.I8, "BOOL": dtype.I8,
	}
	for _, name := range append(strings.Fields(knownDTypes), "", "f32", "F12") {
		typ, ok := Tensor{DType: name}.Type()
		require.Equal(t, want[name], typ, name)
		require.Equal(t, want[name] != dtype.Invalid, ok, name)
	}
}

func TestF32(t *testing.T) {
	values := []float32{1, -2.5, 0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), math.SmallestNonzeroFloat32}
	got, err := FromF32("x", []int64{2, 3}, values).F32()
	require.NoError(t, err)
	require.Equal(t, bits(values), bits(got))

	// The payload of a NaN survives, from both types.
	nan := math.Float32frombits(0x7fa50000)
	got, err = FromF32("x", nil, []float32{nan}).F32()
	require.NoError(t, err)
	require.Equal(t, []uint32{0x7fa50000}, bits(got))
	got, err = Tensor{DType: "BF16", Shape: []int64{3}, Data: []byte{0xa5, 0x7f, 0x80, 0x3f, 0x01, 0x80}}.F32()
	require.NoError(t, err)
	require.Equal(t, []uint32{0x7fa50000, 0x3f800000, 0x80010000}, bits(got))

	got, err = FromF32("x", []int64{0}, nil).F32()
	require.NoError(t, err)
	require.Empty(t, got)
}

func bits(values []float32) []uint32 {
	out := make([]uint32, len(values))
	for i, v := range values {
		out[i] = math.Float32bits(v)
	}
	return out
}

func TestI32(t *testing.T) {
	values := []int32{0, 1, -1, math.MinInt32, math.MaxInt32}
	x := FromI32("x", []int64{5}, values)
	require.Equal(t, []byte{0, 0, 0, 0, 1, 0, 0, 0}, x.Data[:8])
	got, err := x.I32()
	require.NoError(t, err)
	require.Equal(t, values, got)
}

// Decoded values and constructed tensors are copies.
func TestCopies(t *testing.T) {
	shape, values := []int64{2}, []float32{1, 2}
	x := FromF32("x", shape, values)
	shape[0], values[0] = 7, 7
	got, err := x.F32()
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2}, got)
	got[0] = 9
	again, err := x.F32()
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2}, again)
}

func TestDecodeErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"F32 of I32", second(FromI32("x", nil, []int32{1}).F32()), `tensor "x": dtype is "I32", expected F32 or BF16`},
		{"F32 of F16", second(Tensor{Name: "x", DType: "F16", File: "f"}.F32()), `f: tensor "x": dtype is "F16", expected F32 or BF16`},
		{"I32 of I64", second(Tensor{Name: "x", DType: "I64"}.I32()), `tensor "x": dtype is "I64", expected I32`},
		{"too few values", second(FromF32("x", []int64{3}, []float32{1}).F32()), `tensor "x": data is 4 bytes, expected 12 for F32 of shape [3]`},
		{"too many values", second(FromI32("x", []int64{}, []int32{1, 2}).I32()), `tensor "x": data is 8 bytes, expected 4 for I32 of shape []`},
		{"half an element", second(Tensor{Name: "x", DType: "BF16", Data: []byte{1}}.F32()), `tensor "x": data is 1 bytes, expected 2 for BF16 of shape []`},
		{"negative dimension", second(FromF32("x", []int64{2, -3}, nil).F32()), `tensor "x": dimension 1 of shape [2,-3] is -3, expected 0 or more`},
		{"overflow", second(FromI32("x", []int64{1 << 62, 1 << 62}, nil).I32()), `tensor "x": shape [4611686018427387904,4611686018427387904] overflows`},
	} {
		t.Run(c.name, func(t *testing.T) { require.ErrorContains(t, c.err, c.want) })
	}
}

func second[T any](_ T, err error) error { return err }

package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// mustEncode is the bytes that Write would write.
func mustEncode(t require.TestingT, tensors []Tensor, metadata map[string]string) []byte {
	sorted := slices.Clone(tensors)
	sortByName(sorted)
	header, err := encodeHeader(sorted, metadata)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, encode(&b, header, sorted))
	return b.Bytes()
}

// requireSame compares everything but the file.
func requireSame(t require.TestingT, want, got Tensor) {
	require.Equal(t, want.Name, got.Name)
	require.Equal(t, want.DType, got.DType)
	require.True(t, slices.Equal(want.Shape, got.Shape), "%v and %v", want.Shape, got.Shape)
	require.True(t, bytes.Equal(want.Data, got.Data))
}

func TestWriteBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	tensors := []Tensor{
		FromI32("b", []int64{1, 2}, []int32{-1, 258}),
		FromF32(`a"<é`, nil, []float32{1}),
	}
	require.NoError(t, Write(path, tensors, map[string]string{"z": "&", "k": "v"}))
	header := `{"__metadata__":{"k":"v","z":"&"},` +
		`"a\"<é":{"dtype":"F32","shape":[],"data_offsets":[0,4]},` +
		`"b":{"dtype":"I32","shape":[1,2],"data_offsets":[4,12]}}`
	header += strings.Repeat(" ", 7-(len(header)+7)%8)
	require.Zero(t, len(header)%8)
	want := file(header, 0)
	want = append(want, 0, 0, 0x80, 0x3f, 0xff, 0xff, 0xff, 0xff, 2, 1, 0, 0)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
	require.Equal(t, "b", tensors[0].Name, "the argument keeps its order")
}

func TestWriteNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	for _, metadata := range []map[string]string{nil, {}} {
		require.NoError(t, Write(path, nil, metadata))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "\x08\x00\x00\x00\x00\x00\x00\x00{}      ", string(got))
		f, err := Open(path)
		require.NoError(t, err)
		require.Empty(t, f.Tensors())
		require.Nil(t, f.Metadata())
		require.NoError(t, f.Close())
	}
}

// drawTensors is a list of tensors of distinct names and all dtypes.
func drawTensors(t *rapid.T) []Tensor {
	names := rapid.SliceOfNDistinct(rapid.String().Filter(func(s string) bool { return s != metadataKey }),
		0, 8, rapid.ID[string]).Draw(t, "names")
	tensors := make([]Tensor, len(names))
	for i, name := range names {
		dt := rapid.SampledFrom(strings.Fields(knownDTypes)).Draw(t, "dtype")
		shape := rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 4).Draw(t, "shape")
		if bitSize(dt)%8 != 0 {
			shape = append(shape, 4) // whole bytes
		}
		size, err := byteSize(dt, shape)
		if err != nil {
			t.Fatal(err)
		}
		data := rapid.SliceOfN(rapid.Byte(), int(size), int(size)).Draw(t, "data")
		tensors[i] = Tensor{Name: name, DType: dt, Shape: shape, Data: data}
	}
	return tensors
}

// What is written reads back the same, from an aligned data section; and no
// order of the input, nor a detour through a file, changes the bytes.
func TestWriteRead(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		path, path2 := filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "b.safetensors")
		tensors := drawTensors(t)
		metadata := rapid.MapOfN(rapid.String(), rapid.String(), 0, 4).Draw(t, "metadata")
		require.NoError(t, Write(path, tensors, metadata))
		raw, err := os.ReadFile(path)
		require.NoError(t, err)

		f, err := Open(path)
		require.NoError(t, err)
		defer f.Close()
		require.Len(t, f.Tensors(), len(tensors))
		data := 0
		for _, want := range tensors {
			got, ok := f.Tensor(want.Name)
			require.True(t, ok)
			requireSame(t, want, got)
			require.Equal(t, path, got.File)
			data += len(want.Data)
		}
		require.Zero(t, (len(raw)-data)%8)
		require.True(t, maps.Equal(metadata, f.Metadata()))

		require.NoError(t, Write(path2, rapid.Permutation(f.Tensors()).Draw(t, "order"), f.Metadata()))
		raw2, err := os.ReadFile(path2)
		require.NoError(t, err)
		require.True(t, bytes.Equal(raw, raw2))
	})
}

func TestWriteFloats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOf(rapid.Custom(func(t *rapid.T) float32 {
			return math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		})).Draw(t, "values")
		ints := rapid.SliceOf(rapid.Int32()).Draw(t, "ints")
		require.NoError(t, Write(path, []Tensor{
			FromF32("f", []int64{int64(len(values))}, values),
			FromI32("i", []int64{int64(len(ints)), 1}, ints),
		}, nil))
		f, err := Open(path)
		require.NoError(t, err)
		defer f.Close()
		x, _ := f.Tensor("f")
		gotF, err := x.F32()
		require.NoError(t, err)
		require.Equal(t, bits(values), bits(gotF))
		y, _ := f.Tensor("i")
		gotI, err := y.I32()
		require.NoError(t, err)
		require.True(t, slices.Equal(ints, gotI))
	})
}

// An invalid argument leaves the existing file as it is, and nothing beside it.
func TestWriteErrors(t *testing.T) {
	ok := FromI32("x", nil, []int32{1})
	for _, c := range []struct {
		name     string
		tensors  []Tensor
		metadata map[string]string
		want     string
	}{
		{"too little data", []Tensor{ok, FromF32("y", []int64{2, 2}, []float32{1})}, nil, `tensor "y": data is 4 bytes, expected 16 for F32 of shape [2,2]`},
		{"too much data", []Tensor{FromF32("y", []int64{0}, []float32{1})}, nil, `tensor "y": data is 4 bytes, expected 0 for F32 of shape [0]`},
		{"two of a name", []Tensor{ok, FromF32("y", nil, []float32{1}), ok}, nil, `tensor "x": two tensors have this name`},
		{"unknown dtype", []Tensor{{Name: "x", DType: "f32"}}, nil, `tensor "x": unknown dtype "f32"`},
		{"no dtype", []Tensor{{Name: "x"}}, nil, `tensor "x": unknown dtype ""`},
		{"negative dimension", []Tensor{FromI32("x", []int64{-1}, nil)}, nil, `tensor "x": dimension 0 of shape [-1] is -1`},
		{"two negative dimensions", []Tensor{FromI32("x", []int64{-1, -1}, []int32{1})}, nil, `tensor "x": dimension 0 of shape [-1,-1] is -1`},
		{"overflow", []Tensor{FromI32("x", []int64{1 << 32, 1 << 32}, nil)}, nil, `tensor "x": shape [4294967296,4294967296] overflows`},
		{"half a byte", []Tensor{{Name: "x", DType: "F4", Shape: []int64{1}}}, nil, `tensor "x": shape [1] of F4 is 4 bits`},
		{"reserved name", []Tensor{FromI32("__metadata__", nil, []int32{1})}, nil, `tensor "__metadata__": the name is reserved`},
		{"name is no UTF-8", []Tensor{FromI32("\xff", nil, []int32{1})}, nil, `tensor "\xff": the name is not valid UTF-8`},
		{"metadata key is no UTF-8", []Tensor{ok}, map[string]string{"\xff": "v"}, `metadata "\xff": "v" is not valid UTF-8`},
		{"metadata value is no UTF-8", []Tensor{ok}, map[string]string{"k": "\xff"}, `metadata "k": "\xff" is not valid UTF-8`},
		{"header too large", nil, map[string]string{"k": strings.Repeat("v", maxHeader)}, `the header would have 1000000`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "a.safetensors")
			require.NoError(t, os.WriteFile(path, []byte("old"), 0o666))
			err := Write(path, c.tensors, c.metadata)
			require.ErrorContains(t, err, path+": ")
			require.ErrorContains(t, err, c.want)
			requireOnly(t, dir, path, "old")
		})
	}
}

// requireOnly checks that a directory has one file, and its content.
func requireOnly(t *testing.T, dir, path, content string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, content, string(got))
}

func TestWriteNowhere(t *testing.T) {
	dir := t.TempDir()
	err := Write(filepath.Join(dir, "none", "a.safetensors"), nil, nil)
	require.ErrorIs(t, err, os.ErrNotExist)

	// All is written, but cannot take the place of a directory.
	path := filepath.Join(dir, "d")
	require.NoError(t, os.Mkdir(path, 0o777))
	require.ErrorContains(t, Write(path, nil, nil), path+": rename: ")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// A failure in the middle leaves the old file and nothing else.
func TestReplaceFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o666))
	full := errors.New("disk full")
	err := replace(path, func(w io.Writer) error {
		_, err := w.Write(make([]byte, 1<<20))
		require.NoError(t, err)
		return full
	})
	require.ErrorIs(t, err, full)
	requireOnly(t, dir, path, "old")
	require.NoError(t, replace(path, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }))
	requireOnly(t, dir, path, "new")
}

// An encoder that cannot write says so, wherever it is.
func TestEncodeFails(t *testing.T) {
	tensors := []Tensor{FromI32("x", nil, []int32{1})}
	whole := len(mustEncode(t, tensors, nil))
	header, err := encodeHeader(tensors, nil)
	require.NoError(t, err)
	for n := range whole {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			require.ErrorIs(t, encode(&shortWriter{n}, header, tensors), io.ErrShortWrite)
		})
	}
	require.NoError(t, encode(&shortWriter{whole}, header, tensors))
}

// shortWriter takes so many bytes.
type shortWriter struct{ n int }

func (w *shortWriter) Write(b []byte) (int, error) {
	if len(b) > w.n {
		return w.n, io.ErrShortWrite
	}
	w.n -= len(b)
	return len(b), nil
}

// A new file has the mode of other new files, and one that is open stays
// readable while it is replaced.
func TestWriteReplacesOpenFile(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "b")
	require.NoError(t, Write(path, []Tensor{FromI32("x", nil, []int32{1})}, nil))
	require.NoError(t, os.WriteFile(other, nil, 0o666))
	a, err := os.Stat(path)
	require.NoError(t, err)
	b, err := os.Stat(other)
	require.NoError(t, err)
	require.Equal(t, b.Mode(), a.Mode())

	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, Write(path, []Tensor{FromI32("x", nil, []int32{2})}, nil))
	x, _ := f.Tensor("x")
	got, err := x.I32()
	require.NoError(t, err)
	require.Equal(t, []int32{1}, got)
}

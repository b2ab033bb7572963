package safetensors

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// fillFrom makes the data that tensors have already, for comparisons.
func fillFrom(tensors []Tensor) Fill {
	data := make(map[string][]byte)
	for _, t := range tensors {
		data[t.Name] = t.Data
	}
	return func(t *Tensor, offset int64, chunk []byte) error {
		copy(chunk, data[t.Name][offset:offset+int64(len(chunk))])
		return nil
	}
}

// withoutData are tensors as a stream gets them.
func withoutData(tensors []Tensor) []Tensor {
	bare := make([]Tensor, len(tensors))
	for i, t := range tensors {
		bare[i] = Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape}
	}
	return bare
}

func TestStreamIsWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.safetensors")
	rapid.Check(t, func(t *rapid.T) {
		tensors := drawTensors(t)
		metadata := map[string]string{"format": "pt"}
		require.NoError(t, WriteStream(context.Background(), path, withoutData(tensors), metadata, fillFrom(tensors)))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, mustEncode(t, tensors, metadata), got)
	})
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// Tensors begin and end within pieces, and pieces within elements.
func TestStreamPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	large := func(name, dtype string, size int64, elements int64) Tensor {
		data := make([]byte, size*elements)
		for i := range data {
			data[i] = byte(i>>16 ^ i>>8*3 ^ i*7)
		}
		return Tensor{Name: name, DType: dtype, Shape: []int64{elements}, Data: data}
	}
	tensors := []Tensor{
		large("a", "U8", 1, 3),
		large("b", "BF16", 2, pieceSize+11),
		large("c", "U8", 1, 0),
		large("d", "F32", 4, pieceSize/3),
		large("e", "U8", 1, pieceSize-1),
	}
	var largest atomic.Int64
	fill := fillFrom(tensors)
	err := WriteStream(t.Context(), path, withoutData(tensors), nil, func(t *Tensor, offset int64, chunk []byte) error {
		for n := int64(len(chunk)); ; {
			if old := largest.Load(); old >= n || largest.CompareAndSwap(old, n) {
				break
			}
		}
		return fill(t, offset, chunk)
	})
	require.NoError(t, err)
	require.LessOrEqual(t, largest.Load(), int64(pieceSize))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(mustEncode(t, tensors, nil), got))
}

// The memory that writing takes does not depend on the size of the file.
func TestStreamMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	pieces := int64(min(2*runtime.GOMAXPROCS(0), maxPieces))
	tensors := []Tensor{{Name: "a", DType: "U8", Shape: []int64{4 * pieces * pieceSize}}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	require.NoError(t, WriteStream(t.Context(), path, tensors, nil, func(_ *Tensor, _ int64, chunk []byte) error {
		clear(chunk)
		return nil
	}))
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.TotalAlloc-before.TotalAlloc), 2*pieces*pieceSize)
}

func TestStreamErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.safetensors")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o666))
	tensor := func(name, dtype string, shape ...int64) Tensor { return Tensor{Name: name, DType: dtype, Shape: shape} }
	none := func(*Tensor, int64, []byte) error { return nil }
	for _, c := range []struct {
		name    string
		tensors []Tensor
		fill    Fill
		want    string
	}{
		{"two of a name", []Tensor{tensor("a", "U8", 1), tensor("a", "F32", 2)}, none, `tensor "a": two tensors have this name`},
		{"dtype", []Tensor{tensor("a", "U9", 1)}, none, `tensor "a": unknown dtype "U9"`},
		{"shape", []Tensor{tensor("a", "U8", -1)}, none, "dimension 0 of shape [-1] is -1"},
		{
			"size", []Tensor{
				tensor("a", "U8", 1<<60-1), tensor("b", "U8", 1<<60-1), tensor("c", "U8", 1<<60-1),
				tensor("d", "U8", 1<<60-1), tensor("e", "U8", 4), tensor("f", "U8", 1),
			}, none, `tensor "f": the file would have more than 4611686018427387904 bytes`,
		},
		{"metadata as name", []Tensor{tensor("__metadata__", "U8", 1)}, none, "reserved for metadata"},
		{
			"fill",
			[]Tensor{tensor("a", "U8", 1), tensor("b", "U8", 3*pieceSize)},
			func(t *Tensor, offset int64, _ []byte) error {
				if t.Name == "b" && offset > pieceSize {
					return errors.New("no more numbers")
				}
				return nil
			}, `tensor "b": no more numbers`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := WriteStream(t.Context(), path, c.tensors, nil, c.fill)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
			requireOnly(t, dir, path, "old")
		})
	}
}

func TestStreamCancelled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.safetensors")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o666))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the power went")
	tensors := []Tensor{{Name: "a", DType: "U8", Shape: []int64{1 << 60}}} // it would never end
	if runtime.GOOS == "linux" {
		tensors[0].Shape[0] = 64 * pieceSize // it is reserved first
	}
	err := WriteStream(ctx, path, tensors, nil, func(*Tensor, int64, []byte) error {
		cancel(why)
		return nil
	})
	require.ErrorIs(t, err, why)
	requireOnly(t, dir, path, "old")
}

func TestStreamNowhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "a.safetensors")
	err := WriteStream(t.Context(), path, nil, nil, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, 1, strings.Count(err.Error(), "none"))
}

func TestSize(t *testing.T) {
	n, err := Tensor{DType: "BF16", Shape: []int64{3, 5}}.Size()
	require.NoError(t, err)
	require.EqualValues(t, 30, n)
	_, err = Tensor{Name: "x", DType: "F4", Shape: []int64{3}, File: "f"}.Size()
	require.EqualError(t, err, `f: tensor "x": shape [3] of F4 is 12 bits, expected whole bytes`)
}

func TestWriteIndex(t *testing.T) {
	dir := t.TempDir()
	a, b := Tensor{Name: "a", DType: "U8", Shape: []int64{2}, Data: []byte{1, 2}}, Tensor{Name: `b"<é`, DType: "U8", Shape: []int64{1}, Data: []byte{3}}
	require.NoError(t, Write(filepath.Join(dir, "one.safetensors"), []Tensor{a}, nil))
	require.NoError(t, Write(filepath.Join(dir, "two.safetensors"), []Tensor{b}, nil))
	require.NoError(t, WriteIndex(dir, 3, map[string]string{b.Name: "two.safetensors", "a": "one.safetensors"}))
	text, err := os.ReadFile(filepath.Join(dir, "model.safetensors.index.json"))
	require.NoError(t, err)
	require.Equal(t, `{
  "metadata": {
    "total_size": 3
  },
  "weight_map": {
    "a": "one.safetensors",
    "b\"<é": "two.safetensors"
  }
}
`, string(text))
	c, err := OpenDir(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a", b.Name}, names(c.Tensors()))
	require.NoError(t, c.Close())
}

func TestWriteIndexErrors(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		total int64
		files map[string]string
		want  string
	}{
		{1, nil, "no tensors"},
		{-1, map[string]string{"a": "f"}, "total size -1 is negative"},
		{1, map[string]string{"a": "../f"}, `tensor "a": file name "../f", expected a plain name`},
		{1, map[string]string{"a\xff": "f"}, "valid UTF-8"},
	} {
		err := WriteIndex(dir, c.total, c.files)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, dir)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.ErrorIs(t, WriteIndex(filepath.Join(dir, "none"), 1, map[string]string{"a": "f"}), os.ErrNotExist)
}

package recipes

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// A slot read in pieces of any size is the slot that FillWeight writes, and the
// source of each piece has what was read.
func TestWeightReaderInPieces(t *testing.T) {
	x := safetensors.Tensor{Name: "x", DType: "BF16", Shape: []int64{6, 2, 5}}
	for i := range 60 {
		x.Data = binary.LittleEndian.AppendUint16(x.Data, uint16(0x3f00+i))
	}
	for _, w := range []Weight{
		{Tensor: "x", Ways: 1, DType: dtype.BF16, Shape: []int64{6, 2, 5}},
		{Tensor: "x", Ways: 3, DType: dtype.F32, Shape: []int64{2, 2, 5}},
		{Tensor: "x", Perm: []int{1, 0, 2}, Axis: 1, Ways: 2, DType: dtype.BF16, Shape: []int64{2, 3, 5}},
		{Tensor: "x", Perm: []int{2, 1, 0}, Axis: 2, Ways: 3, DType: dtype.F32, Shape: []int64{5, 2, 2}},
		{Fill: 1.5, Step: 1, Ways: 1, DType: dtype.F32, Shape: []int64{7}},
	} {
		rapid.Check(t, func(rt *rapid.T) {
			rank := rapid.IntRange(0, 5).Draw(rt, "rank")
			want := make([]byte, w.Bytes())
			require.NoError(rt, FillWeight(want, &w, &x, rank, 6))
			r, err := NewWeightReader(&w, &x, rank, 6)
			require.NoError(rt, err)
			var got []byte
			for {
				buf := make([]byte, rapid.IntRange(4, 40).Draw(rt, "size"))
				n, err := r.Read(buf)
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(rt, err)
				got = append(got, buf[:n]...)
				if w.Tensor == "" {
					require.Empty(rt, r.Source())
				} else {
					require.GreaterOrEqual(rt, len(r.Source()), n/w.DType.Size()*2)
					require.Contains(rt, string(x.Data), string(r.Source()))
				}
			}
			require.Equal(rt, want, got)
		})
	}
	w := Weight{Tensor: "x", Ways: 1, DType: dtype.F32, Shape: []int64{6, 2, 5}}
	r, err := NewWeightReader(&w, &x, 0, 1)
	require.NoError(t, err)
	_, err = r.Read(make([]byte, 3))
	require.ErrorIs(t, err, io.ErrShortBuffer)
}

// Direct is true exactly of slots whose bytes are a run of the tensor's, and
// then has these bytes.
func TestDirect(t *testing.T) {
	data := make([]byte, 97) // with an odd byte before the tensor
	for i := range data {
		data[i] = byte(i)
	}
	x := safetensors.Tensor{Name: "x", DType: "BF16", Shape: []int64{4, 3, 4}, Data: data[:96]}
	require.Zero(t, addressOf(x.Data)%4)
	odd := x
	odd.Data = data[1:]
	for _, c := range []struct {
		name   string
		w      Weight
		t      *safetensors.Tensor
		direct bool
	}{
		{"whole", Weight{Ways: 1, DType: dtype.BF16, Shape: []int64{4, 3, 4}}, &x, true},
		{"rows", Weight{Ways: 2, DType: dtype.BF16, Shape: []int64{2, 3, 4}}, &x, true},
		{"rows, ranks share", Weight{Ways: 4, DType: dtype.BF16, Shape: []int64{1, 3, 4}}, &x, true},
		{"reshaped", Weight{Reshape: []int64{12, 4}, Ways: 2, DType: dtype.BF16, Shape: []int64{6, 4}}, &x, true},
		{"moved axis of one", Weight{Reshape: []int64{12, 1, 4}, Perm: []int{1, 0, 2}, Axis: 1, Ways: 2, DType: dtype.BF16, Shape: []int64{1, 6, 4}}, &x, true},
		{"columns", Weight{Axis: 2, Ways: 2, DType: dtype.BF16, Shape: []int64{4, 3, 2}}, &x, false},
		{"middle", Weight{Reshape: []int64{4, 4, 3}, Axis: 1, Ways: 2, DType: dtype.BF16, Shape: []int64{4, 2, 3}}, &x, false},
		{"transposed", Weight{Reshape: []int64{12, 4}, Perm: []int{1, 0}, Ways: 1, DType: dtype.BF16, Shape: []int64{4, 12}}, &x, false},
		{"one column", Weight{Reshape: []int64{12, 4}, Axis: 1, Ways: 4, DType: dtype.BF16, Shape: []int64{12, 1}}, &x, false},
		{"another type", Weight{Ways: 1, DType: dtype.F32, Shape: []int64{4, 3, 4}}, &x, false},
		{"unaligned", Weight{Ways: 1, DType: dtype.BF16, Shape: []int64{4, 3, 4}}, &odd, false},
		{"mismatch", Weight{Ways: 1, DType: dtype.BF16, Shape: []int64{3, 4}}, &x, false},
	} {
		c.w.Tensor = "x"
		for rank := range 4 {
			got, ok := c.w.Direct(c.t, rank, 4)
			require.Equal(t, c.direct, ok, c.name)
			if ok {
				want := make([]byte, c.w.Bytes())
				require.NoError(t, FillWeight(want, &c.w, c.t, rank, 4))
				require.Equal(t, want, got, c.name)
				require.Equal(t, len(got), cap(got), c.name)
			}
		}
	}
	constant := Weight{Ways: 1, DType: dtype.BF16, Shape: []int64{4}}
	_, ok := constant.Direct(nil, 0, 1)
	require.False(t, ok)
}

// packSlots are slots as a compiler lays them out, with gaps and ties.
func packSlots(t *rapid.T, tp int) []Weight {
	var slots []Weight
	at := int64(0)
	for i := range rapid.IntRange(0, 12).Draw(t, "slots") {
		w := Weight{Ways: 1, DType: dtype.F32, Shape: []int64{rapid.Int64Range(0, 700).Draw(t, "elements")}, Offset: at}
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			w.Fill = float64(i)
		case 1:
			w.Step = 1
		default:
			w.Tensor, w.Ways = "x", rapid.IntRange(1, tp).Draw(t, "ways")
		}
		slots = append(slots, w)
		if rapid.IntRange(0, 4).Draw(t, "tied") == 0 {
			slots = append(slots, w)
		}
		at += (w.Bytes()+127)&^127 + rapid.SampledFrom([]int64{0, 128, 8192}).Draw(t, "gap")
	}
	return slots
}

// Whatever is packed: every slot lies in one run with as many copies as it has
// contents, ranks of one content share it, different contents do not overlap,
// and the packing is the one of its own slots.
func TestPackingHoldsEverySlotOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tp := rapid.IntRange(1, 6).Draw(t, "tp")
		slots := packSlots(t, tp)
		chosen := make(map[int64]bool)
		for _, w := range slots {
			chosen[w.Offset] = rapid.Bool().Draw(t, "packed")
		}
		p := NewPacking(slots, tp, func(w *Weight) bool { return chosen[w.Offset] })
		require.NoError(t, p.check(slots, tp))

		image := make([]int, p.Bytes) // piece + 1
		places := make(map[int64]map[int64]bool)
		for i, piece := range p.Pieces(slots, tp) {
			require.True(t, chosen[piece.Weight.Offset])
			for b := piece.At; b < piece.At+piece.Weight.Bytes(); b++ {
				require.Zero(t, image[b], "two pieces share a byte")
				image[b] = i + 1
			}
			if places[piece.Weight.Offset] == nil {
				places[piece.Weight.Offset] = make(map[int64]bool)
			}
			places[piece.Weight.Offset][piece.At] = true
		}
		for i := range slots {
			w := &slots[i]
			if w.Bytes() == 0 {
				continue
			}
			require.Equal(t, chosen[w.Offset], p.Holds(w))
			if !chosen[w.Offset] {
				continue
			}
			require.Len(t, places[w.Offset], w.Copies(tp))
			run := p.run(w.Offset)
			for rank := range tp {
				at := run.CopyAt(rank, tp) + w.Offset - run.Offset
				require.True(t, places[w.Offset][at], "rank %d", rank)
				require.Zero(t, run.CopyAt(rank, tp)%PackAlign)
				first := (rank*w.Copies(tp)/tp*tp + w.Copies(tp) - 1) / w.Copies(tp)
				require.Equal(t, at, run.CopyAt(first, tp)+w.Offset-run.Offset, "ranks with one content")
			}
		}
	})
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// packFixture is a bundle and a checkpoint for it.
type packFixture struct {
	b    *Bundle
	dir  string
	ckpt *safetensors.Checkpoint
}

func newPackFixture(t *testing.T) *packFixture {
	f := &packFixture{b: tinyBundle(t), dir: t.TempDir()}
	f.write(t, 1)
	return f
}

// write writes the checkpoint with other values each time and opens it.
func (f *packFixture) write(t *testing.T, seed byte) {
	x := safetensors.Tensor{Name: "embed", DType: "BF16", Shape: []int64{8, 4}, Data: make([]byte, 64)}
	for i := range x.Data {
		x.Data[i] = byte(i)*7 + seed
	}
	require.NoError(t, safetensors.Write(filepath.Join(f.dir, "model.safetensors"), []safetensors.Tensor{x}, nil))
	f.open(t)
}

func (f *packFixture) open(t *testing.T) {
	ckpt, err := safetensors.OpenDir(f.dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ckpt.Close() }) // a test may have closed it
	f.ckpt = ckpt
}

// job packs a set.
func (f *packFixture) job(t *testing.T, set int, all bool) PackJob {
	s := &f.b.Sets[set]
	h, err := NewPackHeader("1.2.3", f.b, s, f.ckpt, all)
	require.NoError(t, err)
	return PackJob{Header: h, Weights: s.Weights, Checkpoint: f.ckpt, Wrote: func(int64) {}, Drop: func([]byte) {}}
}

func (f *packFixture) pack(t *testing.T, set int, all bool) string {
	path := filepath.Join(t.TempDir(), "x.weights")
	require.NoError(t, WritePacked(t.Context(), path, f.job(t, set, all)))
	return path
}

func openPacked(t *testing.T, path string) *Packed {
	p, err := OpenPacked(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.File.Close()) })
	return p
}

// A file has every slot of every rank as FillWeight makes it, and nothing else.
func TestPackedRoundTrip(t *testing.T) {
	f := newPackFixture(t)
	for set := range f.b.Sets {
		for _, all := range []bool{false, true} {
			s := &f.b.Sets[set]
			path := f.pack(t, set, all)
			p := openPacked(t, path)
			require.NoError(t, p.Header.CheckFor(f.b, s))
			require.NoError(t, p.Header.CheckFrom(s, f.ckpt))
			require.Equal(t, "1.2.3", p.Header.Quill)
			require.Zero(t, p.Start%PackAlign)
			read := int64(0)
			require.NoError(t, p.Verify(t.Context(), func(n int64) { read += n }))
			require.Equal(t, p.Header.Bytes, read)

			file, err := os.ReadFile(path)
			require.NoError(t, err)
			image := file[p.Start:]
			require.Len(t, image, int(p.Header.Bytes))
			packing := p.Header.Packing()
			held := 0
			tensor, _ := f.ckpt.Tensor("embed")
			for i := range s.Weights {
				w := &s.Weights[i]
				if !packing.Holds(w) {
					require.True(t, IsDirect(w, f.ckpt, 2))
					continue
				}
				held++
				run := packing.run(w.Offset)
				for rank := range 2 {
					want := make([]byte, w.Bytes())
					require.NoError(t, FillWeight(want, w, &tensor, rank, 2))
					at := run.CopyAt(rank, 2) + w.Offset - run.Offset
					require.Equal(t, want, image[at:at+w.Bytes()])
				}
			}
			if all {
				require.Equal(t, len(s.Weights), held)
			} else if s.Info.Precision == "bf16" {
				require.Equal(t, len(s.Weights)-1, held, "rows of a matrix are direct")
			}
		}
	}
}

func TestPackedBytesAreDeterministic(t *testing.T) {
	f := newPackFixture(t)
	first, err := os.ReadFile(f.pack(t, 0, true))
	require.NoError(t, err)
	for range 5 {
		again, err := os.ReadFile(f.pack(t, 0, true))
		require.NoError(t, err)
		require.True(t, bytes.Equal(first, again))
	}
}

// What a file was not made for or not made from is told by both sides.
func TestPackedMismatch(t *testing.T) {
	f := newPackFixture(t)
	s := &f.b.Sets[0]
	p := openPacked(t, f.pack(t, 0, false))
	for _, c := range []struct {
		edit func(b *Bundle, s *Set)
		want string
	}{
		{func(b *Bundle, _ *Set) { b.Manifest.Model.Fingerprint = "def" }, "they were packed for model fingerprint " + p.Header.Model + ", the bundle has def"},
		{func(_ *Bundle, s *Set) { s.Info.Precision = "f32" }, "they were packed for precision bf16, the bundle has f32"},
		{func(b *Bundle, _ *Set) { b.Manifest.Deployment.TensorParallel = 4 }, "they were packed for tensor_parallel 2, the bundle has 4"},
		{func(_ *Bundle, s *Set) { s.Weights[0].Offset = 128 }, "they were packed for weights map " + p.Header.Weights.String() + ", the bundle has "},
		{func(_ *Bundle, s *Set) { s.Info.Bytes[Weights] = 512 }, "they were packed for weights map"},
	} {
		other := tinyBundle(t)
		set := other.Sets[0]
		c.edit(other, &set)
		require.ErrorContains(t, p.Header.CheckFor(other, &set), c.want)
	}

	path := filepath.Join(f.dir, "model.safetensors")
	old, err := os.Stat(path)
	require.NoError(t, err)
	f.write(t, 2)
	require.NoError(t, os.Chtimes(path, time.Time{}, old.ModTime().Add(time.Nanosecond)))
	require.ErrorContains(t, p.Header.CheckFrom(s, f.ckpt), "they were packed from model.safetensors as of "+old.ModTime().UTC().Format(time.RFC3339Nano))
	require.NoError(t, os.Chtimes(path, time.Time{}, old.ModTime()))
	require.NoError(t, p.Header.CheckFrom(s, f.ckpt))

	x := safetensors.Tensor{Name: "embed", DType: "BF16", Shape: []int64{8, 4}, Data: make([]byte, 64)}
	extra := safetensors.FromF32("z", []int64{1}, []float32{1})
	require.NoError(t, safetensors.Write(path, []safetensors.Tensor{x, extra}, nil))
	f.open(t)
	require.ErrorContains(t, p.Header.CheckFrom(s, f.ckpt), "of "+strconv.FormatInt(old.Size(), 10)+" bytes, the checkpoint's has ")

	require.False(t, p.Header.Checkpoint.Absent(f.dir))
	require.True(t, p.Header.Checkpoint.Absent(t.TempDir()))
}

// Files that are cut, foreign or damaged are refused, never followed.
func TestPackedDamage(t *testing.T) {
	f := newPackFixture(t)
	good, err := os.ReadFile(f.pack(t, 0, true))
	require.NoError(t, err)
	edit := func(old, replacement string) []byte {
		require.Contains(t, string(good), old)
		require.Len(t, replacement, len(old), "the header must keep its length")
		return bytes.Replace(good, []byte(old), []byte(replacement), 1)
	}
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "this is no file of packed weights"},
		{"foreign", []byte("PK\x03\x04 something else"), "this is no file of packed weights"},
		{"prefix only", good[:16], "cut short"},
		{"half a header", good[:100], "cut short"},
		{"header only", good[:PackAlign], "cut short or damaged: 4096 bytes, its header says "},
		{"one byte less", good[:len(good)-1], "cut short or damaged"},
		{"one byte more", append(bytes.Clone(good), 0), "cut short or damaged"},
		{"header length", append(append(bytes.Clone(good[:8]), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), good[16:]...), "damaged: a header of"},
		{"another format", edit(`{"format":1`, `{"format":9`), "they have format 9 (written by quill \"1.2.3\"), this quill reads format 1"},
		{"no JSON", edit(`{"format":1`, `}"format":1`), "header: invalid character"},
		{"unknown key", edit(`"quill"`, `"quilt"`), "unknown field"},
		{"ranks", edit(`"tensor_parallel":2`, `"tensor_parallel":0`), "for 0 ranks"},
		{"digest", edit(`,"sha256":"`, `,"sha256":[`), "header: "},
	} {
		path := filepath.Join(t.TempDir(), "bad")
		require.NoError(t, os.WriteFile(path, c.data, 0o666))
		_, err := OpenPacked(path)
		require.ErrorContains(t, err, c.want, c.name)
		require.ErrorContains(t, err, path, c.name)
	}
	_, err = OpenPacked(t.TempDir())
	require.ErrorContains(t, err, "no regular file")

	// Damage behind the header shows only when it is looked for.
	path := filepath.Join(t.TempDir(), "bad")
	bad := bytes.Clone(good)
	bad[len(bad)-PackAlign] ^= 1
	require.NoError(t, os.WriteFile(path, bad, 0o666))
	p := openPacked(t, path)
	require.ErrorContains(t, p.Verify(t.Context(), func(int64) {}), "they are damaged: SHA-256 is ")

	// A header that leads elsewhere than the weights map does.
	h := f.job(t, 0, true).Header
	for _, edit := range []func(h *PackHeader){
		func(h *PackHeader) { h.Runs = h.Runs[1:] },
		func(h *PackHeader) { h.Runs[0].Bytes-- },
		func(h *PackHeader) { h.Runs[0].Bytes++ },
		func(h *PackHeader) { h.Runs[0].Copies = 1 },
		func(h *PackHeader) { h.Runs[len(h.Runs)-1].At -= PackAlign },
		func(h *PackHeader) { h.Bytes += PackAlign },
	} {
		wrong := *h
		wrong.Runs = append([]Run(nil), h.Runs...)
		edit(&wrong)
		require.ErrorContains(t, wrong.CheckFor(f.b, &f.b.Sets[0]), "do not hold whole slots of the weights map")
	}
}

// Nothing is left of a pack that is interrupted or fails, and what was there
// before stays.
func TestWritePackedFails(t *testing.T) {
	f := newPackFixture(t)
	path := filepath.Join(t.TempDir(), "x.weights")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o666))
	unchanged := func() {
		t.Helper()
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "old", string(data))
		entries, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Len(t, entries, 1)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, WritePacked(ctx, path, f.job(t, 0, true)), context.Canceled)
	unchanged()

	ctx, cancel = context.WithCancel(t.Context())
	late := f.job(t, 0, true)
	late.Wrote = func(int64) { cancel() }
	require.ErrorIs(t, WritePacked(ctx, path, late), context.Canceled)
	unchanged()

	wrong := f.job(t, 0, true)
	wrong.Weights = append([]Weight(nil), wrong.Weights...)
	wrong.Weights[0].DType = dtype.I32
	err := WritePacked(t.Context(), path, wrong)
	require.ErrorContains(t, err, "packed weights "+path)
	require.ErrorContains(t, err, "cannot make i32 of BF16")
	unchanged()

	require.Error(t, WritePacked(t.Context(), filepath.Join(path, "below"), f.job(t, 0, true)))
}

func TestPackErrorOfFullDisk(t *testing.T) {
	full := &os.PathError{Op: "write", Path: ".quill-1.tmp", Err: syscall.ENOSPC}
	require.EqualError(t, packError("x.weights", 4096, full),
		"packed weights x.weights: the disk is full, they need 4096 bytes: make room there or write them elsewhere (write .quill-1.tmp: no space left on device)")
	require.ErrorIs(t, packError("x.weights", 4096, full), syscall.ENOSPC)
	require.EqualError(t, packError("x.weights", 4096, os.ErrPermission), "packed weights x.weights: permission denied")
	require.NoError(t, packError("x.weights", 4096, nil))
}

// Whatever a header says, it is an error, does not fit the bundle, or leads to
// bytes within its image only.
func FuzzPackHeader(f *testing.F) {
	b := tinyBundle(f)
	h := PackHeader{
		Format: PackVersion, Model: b.Manifest.Model.Fingerprint, Precision: "bf16", TensorParallel: 2, Weights: b.Sets[0].hash(),
		All: true, Bytes: 2 * PackAlign, SHA256: strings.Repeat("0", 64), Runs: []Run{{Bytes: 72, Copies: 2}},
	}
	require.NoError(f, h.CheckFor(b, &b.Sets[0]))
	text, err := json.Marshal(&h)
	require.NoError(f, err)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		var p Packed
		set := &b.Sets[0]
		if p.decode(text) != nil || p.Header.CheckFor(b, set) != nil {
			return
		}
		for _, piece := range p.Header.Packing().Pieces(set.Weights, 2) {
			require.LessOrEqual(t, piece.At+piece.Weight.Bytes(), p.Header.Bytes)
		}
	})
}

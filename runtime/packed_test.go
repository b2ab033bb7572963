package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/safetensors"
)

// bytesOf are all slots of all ranks as the device has them.
func bytesOf(t *testing.T, s *Session) [][]byte {
	w := s.dev.(*HostDevice).weights
	var all [][]byte
	for rank := range w.tp {
		for _, slot := range recipes.SlotsByOffset(w.set.Weights) {
			all = append(all, slices.Clone(w.find(slot, rank)))
		}
	}
	return all
}

func packBigram(t *testing.T, bundle, model string, opt PackOptions) *PackedWeights {
	opt.Model = model
	p, err := Pack(ctx, bundle, opt)
	require.NoError(t, err)
	return p
}

// Wherever weights lie, they are the same bytes, and the model says the same.
func TestSourcesOfWeights(t *testing.T) {
	bundle, model, embed, head := bigram(t)
	text := []int32{3, 1, 4, 1, 5}
	open := func(opt Options) (Memory, [][]byte) {
		t.Helper()
		opt.Model = model
		var admitted Memory
		opt.Admit = func(m Memory) error { admitted = m; return nil }
		s, err := Open(ctx, bundle, opt)
		require.NoError(t, err)
		require.Empty(t, s.Info().Notes)
		require.Equal(t, admitted, s.Memory())
		logits, err := s.Prefill(ctx, sequence(t, s, 5), text)
		require.NoError(t, err)
		require.Equal(t, bigramLogits(embed, head, text), logits)
		weights := bytesOf(t, s)
		require.NoError(t, s.Close())
		return admitted, weights
	}
	const direct = 2 * vocabulary * hidden * 4 // embed is shared by the ranks, head divided
	m, want := open(Options{})
	require.Equal(t, int64(direct), m.Mapped)
	require.Equal(t, int64(recipes.PackAlign), m.Copied)
	require.Positive(t, m.Buffers)

	p := packBigram(t, bundle, model, PackOptions{Quill: "1.2.3"})
	require.Equal(t, strings.TrimSuffix(bundle, ".quill")+".f32.weights", p.Path)
	require.Equal(t, int64(direct), p.Left)
	require.Len(t, p.Header.Runs, 1)
	m, got := open(Options{})
	require.Equal(t, Memory{Buffers: m.Buffers, Mapped: direct + recipes.PackAlign}, m)
	require.Equal(t, want, got)
	m, got = open(Options{Weights: p.Path})
	require.Zero(t, m.Copied)
	require.Equal(t, want, got)
	m, got = open(Options{Weights: NoWeights})
	require.Equal(t, int64(recipes.PackAlign), m.Copied)
	require.Equal(t, want, got)

	all := packBigram(t, bundle, model, PackOptions{All: true, Output: filepath.Join(t.TempDir(), "all.weights")})
	require.Zero(t, all.Left)
	m, got = open(Options{Weights: all.Path})
	require.Zero(t, m.Copied)
	require.Equal(t, want, got)

	// Now nothing is needed of the checkpoint but its configuration.
	require.NoError(t, os.Remove(filepath.Join(model, "model.safetensors")))
	_, got = open(Options{Weights: all.Path})
	require.Equal(t, want, got)
	_, err := Open(ctx, bundle, Options{Model: model})
	require.ErrorContains(t, err, "download the checkpoint again")

	verified, err := VerifyPacked(ctx, all.Path, nil)
	require.NoError(t, err)
	require.Equal(t, all.Header, verified.Header)
}

// Memory that the caller does not admit is not taken.
func TestOpenAdmit(t *testing.T) {
	bundle, model, _, _ := bigram(t)
	no := errors.New("too much")
	_, err := Open(ctx, bundle, Options{Model: model, Admit: func(Memory) error { return no }})
	require.ErrorIs(t, err, no)
	require.ErrorContains(t, err, "allocate 2 ranks: too much")
}

// Packed weights that do not fit are an error if they were named, and a note if
// they were only found. Either says what differs and what to do.
func TestOpenRefusesPackedWeights(t *testing.T) {
	model := func(dir string) string { return filepath.Join(dir, "model.safetensors") }
	for _, c := range []struct {
		name string
		opt  PackOptions
		edit func(t *testing.T, dir, bundle, packed string)
		want string
	}{
		{"cut short", PackOptions{}, func(t *testing.T, _, _, packed string) {
			require.NoError(t, os.Truncate(packed, 5000))
		}, "it is cut short or damaged: 5000 bytes, its header says 8192"},
		{"foreign", PackOptions{}, func(t *testing.T, _, _, packed string) {
			require.NoError(t, os.WriteFile(packed, []byte("hello"), 0o666))
		}, "this is no file of packed weights"},
		{"for other weights", PackOptions{}, func(t *testing.T, _, bundle, _ string) {
			b, err := recipes.ReadBundle(bundle)
			require.NoError(t, err)
			b.Sets[0].Info.Bytes[recipes.Weights] += 1024
			require.NoError(t, recipes.WriteBundle(ctx, bundle, b))
		}, "they were packed for weights map "},
		{"from another checkpoint", PackOptions{}, func(t *testing.T, dir, _, _ string) {
			require.NoError(t, os.Chtimes(model(dir), time.Time{}, time.Unix(1e9, 0)))
		}, "the checkpoint's is of 2001-09-09T01:46:40Z"},
		{"all, from another checkpoint", PackOptions{All: true}, func(t *testing.T, dir, _, _ string) {
			require.NoError(t, os.Chtimes(model(dir), time.Time{}, time.Unix(1e9, 0)))
		}, "the checkpoint's is of 2001-09-09T01:46:40Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bundle, dir, embed, head := bigram(t)
			p := packBigram(t, bundle, dir, c.opt)
			c.edit(t, dir, bundle, p.Path)
			fix := fmt.Sprintf("quill pack %s --model %s --precision f32", bundle, dir)
			if c.opt.All {
				fix += " --all"
			}

			_, err := Open(ctx, bundle, Options{Model: dir, Weights: p.Path})
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "packed weights "+p.Path)
			require.ErrorContains(t, err, fix)

			s, err := Open(ctx, bundle, Options{Model: dir})
			require.NoError(t, err)
			require.Len(t, s.Info().Notes, 1)
			require.Contains(t, s.Info().Notes[0], c.want)
			require.Contains(t, s.Info().Notes[0], "they are not used; pack them again with "+fix)
			require.Positive(t, s.Memory().Copied)
			logits, err := s.Prefill(ctx, sequence(t, s, 2), []int32{1, 2})
			require.NoError(t, err)
			require.Equal(t, bigramLogits(embed, head, []int32{1, 2}), logits)
			require.NoError(t, s.Close())
		})
	}
	bundle, dir, _, _ := bigram(t)
	_, err := Open(ctx, bundle, Options{Model: dir, Weights: "none.weights"})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "make them with quill pack "+bundle)

	// A stale file is not silent where the checkpoint it would have replaced is
	// missing.
	p := packBigram(t, bundle, dir, PackOptions{All: true})
	require.NoError(t, os.Truncate(p.Path, 5000))
	require.NoError(t, os.Remove(model(dir)))
	_, err = Open(ctx, bundle, Options{Model: dir})
	require.ErrorContains(t, err, "download the checkpoint again")
	require.ErrorContains(t, err, "cut short or damaged")
}

func TestPackRefuses(t *testing.T) {
	bundle, model, _, _ := bigram(t)
	_, err := Pack(ctx, bundle, PackOptions{Model: model, Precision: "bf16"})
	require.ErrorContains(t, err, `no precision "bf16" in the bundle, it has f32`)
	_, err = Pack(ctx, bundle, PackOptions{})
	require.ErrorContains(t, err, "no model directory")
	_, err = Pack(ctx, model, PackOptions{Model: model})
	require.ErrorContains(t, err, "pack: bundle "+model)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = Pack(cancelled, bundle, PackOptions{Model: model})
	require.ErrorIs(t, err, context.Canceled)
	require.NoFileExists(t, PackedPath(bundle, "f32"))
	_, err = VerifyPacked(ctx, bundle, nil)
	require.ErrorContains(t, err, "this is no file of packed weights")
	w := safetensors.FromF32("w", []int64{1}, []float32{1})
	require.NoError(t, safetensors.Write(filepath.Join(model, "model.safetensors"), []safetensors.Tensor{w}, nil))
	_, err = Pack(ctx, bundle, PackOptions{Model: model})
	require.ErrorContains(t, err, "embed is missing")
}

func TestPackedPath(t *testing.T) {
	require.Equal(t, "a/chat.bf16.weights", PackedPath("a/chat.quill", "bf16"))
	require.Equal(t, "chat.f32.weights", PackedPath("chat", "f32"))
}

// Close gives all mappings back, also those of an Open that fails.
func TestCloseUnmaps(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("only Linux lists what is mapped")
	}
	bundle, model, _, _ := bigram(t)
	p := packBigram(t, bundle, model, PackOptions{})
	mapped := func(path string) bool {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return strings.Contains(string(maps), path)
	}
	checkpoint := filepath.Join(model, "model.safetensors")
	s, err := Open(ctx, bundle, Options{Model: model})
	require.NoError(t, err)
	require.True(t, mapped(p.Path))
	require.True(t, mapped(checkpoint))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.False(t, mapped(p.Path))
	require.False(t, mapped(checkpoint))

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = Open(cancelled, bundle, Options{Model: model})
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, mapped(p.Path))
	require.False(t, mapped(checkpoint))
}

// If not everything fits, experts are left to be read when they are chosen; and
// if not even the rest does, nothing is read before it is used.
func TestAdviceByAvailableMemory(t *testing.T) {
	dense, expert := make([]byte, 1000), make([]byte, 5000)
	w := &weights{regions: []region{{expert, true}, {dense, false}}, memory: Memory{Buffers: 300, Mapped: 6000}}
	require.False(t, w.memory.exceeds(0), "not known")
	require.False(t, w.memory.exceeds(6300))
	require.True(t, w.memory.exceeds(6299))
	require.Equal(t, [][]byte{dense}, w.advise(0))
	require.Equal(t, [][]byte{dense}, w.advise(6300))
	w.ahead = true
	require.Equal(t, [][]byte{dense}, w.advise(1300))
	require.Empty(t, w.advise(1299))
}

package runtime

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/safetensors"
	"quill/runtime/host"
)

// bigramLogits is the bigram model written down plainly.
func bigramLogits(embed, head [][]float32, text []int32) []float32 {
	out := make([]float32, valid)
	for v := range out {
		for i := range hidden {
			h := embed[text[len(text)-1]][i]
			if len(text) > 1 {
				h += embed[text[len(text)-2]][i]
			}
			out[v] += h * head[v][i]
		}
	}
	return out
}

// A bundle on the CPU device, from the file to the logits.
func TestBigramOnHost(t *testing.T) {
	bundle, model, embed, head := bigram(t)
	for chunk := range 9 {
		s, err := Open(ctx, bundle, Options{Model: model, PrefillChunk: chunk})
		require.NoError(t, err)
		text := []int32{3, 1, 4, 1, 5, 2, 6, 5, 3, 5}
		a, b := sequence(t, s, 20), sequence(t, s, 9)
		seen := 0
		require.NoError(t, s.PrefillAll(ctx, a, text, func(pos int, logits []float32) error {
			require.Equal(t, bigramLogits(embed, head, text[:pos+1]), logits)
			seen++
			return nil
		}))
		require.Equal(t, len(text), seen)
		logits, err := s.Prefill(ctx, b, text[:5])
		require.NoError(t, err)
		require.Equal(t, bigramLogits(embed, head, text[:5]), logits)

		greedyA, greedyB := []int32{0}, []int32{5}
		for range 4 {
			rows, err := s.Decode(ctx, []*Sequence{b, a}, []int32{greedyB[len(greedyB)-1], greedyA[len(greedyA)-1]})
			require.NoError(t, err)
			if len(greedyA) > 1 {
				require.Equal(t, bigramLogits(embed, head, greedyA), rows[1])
				require.Equal(t, bigramLogits(embed, head, greedyB), rows[0])
			}
			greedyA, greedyB = append(greedyA, Argmax(rows[1])), append(greedyB, Argmax(rows[0]))
		}
		c := s.Info().Counters
		require.Equal(t, c.Launches, c.Collectives*2)
		require.NoError(t, c.Static())
		require.NoError(t, s.Close())
	}
}

// What padding writes and what no table lists is never read: NaN there changes
// no bit.
func TestBigramIgnoresTrash(t *testing.T) {
	bundle, model, embed, head := bigram(t)
	s, err := Open(ctx, bundle, Options{Model: model})
	require.NoError(t, err)
	a := sequence(t, s, 12)
	for rank := range ranks {
		conv := s.dev.(*HostDevice).Bytes(rank, recipes.Conv)
		for block := range kvBlocks + 2 {
			if block == int(s.layout.zero) {
				continue
			}
			for i := range hidden {
				binary.LittleEndian.PutUint32(conv[4*(block*hidden+i):], math.Float32bits(float32(math.NaN())))
			}
		}
	}
	text := []int32{1, 2, 3, 4, 5, 6}
	logits, err := s.Prefill(ctx, a, text[:5])
	require.NoError(t, err)
	require.Equal(t, bigramLogits(embed, head, text[:5]), logits)
	rows, err := s.Decode(ctx, []*Sequence{sequence(t, s, 1), a}, text[4:]) // and a pad row
	require.NoError(t, err)
	require.Equal(t, bigramLogits(embed, head, text[4:5]), rows[0])
	require.Equal(t, bigramLogits(embed, head, text), rows[1])
	require.NoError(t, s.Close())
}

// Weights that are not finite are found out.
func TestBigramNonFiniteWeights(t *testing.T) {
	bundle, model, embed, head := bigram(t)
	shape := []int64{vocabulary, hidden}
	head[5][0] = float32(math.Inf(1))
	tensors := []safetensors.Tensor{
		safetensors.FromF32("embed", shape, slices.Concat(embed...)), safetensors.FromF32("head", shape, slices.Concat(head...)),
	}
	require.NoError(t, safetensors.Write(filepath.Join(model, "model.safetensors"), tensors, nil))
	s, err := Open(ctx, bundle, Options{Model: model})
	require.NoError(t, err)
	_, err = s.Prefill(ctx, sequence(t, s, 3), []int32{1, 2})
	require.ErrorIs(t, err, ErrNonFinite)
	require.NoError(t, s.Close())
}

// Ranks have equally many threads.
func TestSessionThreads(t *testing.T) {
	bundle, model, _, _ := bigram(t)
	for want, asked := range map[int]int{1: 1, ranks: ranks, 2 * ranks: 3*ranks - 1} {
		s, err := Open(ctx, bundle, Options{Model: model, Threads: asked})
		require.NoError(t, err)
		require.Equal(t, want, s.Threads())
		require.NoError(t, s.Close())
	}
}

func TestHostDeviceBounds(t *testing.T) {
	d, err := NewHostDevice(host.Options{Ranks: 1, Bytes: map[recipes.Buffer]int64{recipes.KV: 8}})
	require.NoError(t, err)
	buf := []byte{1, 2, 3, 4}
	require.NoError(t, d.Write(0, recipes.KV, 4, buf))
	got := make([]byte, 5)
	require.NoError(t, d.Read(0, recipes.KV, 3, got))
	require.Equal(t, []byte{0, 1, 2, 3, 4}, got)
	require.EqualError(t, d.Write(0, recipes.KV, 5, buf), "4 bytes at byte 5 of buffer kv of rank 0, which has 8")
	require.Error(t, d.Write(0, recipes.KV, -1, buf))
	require.Error(t, d.Read(1, recipes.KV, 0, buf))
	require.Error(t, d.Read(0, recipes.Conv, 0, buf))
	require.NoError(t, d.Close())
	_, err = NewHostDevice(host.Options{})
	require.Error(t, err)
}

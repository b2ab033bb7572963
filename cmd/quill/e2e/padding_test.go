package e2e

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
)

var (
	// notANumber goes where nothing may be read.
	notANumber = []float32{float32(math.NaN())}
	// garbage goes where what is read must not count: scores of it are masked
	// and probabilities zero, which only finite values survive.
	garbage = []float32{1e30, -1e30, 1e-40, 3e38, -3e38, float32(math.Copysign(0, -1)), -1e-45, 12345}
	// smaller goes there before decode steps whose attention is fused: its mask hides
	// normalised keys, which are smaller by far.
	smaller = []float32{1e15, -1e15, 1e-40, 2e15, -2e15, float32(math.Copysign(0, -1)), -1e-45, 12345}
)

// What padding computes and what no table lists has no influence, not on a
// single bit: NaN in the trash block, in blocks that no list names, in the rows
// of padding, in the arena and the carried rows before a step; garbage in slots
// of listed blocks that no token has filled, of any size where attention is plain.
func TestPaddingChangesNoBit(t *testing.T) {
	t.Parallel()
	for i, m := range models {
		for j, tp := range m.tps {
			for k, precision := range []string{"f32", "bf16"} {
				if !soak() && ((i+j)%2 != k || tp == 8) {
					continue
				}
				d := nano(m.name, tp, 8, precision)
				d.maxLen, d.maxBatched = 128, 24
				d.buckets = "prefill q=8,24 c=0,3,16\ndecode b=1 n=1,7,16\ndecode b=4 n=4,12,64\n"
				t.Run(d.String(), func(t *testing.T) {
					paddingChangesNoBit(t, d, smaller)
					if j == 0 {
						d.more = "attention: plain\n"
						paddingChangesNoBit(t, d, garbage)
					}
				})
			}
		}
	}
}

func paddingChangesNoBit(t *testing.T, d deployment, decoding []float32) {
	clean, dirty := newSpoiled(t, d, false), newSpoiled(t, d, true)
	dirty.decoding = decoding
	tokens := slices.Clone(goldenOf(t, filepath.Base(d.model), 200).tokens)
	for i := range tokens {
		tokens[i] = max(tokens[i], 1) // padding has token 0, and it alone
	}
	want, got := clean.story(tokens), dirty.story(tokens)
	sameBits(t, want, got, "logits")
	require.Equal(t, clean.Info().Counters.Used, dirty.Info().Counters.Used)
	dirty.zeroBlockIsUntouched()
	record(t, "padding, bits of logits", farthestRow(got, want), 0)
}

// The poison of the test above works: where it counts, it is found.
func TestSpoiledStateIsFound(t *testing.T) {
	t.Parallel()
	d := nano("nano-dense", 2, 8, "f32")
	d.maxLen, d.maxBatched = 128, 24
	d.buckets = "prefill q=8,24 c=0,3,16\ndecode b=1 n=7,16\ndecode b=4 n=12,64\n"
	first := func(buffer recipes.Buffer) func(*spoiled) int32 {
		return func(h *spoiled) int32 {
			for i := range h.states {
				if s := &h.states[i]; s.buffer == buffer {
					block := s.rows / int64(h.Info().Deployment.KVBlocks+2)
					s.fill(h.device.Bytes(1, buffer), block, notANumber) // the first row of block 1
				}
			}
			return 3
		}
	}
	for what, act := range map[string]func(h *spoiled) (token int32){
		"pad token":         func(*spoiled) int32 { return 0 },
		"keys and values":   first(recipes.KV),
		"convolution rows":  first(recipes.Conv),
		"nothing, and fine": func(*spoiled) int32 { return 3 },
	} {
		t.Run(what, func(t *testing.T) {
			h := newSpoiled(t, d, true)
			q := h.start(20)
			h.prefill(q, slices.Repeat([]int32{3}, 11))
			h.spoil(smaller, 1, q)
			token := act(h)
			_, err := h.Decode(t.Context(), []*runtime.Sequence{q.Sequence}, []int32{token})
			if what == "nothing, and fine" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, runtime.ErrNonFinite)
		})
	}
}

package e2e

import (
	"math"
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
)

// What padding computes and what no table lists has no influence, not on a
// single bit: NaN in the trash block, in blocks that no list names, in the rows
// of padding, in the arena and the carried rows before a step; garbage in slots
// of listed blocks that no token has filled.
func TestPaddingChangesNoBit(t *testing.T) {
	t.Parallel()
	for i, m := range models {
		for j, tp := range m.tps {
			for k, precision := range []string{"f32", "bf16"} {
				if !soak() && ((i+j)%2 != k || tp == 8) {
					continue
				}
				d := nano(m.name, tp, 8, precision)
				d.maxLen = 128
				d.buckets = "prefill q=8,24 c=0,3,16\ndecode b=1 n=7,16\ndecode b=4 n=12,64\n"
				t.Run(d.String(), func(t *testing.T) {
					clean, dirty := newHaunted(t, d, false), newHaunted(t, d, true)
					tokens := slices.Clone(goldenOf(t, m.name, 200).tokens)
					for i := range tokens {
						tokens[i] = max(tokens[i], 1) // padding has token 0, and it alone
					}
					sameBits(t, clean.story(tokens), dirty.story(tokens), "logits")
					require.Equal(t, clean.Info().Counters.Used, dirty.Info().Counters.Used)
					record(t, "padding, bits of logits", 0, 0)
				})
			}
		}
	}
}

// haunted is a session of which everything is overwritten before each step that
// the step must not depend on.
type haunted struct {
	*served
	t      *testing.T
	on     bool
	block  int
	states []stateTensor
	seqs   []*hauntedSequence
}

// hauntedSequence knows its blocks: a new session hands out the lowest ones.
type hauntedSequence struct {
	*runtime.Sequence
	first, blocks int
}

func newHaunted(t *testing.T, d deployment, on bool) *haunted {
	s := &served{}
	require.NoError(t, s.start(t.Context(), d))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	h := &haunted{served: s, t: t, on: on, block: d.block, states: statesOf(t, s.bundle, &s.bundle.Sets[0])}
	if on {
		h.spoilPadToken()
	}
	return h
}

// spoilPadToken makes the embedding of token 0 NaN, and so every hidden row of
// padding.
func (h *haunted) spoilPadToken() {
	for _, w := range h.bundle.Sets[0].Weights {
		if w.Tensor != "model.llm.embed.weight" {
			continue
		}
		row := &stateTensor{recipes.Weights, w.Offset, 1, w.Shape[1], w.DType}
		for rank := range h.device.Ranks() {
			row.fill(h.device.Bytes(rank, recipes.Weights), 0, notANumber)
		}
		return
	}
	require.Fail(h.t, "no embedding")
}

// start reserves a sequence.
func (h *haunted) start(maxTokens int) *hauntedSequence {
	q, err := h.NewSequence(maxTokens)
	require.NoError(h.t, err)
	h.t.Cleanup(q.Close)
	s := &hauntedSequence{q, 0, (maxTokens + h.block - 1) / h.block}
	if n := len(h.seqs); n > 0 {
		s.first = h.seqs[n-1].first + h.seqs[n-1].blocks
	}
	h.seqs = append(h.seqs, s)
	return s
}

// haunt prepares a step that appends n tokens to some sequences.
func (h *haunted) haunt(n int, qs ...*hauntedSequence) {
	if !h.on {
		return
	}
	deployment := h.Info().Deployment
	kept, listed := h.blocksOf(n, qs)
	for rank := range h.device.Ranks() {
		for _, b := range []recipes.Buffer{recipes.Arena, recipes.Carry} {
			mem := h.device.Bytes(rank, b)
			for i := range mem {
				mem[i] = 0xff // NaN in both float types
			}
		}
		for i := range h.states {
			s := &h.states[i]
			perBlock := s.rows / int64(deployment.KVBlocks+2)
			for row := range s.rows {
				block := int(row / perBlock)
				switch {
				case block == deployment.ZeroBlock():
				case int(row%perBlock) < kept[block]: // holds a token, or the rows before one
				case listed[block] && s.buffer == recipes.KV:
					s.fill(h.device.Bytes(rank, s.buffer), row, garbage)
				default:
					s.fill(h.device.Bytes(rank, s.buffer), row, notANumber)
				}
			}
		}
	}
}

// blocksOf counts the tokens in each block and names those that a step lists.
func (h *haunted) blocksOf(n int, qs []*hauntedSequence) (kept map[int]int, listed map[int]bool) {
	kept, listed = map[int]int{}, map[int]bool{}
	for _, q := range h.seqs {
		for pos := range q.Len() {
			kept[q.first+pos/h.block]++
		}
	}
	for _, q := range qs {
		for pos := range q.Len() + n {
			listed[q.first+pos/h.block] = true
		}
	}
	return kept, listed
}

// prefill feeds one chunk.
func (h *haunted) prefill(q *hauntedSequence, tokens []int32) (rows [][]float32) {
	h.haunt(len(tokens), q)
	require.NoError(h.t, h.PrefillAll(h.t.Context(), q.Sequence, tokens, func(_ int, logits []float32) error {
		rows = append(rows, slices.Clone(logits))
		return nil
	}))
	return rows
}

// decode feeds a token each.
func (h *haunted) decode(tokens []int32, qs ...*hauntedSequence) [][]float32 {
	h.haunt(1, qs...)
	var seqs []*runtime.Sequence
	for _, q := range qs {
		seqs = append(seqs, q.Sequence)
	}
	rows, err := h.Decode(h.t.Context(), seqs, tokens)
	require.NoError(h.t, err)
	return rows
}

// story feeds sequences in steps of all kinds, nearly all of them padded, and
// returns all logits.
func (h *haunted) story(tokens []int32) (rows [][]float32) {
	add := func(more [][]float32) { rows = append(rows, more...) }
	a, b, c := h.start(100), h.start(20), h.start(3)
	for _, n := range []int{1, 2, 7, 23, 8, 6, 5, 1} { // 53
		add(h.prefill(a, tokens[a.Len():a.Len()+n]))
	}
	add(h.prefill(b, tokens[60:73]))
	add(h.decode(tokens[80:81], c)) // nothing before it
	add(h.decode(tokens[81:82], a))
	for i := range 6 {
		add(h.decode(tokens[90+2*i:92+2*i], b, a))
	}
	add(h.decode(tokens[110:113], a, c, b))
	add(h.prefill(a, tokens[113:120]))
	add(h.decode(tokens[120:121], a))
	return rows
}

// The poison of the test above works: where it counts, it is found.
func TestSpoiledStateIsFound(t *testing.T) {
	t.Parallel()
	d := nano("nano-dense", 2, 8, "f32")
	d.maxLen = 128
	d.buckets = "prefill q=8,24 c=0,3,16\ndecode b=1 n=7,16\ndecode b=4 n=12,64\n"
	first := func(buffer recipes.Buffer) func(*haunted) int32 {
		return func(h *haunted) int32 {
			for i := range h.states {
				if s := &h.states[i]; s.buffer == buffer {
					block := s.rows / int64(h.Info().Deployment.KVBlocks+2)
					s.fill(h.device.Bytes(1, buffer), block, notANumber) // the first row of block 1
				}
			}
			return 3
		}
	}
	for what, spoil := range map[string]func(h *haunted) (token int32){
		"pad token":         func(*haunted) int32 { return 0 },
		"keys and values":   first(recipes.KV),
		"convolution rows":  first(recipes.Conv),
		"nothing, and fine": func(*haunted) int32 { return 3 },
	} {
		t.Run(what, func(t *testing.T) {
			h := newHaunted(t, d, true)
			q := h.start(20)
			h.prefill(q, slices.Repeat([]int32{3}, 11))
			h.haunt(1, q)
			token := spoil(h)
			_, err := h.Decode(t.Context(), []*runtime.Sequence{q.Sequence}, []int32{token})
			if what == "nothing, and fine" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, runtime.ErrNonFinite)
		})
	}
}

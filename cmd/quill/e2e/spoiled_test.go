package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
)

// spoiled is a session of which everything is overwritten before each step that
// the step must not depend on.
type spoiled struct {
	*served
	t      *testing.T
	on     bool
	block  int
	states []stateTensor
	seqs   []*spoiledSequence
	// decoding is what slots that no token has filled hold before a decode step.
	decoding []float32
}

// spoiledSequence knows its blocks: a new session hands out the lowest ones.
type spoiledSequence struct {
	*runtime.Sequence
	first, blocks int
}

func newSpoiled(t *testing.T, d deployment, on bool) *spoiled {
	s := &served{}
	require.NoError(t, s.start(t.Context(), d))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	bundle, err := recipes.ReadBundle(s.path)
	require.NoError(t, err)
	set := &bundle.Sets[0]
	h := &spoiled{served: s, t: t, on: on, block: d.block, states: statesOf(t, bundle, set), decoding: smaller}
	if on {
		h.spoilPadToken(set.Weights)
	}
	return h
}

// spoilPadToken makes the embedding of token 0 NaN, and so every hidden row of
// padding.
func (h *spoiled) spoilPadToken(weights []recipes.Weight) {
	for _, w := range weights {
		if w.Tensor != "model.llm.embed.weight" {
			continue
		}
		row := &stateTensor{recipes.Weights, w.Offset, 1, w.Shape[1], w.DType}
		for rank := range h.device.Ranks() {
			if rank*w.Ways/h.device.Ranks() == 0 { // the part that it has begins with token 0
				row.fill(h.device.Bytes(rank, recipes.Weights), 0, notANumber)
			}
		}
		return
	}
	require.Fail(h.t, "no embedding")
}

// start reserves a sequence.
func (h *spoiled) start(maxTokens int) *spoiledSequence {
	q, err := h.NewSequence(maxTokens)
	require.NoError(h.t, err)
	h.t.Cleanup(q.Close)
	s := &spoiledSequence{q, 0, (maxTokens + h.block - 1) / h.block}
	if n := len(h.seqs); n > 0 {
		s.first = h.seqs[n-1].first + h.seqs[n-1].blocks
	}
	h.seqs = append(h.seqs, s)
	return s
}

// spoil prepares a step that appends n tokens to some sequences. Slots of their blocks
// that no token has filled get some values.
func (h *spoiled) spoil(unfilled []float32, n int, qs ...*spoiledSequence) {
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
					s.fill(h.device.Bytes(rank, s.buffer), row, unfilled)
				default:
					s.fill(h.device.Bytes(rank, s.buffer), row, notANumber)
				}
			}
		}
	}
}

// zeroBlockIsUntouched checks what fresh sequences read.
func (h *spoiled) zeroBlockIsUntouched() {
	deployment := h.Info().Deployment
	for rank := range h.device.Ranks() {
		for i := range h.states {
			s := &h.states[i]
			size := s.bytes() / int64(deployment.KVBlocks+2)
			block := h.device.Bytes(rank, s.buffer)[s.offset+size*int64(deployment.ZeroBlock()):][:size]
			require.Equal(h.t, make([]byte, size), block)
		}
	}
}

// blocksOf counts the tokens in each block and names those that a step lists.
func (h *spoiled) blocksOf(n int, qs []*spoiledSequence) (kept map[int]int, listed map[int]bool) {
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
func (h *spoiled) prefill(q *spoiledSequence, tokens []int32) (rows [][]float32) {
	h.spoil(garbage, len(tokens), q)
	require.NoError(h.t, h.PrefillAll(h.t.Context(), q.Sequence, tokens, func(_ int, logits []float32) error {
		rows = append(rows, slices.Clone(logits))
		return nil
	}))
	return rows
}

// decode feeds a token each.
func (h *spoiled) decode(tokens []int32, qs ...*spoiledSequence) [][]float32 {
	h.spoil(h.decoding, 1, qs...)
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
func (h *spoiled) story(tokens []int32) (rows [][]float32) {
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

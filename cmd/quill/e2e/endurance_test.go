package e2e

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	quill "quill/runtime"
)

// Many steps give the same tokens every time round, allocate nothing and leave
// the memory as it was. go test takes a few rounds, QUILL_SOAK=1 100,000 steps.
func TestEnduranceSoak(t *testing.T) {
	steps := 2000
	if soak() {
		steps = 100_000
	}
	ctx := t.Context()
	s := nano("nano-small", 1, 16, "f32").open(t)
	prompt := expectedI32(t, "nano-small", "greedy.prompt")
	const limit = 256
	row := [][]float32{make([]float32, s.Info().Model.ValidVocab)}
	round := func() (tokens []int32) {
		q, err := s.NewSequence(limit)
		require.NoError(t, err)
		defer q.Close()
		logits, err := s.Prefill(ctx, q, prompt)
		require.NoError(t, err)
		next := []int32{quill.Argmax(logits)}
		for q.Len() < limit {
			tokens = append(tokens, next[0])
			require.NoError(t, s.DecodeInto(ctx, []*quill.Sequence{q}, next, row))
			next[0] = quill.Argmax(row[0])
		}
		return tokens
	}
	first := round()
	goroutines := runtime.NumGoroutine()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	done := 0
	for done < steps {
		tokens := round()
		require.Equal(t, first, tokens)
		done += len(tokens)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(1<<20), "memory grew in %d steps", done)
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	require.NoError(t, unstatic(s.Session), "%d steps", done)
}

// A decode step allocates nothing, on any number of threads and ranks.
func TestStepsAllocateNothing(t *testing.T) {
	ctx := t.Context()
	for _, tp := range []int{1, 2} {
		s := nano("nano-small", tp, 16, "f32").open(t)
		q, err := s.NewSequence(200)
		require.NoError(t, err)
		_, err = s.Prefill(ctx, q, expectedI32(t, "nano-small", "greedy.prompt"))
		require.NoError(t, err)
		qs, tokens := []*quill.Sequence{q}, []int32{1}
		row := [][]float32{make([]float32, s.Info().Model.ValidVocab)}
		require.Zero(t, testing.AllocsPerRun(50, func() {
			if err := s.DecodeInto(ctx, qs, tokens, row); err != nil {
				t.Error(err)
			}
		}))
		q.Close()
		require.NoError(t, unstatic(s.Session))
	}
}

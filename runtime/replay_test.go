package runtime

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes"
)

// coverAll is a set of buckets that covers everything the limits admit, with
// some padding everywhere.
func (l *simLimits) coverAll() {
	blocks := (l.maxLen + l.block - 1) / l.block
	for q := 1; ; q *= 2 {
		q = min(q, l.maxTokens)
		for c := 0; ; c = max(1, 3*c) {
			l.buckets = append(l.buckets, recipes.Bucket{Phase: recipes.Prefill, Query: q, Blocks: min(c, blocks)})
			if c >= blocks {
				break
			}
		}
		if q == l.maxTokens {
			break
		}
	}
	for _, s := range []int{1, l.maxSeqs} {
		for n := 1; ; n *= 3 {
			l.buckets = append(l.buckets, recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: n})
			if n >= s*blocks {
				break
			}
		}
	}
	l.buckets = append(l.buckets, recipes.Bucket{Phase: recipes.Logits, Seqs: 1}, recipes.Bucket{Phase: recipes.Logits, Seqs: 3})
	l.buckets = distinctBuckets(l.buckets)
}

func distinctBuckets(all []recipes.Bucket) []recipes.Bucket {
	var out []recipes.Bucket
	for _, b := range all {
		if !slices.Contains(out, b) {
			out = append(out, b)
		}
	}
	return out
}

func simSession(t testing.TB, l simLimits, opt Options) (*Session, *simDevice) {
	bundle, model := simBundle(t, l)
	return simSessionOf(t, bundle, model, l, opt)
}

func simSessionOf(t testing.TB, bundle, model string, l simLimits, opt Options) (*Session, *simDevice) {
	var dev *simDevice
	opt.Model, opt.NewDevice = model, l.device(&dev)
	s, err := Open(context.Background(), bundle, opt)
	require.NoError(t, err)
	s.layout.pad = simPad
	return s, dev
}

// Whatever is fed in whatever order, the logits are those of the texts. The
// device checks the meaning of every input on the way.
func TestReplayMeansTheTexts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := simLimits{
			block:     rapid.IntRange(1, 6).Draw(rt, "block"),
			maxSeqs:   rapid.IntRange(1, 4).Draw(rt, "seqs"),
			maxTokens: rapid.IntRange(1, 12).Draw(rt, "batched"),
			maxLen:    rapid.IntRange(1, 40).Draw(rt, "len"),
			ranks:     rapid.IntRange(1, 3).Draw(rt, "ranks"),
			window:    rapid.IntRange(0, 15).Draw(rt, "window"),
		}
		l.blocks = (l.maxLen+l.block-1)/l.block + rapid.IntRange(0, 20).Draw(rt, "spare")
		l.coverAll()
		s, dev := simSession(t, l, Options{PrefillChunk: rapid.IntRange(0, 8).Draw(rt, "chunk")})
		w := &world{s: s, limits: l}
		rt.Repeat(map[string]func(*rapid.T){
			"open":       w.open,
			"prefill":    w.prefill,
			"prefillAll": w.prefillAll,
			"decode":     w.decode,
			"close":      w.close,
			"":           w.check,
		})
		require.Equal(rt, [3]int32{}, dev.conv[dev.zero()], "the zero block was written")
		require.Equal(rt, int32(-1), dev.tokens[int(dev.zero())*l.block], "the zero block was written")
		require.NoError(rt, s.Close())
	})
}

// world is what the caller of a session knows.
type world struct {
	s      *Session
	limits simLimits
	live   []*text
}

type text struct {
	q      *Sequence
	tokens []int32
}

func (w *world) open(rt *rapid.T) {
	n := rapid.IntRange(1, w.limits.maxLen).Draw(rt, "max tokens")
	free := w.s.pool.count
	need := (n + w.limits.block - 1) / w.limits.block
	q, err := w.s.NewSequence(n)
	switch {
	case len(w.live) == w.limits.maxSeqs:
		require.ErrorIs(rt, err, ErrTooManySequences)
	case need > free:
		require.ErrorIs(rt, err, ErrNoBlocks)
		require.ErrorContains(rt, err, fmt.Sprintf("need %d blocks of %d, %d of %d are free", need, w.limits.block, free, w.limits.blocks))
	default:
		require.NoError(rt, err)
		w.live = append(w.live, &text{q: q})
	}
}

// pick draws an open text with room.
func (w *world) pick(rt *rapid.T) *text {
	var some []*text
	for _, x := range w.live {
		if x.q.Len() < x.q.Cap() {
			some = append(some, x)
		}
	}
	if len(some) == 0 {
		rt.Skip("nothing to feed")
	}
	return rapid.SampledFrom(some).Draw(rt, "text")
}

func (w *world) more(rt *rapid.T, x *text) []int32 {
	return rapid.SliceOfN(rapid.Int32Range(0, simValid-1), 1, x.q.Cap()-x.q.Len()).Draw(rt, "tokens")
}

func (w *world) prefill(rt *rapid.T) {
	x := w.pick(rt)
	more := w.more(rt, x)
	logits, err := w.s.Prefill(context.Background(), x.q, more)
	require.NoError(rt, err)
	x.tokens = append(x.tokens, more...)
	require.Equal(rt, simLogits(x.tokens), logits)
}

func (w *world) prefillAll(rt *rapid.T) {
	x := w.pick(rt)
	more := w.more(rt, x)
	at := len(x.tokens)
	x.tokens = append(x.tokens, more...)
	require.NoError(rt, w.s.PrefillAll(context.Background(), x.q, more, func(pos int, logits []float32) error {
		require.Equal(rt, at, pos)
		require.Equal(rt, simLogits(x.tokens[:pos+1]), logits)
		at++
		return nil
	}))
	require.Equal(rt, len(x.tokens), at)
}

func (w *world) decode(rt *rapid.T) {
	var qs []*Sequence
	var tokens []int32
	var want [][]float32
	order := slices.Clone(w.live)
	if len(order) > 1 {
		order = rapid.Permutation(order).Draw(rt, "order")
	}
	for _, x := range order {
		if x.q.Len() == x.q.Cap() || rapid.IntRange(0, 3).Draw(rt, "skip") == 0 {
			continue
		}
		token := rapid.Int32Range(0, simValid-1).Draw(rt, "token")
		x.tokens = append(x.tokens, token)
		qs, tokens, want = append(qs, x.q), append(tokens, token), append(want, simLogits(x.tokens))
	}
	if len(qs) == 0 {
		rt.Skip("nothing to decode")
	}
	logits, err := w.s.Decode(context.Background(), qs, tokens)
	require.NoError(rt, err)
	require.Equal(rt, want, logits)
}

func (w *world) close(rt *rapid.T) {
	if len(w.live) == 0 {
		rt.Skip("nothing open")
	}
	i := rapid.IntRange(0, len(w.live)-1).Draw(rt, "which")
	w.live[i].q.Close()
	w.live[i].q.Close()
	w.live = slices.Delete(w.live, i, i+1)
}

// check compares the pool with the open texts.
func (w *world) check(rt *rapid.T) {
	used := make(map[int32]bool)
	for _, x := range w.live {
		require.Equal(rt, len(x.tokens), x.q.Len())
		for _, b := range x.q.blocks {
			require.False(rt, used[b], "block %d has two owners", b)
			used[b] = true
		}
	}
	c := w.s.Info().Counters
	require.Equal(rt, w.limits.blocks-len(used), c.FreeBlocks)
	require.Equal(rt, len(w.live), c.Sequences)
	require.NoError(rt, c.Static())
}

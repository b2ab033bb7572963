package runtime

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

var ctx = context.Background()

// small is a deployment for the error paths.
func small() simLimits {
	l := simLimits{block: 4, blocks: 8, maxLen: 20, maxSeqs: 3, maxTokens: 8, ranks: 2}
	l.coverAll()
	return l
}

func sequence(t testing.TB, s *Session, n int) *Sequence {
	q, err := s.NewSequence(n)
	require.NoError(t, err)
	return q
}

func TestNewSequenceRefuses(t *testing.T) {
	s, _ := simSession(t, small(), Options{})
	for n, want := range map[int]string{
		0:  "0 tokens, want at least 1",
		-1: "-1 tokens",
		21: "21, max_model_len is 20",
	} {
		_, err := s.NewSequence(n)
		require.ErrorContains(t, err, want)
	}
	_, err := s.NewSequence(21)
	require.ErrorIs(t, err, ErrTooLong)
	a := sequence(t, s, 20)
	_, err = s.NewSequence(16)
	require.ErrorIs(t, err, ErrNoBlocks)
	require.EqualError(t, err, "new sequence: too few free blocks: 16 tokens need 4 blocks of 4, 3 of 8 are free")
	b, c := sequence(t, s, 1), sequence(t, s, 8)
	_, err = s.NewSequence(1)
	require.ErrorIs(t, err, ErrTooManySequences)
	require.ErrorContains(t, err, "max_num_seqs is 3")
	require.Equal(t, []int64{1, 2, 3}, []int64{a.ID(), b.ID(), c.ID()})
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = s.NewSequence(1)
	require.ErrorIs(t, err, ErrClosed)
	a.Close()
}

// Blocks go to sequences lowest first, also after others were returned.
func TestBlocksAreReusedInOrder(t *testing.T) {
	s, _ := simSession(t, small(), Options{})
	a, b := sequence(t, s, 8), sequence(t, s, 4)
	require.Equal(t, []int32{0, 1}, a.blocks)
	require.Equal(t, []int32{2}, b.blocks)
	a.Close()
	require.Equal(t, []int32{0, 1, 3}, sequence(t, s, 12).blocks)
}

func TestStepsRefuse(t *testing.T) {
	s, dev := simSession(t, small(), Options{})
	other, _ := simSession(t, small(), Options{})
	a, b, closed := sequence(t, s, 6), sequence(t, s, 4), sequence(t, s, 4)
	closed.Close()
	foreign := sequence(t, other, 4)
	steps := func() int64 { return s.Info().Counters.Steps }

	prefill := func(q *Sequence, tokens ...int32) error {
		_, err := s.Prefill(ctx, q, tokens)
		return err
	}
	decode := func(qs []*Sequence, tokens ...int32) error {
		logits, err := s.Decode(ctx, qs, tokens)
		require.Nil(t, logits)
		return err
	}
	for _, c := range []struct {
		err  error
		is   error
		want string
	}{
		{prefill(a), nil, "prefill: no tokens"},
		{prefill(nil, 1), nil, "prefill: no sequence"},
		{prefill(closed, 1), ErrClosed, "sequence 3 is closed"},
		{prefill(foreign, 1), nil, "sequence 1 is of another session"},
		{prefill(a, 1, 2, 3, 4, 5, 6, 7), ErrTooLong, "sequence 1 has 0 of 6 reserved, cannot take 7 more"},
		{prefill(a, 1, 11), ErrToken, "no such token: 11 at position 1 of sequence 1, valid are 0 to 10"},
		{prefill(a, -1), ErrToken, "-1 at position 0"},
		{decode(nil), nil, "decode: no sequences"},
		{decode([]*Sequence{a}), nil, "0 tokens and 1 rows of logits for 1 sequences"},
		{decode([]*Sequence{a, b, a}, 1, 1, 1), nil, "sequence 1 is in the batch twice"},
		{decode([]*Sequence{a, nil}, 1, 1), nil, "no sequence"},
		{decode([]*Sequence{a, closed}, 1, 1), ErrClosed, "sequence 3 is closed"},
		{decode([]*Sequence{a, b}, 1, 99), ErrToken, "99 at position 0 of sequence 2"},
		{s.DecodeInto(ctx, []*Sequence{a}, []int32{1}, [][]float32{nil}), nil, "row 0 has room for 0 logits, want 11"},
	} {
		require.ErrorContains(t, c.err, c.want)
		if c.is != nil {
			require.ErrorIs(t, c.err, c.is)
		}
	}
	require.Zero(t, steps(), "a refused step ran")

	// Nothing that was refused left a trace.
	require.NoError(t, prefill(a, 1, 2, 3, 4, 5, 6))
	require.ErrorIs(t, decode([]*Sequence{b, a}, 1, 1), ErrTooLong)
	require.NoError(t, prefill(b, 1))
	require.Equal(t, 6, a.Len())
	require.Equal(t, 6, a.Cap())
	require.NoError(t, a.Err())
	require.NoError(t, s.Close())
	require.ErrorIs(t, prefill(b, 1), ErrClosed)
	require.Equal(t, 1, dev.closed)
}

// A cancelled context before a chunk leaves the sequence usable; within one it
// does not.
func TestCancel(t *testing.T) {
	s, dev := simSession(t, small(), Options{})
	q := sequence(t, s, 20)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err := s.Prefill(cancelled, q, []int32{1})
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Decode(cancelled, []*Sequence{q}, []int32{1})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, q.Err())

	between, cancel := context.WithCancel(ctx)
	text := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 1}
	err = s.PrefillAll(between, q, text, func(pos int, _ []float32) error {
		if pos == 7 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "sequence 1, position 8")
	require.Equal(t, 8, q.Len())
	logits, err := s.Prefill(ctx, q, text[8:])
	require.NoError(t, err)
	require.Equal(t, simLogits(text), logits)

	within, cancel := context.WithCancel(ctx)
	dev.beforeRun = cancel
	_, err = s.Prefill(within, q, []int32{1})
	require.ErrorIs(t, err, context.Canceled)
	dev.beforeRun = nil
	require.ErrorIs(t, q.Err(), context.Canceled)
	_, err = s.Prefill(ctx, q, []int32{1})
	require.ErrorContains(t, err, "sequence 1 failed before and can only be closed")
	require.NotErrorIs(t, err, context.Canceled)
	q.Close()
	require.Equal(t, 8, s.Info().Counters.FreeBlocks)
}

func TestDeviceErrorNamesThePlace(t *testing.T) {
	s, dev := simSession(t, small(), Options{})
	a, b := sequence(t, s, 4), sequence(t, s, 4)
	dev.failing = errors.New("node 3 broke")
	_, err := s.Decode(ctx, []*Sequence{a, b}, []int32{1, 2})
	require.EqualError(t, err, `decode: plan decode/b=3,n=3: node 3 broke`)
	require.Error(t, a.Err())
	require.Error(t, b.Err())
	dev.failing = nil
	_, err = s.Decode(ctx, []*Sequence{a}, []int32{1})
	require.ErrorContains(t, err, "failed before")
}

// Sequences whose logits are not finite fail; the rest of the batch goes on.
// Their blocks come back clean, once no sequence could read them.
func TestNonFinite(t *testing.T) {
	s, dev := simSession(t, small(), Options{})
	dev.poison = 9
	a, b, c := sequence(t, s, 4), sequence(t, s, 4), sequence(t, s, 4)
	logits, err := s.Decode(ctx, []*Sequence{a, b, c}, []int32{1, 9, 2})
	require.ErrorIs(t, err, ErrNonFinite)
	require.EqualError(t, err, "decode: sequence 2, position 0, step 1: logits are not finite: the one of token 3 is NaN")
	require.Equal(t, [][]float32{simLogits([]int32{1}), nil, simLogits([]int32{2})}, logits)

	// The failure of b is not a failure of this batch.
	logits, err = s.Decode(ctx, []*Sequence{a, b}, []int32{1, 1})
	require.ErrorContains(t, err, "sequence 2 failed before")
	require.NotErrorIs(t, err, ErrNonFinite)
	require.Nil(t, logits)
	logits, err = s.Decode(ctx, []*Sequence{a, c}, []int32{5, 6})
	require.NoError(t, err)
	require.Equal(t, simLogits([]int32{1, 5}), logits[0])

	_, err = s.Prefill(ctx, c, []int32{1, 9})
	require.ErrorIs(t, err, ErrNonFinite)
	require.ErrorContains(t, err, "sequence 3, position 3")
	err = s.PrefillAll(ctx, a, []int32{9, 1}, func(pos int, logits []float32) error {
		t.Errorf("logits of position %d are %v", pos, logits)
		return nil
	})
	require.ErrorContains(t, err, "sequence 1, position 2, step 4")

	plantNaN(dev, recipes.KV, recipes.Conv)
	b.Close()
	c.Close()
	require.Equal(t, 5, s.Info().Counters.FreeBlocks)
	_, err = s.NewSequence(20)
	require.NoError(t, err)
	_, err = s.NewSequence(4)
	require.ErrorContains(t, err, "0 of 8 are free (2 are kept back")
	require.Equal(t, byte(0xff), dev.mem[0][recipes.KV][0])
}

func TestHeldBlocksReturnZeroed(t *testing.T) {
	s, dev := simSession(t, small(), Options{})
	dev.poison = 9
	a, b := sequence(t, s, 20), sequence(t, s, 4)
	_, err := s.Prefill(ctx, a, []int32{9})
	require.ErrorIs(t, err, ErrNonFinite)
	plantNaN(dev, recipes.KV, recipes.Conv)
	a.Close()
	require.Equal(t, 2, s.Info().Counters.FreeBlocks)
	b.Close()
	require.Equal(t, 8, s.Info().Counters.FreeBlocks)
	for rank := range dev.mem {
		for _, buf := range []recipes.Buffer{recipes.KV, recipes.Conv} {
			require.Equal(t, make([]byte, 64), dev.mem[rank][buf])
		}
	}
	require.Equal(t, []int32{0, 1, 2, 3, 4}, sequence(t, s, 20).blocks)
}

func plantNaN(dev *simDevice, buffers ...recipes.Buffer) {
	for _, mem := range dev.mem {
		for _, b := range buffers {
			for i := range mem[b] {
				mem[b][i] = 0xff
			}
		}
	}
}

// A second goroutine is refused while a step runs, but may ask, admit and
// close.
func TestSecondGoroutine(t *testing.T) {
	s, dev := simSession(t, small(), Options{})
	a, b := sequence(t, s, 8), sequence(t, s, 8)
	var once sync.Once
	dev.beforeRun = func() {
		once.Do(func() {
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, err := s.Prefill(ctx, b, []int32{1})
				require.ErrorIs(t, err, ErrBusy)
				_, err = s.Decode(ctx, []*Sequence{b}, []int32{1})
				require.ErrorIs(t, err, ErrBusy)
				require.ErrorIs(t, s.Close(), ErrBusy)
				b.Close()
				a.Close()
				require.Equal(t, 4, s.Info().Counters.FreeBlocks)
				c, err := s.NewSequence(4)
				require.NoError(t, err)
				require.Equal(t, []int32{4}, c.blocks, "a block of the running step was given away")
				c.Close()
			}()
			<-done
		})
	}
	logits, err := s.Prefill(ctx, a, []int32{1, 2})
	require.NoError(t, err)
	require.Equal(t, simLogits([]int32{1, 2}), logits)
	require.Equal(t, 8, s.Info().Counters.FreeBlocks)
	_, err = s.Prefill(ctx, a, []int32{1})
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, s.Close())
}

func TestPrefillAllStopsWhenAsked(t *testing.T) {
	s, _ := simSession(t, small(), Options{PrefillChunk: 5})
	q := sequence(t, s, 20)
	enough := errors.New("enough")
	seen := 0
	err := s.PrefillAll(ctx, q, []int32{1, 2, 3, 4, 5, 6, 7}, func(int, []float32) error {
		if seen++; seen == 2 {
			return enough
		}
		return nil
	})
	require.ErrorIs(t, err, enough)
	require.Equal(t, 5, q.Len())
	require.NoError(t, q.Err())
}

func TestCountersAndChunks(t *testing.T) {
	s, dev := simSession(t, small(), Options{PrefillChunk: 3})
	q := sequence(t, s, 20)
	_, err := s.Prefill(ctx, q, []int32{1, 2, 3, 4, 5, 6, 7})
	require.NoError(t, err)
	_, err = s.Decode(ctx, []*Sequence{q}, []int32{1})
	require.NoError(t, err)
	info := s.Info()
	require.Equal(t, Counters{
		Steps: 4, Launches: 6, Sequences: 1, FreeBlocks: 3,
		Used: map[recipes.Bucket]int64{
			{Phase: recipes.Prefill, Query: 4}:            1,
			{Phase: recipes.Prefill, Query: 4, Blocks: 1}: 1,
			{Phase: recipes.Prefill, Query: 1, Blocks: 3}: 1,
			{Phase: recipes.Decode, Seqs: 1, Blocks: 3}:   1,
			{Phase: recipes.Logits, Seqs: 1}:              2,
		},
	}, info.Counters)
	require.Equal(t, len(info.Buckets), dev.binds, "each plan is bound once")
	require.Equal(t, "f32", info.Precision)
	require.Equal(t, simValid, info.Model.ValidVocab)
	info.Bytes[recipes.KV], info.Buckets[0].Query = 1, 77
	require.Equal(t, int64(64), s.Info().Bytes[recipes.KV])
	require.NotEqual(t, 77, s.Info().Buckets[0].Query)
}

// A sequence that could come to a step without a bucket is refused with its phase and
// sizes, before it has blocks or a step ran; others go on.
func TestNoBucket(t *testing.T) {
	whole := func() simLimits {
		return simLimits{block: 4, blocks: 15, maxLen: 20, maxSeqs: 3, maxTokens: 8, ranks: 2}
	}
	type sizes = recipes.Bucket
	for _, c := range []struct {
		name    string
		buckets []recipes.Bucket
		raise   func(*simLimits) // limits beyond those that the buckets were made for
		open    []int            // sequences that are admitted before
		tokens  int              // of the one that is not
		need    recipes.Bucket
	}{
		{"history", []sizes{{Phase: recipes.Prefill, Query: 8, Blocks: 3}, {Phase: recipes.Decode, Seqs: 3, Blocks: 15}}, nil, []int{13}, 14, sizes{Phase: recipes.Prefill, Query: 1, Blocks: 4}},
		{"no prefill", []sizes{{Phase: recipes.Decode, Seqs: 3, Blocks: 15}}, nil, nil, 1, sizes{Phase: recipes.Prefill, Query: 1}},
		{"references", []sizes{{Phase: recipes.Prefill, Query: 8, Blocks: 5}, {Phase: recipes.Decode, Seqs: 3, Blocks: 4}}, nil, []int{16}, 4, sizes{Phase: recipes.Decode, Seqs: 2, Blocks: 5}},
		{"sequences", []sizes{{Phase: recipes.Prefill, Query: 8, Blocks: 5}, {Phase: recipes.Decode, Seqs: 2, Blocks: 15}}, nil, []int{1, 1}, 1, sizes{Phase: recipes.Decode, Seqs: 3, Blocks: 3}},
		{"no decode", []sizes{{Phase: recipes.Prefill, Query: 8, Blocks: 5}}, nil, nil, 20, sizes{Phase: recipes.Decode, Seqs: 1, Blocks: 5}},
		{"longer requests", nil, func(l *simLimits) { l.maxLen = 24 }, []int{20}, 24, sizes{Phase: recipes.Prefill, Query: 1, Blocks: 6}},
		{"more sequences", nil, func(l *simLimits) { l.maxSeqs, l.blocks = 4, 19 }, []int{20, 4, 4}, 4, sizes{Phase: recipes.Decode, Seqs: 4, Blocks: 8}},
	} {
		l := whole()
		l.coverAll()
		if c.buckets != nil {
			l.buckets = append(c.buckets, recipes.Bucket{Phase: recipes.Logits, Seqs: 1})
		}
		if c.raise != nil {
			c.raise(&l)
		}
		s, _ := simSession(t, l, Options{})
		var qs []*Sequence
		for _, n := range c.open {
			qs = append(qs, sequence(t, s, n))
		}
		free := s.Info().Counters.FreeBlocks
		_, err := s.NewSequence(c.tokens)
		var missing *NoBucketError
		require.ErrorAs(t, err, &missing, c.name)
		require.Equal(t, c.need, missing.Need, c.name)
		require.ErrorIs(t, err, ErrNoBucket)
		require.ErrorContains(t, err, "no bucket covers the step: need "+c.need.String(), c.name)
		counts := s.Info().Counters
		require.Equal(t, []int64{0, 1}, []int64{counts.Steps, counts.Misses}, c.name)
		require.Equal(t, []int{free, len(qs)}, []int{counts.FreeBlocks, counts.Sequences}, c.name)
		require.ErrorContains(t, counts.Static(), "1 sequences or steps had no bucket", c.name)

		// What is open can be filled to its end, and all of it decoded together.
		tokens := make([]int32, len(qs))
		for i, q := range qs {
			if q.Cap() > 1 {
				_, err := s.Prefill(ctx, q, slices.Repeat([]int32{int32(i)}, q.Cap()-1))
				require.NoError(t, err, c.name)
			}
		}
		if len(qs) > 0 {
			_, err = s.Decode(ctx, qs, tokens)
			require.NoError(t, err, c.name)
		}
		require.EqualValues(t, 1, s.Info().Counters.Misses, c.name)
	}
	l := whole()
	l.buckets = []recipes.Bucket{{Phase: recipes.Prefill, Query: 8, Blocks: 5}, {Phase: recipes.Decode, Seqs: 3, Blocks: 15}}
	bundle, model := simBundle(t, l)
	var dev *simDevice
	_, err := Open(ctx, bundle, Options{Model: model, NewDevice: l.device(&dev)})
	require.ErrorContains(t, err, "set f32 has no logits bucket", "there is no session without one")
}

// Chunks longer than any bucket are not missing one: they are cut.
func TestLongerChunksAreCut(t *testing.T) {
	l := small()
	l.maxTokens = 20
	s, _ := simSession(t, l, Options{})
	q := sequence(t, s, 20)
	_, err := s.Prefill(ctx, q, make([]int32, 20))
	require.NoError(t, err)
	require.EqualValues(t, 3, s.Info().Counters.Steps)
	require.NoError(t, static(s))
}

func static(s *Session) error {
	c := s.Info().Counters
	return c.Static()
}

// Whatever a device loads or allocates after Open is counted, and no more.
func TestLateWorkIsCounted(t *testing.T) {
	s, dev := simSession(t, small(), Options{})
	require.Positive(t, dev.binds)
	q := sequence(t, s, 8)
	_, err := s.Prefill(ctx, q, []int32{1, 2})
	require.NoError(t, err)
	require.NoError(t, static(s))
	dev.beforeRun = func() { dev.late++ }
	_, err = s.Decode(ctx, []*Sequence{q}, []int32{1}) // the step and its logits
	require.NoError(t, err)
	require.EqualValues(t, 2, s.Info().Counters.LateAllocations)
	require.EqualError(t, static(s), "0 programs were loaded and 2 allocations made after Open, 0 sequences or steps had no bucket: want none")
	dev.binds++
	require.EqualValues(t, 1, s.Info().Counters.Compiles)
	require.ErrorContains(t, static(s), "1 programs were loaded")
}

// The CPU device counts what it loads, binds and makes room for; executing adds nothing.
func TestHostDeviceCountsWhatItMakes(t *testing.T) {
	bundle, model, _, _ := bigram(t)
	s, err := Open(ctx, bundle, Options{Model: model})
	require.NoError(t, err)
	defer s.Close()
	q := sequence(t, s, 8)
	_, err = s.Prefill(ctx, q, []int32{1, 2})
	require.NoError(t, err)
	require.NoError(t, static(s))
	b, err := recipes.ReadBundle(bundle)
	require.NoError(t, err)
	for _, st := range b.Sets[0].Plans[0].Steps {
		if st.Launch == nil {
			continue
		}
		dev := s.dev.(*HostDevice)
		p, err := dev.Load(b.Recipes[st.Launch.Recipe])
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Info().Counters.Compiles)
		require.Zero(t, s.Info().Counters.LateAllocations, "there is room already")
		_, err = dev.Device.Bind(p, st.Launch.Bindings)
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Info().Counters.LateAllocations)
		require.Error(t, static(s))
		return
	}
	t.Error("no launch")
}

func TestStepsAllocateOnlyLogits(t *testing.T) {
	l := small()
	l.blocks, l.maxLen = 1000, 3000
	l.coverAll()
	s, _ := hushed(t, l)
	a, b := sequence(t, s, 1000), sequence(t, s, 1000)
	qs, tokens := []*Sequence{a, b}, []int32{1, 2}
	rows := [][]float32{make([]float32, simValid), make([]float32, simValid)}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		require.NoError(t, s.DecodeInto(ctx, qs, tokens, rows))
	}))
	more := []int32{1, 2, 3}
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		_, err := s.Prefill(ctx, a, more)
		require.NoError(t, err)
	}), 1.0)
}

// hushed is a session whose launches do nothing.
func hushed(t *testing.T, l simLimits) (*Session, *simDevice) {
	s, dev := simSession(t, l, Options{})
	for _, p := range s.plans {
		p.replay = nothing{p.replay}
	}
	return s, dev
}

type nothing struct{ Replay }

func (nothing) Run(context.Context) error { return nil }

func TestArgmax(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		logits []float32
		want   int32
	}{
		{nil, -1},
		{[]float32{3}, 0},
		{[]float32{1, 5, 5, 2}, 1},
		{[]float32{-3, -2, -1}, 2},
		{[]float32{1, nan, 2}, 2},
	} {
		require.Equal(t, c.want, Argmax(slices.Clone(c.logits)))
	}
}

package runtime

import (
	"fmt"

	"quill/recipes"
)

// Sequence is one text in the cache. Its blocks are reserved when it is made,
// so it cannot run out of memory on the way.
type Sequence struct {
	s      *Session
	id     int64
	blocks []int32 // of all positions up to limit, in order
	n      int     // tokens in the cache
	limit  int     // tokens reserved
	batch  int64   // the last batch that it was in
	start  int64   // of the session when it was made

	// Guarded by the session's mutex.
	closed bool
	err    error // why the cache content is not to be used any more
	dirty  bool  // it may hold NaN or infinities
}

// NewSequence reserves the blocks of a sequence of at most maxTokens tokens,
// prompt and answer together. It answers at once, also while a step runs:
// ErrTooLong, ErrNoBlocks, ErrTooManySequences and ErrNoBucket say why not. The
// caller must Close the sequence.
func (s *Session) NewSequence(maxTokens int) (*Sequence, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &s.manifest.Deployment
	need := s.layout.blocksFor(maxTokens)
	switch {
	case s.closed:
		return nil, fmt.Errorf("new sequence: session is %w", ErrClosed)
	case maxTokens < 1:
		return nil, fmt.Errorf("new sequence: %d tokens, want at least 1", maxTokens)
	case maxTokens > d.MaxModelLen:
		return nil, fmt.Errorf("new sequence: %w: %d, max_model_len is %d", ErrTooLong, maxTokens, d.MaxModelLen)
	case s.live >= d.MaxNumSeqs:
		return nil, fmt.Errorf("new sequence: %w: max_num_seqs is %d; close one", ErrTooManySequences, d.MaxNumSeqs)
	case need > s.pool.count:
		return nil, fmt.Errorf("new sequence: %w: %d tokens need %d blocks of %d, %d of %d are free%s",
			ErrNoBlocks, maxTokens, need, d.BlockSize, s.pool.count, s.pool.size, s.pool.heldText())
	}
	if err := s.covered(maxTokens, need); err != nil {
		return nil, fmt.Errorf("new sequence: %d tokens beside %d open sequences: %w", maxTokens, s.live, err)
	}
	s.live++
	s.nextID++
	return &Sequence{s: s, id: s.nextID, blocks: s.pool.take(need), limit: maxTokens, start: s.start}, nil
}

// covered checks that there are buckets for all steps of a sequence of so many tokens
// and blocks, and for decoding it beside all that are open, each with what it reserved.
// A bucket covers whatever is smaller, so no later step finds none. s.mu is held.
func (s *Session) covered(tokens, blocks int) error {
	open := s.pool.size - s.pool.count - len(s.pool.held)
	for _, need := range [...]recipes.Bucket{
		{Phase: recipes.Prefill, Query: 1, Blocks: s.layout.blocksFor(tokens - 1)},
		{Phase: recipes.Decode, Seqs: s.live + 1, Blocks: open + blocks},
		{Phase: recipes.Logits, Seqs: 1},
	} {
		if _, err := s.choose(need); err != nil {
			return err
		}
	}
	return nil
}

// heldText explains blocks that are neither free nor in use.
func (p *pool) heldText() string {
	if len(p.held) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d are kept back, after logits that were not finite, until all sequences are closed)", len(p.held))
}

// ID numbers the sequences of a session from 1; errors name sequences by it.
func (q *Sequence) ID() int64 { return q.id }

// Len is the number of tokens in the cache.
func (q *Sequence) Len() int { return q.n }

// Cap is the number of tokens reserved.
func (q *Sequence) Cap() int { return q.limit }

// Err is why the sequence can only be closed: a step of it failed or was
// cancelled half way, or its logits were not finite. It is nil while all is
// well.
func (q *Sequence) Err() error {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if q.err == nil && q.start != q.s.start {
		return fmt.Errorf("sequence %d: %w", q.id, ErrDeviceLost)
	}
	return q.err
}

// Close returns the sequence's blocks. If a step is running that happens after
// it. Further calls do nothing.
func (q *Sequence) Close() {
	s := q.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	if s.busy {
		s.closing = append(s.closing, q)
		return
	}
	s.release(q)
}

// release returns the blocks of a closed sequence. s.mu is held and no step
// runs.
func (s *Session) release(q *Sequence) {
	if q.dirty {
		s.pool.hold(q.blocks)
	} else {
		s.pool.give(q.blocks)
	}
	q.blocks = nil
	s.live--
	if s.live == 0 && len(s.pool.held) > 0 && s.scrub() == nil {
		s.pool.release()
	}
}

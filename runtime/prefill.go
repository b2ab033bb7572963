package runtime

import (
	"context"
	"errors"
	"fmt"

	"quill/recipes"
)

// Prefill appends tokens to a sequence, in chunks, and returns the logits that
// follow the last one. The slice is the caller's.
//
// If ctx ends between two chunks the sequence keeps the tokens of the finished
// ones, see Len; if it ends within one the sequence can only be closed.
func (s *Session) Prefill(ctx context.Context, q *Sequence, tokens []int32) ([]float32, error) {
	logits := make([]float32, s.vocab())
	err := s.prefill(ctx, q, tokens, func(n int, last bool) error {
		if !last {
			return nil
		}
		if err := s.project(ctx, n-1, 1, s.lone); err != nil {
			return err
		}
		if bad := s.take(0, logits); bad >= 0 {
			return s.nonFinite(q, q.n-1, bad, logits[bad])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return logits, nil
}

// PrefillAll is Prefill with the logits that follow every token. It calls each
// with the token's position in the sequence, in order; the slice is valid
// during the call only. An error of each ends the prefill and is returned; the
// sequence keeps the tokens up to the end of the current chunk.
func (s *Session) PrefillAll(ctx context.Context, q *Sequence, tokens []int32, each func(pos int, logits []float32) error) error {
	return s.prefill(ctx, q, tokens, func(n int, _ bool) error {
		for first := 0; first < n; first += s.rows {
			group := min(s.rows, n-first)
			if err := s.project(ctx, first, group, s.lone); err != nil {
				return err
			}
			for i := range group {
				pos := q.n - n + first + i
				if bad := s.take(i, s.row); bad >= 0 {
					return s.nonFinite(q, pos, bad, s.row[bad])
				}
				if err := each(pos, s.row); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// prefill feeds tokens chunk by chunk and calls after with the length of each
// chunk once it is in the cache, while its hidden rows are carried.
func (s *Session) prefill(ctx context.Context, q *Sequence, tokens []int32, after func(n int, last bool) error) error {
	if err := s.enter([]*Sequence{q}); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	defer s.leave()
	if err := s.admit(q, tokens); err != nil {
		return fmt.Errorf("prefill: %w", err)
	}
	s.lone = append(s.lone[:0], q)
	for len(tokens) > 0 {
		n, err := s.prefillChunk(ctx, q, tokens)
		if err != nil {
			return fmt.Errorf("prefill: sequence %d, position %d: %w", q.id, q.n, err)
		}
		tokens = tokens[n:]
		if err := after(n, len(tokens) == 0); err != nil {
			return fmt.Errorf("prefill: %w", err)
		}
	}
	return nil
}

// admit checks everything about a prefill that can be wrong, before its first
// chunk changes the sequence.
func (s *Session) admit(q *Sequence, tokens []int32) error {
	if len(tokens) == 0 {
		return errors.New("no tokens")
	}
	if err := q.roomFor(len(tokens)); err != nil {
		return err
	}
	for i, t := range tokens {
		if !s.checkToken(t) {
			return s.tokenError(q, q.n+i, t)
		}
	}
	return nil
}

// prefillChunk feeds as many tokens as one step takes and returns their number.
func (s *Session) prefillChunk(ctx context.Context, q *Sequence, tokens []int32) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err // nothing was touched
	}
	history := s.layout.blocksFor(q.n)
	n := min(len(tokens), s.chunk, s.largestQuery(history))
	p, err := s.choose(recipes.Bucket{Phase: recipes.Prefill, Query: n, Blocks: history})
	if err != nil {
		return 0, err
	}
	s.counts.steps.Add(1)
	s.layout.prefill(&p.in, q.blocks, q.n, tokens[:n])
	if err := s.run(ctx, p, s.lone); err != nil {
		return 0, err
	}
	q.n += n
	return n, nil
}

// largestQuery is the longest chunk that a bucket takes after so many blocks of
// history, at least 1 for those of an admitted sequence.
func (s *Session) largestQuery(history int) int {
	n := 0
	for _, b := range s.info.Plans {
		if b.Phase == recipes.Prefill && b.Blocks >= history {
			n = max(n, b.Query)
		}
	}
	return n
}

package runtime

import (
	"context"
	"errors"
	"fmt"

	"quill/recipes"
)

// Decode appends one token to each of several sequences in one padded batch
// and returns the logits that follow them, row by row. The slices are the
// caller's.
//
// Where only some rows end in ErrNonFinite there are logits beside the error,
// nil for the sequences that failed. Attention sums over the blocks of the whole
// batch, so a sequence that turns non-finite usually takes the batch along.
func (s *Session) Decode(ctx context.Context, qs []*Sequence, tokens []int32) ([][]float32, error) {
	logits := make([][]float32, len(qs))
	for i := range logits {
		logits[i] = make([]float32, s.vocab())
	}
	err := s.DecodeInto(ctx, qs, tokens, logits)
	if err != nil && !errors.Is(err, ErrNonFinite) {
		return nil, err
	}
	for i, q := range qs {
		if err != nil && q.Err() != nil {
			logits[i] = nil
		}
	}
	return logits, err
}

// DecodeInto is Decode into rows that the caller provides, one logit for each
// valid token id; it allocates nothing unless it fails. Rows of sequences that
// failed, see Sequence.Err, are not to be used.
func (s *Session) DecodeInto(ctx context.Context, qs []*Sequence, tokens []int32, logits [][]float32) error {
	if err := s.enter(qs); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	defer s.leave()
	if err := s.admitBatch(qs, tokens, logits); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if err := s.decodeStep(ctx, qs, tokens); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	if err := s.batchLogits(ctx, qs, logits); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// admitBatch checks everything about a batch that can be wrong.
func (s *Session) admitBatch(qs []*Sequence, tokens []int32, logits [][]float32) error {
	if len(qs) == 0 {
		return errors.New("no sequences")
	}
	if len(tokens) != len(qs) || len(logits) != len(qs) {
		return fmt.Errorf("%d tokens and %d rows of logits for %d sequences", len(tokens), len(logits), len(qs))
	}
	for i, q := range qs {
		if err := q.roomFor(1); err != nil {
			return err
		}
		if !s.checkToken(tokens[i]) {
			return s.tokenError(q, q.n, tokens[i])
		}
		if len(logits[i]) != s.vocab() {
			return fmt.Errorf("row %d has room for %d logits, want %d", i, len(logits[i]), s.vocab())
		}
	}
	return nil
}

// decodeStep runs the batch's plan.
func (s *Session) decodeStep(ctx context.Context, qs []*Sequence, tokens []int32) error {
	if err := ctx.Err(); err != nil {
		return err // nothing was touched
	}
	refs := 0
	for _, q := range qs {
		refs += s.layout.blocksFor(q.n + 1)
	}
	p, err := s.choose(recipes.Bucket{Phase: recipes.Decode, Seqs: len(qs), Blocks: refs})
	if err != nil {
		return err
	}
	s.counts.steps.Add(1)
	s.layout.decode(&p.in, qs, tokens)
	if err := s.run(ctx, p, qs); err != nil {
		return err
	}
	for _, q := range qs {
		q.n++
	}
	return nil
}

// batchLogits projects the rows of the batch, in groups if no bucket takes all.
func (s *Session) batchLogits(ctx context.Context, qs []*Sequence, logits [][]float32) error {
	var bad []error
	for first := 0; first < len(qs); first += s.rows {
		group := min(s.rows, len(qs)-first)
		if err := s.project(ctx, first, group, qs); err != nil {
			return err
		}
		for i := range group {
			row := first + i
			if at := s.take(i, logits[row]); at >= 0 {
				bad = append(bad, s.nonFinite(qs[row], qs[row].n-1, at, logits[row][at]))
			}
		}
	}
	return errors.Join(bad...)
}

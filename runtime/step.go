package runtime

import (
	"context"
	"errors"
	"fmt"
	"math"

	"quill/recipes"
)

// choose is the plan of the cheapest bucket that covers a need.
func (s *Session) choose(need recipes.Bucket) (*plan, error) {
	i := s.selector.Select(need)
	if i < 0 {
		s.counts.misses.Add(1)
		return nil, &NoBucketError{need}
	}
	return s.plans[i], nil
}

// run executes a plan whose inputs are filled. A failure leaves the sequences
// of the step with state that is partly old and partly new.
func (s *Session) run(ctx context.Context, p *plan, qs []*Sequence) error {
	if err := p.run(ctx); err != nil {
		// A cancelled step wrote nothing but good values.
		s.fail(qs, err, !cancelled(err))
		return err
	}
	s.counts.launches.Add(p.launches)
	s.counts.collectives.Add(p.collectives)
	return nil
}

func cancelled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// project computes the logits of n rows of the carried hidden state, at most
// s.rows, from first on. They stay in s.raw until the next call.
func (s *Session) project(ctx context.Context, first, n int, qs []*Sequence) error {
	p, err := s.choose(recipes.Bucket{Phase: recipes.Logits, Seqs: n})
	if err != nil {
		return err
	}
	s.layout.rows(&p.in, first, n)
	if err := s.run(ctx, p, qs); err != nil {
		return err
	}
	s.raw = p.logits // every rank has the same
	return nil
}

func (s *Session) vocab() int { return s.manifest.Model.ValidVocab }

func (s *Session) rowBytes() int { return 4 * s.vocab() }

// take copies row i of the projected logits to dst. bad is the index of the
// first that is not finite, or -1.
func (s *Session) take(i int, dst []float32) (bad int) {
	raw := ints(s.raw[i*s.rowBytes():][:s.rowBytes()])
	bad = -1
	for j := range dst {
		b := uint32(raw.at(j))
		if b&0x7f800000 == 0x7f800000 && bad < 0 {
			bad = j
		}
		dst[j] = math.Float32frombits(b)
	}
	return bad
}

// nonFinite marks a sequence and says where its logits went wrong.
func (s *Session) nonFinite(q *Sequence, pos, bad int, value float32) error {
	err := fmt.Errorf("sequence %d, position %d, step %d: %w: the one of token %d is %v",
		q.id, pos, s.counts.steps.Load(), ErrNonFinite, bad, value)
	s.fail([]*Sequence{q}, err, true)
	return err
}

// checkToken checks an id against the ids that exist.
func (s *Session) checkToken(token int32) bool { return token >= 0 && int(token) < s.vocab() }

func (s *Session) tokenError(q *Sequence, at int, token int32) error {
	return fmt.Errorf("%w: %d at position %d of sequence %d, valid are 0 to %d", ErrToken, token, at, q.id, s.vocab()-1)
}

func (q *Sequence) roomFor(n int) error {
	if n > q.limit-q.n {
		return fmt.Errorf("%w: sequence %d has %d of %d reserved, cannot take %d more", ErrTooLong, q.id, q.n, q.limit, n)
	}
	return nil
}

// Argmax is the id of the largest logit, the lowest one if several are equal;
// -1 if there are none. Logits that a session returns are finite.
func Argmax(logits []float32) int32 {
	best := int32(-1)
	for i, v := range logits {
		if best < 0 || v > logits[best] {
			best = int32(i)
		}
	}
	return best
}

package runtime

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
)

// ScoreOptions say how Score feeds a sequence.
type ScoreOptions struct {
	// Chunk is the most tokens of a prefill step; 0 is the session's.
	Chunk int
	// DecodeFrom is the first position that is fed by a decode step instead of
	// a prefill chunk. At or beyond the end nothing is.
	DecodeFrom int
	// NoiseSeqs random sequences share the decode batches, and their prefills
	// come between the scored sequence's chunks.
	NoiseSeqs int
	// Seed chooses the random sequences.
	Seed uint64
}

// Score feeds a known sequence through the serving path and calls each with
// the logits that follow every token, in order; the slice is valid during the
// call only.
func (s *Session) Score(ctx context.Context, tokens []int32, opt ScoreOptions, each func(pos int, logits []float32) error) (err error) {
	if len(tokens) == 0 {
		return errors.New("score: no tokens")
	}
	if opt.Chunk < 0 || opt.DecodeFrom < 0 || opt.NoiseSeqs < 0 {
		return fmt.Errorf("score: chunk %d, decode from %d, %d noise sequences: want none negative", opt.Chunk, opt.DecodeFrom, opt.NoiseSeqs)
	}
	q, err := s.NewSequence(len(tokens))
	if err != nil {
		return fmt.Errorf("score: %w", err)
	}
	defer q.Close()
	split := min(opt.DecodeFrom, len(tokens))
	n := &noise{s: s, rng: rand.New(rand.NewPCG(opt.Seed, 0x9e3779b97f4a7c15)), steps: len(tokens) - split}
	defer n.close()
	if err := n.open(ctx, opt.NoiseSeqs); err != nil {
		return fmt.Errorf("score: noise sequences: %w", err)
	}
	chunk := opt.Chunk
	if chunk == 0 {
		chunk = split
	}
	for from := 0; from < split; from += chunk {
		if err := s.PrefillAll(ctx, q, tokens[from:min(from+chunk, split)], each); err != nil {
			return err
		}
		if err := n.prefillOne(ctx); err != nil {
			return err
		}
	}
	if err := n.prefillRest(ctx); err != nil {
		return err
	}
	for pos := split; pos < len(tokens); pos++ {
		if err := n.decode(ctx, q, pos, tokens[pos], each); err != nil {
			return err
		}
	}
	return nil
}

// noise is the company of a scored sequence.
type noise struct {
	s     *Session
	rng   *rand.Rand
	steps int // decode steps that every sequence must have room for

	seqs    []*Sequence
	prompts [][]int32
	fed     int // sequences whose prompt is in
}

// maxNoisePrompt keeps noise cheap; it spans several blocks in small
// deployments.
const maxNoisePrompt = 48

func (n *noise) open(_ context.Context, count int) error {
	for range count {
		room := n.s.manifest.Deployment.MaxModelLen - n.steps
		if room < 1 {
			return fmt.Errorf("%d decode steps leave no room for a prompt within max_model_len %d", n.steps, n.s.manifest.Deployment.MaxModelLen)
		}
		prompt := make([]int32, 1+n.rng.IntN(min(room, maxNoisePrompt)))
		for i := range prompt {
			prompt[i] = n.token()
		}
		q, err := n.s.NewSequence(len(prompt) + n.steps)
		if err != nil {
			return err
		}
		n.seqs = append(n.seqs, q)
		n.prompts = append(n.prompts, prompt)
	}
	return nil
}

func (n *noise) token() int32 { return int32(n.rng.IntN(n.s.vocab())) }

func (n *noise) close() {
	for _, q := range n.seqs {
		q.Close()
	}
}

// prefillOne feeds the next prompt, if there is one.
func (n *noise) prefillOne(ctx context.Context) error {
	if n.fed == len(n.seqs) {
		return nil
	}
	_, err := n.s.Prefill(ctx, n.seqs[n.fed], n.prompts[n.fed])
	n.fed++
	return err
}

func (n *noise) prefillRest(ctx context.Context) error {
	for n.fed < len(n.seqs) {
		if err := n.prefillOne(ctx); err != nil {
			return err
		}
	}
	return nil
}

// decode runs one step of all sequences, the scored one in a random row.
func (n *noise) decode(ctx context.Context, q *Sequence, pos int, token int32, each func(int, []float32) error) error {
	row := n.rng.IntN(len(n.seqs) + 1)
	var batch []*Sequence
	var tokens []int32
	for i := range len(n.seqs) + 1 {
		if i == row {
			batch, tokens = append(batch, q), append(tokens, token)
		}
		if i < len(n.seqs) {
			batch, tokens = append(batch, n.seqs[i]), append(tokens, n.token())
		}
	}
	logits, err := n.s.Decode(ctx, batch, tokens)
	if err != nil {
		return err
	}
	return each(pos, logits[row])
}

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"quill/runtime"
	"quill/runtime/host"
)

const (
	// maxTraced bounds the steps of the traced run: one is much like another.
	maxTraced = 8
	// maxEvents is how many events a recording has room for.
	maxEvents = 1 << 17
	// tokenSeed chooses the tokens.
	tokenSeed = 1
)

// bencher feeds random tokens through a session. Tokens do not follow from
// logits: models with random weights soon repeat themselves.
type bencher struct {
	opt   *benchOptions
	s     *runtime.Session
	rng   *rand.Rand
	vocab int
	meter *meter
	done  int64 // tokens
	batch []*runtime.Sequence
	rows  [][]float32
	last  []int32 // the next token of each sequence of the batch
}

func newBencher(o *benchOptions, s *runtime.Session, stderr io.Writer) *bencher {
	b := &bencher{opt: o, s: s, rng: rand.New(rand.NewPCG(tokenSeed, 0)), vocab: s.Info().Model.ValidVocab}
	b.rows, b.last = make([][]float32, o.batch), make([]int32, o.batch)
	for i := range b.rows {
		b.rows[i] = make([]float32, b.vocab)
	}
	b.meter = newMeter(stderr, "measuring tokens", func(n int64) string { return strconv.FormatInt(n, 10) })
	return b
}

func (b *bencher) close() {
	b.closeBatch()
	b.meter.close()
}

func (b *bencher) closeBatch() {
	for _, q := range b.batch {
		q.Close()
	}
	b.batch = nil
}

func (b *bencher) random(tokens []int32) []int32 {
	for i := range tokens {
		tokens[i] = int32(b.rng.IntN(b.vocab))
	}
	return tokens
}

// total is how many tokens all of it feeds.
func (b *bencher) total() int64 {
	o := b.opt
	prefills := o.batch + 1
	if o.warmup > 0 {
		prefills++
	}
	steps := 0
	if o.decode > 0 {
		steps = o.warmup + o.decode + o.traced()
	}
	return int64(prefills*o.prefill + steps*o.batch)
}

func (b *bencher) progress(n int, what string) {
	b.done += int64(n)
	b.meter.update(b.done, b.total(), what)
}

// prefill feeds a new sequence of random tokens and returns how long it took.
func (b *bencher) prefill(ctx context.Context, room int, what string) (*runtime.Sequence, time.Duration, error) {
	q, err := b.s.NewSequence(room)
	if err != nil {
		return nil, 0, err
	}
	tokens := b.random(make([]int32, b.opt.prefill))
	start := time.Now()
	_, err = b.s.Prefill(ctx, q, tokens)
	took := time.Since(start)
	if err != nil {
		q.Close()
		return nil, 0, err
	}
	b.progress(b.opt.prefill, what)
	return q, took, nil
}

// prefillOnce is prefill of a sequence that nobody needs.
func (b *bencher) prefillOnce(ctx context.Context, what string) error {
	q, _, err := b.prefill(ctx, b.opt.prefill, what)
	if err == nil {
		q.Close()
	}
	return err
}

// prefillBatch fills the batch.
func (b *bencher) prefillBatch(ctx context.Context, p *paired) error {
	for range b.opt.batch {
		err := p.call(ctx, func() (time.Duration, error) {
			q, took, err := b.prefill(ctx, b.opt.need(), "prefill")
			if err == nil {
				b.batch = append(b.batch, q)
			}
			return took, err
		})
		if err != nil {
			return err
		}
	}
	return p.finish(ctx)
}

// decode executes a step with the whole batch and returns how long it took.
func (b *bencher) decode(ctx context.Context, what string) (time.Duration, error) {
	b.random(b.last)
	start := time.Now()
	if err := b.s.DecodeInto(ctx, b.batch, b.last, b.rows); err != nil {
		return 0, err
	}
	took := time.Since(start)
	b.progress(b.opt.batch, what)
	return took, nil
}

// record runs f, which makes calls of the session through call, under a trace.
func (b *bencher) record(what string, f func(call func(name string, f func() error) error) error) (*recording, error) {
	r := &recording{what: what, trace: host.NewTrace(maxEvents)}
	start := time.Now()
	if err := b.s.Trace(r.trace); err != nil {
		return nil, err
	}
	err := f(func(name string, f func() error) error {
		s := callSpan{name: name, start: time.Since(start), first: len(r.trace.Events)}
		err := f()
		s.end, s.n = time.Since(start), len(r.trace.Events)-s.first
		r.spans = append(r.spans, s)
		return err
	})
	if stop := b.s.Trace(nil); err == nil {
		err = stop
	}
	if err != nil {
		return nil, fmt.Errorf("traced run: %w", err)
	}
	return r, nil
}

// tracePrefill records the prefill of one sequence.
func (b *bencher) tracePrefill(ctx context.Context) (*recording, error) {
	return b.record("prefill", func(call func(string, func() error) error) error {
		return call(count(b.opt.prefill, "token"), func() error { return b.prefillOnce(ctx, "traced prefill") })
	})
}

// traceDecode records a few steps.
func (b *bencher) traceDecode(ctx context.Context) (*recording, error) {
	return b.record("decode", func(call func(string, func() error) error) error {
		for i := range b.opt.traced() {
			err := call(fmt.Sprintf("step %d", i), func() error { _, err := b.decode(ctx, "traced decode"); return err })
			if err != nil {
				return err
			}
		}
		return nil
	})
}

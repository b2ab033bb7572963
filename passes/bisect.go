package passes

import (
	"context"
	"fmt"

	"github.com/rogpeppe/go-internal/diff"

	"quill/ir"
)

// Culprit is the first rewrite of a pipeline after which a check fails.
type Culprit struct {
	Step Step
	// Rewrite is its number among those of the step, from 1; 0 if the pass is not
	// optional, whose rewrites are not told apart, or if it failed by itself.
	Rewrite int
	// Diff is what the rewrite changed, or the whole step if Rewrite is 0.
	Diff string
	// Err is what the check said, or the pass.
	Err error
}

// Check says what is wrong with a module after some or all rewrites of a step, the
// last one that has run; nil is none. It may not change the module. It is called
// for each step in order, with all rewrites, until it fails.
type Check func(ctx context.Context, step *Step, m *ir.Module) error

// Bisect finds the rewrite that breaks a check, which must hold for the module as
// it is. The culprit is nil if it holds after the whole pipeline.
func Bisect(ctx context.Context, m *ir.Module, cfg Config, check Check) (*Culprit, error) {
	b := bisection{cfg: cfg, from: m, check: check}
	if err := check(ctx, nil, m); err != nil {
		return nil, fmt.Errorf("the check does not hold before any pass, so none can break it: %w", err)
	}
	before := 0 // rewrites of the steps before
	for i := range cfg.Pipeline {
		mod, rewrites, err := b.run(ctx, i+1, nil)
		if err == nil {
			err = check(ctx, &cfg.Pipeline[i], mod)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return b.rewrite(ctx, i, before, rewrites, err)
		}
		before = rewrites
	}
	return nil, nil
}

type bisection struct {
	cfg   Config
	from  *ir.Module
	check Check
}

// run runs the first steps, with at most so many rewrites if there is a limit,
// and counts the rewrites.
func (b *bisection) run(ctx context.Context, steps int, limit *int) (*ir.Module, int, error) {
	m := b.from.Clone()
	mgr := NewManager(Config{Pipeline: b.cfg.Pipeline[:steps], Params: b.cfg.Params, RewriteLimit: limit, DumpDir: b.cfg.DumpDir})
	err := mgr.Run(ctx, "", m)
	n := 0
	for _, s := range mgr.Stats() {
		if s.Step.Pass.Optional {
			n += s.Rewrites
		}
	}
	return m, n, err
}

// rewrite finds the rewrite of step i, of those after the first ones, up to last,
// with which the check fails.
func (b *bisection) rewrite(ctx context.Context, i, before, last int, err error) (*Culprit, error) {
	c := &Culprit{Step: b.cfg.Pipeline[i], Err: err}
	good, _, gerr := b.run(ctx, i, nil)
	if gerr != nil {
		return nil, gerr
	}
	if c.Step.Pass.Optional && last > before {
		lo, hi := before, last // the check holds after lo rewrites and fails after hi
		for hi-lo > 1 {
			mid := (lo + hi) / 2
			m, _, err := b.run(ctx, i+1, &mid)
			if err == nil {
				err = b.check(ctx, &b.cfg.Pipeline[i], m)
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err == nil {
				lo = mid
			} else {
				hi, c.Err = mid, err
			}
		}
		c.Rewrite = hi - before
		if good, _, err = b.run(ctx, i+1, &lo); err != nil {
			return nil, err
		}
		last = hi
	}
	bad, _, err := b.run(ctx, i+1, &last)
	if err != nil {
		return c, nil
	}
	c.Diff = b.diff(ctx, c, good, bad)
	return c, nil
}

// diff is what changed from good to bad. If what makes the difference also does
// when it runs on good, values keep their numbers.
func (b *bisection) diff(ctx context.Context, c *Culprit, good, bad *ir.Module) string {
	text, numbers := good.String(), good.Number(nil)
	var limit *int
	if c.Rewrite > 0 {
		one := 1
		limit = &one
	}
	again := good.Clone()
	step := Config{Pipeline: Pipeline{c.Step}, Params: b.cfg.Params, RewriteLimit: limit, DumpDir: b.cfg.DumpDir}
	if NewManager(step).Run(ctx, "", again) == nil && again.String() == bad.String() && NewManager(step).Run(ctx, "", good) == nil {
		return unified(text, numbers, good)
	}
	return string(diff.Diff("before", []byte(text), "after", []byte(bad.String())))
}

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

// Bisect finds the rewrite that breaks a check. The check must hold for the
// module as it is; it is called with modules that it may not change. The culprit
// is nil if the check holds after the whole pipeline.
func Bisect(ctx context.Context, m *ir.Module, cfg Config, check func(context.Context, *ir.Module) error) (*Culprit, error) {
	b := bisection{cfg: cfg, from: m, check: check}
	if err := check(ctx, m); err != nil {
		return nil, fmt.Errorf("the check fails before any pass: %w", err)
	}
	before := 0 // rewrites of the steps before
	for i := range cfg.Pipeline {
		mod, rewrites, err := b.run(ctx, i+1, nil)
		if err == nil {
			err = check(ctx, mod)
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
	check func(context.Context, *ir.Module) error
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
				err = b.check(ctx, m)
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
	if bad, _, err := b.run(ctx, i+1, &last); err == nil {
		c.Diff = string(diff.Diff("before", []byte(good.String()), "after", []byte(bad.String())))
	}
	return c, nil
}

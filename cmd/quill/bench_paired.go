package main

import (
	"context"
	"fmt"
	"time"
)

// On virtual machines the roofs themselves move: memory may be half as fast for
// some seconds, and then not. So a phase is measured in windows of calls with a
// burst before and after each, which measures its roof at that moment; what
// counts is the share that each window reaches of the mean of its two bursts.
//
//	burst  call call call  burst  call call call  burst
//	       └── window ──┘         └── window ──┘

// windowTime is how long a window of decode steps is at least. A burst displaces
// what the caches hold, but that is little of what a step of a large model reads:
// the first step after it was measured to take some 1% longer than the others,
// which in a window this long is not worth leaving it out.
const windowTime = 150 * time.Millisecond

// window is a run of calls between two bursts.
type window struct {
	first, end    int // the calls first … end−1 of the phase
	before, after float64
}

// paired executes the calls of a phase in windows.
type paired struct {
	burst   func(context.Context) (float64, error)
	atLeast time.Duration // of a window

	times   []time.Duration // of all calls; bursts are not in them
	windows []window

	last float64       // the latest burst
	open int           // the first call that is in no window yet
	took time.Duration // of the calls since then
}

// call executes a call, which returns how long it took, with a burst before and
// after it where windows meet.
func (p *paired) call(ctx context.Context, f func() (time.Duration, error)) (err error) {
	if len(p.times) == 0 {
		if p.last, err = p.burst(ctx); err != nil {
			return err
		}
	}
	t, err := f()
	if err != nil {
		return err
	}
	p.times = append(p.times, t)
	p.took += t
	if p.took < p.atLeast {
		return nil
	}
	return p.close(ctx)
}

// finish ends the last window. One that is less than half as long as it should
// be says little and is left out, unless it is the only one.
func (p *paired) finish(ctx context.Context) error {
	if p.open == len(p.times) || len(p.windows) > 0 && p.took < p.atLeast/2 {
		return nil
	}
	return p.close(ctx)
}

func (p *paired) close(ctx context.Context) error {
	after, err := p.burst(ctx)
	if err != nil {
		return err
	}
	p.windows = append(p.windows, window{p.open, len(p.times), p.last, after})
	p.last, p.open, p.took = after, len(p.times), 0
	return nil
}

// shares are the shares of the roof that windows reach: what their calls need,
// by the time that they took, over the mean of the bursts.
func (p *paired) shares(need func(call int) float64) []float64 {
	var shares []float64
	for _, w := range p.windows {
		var needed float64
		var took time.Duration
		for i := w.first; i < w.end; i++ {
			needed, took = needed+need(i), took+p.times[i]
		}
		shares = append(shares, ratio(ratio(needed, took.Seconds()), (w.before+w.after)/2))
	}
	return shares
}

// spread is how a number varies from window to window.
type spread struct {
	Windows int     `json:"windows"`
	Min     float64 `json:"min"`
	Q1      float64 `json:"q1"` // quartiles
	Median  float64 `json:"median"`
	Q3      float64 `json:"q3"`
	Max     float64 `json:"max"`
}

func newSpread(v []float64) spread {
	return spread{len(v), percentile(v, 0), percentile(v, 25), percentile(v, 50), percentile(v, 75), percentile(v, 100)}
}

// String says how much there is behind a median, "" if it is none.
func (s *spread) String() string {
	switch {
	case s == nil || s.Windows == 0:
		return ""
	case s.Windows == 1:
		return " (1 window)"
	}
	return fmt.Sprintf(" (quartiles %.1f to %.1f%%, %d windows)", 100*s.Q1, 100*s.Q3, s.Windows)
}

package devicetest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"quill/recipes"
	"quill/runtime"
)

// Work is something for a device that may fail to do: its results are right, or there
// is an error.
type Work struct {
	Bundle, Model string // paths
	Compiled      *recipes.Bundle
	Set           *recipes.Set

	f *fixture
}

// ErrWrong says that results of Work are wrong.
var ErrWrong = errors.New("a result is wrong")

// workSteps are how many steps Work has.
const workSteps = 40

// NewWork makes work for a number of ranks.
func NewWork(t testing.TB, s Subject, ranks int) *Work {
	f := newFixture(t, &s, ranks)
	return &Work{f.bundle, f.model, f.b, f.set, f}
}

// Job is Work on one device.
type Job struct{ d *device }

// On gives the work to a device.
func (w *Work) On(dev runtime.Device) *Job { return &Job{&device{fixture: w.f, Device: dev}} }

// Do binds all plans, loads the weights and works. The first error ends it.
func (j *Job) Do(ctx context.Context) error {
	if err := j.d.bind(); err != nil {
		return err
	}
	if err := j.d.load(ctx); err != nil {
		return err
	}
	return j.d.work(ctx)
}

// Again works on a device that was started anew since Do, which has bound plans and
// loaded weights then.
func (j *Job) Again(ctx context.Context) error { return j.d.work(ctx) }

func (d *device) work(ctx context.Context) error {
	var l law
	for n := range workSteps {
		plan, x, order := n%2, inputs(n), orders[n%len(orders)]
		d.put(plan, x, order)
		if err := d.replays[plan].Run(ctx); err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		z, got := l.step(d.ranks, x, order), floats(d.out[plan])
		for i := range got {
			if want := z[i%cells] * float32(i/cells+1); got[i] != want {
				return fmt.Errorf("step %d: %w: element %d is %v, want %v", n, ErrWrong, i, got[i], want)
			}
		}
	}
	return nil
}

package runtime

import (
	"context"
	"errors"

	"quill/recipes"
	"quill/runtime/host"
)

// Watched is a step of a plan that Options.Watch is told of.
type Watched struct {
	Device Device
	Plan   *recipes.Plan // as the bundle has it
	Step   int           // of the plan
	Run    Launch        // executes the step on all ranks
}

func watched(dev Device, p *recipes.Plan, i int, s step) Watched {
	run := s.launch
	if s.collective != nil {
		run = collectiveLaunch{dev, s.collective}
	}
	return Watched{dev, p, i, run}
}

// collectiveLaunch executes a collective where a launch is wanted.
type collectiveLaunch struct {
	dev Device
	c   *recipes.Collective
}

func (l collectiveLaunch) Run(ctx context.Context) error { return l.dev.Collective(ctx, l.c) }

// Tap binds a recipe on the CPU device so that all its tensors can be read after
// it has run, see [host.Device.LoadTapped].
func Tap(dev Device, r *recipes.Recipe, b []recipes.Binding) (*host.Launch, error) {
	d, ok := dev.(hostDevice)
	if !ok {
		return nil, errors.New("tap: the device is not the CPU device")
	}
	p, err := d.LoadTapped(r)
	if err != nil {
		return nil, err
	}
	return d.Bind(p, b)
}

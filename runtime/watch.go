package runtime

import (
	"context"

	"quill/recipes"
	"quill/runtime/host"
)

// Launch is a step of a plan with addresses, ready to run any number of times.
type Launch interface {
	// Run executes the step on all ranks. After an error the memory that it writes
	// is undefined.
	Run(ctx context.Context) error
}

// Watched is a step of a plan that Options.Watch is told of.
type Watched struct {
	Device *HostDevice
	Plan   *recipes.Plan // as the bundle has it
	Step   int           // of the plan
	Run    Launch        // executes the step on all ranks
}

// Tap binds a recipe so that all its tensors can be read after it has run, see
// [host.Device.LoadTapped].
func (d *HostDevice) Tap(r *recipes.Recipe, b []recipes.Binding) (*host.Launch, error) {
	p, err := d.LoadTapped(r)
	if err != nil {
		return nil, err
	}
	return d.Device.Bind(p, b)
}

package runtime

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"quill/recipes"
	"quill/runtime/host"
)

// Device is the memory of all ranks of a deployment, and what replays plans on
// it. Its buffers exist, zeroed, before anything else happens, and nothing is
// allocated on it after the last Bind.
type Device interface {
	// Ranks is the number of ranks.
	Ranks() int
	// Write copies data to an offset of one rank's buffer.
	Write(rank int, b recipes.Buffer, offset int64, data []byte) error
	// Read fills data from an offset of one rank's buffer.
	Read(rank int, b recipes.Buffer, offset int64, data []byte) error
	// Clear zeroes a buffer on all ranks.
	Clear(b recipes.Buffer) error
	// Bind makes a plan ready to run. The plan and its recipes must not change
	// afterwards.
	Bind(p *recipes.Plan, recipe func(recipes.Hash) *recipes.Recipe) (Replay, error)
	// Made is how many recipes were loaded and how often memory was allocated, be it
	// the device's or the host's, since the device was made. A session compares it with
	// what it was when Open ended. It may be called at any time.
	Made() (programs, allocations int64)
	// Close releases everything.
	Close() error
}

// Replay is a plan that is ready to run any number of times.
type Replay interface {
	// Stage is n bytes of host memory, which Run copies to the arena of every rank
	// from offset on. It is called before the first Run; ranges do not overlap.
	Stage(offset, n int64) ([]byte, error)
	// Fetch is host memory that has n bytes of rank 0's arena from offset on after
	// Run, until anything else happens on the device. It is called before the first
	// Run.
	Fetch(offset, n int64) ([]byte, error)
	// Run executes the plan on all ranks, behind those that other goroutines run. After
	// an error the memory that the plan writes is undefined.
	Run(ctx context.Context) error
}

// SelfLoading is a device whose ranks load their weights themselves. Others are
// filled by Open.
type SelfLoading interface {
	// LoadWeights loads the weights of all ranks, after the last Bind. Progress is
	// that of Options.
	LoadWeights(ctx context.Context, progress func(done, total int64)) error
}

// Restarting is a device that can be started anew after it was lost, with all plans
// and weights as before, and all other memory zeroed.
type Restarting interface {
	// Restart starts the device. Progress is that of Options.
	Restart(ctx context.Context, progress func(done, total int64)) error
}

// NewHostDevice makes the CPU device, which is what Open uses when Options name
// no other, with weights in memory of its own.
func NewHostDevice(o host.Options) (*HostDevice, error) {
	d, err := host.New(o)
	if err != nil {
		return nil, err
	}
	return &HostDevice{Device: d}, nil
}

// newHostDevice makes the CPU device with weights in the memory of w, which it
// closes.
func newHostDevice(w *weights, o *Options) (*HostDevice, error) {
	d, err := host.New(host.Options{
		Ranks: w.tp, Bytes: w.set.Info.Bytes, Threads: o.Threads, Unfused: o.Unfused,
		Weights:   func(rank int) []host.Span { return w.spans[rank] },
		ReadAhead: w.ahead,
	})
	if err != nil {
		return nil, err
	}
	return &HostDevice{Device: d, weights: w, watch: o.Watch}, nil
}

// HostDevice is the CPU device as a Device.
type HostDevice struct {
	*host.Device
	weights  *weights // nil if they are the device's own
	watch    func(Watched) Launch
	programs map[*recipes.Recipe]*host.Program

	running sync.Mutex // held while a plan runs: its steps are not among those of another
}

// Close releases the device and its weights.
func (d *HostDevice) Close() error {
	err := d.Device.Close()
	if d.weights != nil {
		err = errors.Join(err, d.weights.Close())
	}
	return err
}

// Write copies data to an offset of one rank's buffer.
func (d *HostDevice) Write(rank int, b recipes.Buffer, offset int64, data []byte) error {
	mem, err := d.at(rank, b, offset, len(data))
	copy(mem, data)
	return err
}

// Read fills data from an offset of one rank's buffer.
func (d *HostDevice) Read(rank int, b recipes.Buffer, offset int64, data []byte) error {
	if b == recipes.Weights { // they need not be one buffer
		if mem, ok := d.Weights(rank, offset, int64(len(data))); ok {
			copy(data, mem)
			return nil
		}
	}
	mem, err := d.at(rank, b, offset, len(data))
	copy(data, mem)
	return err
}

// at is a range of a buffer, nil with an error if it is not all there.
func (d *HostDevice) at(rank int, b recipes.Buffer, offset int64, size int) ([]byte, error) {
	mem := d.Bytes(rank, b)
	if mem == nil || size < 0 || offset < 0 || offset > int64(len(mem)) || int64(size) > int64(len(mem))-offset {
		return nil, fmt.Errorf("%d bytes at byte %d of buffer %s of rank %d, which has %d", size, offset, b, rank, len(mem))
	}
	return mem[offset : offset+int64(size) : offset+int64(size)], nil
}

// Clear zeroes a buffer on all ranks.
func (d *HostDevice) Clear(b recipes.Buffer) error {
	for rank := range d.Ranks() {
		clear(d.Bytes(rank, b))
	}
	return nil
}

// Bind makes a plan ready to run: each recipe is loaded once, each launch bound
// once.
func (d *HostDevice) Bind(p *recipes.Plan, recipe func(recipes.Hash) *recipes.Recipe) (Replay, error) {
	r := &hostReplay{device: d, plan: p, steps: make([]Launch, len(p.Steps))}
	for i := range p.Steps {
		launch, err := d.step(&p.Steps[i], recipe)
		if err != nil {
			return nil, fmt.Errorf("step %d (%s): %w", i, p.Steps[i].What(), err)
		}
		if d.watch != nil {
			launch = d.watch(Watched{d, p, i, launch})
		}
		r.steps[i] = launch
	}
	return r, nil
}

func (d *HostDevice) step(s *recipes.Step, recipe func(recipes.Hash) *recipes.Recipe) (Launch, error) {
	if s.Collective != nil {
		return hostCollective{d.Device, s.Collective}, nil
	}
	r := recipe(s.Launch.Recipe)
	p := d.programs[r]
	if p == nil {
		var err error
		if p, err = d.Load(r); err != nil {
			return nil, fmt.Errorf("load: %w", err)
		}
		if d.programs == nil {
			d.programs = make(map[*recipes.Recipe]*host.Program)
		}
		d.programs[r] = p
	}
	l, err := d.Device.Bind(p, s.Launch.Bindings)
	if err != nil {
		return nil, fmt.Errorf("bind: %w", err) // not a Launch that holds nil
	}
	return l, nil
}

type hostCollective struct {
	device *host.Device
	c      *recipes.Collective
}

func (c hostCollective) Run(ctx context.Context) error { return c.device.Collective(ctx, c.c) }

// hostReplay is a plan on the CPU device.
type hostReplay struct {
	device *HostDevice
	plan   *recipes.Plan
	steps  []Launch
	staged []staged
}

// staged is host memory that mirrors a range of the arena.
type staged struct {
	offset int64
	data   []byte
}

func (r *hostReplay) Stage(offset, n int64) ([]byte, error) {
	if _, err := r.Fetch(offset, n); err != nil {
		return nil, err
	}
	r.staged = append(r.staged, staged{offset, make([]byte, n)})
	return r.staged[len(r.staged)-1].data, nil
}

// Fetch is the arena itself.
func (r *hostReplay) Fetch(offset, n int64) ([]byte, error) {
	return r.device.at(0, recipes.Arena, offset, int(n))
}

func (r *hostReplay) Run(ctx context.Context) error {
	r.device.running.Lock()
	defer r.device.running.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	for rank := range r.device.Ranks() {
		arena := r.device.Bytes(rank, recipes.Arena)
		if arena == nil && len(r.staged) > 0 {
			return host.ErrClosed
		}
		for i := range r.staged {
			copy(arena[r.staged[i].offset:], r.staged[i].data)
		}
	}
	for i, s := range r.steps {
		if err := s.Run(ctx); err != nil {
			return fmt.Errorf("step %d of %d (%s): %w", i, len(r.steps), r.plan.Steps[i].What(), err)
		}
	}
	return nil
}

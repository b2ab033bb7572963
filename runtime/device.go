package runtime

import (
	"context"
	"errors"
	"fmt"

	"quill/recipes"
	"quill/runtime/host"
)

// Device executes launches and collectives on all ranks of a deployment. Its
// buffers exist, zeroed, before anything else happens.
type Device interface {
	// Ranks is the number of ranks.
	Ranks() int
	// Bytes is the memory of one rank's buffer, nil if the host cannot address
	// it. It must not be touched while a launch or collective executes.
	Bytes(rank int, b recipes.Buffer) []byte
	// Write copies data to an offset of one rank's buffer.
	Write(rank int, b recipes.Buffer, offset int64, data []byte) error
	// Read fills data from an offset of one rank's buffer.
	Read(rank int, b recipes.Buffer, offset int64, data []byte) error
	// Load prepares a recipe. The recipe must not change afterwards.
	Load(r *recipes.Recipe) (Program, error)
	// Made is how many programs were loaded and how often memory was allocated, be it
	// the device's or the host's, since the device was made. A session compares it with
	// what it was when Open ended. It may be called at any time.
	Made() (programs, allocations int64)
	// Collective executes a collective on all ranks.
	Collective(ctx context.Context, c *recipes.Collective) error
	// Close releases everything.
	Close() error
}

// Program is a loaded recipe.
type Program interface {
	// Bind fixes the address of every section, in the recipe's order.
	Bind(b []recipes.Binding) (Launch, error)
}

// Launch is a program with addresses, ready to run any number of times.
type Launch interface {
	// Run executes the launch on all ranks. After an error the memory that it
	// writes is undefined.
	Run(ctx context.Context) error
}

// NewHostDevice makes the CPU device, which is what Open uses when Options name
// no other, with weights in memory of its own.
func NewHostDevice(o host.Options) (Device, error) {
	d, err := host.New(o)
	if err != nil {
		return nil, err
	}
	return hostDevice{Device: d}, nil
}

// newHostDevice makes the CPU device with weights in the memory of w, which it
// closes.
func newHostDevice(w *weights, o *Options) (Device, error) {
	d, err := host.New(host.Options{
		Ranks: w.tp, Bytes: w.set.Info.Bytes, Threads: o.Threads, Unfused: o.Unfused,
		Weights:   func(rank int) []host.Span { return w.spans[rank] },
		ReadAhead: w.ahead,
	})
	if err != nil {
		return nil, err
	}
	return hostDevice{d, w}, nil
}

// hostDevice gives the CPU device, which cannot import this package, the types
// of the interface.
type hostDevice struct {
	*host.Device
	weights *weights // nil if they are the device's own
}

func (d hostDevice) Close() error {
	err := d.Device.Close()
	if d.weights != nil {
		err = errors.Join(err, d.weights.Close())
	}
	return err
}

func (d hostDevice) Write(rank int, b recipes.Buffer, offset int64, data []byte) error {
	mem, err := d.at(rank, b, offset, len(data))
	copy(mem, data)
	return err
}

func (d hostDevice) Read(rank int, b recipes.Buffer, offset int64, data []byte) error {
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
func (d hostDevice) at(rank int, b recipes.Buffer, offset int64, size int) ([]byte, error) {
	mem := d.Bytes(rank, b)
	if offset < 0 || offset > int64(len(mem)) || int64(size) > int64(len(mem))-offset {
		return nil, fmt.Errorf("%d bytes at byte %d of buffer %s of rank %d, which has %d", size, offset, b, rank, len(mem))
	}
	return mem[offset : offset+int64(size)], nil
}

func (d hostDevice) Load(r *recipes.Recipe) (Program, error) {
	p, err := d.Device.Load(r)
	if err != nil {
		return nil, err
	}
	return hostProgram{d.Device, p}, nil
}

type hostProgram struct {
	device  *host.Device
	program *host.Program
}

func (p hostProgram) Bind(b []recipes.Binding) (Launch, error) {
	l, err := p.device.Bind(p.program, b)
	if err != nil {
		return nil, err // not a Launch that holds nil
	}
	return l, nil
}

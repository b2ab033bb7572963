//go:build linux

package hpu

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"quill/recipes"
	"quill/recipes/dl"
	"quill/runtime/hpu/launch"
)

// card is the card of a rank with everything that replays need: memory, programs and
// plans. One goroutine uses it, but for done.
type card struct {
	rt     *launch.Runtime
	dev    *launch.Device
	stream *launch.Stream
	ranks  int
	comm   *launch.Comm // nil for one rank alone
	// undo releases what was acquired, the last first.
	undo []func() error
	// where tells the group what the card is at.
	where *place

	sizes     map[recipes.Buffer]int64
	base      map[recipes.Buffer]uint64
	workspace uint64
	programs  map[recipes.Hash]*program

	// marks are recorded behind every markEvery steps of a run, so that it can be told
	// how far a card is that hangs.
	marks    []*launch.Event
	recorded atomic.Int64 // marks of the present run
	moved    atomic.Int64 // sections whose address in a launch table was changed, since the start
}

// acquire takes the card of a module, and waits for it if it is not free. Errors in
// the middle leave a card that release releases.
func (c *card) acquire(library string, module uint32, patience time.Duration) error {
	lib, err := dl.OpenSynapse(library)
	if err != nil {
		return err
	}
	if c.rt, err = launch.Load(lib); err != nil {
		return err
	}
	c.undo = append(c.undo, c.rt.Close)
	for end := time.Now().Add(patience); ; time.Sleep(time.Second / 2) {
		if c.dev, err = c.rt.Acquire(module); err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	c.undo = append(c.undo, c.dev.Release)
	if c.stream, err = c.dev.NewStream(); err != nil {
		return err
	}
	c.undo = append(c.undo, c.stream.Destroy)
	return nil
}

// allocate takes memory for all buffers, zeroed, and the workspace of all programs.
func (c *card) allocate(sizes map[recipes.Buffer]int64) error {
	c.sizes = sizes
	c.base = make(map[recipes.Buffer]uint64)
	for _, b := range recipes.Buffers() {
		if sizes[b] == 0 {
			continue
		}
		addr, err := c.malloc(uint64(sizes[b]))
		if err != nil {
			return fmt.Errorf("buffer %s: %w", b, err)
		}
		c.base[b] = addr
		if err := c.clear(b); err != nil {
			return err
		}
	}
	need := uint64(0)
	for _, p := range c.programs {
		n, err := p.recipe.Workspace()
		if err != nil {
			return err
		}
		need = max(need, n)
	}
	if need > 0 {
		var err error
		if c.workspace, err = c.malloc(need); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
	}
	return c.stream.Synchronize()
}

func (c *card) malloc(n uint64) (uint64, error) {
	c.where.allocations.Add(1)
	addr, err := c.dev.Malloc(n)
	if err == nil {
		c.undo = append(c.undo, func() error { return c.dev.Free(addr) })
	}
	return addr, err
}

// clear zeroes a buffer.
func (c *card) clear(b recipes.Buffer) error {
	if c.sizes[b] == 0 {
		return nil
	}
	return c.stream.Memset(c.base[b], 0, uint64(c.sizes[b]))
}

// at is the address of a range of a buffer.
func (c *card) at(b recipes.Buffer, offset, n int64) (uint64, error) {
	if size := c.sizes[b]; offset < 0 || offset > size || n < 0 || n > size-offset {
		return 0, fmt.Errorf("%d bytes at byte %d of buffer %s, which has %d", n, offset, b, size)
	}
	return c.base[b] + uint64(offset), nil
}

// release gives everything back, in the reverse order. It returns the first error.
func (c *card) release() error {
	c.recorded.Store(0) // nobody asks for marks that are gone
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if c.comm != nil {
		keep(c.comm.Finalize())
		keep(c.comm.Destroy())
		c.comm = nil
	}
	for _, undo := range slices.Backward(c.undo) {
		keep(undo())
	}
	c.undo = nil
	return first
}

// Package host is the CPU device: it executes recipes with plain Go kernels
// over plain memory, N ranks in one process.
//
// All memory a replay needs exists before it: New allocates the buffers, Load
// places a recipe's workspace and resolves every node to a kernel, Bind fixes
// the addresses of one launch, and Run only executes. docs/nodes.md is the law
// of what each node means.
//
// Results are a function of the inputs alone: they depend neither on how ranks
// are spread over goroutines nor, for a row of a batch, on the other rows.
package host

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"quill/recipes"
)

// ErrClosed is returned by every method that needs the device after Close.
var ErrClosed = errors.New("host device is closed")

// maxBuffer bounds the size of one buffer or tensor. It is far beyond any real
// device and keeps every later size computation from overflowing.
const maxBuffer = 1 << 46

// defaultWorkspace bounds the workspace of one rank, so that a malformed
// recipe is refused instead of exhausting the machine.
const defaultWorkspace = 1 << 36

// maxRanks bounds the number of ranks of one process.
const maxRanks = 1024

// Device is N ranks in one process. Its methods may be called from several
// goroutines; launches and collectives execute one at a time.
type Device struct {
	limit int64 // largest workspace of one rank
	sizes map[recipes.Buffer]int64
	ranks []rank

	mu     sync.Mutex // held while anything executes or memory is resized
	closed bool
	// acc is the accumulator of a reduction; result holds a rank's widened
	// values, then the rounded sums.
	acc, result []byte

	work    []chan *Launch // one per goroutine; the caller is worker 0
	pending sync.WaitGroup // goroutines that still execute the current launch
	exited  sync.WaitGroup // goroutines that still live
}

// rank is the memory of one rank.
type rank struct {
	buffers   map[recipes.Buffer][]byte
	workspace []byte
	mem       mem // operands of the node being executed
}

// New allocates the buffers of every rank, zeroed. Buffers missing from bytes
// are empty.
func New(ranks int, bytes map[recipes.Buffer]int64) (*Device, error) {
	return newDevice(ranks, bytes, runtime.GOMAXPROCS(0))
}

func newDevice(ranks int, bytes map[recipes.Buffer]int64, workers int) (*Device, error) {
	if ranks < 1 || ranks > maxRanks {
		return nil, fmt.Errorf("host device: %d ranks, want 1 to %d", ranks, maxRanks)
	}
	sizes := make(map[recipes.Buffer]int64)
	for _, b := range recipes.Buffers() {
		sizes[b] = 0
	}
	for b, n := range bytes {
		if _, ok := sizes[b]; !ok {
			return nil, fmt.Errorf("host device: unknown buffer %q", b)
		}
		if n < 0 || n > maxBuffer {
			return nil, fmt.Errorf("host device: buffer %s of %d bytes, want 0 to %d", b, n, int64(maxBuffer))
		}
		sizes[b] = n
	}
	d := &Device{
		limit:  defaultWorkspace,
		sizes:  sizes,
		ranks:  make([]rank, ranks),
		acc:    alloc(4 * chunk),
		result: alloc(4 * chunk),
	}
	for r := range d.ranks {
		buffers := make(map[recipes.Buffer][]byte, len(sizes))
		for b, n := range sizes {
			buffers[b] = alloc(n)
		}
		d.ranks[r].buffers = buffers
	}
	for w := 1; w < min(ranks, workers); w++ {
		ch := make(chan *Launch)
		d.work = append(d.work, ch)
		d.exited.Add(1)
		go d.serve(w, ch)
	}
	return d, nil
}

// Ranks is the number of ranks.
func (d *Device) Ranks() int { return len(d.ranks) }

// Bytes is the host view of one rank's buffer, nil if there is none. It must
// not be touched while a launch or collective executes.
func (d *Device) Bytes(rank int, b recipes.Buffer) []byte {
	if rank < 0 || rank >= len(d.ranks) {
		return nil
	}
	return d.ranks[rank].buffers[b]
}

// Launch binds and runs a program once on all ranks. A launch that is repeated
// is better prepared with Bind.
func (d *Device) Launch(ctx context.Context, p *Program, b []recipes.Binding) error {
	l, err := d.Bind(p, b)
	if err != nil {
		return err
	}
	return l.Run(ctx)
}

// Close stops the worker goroutines and drops the device's memory. It waits
// for a running launch.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	for _, ch := range d.work {
		close(ch)
	}
	d.exited.Wait()
	for r := range d.ranks {
		d.ranks[r] = rank{}
	}
	return nil
}

// begin takes the device for one execution; the caller unlocks d.mu if it
// succeeds.
func (d *Device) begin(ctx context.Context) error {
	d.mu.Lock()
	err := ctx.Err()
	if d.closed {
		err = ErrClosed
	}
	if err != nil {
		d.mu.Unlock()
	}
	return err
}

// serve executes worker w's share of each launch.
func (d *Device) serve(w int, launches <-chan *Launch) {
	defer d.exited.Done()
	for l := range launches {
		d.share(w, l)
		d.pending.Done()
	}
}

// all executes a launch on all ranks.
func (d *Device) all(l *Launch) {
	d.pending.Add(len(d.work))
	for _, ch := range d.work {
		ch <- l
	}
	d.share(0, l)
	d.pending.Wait()
}

// share executes the ranks of worker w: ranks share nothing within a launch,
// so any distribution gives the same result.
func (d *Device) share(w int, l *Launch) {
	for r := w; r < len(d.ranks); r += len(d.work) + 1 {
		l.errs[r] = l.runRank(r)
	}
}

// reserve makes room for a program's workspace and operands on every rank.
func (d *Device) reserve(p *Program) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return ErrClosed
	}
	for r := range d.ranks {
		k := &d.ranks[r]
		if int64(len(k.workspace)) < p.workspace {
			k.workspace = alloc(p.workspace)
		}
		k.mem.grow(p.operands)
	}
	return nil
}

// Package host is the CPU device: it executes recipes over plain memory, N
// ranks in one process.
//
//	New    allocates the buffers and starts the threads
//	Load   nodes → units (a kernel, or rows of several fused nodes) → workspace
//	Bind   fixes the addresses of one launch
//	Run    executes: nothing is resolved, nothing is allocated
//
// docs/nodes.md is the law of what each node means. Results are a function of
// the inputs alone: they depend neither on the number of threads nor, for a row
// of a batch, on the other rows, nor on whether nodes are fused, with the one
// exception stated there.
package host

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"quill/recipes"
	"quill/runtime/host/kern"
)

// ErrClosed is returned by every method that needs the device after Close.
var ErrClosed = errors.New("host device is closed")

// maxBuffer bounds the size of one buffer or tensor. It is far beyond any real
// device and keeps every later size computation from overflowing.
const maxBuffer = 1 << 46

// defaultWorkspace bounds the workspace of one rank, so that a malformed
// recipe is refused instead of exhausting the machine.
const defaultWorkspace = 1 << 36

// maxRanks bounds the number of ranks of one process, maxThreads that of
// threads.
const maxRanks, maxThreads = 1024, 1024

// Options say what a device is made of.
type Options struct {
	Ranks int
	// Bytes is the size of each buffer of a rank; buffers that are missing are
	// empty.
	Bytes map[recipes.Buffer]int64
	// Threads is the number of threads over all ranks; 0 is GOMAXPROCS. More than
	// one a rank are rounded down to a multiple of Ranks. Results do not depend on
	// it.
	Threads int
	// Unfused executes every node on its own. Results are the same, as
	// docs/nodes.md says.
	Unfused bool
	// Weights returns the memory of one rank's weights, where it is not one
	// buffer of the device: spans sorted by offset that do not overlap. What no
	// span covers cannot be bound.
	Weights func(rank int) []Span
	// Memory returns the zeroed memory of one rank's buffer, which must stay until the
	// device is closed and begin at a multiple of 64; nil is memory of Go.
	Memory func(rank int, b recipes.Buffer, bytes int64) ([]byte, error)
	// ReadAhead asks the system for the weights of experts as soon as they are
	// chosen, which pays where mapped weights exceed the memory.
	ReadAhead bool
}

// Span is a part of a weights buffer that lies in the caller's memory, which
// must stay until the device is closed.
type Span struct {
	Offset int64
	Data   []byte
	Mapped bool // from a file: reading may have to wait for it
}

// Device is N ranks in one process. Its methods may be called from several
// goroutines; launches and collectives execute one at a time.
type Device struct {
	limit   int64 // largest workspace of one rank
	sizes   map[recipes.Buffer]int64
	ranks   []rank
	kernels kern.Kernels
	unfused bool
	ahead   bool
	crew    *crew

	programs, allocations atomic.Int64

	mu      sync.Mutex // held while anything executes or memory is resized
	closed  bool
	launch  *Launch // that executes
	work    func(*thread)
	trace   *Trace
	tables  map[string][]*byte // of weights, by their bytes
	reducer *Reducer
	// ins and outs are, by rank, the ranges of the collective that executes.
	ins, outs [][]byte
}

// rank is the memory of one rank.
type rank struct {
	buffers   map[recipes.Buffer][]byte
	weights   []Span
	workspace []byte
}

// New allocates the buffers of every rank, zeroed, and starts the threads. The
// kernels are the best ones of the processor unless the environment names
// others (kern.Env).
func New(o Options) (*Device, error) {
	sizes, err := o.check()
	if err != nil {
		return nil, fmt.Errorf("host device: %w", err)
	}
	kernels, err := kern.FromEnv()
	if err != nil {
		return nil, fmt.Errorf("host device: %w", err)
	}
	threads := o.Threads
	if threads == 0 {
		threads = min(runtime.GOMAXPROCS(0), maxThreads)
	}
	d := &Device{
		limit:   defaultWorkspace,
		sizes:   sizes,
		ranks:   make([]rank, o.Ranks),
		kernels: kernels,
		unfused: o.Unfused,
		ahead:   o.ReadAhead,
		tables:  make(map[string][]*byte),
		reducer: newReducer(kernels),
		ins:     make([][]byte, o.Ranks),
		outs:    make([][]byte, o.Ranks),
	}
	for r := range d.ranks {
		if err := d.makeRank(r, &o, sizes); err != nil {
			return nil, fmt.Errorf("host device: rank %d: %w", r, err)
		}
	}
	d.crew = newCrew(o.Ranks, threads)
	d.work = d.share // once: a method value allocates
	return d, nil
}

// check returns the size of every buffer.
func (o *Options) check() (map[recipes.Buffer]int64, error) {
	if o.Ranks < 1 || o.Ranks > maxRanks {
		return nil, fmt.Errorf("%d ranks, want 1 to %d", o.Ranks, maxRanks)
	}
	if o.Threads < 0 || o.Threads > maxThreads {
		return nil, fmt.Errorf("%d threads, want 1 to %d, or 0 for one a processor", o.Threads, maxThreads)
	}
	sizes := make(map[recipes.Buffer]int64)
	for _, b := range recipes.Buffers() {
		sizes[b] = 0
	}
	for b, n := range o.Bytes {
		if _, ok := sizes[b]; !ok {
			return nil, fmt.Errorf("unknown buffer %q", b)
		}
		if n < 0 || n > maxBuffer {
			return nil, fmt.Errorf("buffer %s of %d bytes, want 0 to %d", b, n, int64(maxBuffer))
		}
		sizes[b] = n
	}
	return sizes, nil
}

// alloc allocates memory of the device, which is counted.
func (d *Device) alloc(n int64) []byte {
	d.allocations.Add(1)
	return alloc(n)
}

// makeRank allocates the buffers of rank r, or takes its weights from the caller.
func (d *Device) makeRank(r int, o *Options, sizes map[recipes.Buffer]int64) error {
	k := &d.ranks[r]
	k.buffers = make(map[recipes.Buffer][]byte, len(sizes))
	for b, n := range sizes {
		if b == recipes.Weights && o.Weights != nil {
			continue
		}
		m, err := d.memory(o, r, b, n)
		if err != nil {
			return fmt.Errorf("buffer %s of %d bytes: %w", b, n, err)
		}
		k.buffers[b] = m
	}
	if o.Weights == nil {
		k.weights = []Span{{Data: k.buffers[recipes.Weights]}}
		return nil
	}
	k.weights = o.Weights(r)
	end := int64(0)
	for _, s := range k.weights {
		if s.Offset < end {
			return fmt.Errorf("weights span at byte %d, want at least %d", s.Offset, end)
		}
		end = s.Offset + int64(len(s.Data))
	}
	if size := sizes[recipes.Weights]; end > size {
		return fmt.Errorf("weights spans end at byte %d of %d", end, size)
	}
	return nil
}

// memory allocates one buffer.
func (d *Device) memory(o *Options, r int, b recipes.Buffer, n int64) ([]byte, error) {
	if o.Memory == nil || n == 0 {
		return d.alloc(n), nil
	}
	d.allocations.Add(1)
	m, err := o.Memory(r, b, n)
	if err == nil && (int64(len(m)) != n || uintptr(unsafe.Pointer(unsafe.SliceData(m)))%alignment != 0) {
		err = fmt.Errorf("the caller's memory has %d bytes, or does not begin at a multiple of %d", len(m), alignment)
	}
	return m, err
}

// span finds the memory of n bytes of the weights, nil if they are not all in
// one span.
func (k *rank) span(at, n int64) ([]byte, *Span) {
	i, found := slices.BinarySearchFunc(k.weights, at, func(s Span, at int64) int { return int(min(max(s.Offset-at, -1), 1)) })
	if !found {
		i--
	}
	if i < 0 {
		return nil, nil
	}
	s := &k.weights[i]
	from := at - s.Offset
	if from > int64(len(s.Data)) || n > int64(len(s.Data))-from {
		return nil, nil
	}
	return s.Data[from : from+n : from+n], s
}

// Ranks is the number of ranks.
func (d *Device) Ranks() int { return len(d.ranks) }

// Threads is the number of threads that execute launches.
func (d *Device) Threads() int { return len(d.crew.threads) }

// Made is how many programs the device has loaded, and how often it has allocated
// memory: buffers, workspace, memory of threads, addresses of launches. Executing
// changes neither.
func (d *Device) Made() (programs, allocations int64) {
	return d.programs.Load(), d.allocations.Load()
}

// Bytes is the host view of one rank's buffer, nil if there is none or if it is
// not the device's. It must not be touched while a launch or collective
// executes.
func (d *Device) Bytes(rank int, b recipes.Buffer) []byte {
	if rank < 0 || rank >= len(d.ranks) {
		return nil
	}
	return d.ranks[rank].buffers[b]
}

// Close stops the threads and drops the device's memory. It waits for a running
// launch.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.crew.close()
	for r := range d.ranks {
		d.ranks[r] = rank{}
	}
	d.tables = nil
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

// share executes thread t's share of the launch: its part of every stage on the
// ranks of its team. Ranks share nothing within a launch.
func (d *Device) share(t *thread) {
	for r := t.team; r < len(d.ranks); r += len(d.crew.teams) {
		if !d.launch.runRank(r, t, &d.crew.teams[t.team]) {
			return
		}
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
			k.workspace = d.alloc(p.workspace)
		}
	}
	for _, t := range d.crew.threads {
		if t.mem.grow(p.operands, p.values) {
			d.allocations.Add(1)
		}
	}
	d.programs.Add(1)
	return nil
}

package runtime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"quill/recipes"
	"quill/runtime/host"
)

// Session is an opened bundle: a device with weights, bound plans and a pool of
// blocks. See the package comment for what may be called when.
type Session struct {
	dev      Device
	manifest recipes.Manifest
	info     *recipes.SetInfo
	notes    []string
	plans    []*plan // parallel to info.Plans
	selector *recipes.Selector
	layout   layout
	chunk    int // largest prefill chunk
	rows     int // largest logits bucket

	raw    []byte      // the newest logits as the device has them, see Replay.Fetch
	row    []float32   // one row of them, for PrefillAll
	lone   []*Sequence // batch of a prefill
	batch  int64       // number of the current batch
	counts counters
	// What the device had made when Open ended, see Device.Made.
	programs, allocations int64

	mu      sync.Mutex
	busy    bool // a step runs
	closed  bool
	pool    *pool
	live    int // open sequences
	nextID  int64
	start   int64       // times that the device was restarted
	closing []*Sequence // closed while a step ran
}

type counters struct {
	steps, launches, collectives, misses atomic.Int64
}

// Info describes a session.
type Info struct {
	Quill      string // version of the compiler
	Target     string
	Precision  string
	Model      recipes.Model
	Deployment recipes.Deployment
	// Bytes is the size of each buffer of one rank.
	Bytes map[recipes.Buffer]int64
	// Buckets are all that were compiled.
	Buckets []recipes.Bucket
	// Notes are remarks on the checkpoint, such as parts of it that are not used.
	Notes    []string
	Counters Counters
}

// Counters count since Open.
type Counters struct {
	Steps       int64 // prefill chunks and decode batches
	Launches    int64 // each on all ranks
	Collectives int64
	// Used is how often each bucket ran; buckets that did not are left out.
	Used map[recipes.Bucket]int64
	// What a session never does, see Static: Compiles are programs that the device
	// loaded after Open; Misses are sequences and steps that were refused since no
	// bucket covers them, which only a bundle that the compiler did not make has;
	// LateAllocations are those of the device, or for it, after Open.
	Compiles, Misses, LateAllocations int64
	// Sequences are open now, FreeBlocks could be reserved now.
	Sequences, FreeBlocks int
}

// Static is nil if nothing was compiled, missed or allocated since Open, else an
// error that says what was.
func (c *Counters) Static() error {
	if c.Compiles == 0 && c.Misses == 0 && c.LateAllocations == 0 {
		return nil
	}
	return fmt.Errorf("%d programs were loaded and %d allocations made after Open, %d sequences or steps had no bucket: want none",
		c.Compiles, c.LateAllocations, c.Misses)
}

// seal ends Open: what the device makes from now on is counted.
func (s *Session) seal() *Session {
	s.programs, s.allocations = s.dev.Made()
	return s
}

// Info returns a snapshot that the caller may keep; it may be called at any
// time.
func (s *Session) Info() Info {
	programs, allocations := s.dev.Made()
	c := Counters{
		Steps:       s.counts.steps.Load(),
		Launches:    s.counts.launches.Load(),
		Collectives: s.counts.collectives.Load(),
		Misses:      s.counts.misses.Load(),
		Compiles:    programs - s.programs, LateAllocations: allocations - s.allocations,
		Used: make(map[recipes.Bucket]int64),
	}
	for _, p := range s.plans {
		if n := p.used.Load(); n > 0 {
			c.Used[p.bucket] = n
		}
	}
	s.mu.Lock()
	c.Sequences, c.FreeBlocks = s.live, s.pool.count
	s.mu.Unlock()
	return Info{
		Quill:      s.manifest.Quill,
		Target:     s.manifest.Target,
		Precision:  s.info.Precision,
		Model:      s.manifest.Model,
		Deployment: s.manifest.Deployment,
		Bytes:      maps.Clone(s.info.Bytes),
		Buckets:    slices.Clone(s.info.Plans),
		Notes:      slices.Clone(s.notes),
		Counters:   c,
	}
}

// Threads is the number of threads of the CPU device; zero on others.
func (s *Session) Threads() int {
	if d, ok := s.dev.(*HostDevice); ok {
		return d.Threads()
	}
	return 0
}

// Trace makes the CPU device record what its units do in t, until it is called
// with nil. It is an error on other devices and ErrBusy while a step runs.
func (s *Session) Trace(t *host.Trace) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		return fmt.Errorf("trace: %w", ErrBusy)
	}
	d, ok := s.dev.(*HostDevice)
	if !ok {
		return errors.New("trace: the device is not the CPU device")
	}
	d.SetTrace(t)
	return nil
}

// Close releases the device. Sequences that are still open cannot be used any
// more. Further calls do nothing; while a step runs it is ErrBusy.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.busy {
		return fmt.Errorf("close: %w", ErrBusy)
	}
	s.closed = true
	return s.dev.Close()
}

// Restart starts a device anew that was lost (ErrDeviceLost). All sequences are lost
// with it and can only be closed. Progress is that of Options. It is ErrBusy while a
// step runs.
func (s *Session) Restart(ctx context.Context, progress func(done, total int64)) error {
	if err := s.enter(nil); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	defer s.leave()
	d, ok := s.dev.(Restarting)
	if !ok {
		return errors.New("restart: the device cannot be restarted")
	}
	s.mu.Lock()
	s.start++
	s.mu.Unlock()
	err := d.Restart(ctx, progress)
	s.seal()
	return err
}

// enter begins a step of the given sequences. Every enter that succeeds is
// followed by a leave.
func (s *Session) enter(qs []*Sequence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("session is %w", ErrClosed)
	}
	if s.busy {
		return ErrBusy
	}
	s.batch++
	for _, q := range qs {
		if err := s.usable(q); err != nil {
			return err
		}
		q.batch = s.batch
	}
	s.busy = true
	return nil
}

// usable checks that a sequence can be in the current batch. s.mu is held.
func (s *Session) usable(q *Sequence) error {
	switch {
	case q == nil:
		return errors.New("no sequence")
	case q.s != s:
		return fmt.Errorf("sequence %d is of another session", q.id)
	case q.closed:
		return fmt.Errorf("sequence %d is %w", q.id, ErrClosed)
	case q.start != s.start:
		return fmt.Errorf("sequence %d was lost with the device and can only be closed", q.id)
	case q.err != nil:
		// Not wrapped: this step did not fail for that reason.
		return fmt.Errorf("sequence %d failed before and can only be closed: %v", q.id, q.err)
	case q.batch == s.batch:
		return fmt.Errorf("sequence %d is in the batch twice", q.id)
	}
	return nil
}

// leave ends a step.
func (s *Session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	for i, q := range s.closing {
		s.release(q)
		s.closing[i] = nil
	}
	s.closing = s.closing[:0]
}

// fail marks sequences whose cache content is not what their length says.
func (s *Session) fail(qs []*Sequence, err error, dirty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range qs {
		q.err = err
		q.dirty = q.dirty || dirty
	}
}

// scrub zeroes the state of all blocks. No sequence is open. Only the compiler
// knows where in the buffers a block's bytes are.
func (s *Session) scrub() error {
	for _, b := range []recipes.Buffer{recipes.KV, recipes.Conv} {
		if err := s.dev.Clear(b); err != nil {
			return err
		}
	}
	return nil
}

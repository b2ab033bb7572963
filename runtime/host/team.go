package host

import "sync/atomic"

// Threads are goroutines that live as long as the device. Those of one team
// execute a launch on one rank together: they walk through the same stages, and
// each takes its fixed share of a stage's units. So which thread computes what
// is a function of the sizes alone, and since a unit's result does not depend on
// its range, results do not depend on the number of threads.

// thread is one goroutine's place in the device.
type thread struct {
	team int // its team
	id   int // its number in the team
	mem  mem

	fault fault // why it left the launch

	// parked is set while the goroutine sleeps on wake.
	parked atomic.Bool
	wake   chan struct{}
}

// spins is how often a thread looks for work or for its team before it lets
// others run: about as long as waking a sleeping goroutine takes.
const spins = 4096

// barrier lets the threads of a team wait for each other.
type barrier struct {
	size    int32
	arrived atomic.Int32
	phase   atomic.Uint32
	failed  atomic.Bool // a thread left the launch
	_       [40]byte    // teams do not share a cache line
}

// reset prepares a launch. No thread may be waiting.
func (b *barrier) reset() {
	b.arrived.Store(0)
	b.failed.Store(false)
}

// wait returns when all threads of the team have called it; false if one of
// them failed, in which case no thread may wait again.
func (b *barrier) wait() bool {
	if b.size == 1 {
		return !b.failed.Load()
	}
	phase := b.phase.Load()
	if b.arrived.Add(1) == b.size {
		b.arrived.Store(0)
		b.phase.Add(1)
		return !b.failed.Load()
	}
	for i := 0; b.phase.Load() == phase; i++ {
		if b.failed.Load() {
			return false
		}
		pause(i)
	}
	return !b.failed.Load()
}

// crew are the threads of a device; the caller of a launch is the first one.
type crew struct {
	threads []*thread
	teams   []barrier
	size    int // threads of a team

	epoch   atomic.Uint32 // counts jobs
	job     func(*thread)
	pending atomic.Int32 // threads that still execute the job
	closed  bool
	exited  chan struct{}
}

// newCrew divides n threads into teams: as many as ranks if there are enough
// threads, else one thread each.
func newCrew(ranks, n int) *crew {
	c := &crew{exited: make(chan struct{}, n)}
	c.size = max(1, n/ranks)
	c.teams = make([]barrier, min(ranks, n))
	for i := range c.teams {
		c.teams[i].size = int32(c.size)
		for id := range c.size {
			c.threads = append(c.threads, &thread{team: i, id: id, wake: make(chan struct{}, 1)})
		}
	}
	for _, t := range c.threads[1:] {
		go c.serve(t)
	}
	return c
}

// run executes the job on all threads.
func (c *crew) run(job func(*thread)) {
	for i := range c.teams {
		c.teams[i].reset()
	}
	c.job = job
	c.pending.Store(int32(len(c.threads) - 1))
	c.call()
	job(c.threads[0])
	for i := 0; c.pending.Load() > 0; i++ {
		pause(i)
	}
}

// call starts every other thread on the current job.
func (c *crew) call() {
	c.epoch.Add(1)
	for _, t := range c.threads[1:] {
		if t.parked.CompareAndSwap(true, false) {
			t.wake <- struct{}{}
		}
	}
}

// serve executes jobs until the crew is closed. After a job it looks out for
// the next one for a while, since a step is many launches, and then sleeps.
func (c *crew) serve(t *thread) {
	defer func() { c.exited <- struct{}{} }()
	for seen := uint32(0); ; {
		for i := 0; c.epoch.Load() == seen; i++ {
			if i < spins {
				continue
			}
			t.parked.Store(true)
			if c.epoch.Load() != seen && t.parked.CompareAndSwap(true, false) {
				break
			}
			<-t.wake
		}
		seen = c.epoch.Load()
		if c.closed {
			return
		}
		c.job(t)
		c.pending.Add(-1)
	}
}

// close ends all goroutines. No job may be running.
func (c *crew) close() {
	c.closed = true
	c.call()
	for range c.threads[1:] {
		<-c.exited
	}
	c.job = nil
}

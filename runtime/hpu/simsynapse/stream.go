package simsynapse

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

// stream does work in order, later than it is enqueued: a worker begins when somebody waits
// for it, or after a while.
type stream struct {
	lib *Library

	mu      sync.Mutex
	changed *sync.Cond
	ops     []*op  // pending; the first one may be executing
	done    uint64 // how many were done
	wanted  uint64 // up to which work somebody waits
	failed  Status // of the first one that failed: later ones are not done
	closed  bool
	stopped chan struct{} // is closed to end what never ends
	ended   chan struct{} // the worker is gone
}

// op is one piece of work.
type op struct {
	what   string
	run    func() Status
	memory []*allocation
	host   []*mapping
	recipe *recipe
	due    time.Time
	late   bool // takes time even if somebody waits
	stuck  bool // is never done
	joint  bool // a collective, which sees to that itself
}

func newStream(l *Library) *stream {
	s := &stream{lib: l, stopped: make(chan struct{}), ended: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	go s.work()
	return s
}

// enqueue adds work and gives its number: it is done once so many are.
func (s *stream) enqueue(o *op) uint64 {
	o.due = time.Now().Add(s.lib.config.Lag)
	if f := s.lib.fault; f != nil {
		o.late, o.stuck = f.action == "late", f.action == "stuck" && !o.joint
		if o.late {
			o.due = o.due.Add(late)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops = append(s.ops, o)
	s.changed.Broadcast()
	return s.done + uint64(len(s.ops))
}

func (s *stream) work() {
	defer close(s.ended)
	for o := s.next(); o != nil; o = s.next() {
		st := s.failure()
		if st == Success {
			st = s.execute(o)
		}
		s.mu.Lock()
		s.ops = s.ops[1:]
		s.done++
		if s.failed == Success {
			s.failed = st
		}
		s.changed.Broadcast()
		s.mu.Unlock()
	}
}

// next waits for work that is to begin, nil if there will be none.
func (s *stream) next() *op {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if len(s.ops) > 0 {
			o := s.ops[0]
			rest := time.Until(o.due)
			if rest <= 0 || !o.late && (s.wanted > s.done || s.closed) {
				return o
			}
			timer := time.AfterFunc(rest, s.changed.Broadcast)
			s.changed.Wait()
			timer.Stop()
			continue
		}
		if s.closed {
			return nil
		}
		s.changed.Wait()
	}
}

// execute does one piece of work, unless what it uses is gone.
func (s *stream) execute(o *op) Status {
	if st := Status(s.lib.lost.Load()); st != Success {
		return st
	}
	if o.stuck {
		<-s.stopped
		return Fail
	}
	for _, a := range o.memory {
		if a.freed.Load() {
			s.lib.lose(DeviceReset, "%s uses device memory at %#x, which was freed before it was done", o.what, dramBase+a.at)
			return DeviceReset
		}
	}
	for _, m := range o.host {
		if m.freed.Load() {
			s.lib.lose(DeviceReset, "%s uses host memory at %#x, which was unmapped before it was done", o.what, m.at)
			return DeviceReset
		}
	}
	return o.run()
}

func (s *stream) failure() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// wait waits until n pieces of work are done.
func (s *stream) wait(n uint64) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = max(s.wanted, n)
	s.changed.Broadcast()
	for s.done < n {
		s.changed.Wait()
	}
	return s.failed
}

// end is the number of the last work.
func (s *stream) end() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done + uint64(len(s.ops))
}

// is reports how far the stream is, without waiting: Busy if not n pieces are done.
func (s *stream) is(n uint64) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done < n {
		return Busy
	}
	return s.failed
}

// stop does what is pending, and ends the worker.
func (s *stream) stop() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stopped)
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	<-s.ended
}

func (s *stream) uses(r *recipe) bool {
	return s.pending(func(o *op) bool { return o.recipe == r })
}

func (s *stream) usesHost(m *mapping) bool {
	return s.pending(func(o *op) bool { return slices.Contains(o.host, m) })
}

func (s *stream) pending(is func(*op) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.ops, is)
}

// StreamCreate is synStreamCreateGeneric.
func (l *Library) StreamCreate(id, flags uint32) (Handle, Status) {
	return withDevice(l, "synStreamCreateGeneric", id, args{"flags": flags}, func(*device) (Handle, Status) {
		if flags != 0 {
			return 0, l.refused(InvalidArgument, "stream flags %#x, want 0", flags)
		}
		h := l.handle()
		l.streams[h] = newStream(l)
		return h, Success
	})
}

// StreamDestroy is synStreamDestroy: refused while work is pending.
func (l *Library) StreamDestroy(h Handle) Status {
	return l.do("synStreamDestroy", args{"stream": h}, func() Status {
		s, st := lookup(l, l.streams, h, "stream")
		if st != Success {
			return st
		}
		if s.is(s.end()) == Busy {
			return l.refused(Busy, "stream %#x is destroyed while work is pending", uint64(h))
		}
		s.stop()
		delete(l.streams, h)
		return Success
	})
}

// StreamSynchronize is synStreamSynchronize.
func (l *Library) StreamSynchronize(h Handle) Status {
	return l.wait("synStreamSynchronize", args{"stream": h}, func() (func() Status, Status) {
		s, st := lookup(l, l.streams, h, "stream")
		if st != Success {
			return nil, st
		}
		end := s.end()
		return func() Status { return s.wait(end) }, Success
	})
}

// StreamQuery is synStreamQuery: Busy while work is pending.
func (l *Library) StreamQuery(h Handle) Status {
	return l.do("synStreamQuery", args{"stream": h}, func() Status {
		s, st := lookup(l, l.streams, h, "stream")
		if st != Success {
			return st
		}
		return s.is(s.end())
	})
}

// DeviceSynchronize is synDeviceSynchronize: all streams.
func (l *Library) DeviceSynchronize(id uint32) Status {
	return l.wait("synDeviceSynchronize", args{"device": id}, func() (func() Status, Status) {
		if l.device == nil || id != 0 {
			return nil, l.refused(Fail, "device %d is not acquired", id)
		}
		ends := map[*stream]uint64{}
		for _, s := range l.streams {
			ends[s] = s.end()
		}
		return func() (st Status) {
			for s, end := range ends {
				if one := s.wait(end); st == Success {
					st = one
				}
			}
			return st
		}, Success
	})
}

// event is a moment of a stream.
type event struct {
	timed bool
	on    *stream // nil before it is recorded
	n     uint64

	mu sync.Mutex
	at time.Time
}

// EventCreate is synEventCreate; flag 1 lets it measure time.
func (l *Library) EventCreate(id, flags uint32) (Handle, Status) {
	return withDevice(l, "synEventCreate", id, args{"flags": flags}, func(*device) (Handle, Status) {
		if flags > 1 {
			return 0, l.refused(InvalidArgument, "event flags %#x, want 0 or 1", flags)
		}
		h := l.handle()
		l.events[h] = &event{timed: flags == 1}
		return h, Success
	})
}

// EventDestroy is synEventDestroy.
func (l *Library) EventDestroy(h Handle) Status {
	return l.do("synEventDestroy", args{"event": h}, func() Status {
		if _, st := l.event(h); st != Success {
			return st
		}
		delete(l.events, h)
		return Success
	})
}

func (l *Library) event(h Handle) (*event, Status) {
	if e, ok := l.events[h]; ok {
		return e, Success
	}
	return nil, l.refused(InvalidEventHandle, "event %#x is not there", uint64(h))
}

// EventRecord is synEventRecord.
func (l *Library) EventRecord(h, streamHandle Handle) Status {
	return l.do("synEventRecord", args{"event": h, "stream": streamHandle}, func() Status {
		e, st := l.event(h)
		if st != Success {
			return st
		}
		s, st := lookup(l, l.streams, streamHandle, "stream")
		if st != Success {
			return st
		}
		e.on = s
		e.n = s.enqueue(&op{what: "event", run: func() Status {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.at = time.Now()
			return Success
		}})
		return Success
	})
}

// EventQuery is synEventQuery: Busy before the event; one that was never recorded is done.
func (l *Library) EventQuery(h Handle) Status {
	return l.do("synEventQuery", args{"event": h}, func() Status {
		e, st := l.event(h)
		if st != Success || e.on == nil {
			return st
		}
		return e.on.is(e.n)
	})
}

// EventSynchronize is synEventSynchronize.
func (l *Library) EventSynchronize(h Handle) Status {
	return l.wait("synEventSynchronize", args{"event": h}, func() (func() Status, Status) {
		e, st := l.event(h)
		if st != Success || e.on == nil {
			return nil, st
		}
		on, n := e.on, e.n
		return func() Status { return on.wait(n) }, Success
	})
}

// EventElapsed is synEventElapsedTime, in nanoseconds.
func (l *Library) EventElapsed(from, to Handle) (uint64, Status) {
	return call(l, "synEventElapsedTime", args{"from": from, "to": to}, func() (uint64, Status) {
		a, st := l.event(from)
		if st != Success {
			return 0, st
		}
		b, st := l.event(to)
		if st != Success {
			return 0, st
		}
		for _, e := range []*event{a, b} {
			if !e.timed || e.on == nil || e.on.is(e.n) != Success {
				return 0, l.refused(FailedToCollectTime, "an event does not measure time, or has not come")
			}
		}
		a.mu.Lock()
		begin := a.at
		a.mu.Unlock()
		b.mu.Lock()
		defer b.mu.Unlock()
		return uint64(max(0, b.at.Sub(begin))), Success
	})
}

// StreamWaitEvent is synStreamWaitEvent: later work of the stream waits.
func (l *Library) StreamWaitEvent(streamHandle, h Handle, flags uint32) Status {
	return l.do("synStreamWaitEvent", args{"stream": streamHandle, "event": h, "flags": flags}, func() Status {
		e, st := l.event(h)
		if st != Success {
			return st
		}
		s, st := lookup(l, l.streams, streamHandle, "stream")
		if st != Success {
			return st
		}
		if on, n := e.on, e.n; on != nil && on != s { // work of one stream is in order anyway
			s.enqueue(&op{what: "wait for an event", run: func() Status { return on.wait(n) }})
		}
		return Success
	})
}

// Directions of copies.
const (
	HostToDevice   = 0
	DeviceToHost   = 1
	DeviceToDevice = 2
)

// MemCopy is synMemCopyAsync. Memory of the host must be mapped.
func (l *Library) MemCopy(streamHandle Handle, src, size, dst uint64, direction int32) Status {
	return l.copies("synMemCopyAsync", streamHandle, []uint64{src}, []uint64{size}, []uint64{dst}, direction)
}

// MemCopyMultiple is synMemCopyAsyncMultiple.
func (l *Library) MemCopyMultiple(streamHandle Handle, src, size, dst []uint64, direction int32) Status {
	return l.copies("synMemCopyAsyncMultiple", streamHandle, src, size, dst, direction)
}

func (l *Library) copies(name string, streamHandle Handle, src, size, dst []uint64, direction int32) Status {
	a := args{"stream": streamHandle, "src": src, "size": size, "dst": dst, "direction": direction}
	return l.do(name, a, func() Status {
		s, st := lookup(l, l.streams, streamHandle, "stream")
		if st != Success {
			return st
		}
		if direction < HostToDevice || direction > DeviceToDevice {
			return l.refused(InvalidArgument, "%s: direction %d, want 0 to 2", name, direction)
		}
		o := &op{what: name}
		var from, to [][]byte
		for i := range src {
			x, st := l.side(o, src[i], size[i], direction == HostToDevice)
			if st != Success {
				return st
			}
			y, st := l.side(o, dst[i], size[i], direction == DeviceToHost)
			if st != Success {
				return st
			}
			from, to = append(from, x), append(to, y)
		}
		o.run = func() Status {
			for i := range from {
				copy(to[i], from[i])
			}
			return Success
		}
		s.enqueue(o)
		return Success
	})
}

// side is one side of a copy.
func (l *Library) side(o *op, address, size uint64, onHost bool) ([]byte, Status) {
	if onHost {
		b, m := l.device.hostBytes(address, size)
		if m == nil {
			return nil, l.refused(MappingNotFound, "%s: %d bytes at %#x of the host are not mapped", o.what, size, address)
		}
		o.host = append(o.host, m)
		return b, Success
	}
	return l.deviceSide(o, address, size)
}

func (l *Library) deviceSide(o *op, address, size uint64) ([]byte, Status) {
	a := l.device.find(address, size)
	if a == nil {
		return nil, l.refused(InvalidArgument, "%s: %d bytes at %#x are not in one allocation of device memory", o.what, size, address)
	}
	o.memory = append(o.memory, a)
	return l.device.bytes(address, size), Success
}

// Memset is synMemsetD8Async, synMemsetD16Async and synMemsetD32Async: n elements of width
// bytes.
func (l *Library) Memset(address uint64, value uint32, width int, n uint64, streamHandle Handle) Status {
	a := args{"address": address, "value": value, "width": width, "n": n, "stream": streamHandle}
	return l.do("synMemsetAsync", a, func() Status {
		s, st := lookup(l, l.streams, streamHandle, "stream")
		if st != Success {
			return st
		}
		if n > 1<<42 || address%uint64(width) != 0 {
			return l.refused(InvalidArgument, "memset of %d elements of %d bytes at %#x", n, width, address)
		}
		o := &op{what: "synMemsetAsync"}
		b, st := l.deviceSide(o, address, n*uint64(width))
		if st != Success {
			return st
		}
		var word [4]byte
		binary.LittleEndian.PutUint32(word[:], value)
		o.run = func() Status {
			for i := 0; i < len(b); i += width {
				copy(b[i:], word[:width])
			}
			return Success
		}
		s.enqueue(o)
		return Success
	})
}

package host

import "time"

// Trace collects when units of launches executed: a unit begins when its
// threads may start and ends when they may start on the next one.
type Trace struct {
	Events  []Event
	Dropped int // events that found no room

	start    time.Time
	launches int32
	open     bool // the last event has no end yet
}

// Event is the execution of one unit on one rank.
type Event struct {
	Launch     int32 // launches are counted from 0
	Rank       int32
	Unit       *UnitInfo
	Start, End time.Duration // since the trace began
	Experts    int32         // distinct experts whose weights were read
}

// UnitInfo describes a unit of a program: a node, or several that were fused.
type UnitInfo struct {
	Kind         string // GUID without type, or what the fused unit is
	Name, Origin string // of its last node
	Recipe       string
	Nodes        int
	Span         bool  // leaves out keys that no row of a tile sees
	WeightBytes  int64 // of a matrix that it reads once, without experts
	ExpertBytes  int64 // of one expert
	Flops        int64 // of products, without experts
	ExpertFlops  int64 // of products, of all experts
}

// NewTrace makes a trace with room for so many events.
func NewTrace(capacity int) *Trace { return &Trace{Events: make([]Event, 0, capacity)} }

// mark ends the last event and returns the time.
func (t *Trace) mark() time.Duration {
	now := time.Since(t.start)
	if t.open {
		t.Events[len(t.Events)-1].End = now
		t.open = false
	}
	return now
}

// add records that a unit began.
func (t *Trace) add(m *mem, u *unit, begun time.Duration) {
	if len(t.Events) == cap(t.Events) {
		t.Dropped++
		return
	}
	e := Event{Launch: t.launches, Rank: int32(m.rank), Unit: &u.info, Start: begun}
	if u.experts != nil {
		e.Experts = int32(u.experts(m))
	}
	t.Events = append(t.Events, e)
	t.open = true
}

// SetTrace begins to record launches in t, or stops with nil. What is recorded
// is the first team of threads: all ranks if there is only one, and always the
// first rank.
func (d *Device) SetTrace(t *Trace) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t != nil {
		t.start, t.launches, t.open = time.Now(), -1, false
	}
	d.trace = t
}

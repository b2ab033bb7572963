package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"quill/runtime/host"
)

// callSpan is a call of the session within a trace, and the events that it caused.
type callSpan struct {
	name       string
	start, end time.Duration // since the trace began
	first, n   int           // of the trace's events
}

// recording is a trace with the calls that it covers.
type recording struct {
	what  string
	trace *host.Trace
	spans []callSpan
}

// writeChrome writes recordings as a Chrome trace, which Perfetto and
// chrome://tracing open: a process a recording, a thread a rank, and on it
// calls, of launches, of units.
//
// The format is the "JSON Object Format" of the Trace Event Format: "M" events
// name processes and threads, "X" events are complete ones, times are in
// microseconds.
func writeChrome(w io.Writer, recordings []recording) error {
	out := bufio.NewWriter(w)
	c := &chrome{out: out}
	out.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`)
	for pid := range recordings {
		c.recording(pid+1, &recordings[pid])
	}
	out.WriteString("\n]}\n")
	if c.err != nil {
		return c.err
	}
	return out.Flush() // the first error of all writes
}

// chrome writes events.
type chrome struct {
	out  *bufio.Writer
	some bool
	err  error
}

// chromeEvent is an event as the format spells it.
type chromeEvent struct {
	Name  string  `json:"name"`
	Cat   string  `json:"cat,omitempty"`
	Phase string  `json:"ph"`
	Start micros  `json:"ts"`
	Dur   *micros `json:"dur,omitempty"`
	PID   int     `json:"pid"`
	TID   int     `json:"tid"`
	Args  any     `json:"args,omitempty"`
}

// micros is a time in microseconds, to the nanosecond.
type micros time.Duration

func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", int64(m)/1000, int64(m)%1000), nil
}

type nameArgs struct {
	Name string `json:"name"`
}

type unitArgs struct {
	Node    string `json:"node,omitempty"`
	Origin  string `json:"origin,omitempty"`
	Nodes   int    `json:"nodes"`
	Span    bool   `json:"span,omitempty"` // hidden keys are left out
	Bytes   int64  `json:"weight_bytes,omitempty"`
	Flops   int64  `json:"flops,omitempty"`
	Experts int32  `json:"experts,omitempty"`
}

func (c *chrome) write(e chromeEvent) {
	if c.err != nil {
		return
	}
	text, err := json.Marshal(e)
	if err != nil {
		c.err = err
		return
	}
	if c.some {
		c.out.WriteByte(',')
	}
	c.some = true
	c.out.WriteByte('\n')
	c.out.Write(text)
}

func (c *chrome) complete(cat, name string, pid, tid int, start, end time.Duration, args any) {
	dur := micros(max(end-start, 0))
	c.write(chromeEvent{Name: name, Cat: cat, Phase: "X", Start: micros(start), Dur: &dur, PID: pid, TID: tid, Args: args})
}

func (c *chrome) name(kind, name string, pid, tid int) {
	c.write(chromeEvent{Name: kind, Phase: "M", PID: pid, TID: tid, Args: nameArgs{name}})
}

// recording writes one process.
func (c *chrome) recording(pid int, r *recording) {
	c.name("process_name", r.what, pid, 0)
	named := make(map[int32]bool)
	for _, s := range r.spans {
		for rank, events := range byRank(r.trace.Events[s.first : s.first+s.n]) {
			if !named[int32(rank)] {
				named[int32(rank)] = true
				c.name("thread_name", fmt.Sprintf("rank %d", rank), pid, rank)
			}
			if len(events) == 0 {
				continue
			}
			// The session's clock was started a little earlier than the trace's.
			c.complete("call", s.name, pid, rank, min(s.start, events[0].Start), max(s.end, events[len(events)-1].End), nil)
			c.launches(pid, rank, events)
		}
	}
}

// byRank splits events, keeping their order.
func byRank(events []host.Event) [][]host.Event {
	var ranks [][]host.Event
	for _, e := range events {
		for int(e.Rank) >= len(ranks) {
			ranks = append(ranks, nil)
		}
		ranks[e.Rank] = append(ranks[e.Rank], e)
	}
	return ranks
}

// launches writes the launches of one rank, each with its units.
func (c *chrome) launches(pid, rank int, events []host.Event) {
	for len(events) > 0 {
		n := 1
		for n < len(events) && events[n].Launch == events[0].Launch {
			n++
		}
		c.complete("launch", events[0].Unit.Recipe, pid, rank, events[0].Start, events[n-1].End, nil)
		for i := range events[:n] {
			c.unit(pid, rank, &events[i])
		}
		events = events[n:]
	}
}

func (c *chrome) unit(pid, rank int, e *host.Event) {
	u := e.Unit
	c.complete("unit", u.Kind, pid, rank, e.Start, e.End, unitArgs{
		Node: u.Name, Origin: u.Origin, Nodes: u.Nodes, Span: u.Span, Experts: e.Experts,
		Bytes: u.WeightBytes + int64(e.Experts)*u.ExpertBytes, Flops: u.Flops + u.ExpertFlops,
	})
}

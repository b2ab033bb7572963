package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// firstLine and lineEvery are when progress is written where nothing can be
// redrawn: not at all for what takes no time.
const (
	firstLine = time.Second
	lineEvery = 3 * time.Second
)

// meter shows the progress of one activity: a bar on a terminal, which goes
// away with close, and a line every few seconds anywhere else.
type meter struct {
	what string
	out  io.Writer
	unit func(int64) string

	mu     sync.Mutex
	detail string
	next   time.Time // of the next line
	bars   *mpb.Progress
	bar    *mpb.Bar
}

// newMeter begins an activity. unit spells amounts.
func newMeter(out io.Writer, what string, unit func(int64) string) *meter {
	m := &meter{what: what, out: out, unit: unit, next: time.Now().Add(firstLine)}
	if isTerminal(out) {
		m.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(40))
	}
	return m
}

// update may be called from any goroutine.
func (m *meter) update(done, total int64, detail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.detail = detail
	if m.bars == nil {
		m.line(done, total)
		return
	}
	if m.bar == nil {
		m.bar = m.bars.New(total, mpb.BarStyle(),
			mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Name(m.what+" "), decor.Any(m.amount)),
			mpb.AppendDecorators(decor.Elapsed(decor.ET_STYLE_GO), decor.Any(m.current)))
	}
	m.bar.SetCurrent(done)
}

func (m *meter) line(done, total int64) {
	now := time.Now()
	if now.Before(m.next) {
		return
	}
	m.next = now.Add(lineEvery)
	fmt.Fprintf(m.out, "quill: %s: %s of %s, %s\n", m.what, m.unit(done), m.unit(total), m.detail)
}

// amount and current are called by the bar, from its own goroutine.
func (m *meter) amount(s decor.Statistics) string {
	return m.unit(s.Current) + " of " + m.unit(s.Total)
}

func (m *meter) current(decor.Statistics) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return " " + m.detail
}

// close ends the activity and clears the bar, whether or not it was full.
func (m *meter) close() {
	if m.bars == nil {
		return
	}
	if m.bar != nil {
		m.bar.Abort(true)
	}
	m.bars.Wait()
}

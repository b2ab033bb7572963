package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
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

// barWidth is the number of columns of a bar.
const barWidth = 40

// meter shows the progress of one activity: a bar on a terminal, which goes
// away with close, and a line every few seconds anywhere else.
type meter struct {
	what string
	out  io.Writer
	unit func(int64) string
	bars *mpb.Progress // nil where there is no terminal
	// detail is read by the bar's goroutine, which others wait for: no mutex.
	detail atomic.Value

	mu   sync.Mutex
	next time.Time // of the next line
	bar  *mpb.Bar
}

// newMeter begins an activity. unit spells amounts.
func newMeter(out io.Writer, what string, unit func(int64) string) *meter {
	m := &meter{what: what, out: out, unit: unit}
	m.detail.Store("")
	if isTerminal(out) {
		m.bars = mpb.New(mpb.WithOutput(out), mpb.WithWidth(barWidth))
	}
	return m
}

// update says how far the activity is, and with what. Any goroutine may call it.
func (m *meter) update(done, total int64, detail string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.detail.Store(detail)
	if m.bars == nil {
		m.line(done, total, detail)
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

func (m *meter) line(done, total int64, detail string) {
	now := time.Now()
	if m.next.IsZero() {
		m.next = now.Add(firstLine) // what comes before the first update is not this activity
	}
	if now.Before(m.next) {
		return
	}
	m.next = now.Add(lineEvery)
	text := fmt.Sprintf("quill: %s: %s of %s", m.what, m.unit(done), m.unit(total))
	if detail != "" {
		text += ", " + detail
	}
	fmt.Fprintln(m.out, text)
}

func (m *meter) amount(s decor.Statistics) string {
	return m.unit(s.Current) + " of " + m.unit(s.Total)
}

func (m *meter) current(decor.Statistics) string {
	return fmt.Sprint(" ", m.detail.Load())
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

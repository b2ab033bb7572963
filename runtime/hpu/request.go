//go:build linux

package hpu

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"quill/runtime"
)

// request is what some ranks are asked at once, and what becomes of it.
type request struct {
	what  string // for errors
	kind  kind
	limit time.Duration // for the replies, or between reports of progress
	to    []*member     // nil is all
	fixed bool          // it cannot be cancelled on the way
	last  bool          // ranks end when they have replied
	// starts says that the cards hold nothing yet that could be lost. Where a rank cannot do
	// it that is the error, and no loss, whether the others are done by then or not.
	starts bool

	body     func(rank int) ([]byte, error)    // nil is nothing
	reply    func(rank int, body []byte) error // what a rank replied; may be nil
	progress func(rank int, p progress)        // may be nil
}

// do sends a request and waits until all ranks have replied. A rank that cannot do
// it makes an error, and leaves the others little time; a rank that is gone or does
// not reply in time is the end of all. The error names one rank, at which it began: that
// others did not finish then follows from it. g.mu is held.
func (g *Group) do(ctx context.Context, r *request) error {
	if err := g.alive(r.what); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	to := r.to
	if to == nil {
		to = g.members
	}
	for _, m := range to {
		var body []byte
		if r.body != nil {
			var err error
			if body, err = r.body(m.rank); err != nil {
				return fmt.Errorf("%s: rank %d: %w", r.what, m.rank, err)
			}
		}
		m.done = false
		if err := m.conn.send(r.kind, body); err != nil {
			return g.lose(r.what, fmt.Errorf("rank %d: %w", m.rank, m.why(err)))
		}
	}
	return g.wait(ctx, r, len(to))
}

// alive is an error if there are no ranks.
func (g *Group) alive(what string) error {
	if g.closed {
		return fmt.Errorf("%s: group of ranks is %w", what, runtime.ErrClosed)
	}
	if g.lost != nil {
		return fmt.Errorf("%s: %w", what, g.lost)
	}
	return nil
}

// wait waits for the replies of a request.
func (g *Group) wait(ctx context.Context, r *request, left int) error {
	var cancelled <-chan struct{}
	if !r.fixed {
		cancelled = ctx.Done()
	}
	var failed error
	limit := r.limit
	g.timer.Reset(limit)
	defer g.timer.Stop()
	for left > 0 {
		select {
		case rep := <-g.replies:
			m := g.members[rep.rank]
			switch {
			case rep.err != nil && r.last && m.done:
				continue
			case rep.err != nil:
				return g.lose(r.what, after(fmt.Errorf("rank %d: %w", rep.rank, m.why(rep.err)), failed))
			case rep.kind == sayState:
				continue // too late for who asked
			case m.done || rep.kind < sayDone || rep.kind > sayProgress:
				return g.lose(r.what, fmt.Errorf("rank %d sent packet %d, for which nobody asked: group and rank are of different versions", rep.rank, rep.kind))
			case rep.kind == sayProgress:
				if p, err := parse[progress](rep.body); err == nil && r.progress != nil {
					r.progress(rep.rank, p)
				}
				if failed == nil { // or the others would go on for nothing
					g.timer.Reset(limit)
				}
				continue
			case rep.kind == sayFailed:
				f, err := parse[failure](rep.body)
				err = errors.Join(err, fmt.Errorf("rank %d: %s", rep.rank, f.Text))
				if f.Lost {
					return g.lose(r.what, after(err, failed))
				}
				if failed == nil {
					// The others may wait for this one for ever.
					failed, limit = err, min(limit, failLimit)
					g.timer.Reset(limit)
				}
			case rep.kind == sayDone && r.reply != nil:
				if err := r.reply(rep.rank, rep.body); err != nil && failed == nil {
					failed = fmt.Errorf("rank %d: %w", rep.rank, err)
				}
			}
			m.done = true
			left--
		case <-g.timer.C:
			switch {
			case failed == nil:
				return g.lose(r.what, fmt.Errorf("%s did not answer within %v", g.silent(), limit))
			case r.starts:
				g.abandon()
				g.lost = fmt.Errorf("%s: %w", r.what, failed)
				return g.lost
			}
			return g.lose(r.what, failed)
		case <-cancelled:
			return g.lose(r.what, ctx.Err())
		}
	}
	if failed != nil {
		return fmt.Errorf("%s: %w", r.what, failed)
	}
	return nil
}

// after adds what a rank said before: work of several ranks may fail on the others before
// the one at which it began is known to be gone.
func after(err, before error) error {
	if before == nil {
		return err
	}
	return fmt.Errorf("%w, after %w", err, before)
}

// silent names the ranks that have not replied to the present request.
func (g *Group) silent() string {
	var ranks []string
	for _, m := range g.members {
		if !m.done {
			ranks = append(ranks, strconv.Itoa(m.rank))
		}
	}
	text := fmt.Sprintf("%d of %d ranks", len(ranks), len(g.members))
	if len(ranks) < len(g.members) {
		text += fmt.Sprintf(" (%s)", strings.Join(ranks, ", "))
	}
	return text
}

// lose ends all ranks and keeps why. It returns that as a LostError.
func (g *Group) lose(what string, cause error) error {
	e := &LostError{What: what, Cause: cause, Ranks: g.states()}
	g.lost = e
	g.abandon()
	return e
}

// abandon ends all ranks, whatever they are at.
func (g *Group) abandon() {
	for _, m := range g.members {
		_ = m.conn.send(askAbort) // it may be gone
	}
	g.end(abortLimit)
}

// states asks what each rank is at. Ranks that do not answer are known by what
// they left in shared memory.
func (g *Group) states() []State {
	all := make([]State, len(g.members))
	asked := 0
	for i, m := range g.members {
		all[i] = g.placeOf(m.rank)
		if m.conn.send(askState) == nil {
			asked++
		}
	}
	limit := time.After(stateLimit)
	for asked > 0 {
		select {
		case rep := <-g.replies:
			if rep.err != nil {
				asked--
			}
			if rep.kind != sayState {
				continue // of the request that is lost
			}
			asked--
			if s, err := parse[State](rep.body); err == nil {
				s.Rank = rep.rank // it may not know yet
				g.nameState(&s)
				all[rep.rank] = s
			}
		case <-limit:
			return all
		}
	}
	return all
}

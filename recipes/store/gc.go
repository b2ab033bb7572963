package store

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"quill/recipes"
)

// GCOptions says what GC removes beside what is of no use.
type GCOptions struct {
	MaxBytes int64         // actions used least recently, until the files have no more bytes; 0 is no bound
	Older    time.Duration // actions that were not used for so long; 0 is no bound
}

// GCReport is what GC removed, and what is left.
type GCReport struct {
	Actions int   `json:"actions"` // that a bound removed
	Blobs   int   `json:"blobs"`   // that no action needs
	Damaged int   `json:"damaged"` // actions
	Bytes   int64 `json:"bytes"`   // of the files of actions and blobs
	Left    Usage `json:"left"`
}

// GC removes what of the store is of no use (blobs that no action needs, actions that
// are damaged, what processes left that are gone), and actions beyond bounds. It waits
// until nobody reads or writes. Its error is that of ctx, or an *Error.
func (s *Store) GC(ctx context.Context, o GCOptions) (*GCReport, error) {
	if s.opt.ReadOnly {
		return nil, &Error{s.dir, ErrReadOnly, "open it to be written"}
	}
	before, err := s.Contents(ctx) // so that others wait only for what is new since
	if err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx, exclusive)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s.sweep()
	c, err := s.contents(before)
	if err != nil {
		return nil, err
	}
	return s.collect(ctx, c, o)
}

// collect removes actions before the blobs that only they need: whatever ends it, no
// action is left without its blobs.
func (s *Store) collect(ctx context.Context, c *Contents, o GCOptions) (*GCReport, error) {
	r := &GCReport{}
	for _, f := range c.Faults {
		if errors.Is(f, ErrDamaged) {
			s.remove(f)
			r.Damaged++
		}
	}
	keep := c.keep(o)
	for _, a := range c.Actions[keep:] {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := s.do("remove", s.actionPath(a.Hash), func() error { return os.Remove(s.actionPath(a.Hash)) }); err != nil {
			return nil, err
		}
		r.Actions++
		r.Bytes += a.Bytes
	}
	c.Actions = c.Actions[:keep]
	s.count(func(n *Counters) { n.Evicted += int64(r.Actions) })
	for _, h := range c.unused() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := s.do("remove", s.blobPath(h), func() error { return os.Remove(s.blobPath(h)) }); err != nil {
			return nil, err
		}
		r.Blobs++
		r.Bytes += c.Blobs[h]
		delete(c.Blobs, h)
	}
	r.Left = c.Usage()
	return r, nil
}

// keep is how many actions, which are in the order of their last use, are within bounds.
func (c *Contents) keep(o GCOptions) int {
	now := time.Now()
	counted := map[recipes.Hash]bool{}
	var total int64
	for i, a := range c.Actions {
		if o.Older > 0 && now.Sub(a.Used) > o.Older {
			return i
		}
		total += a.Bytes
		for _, b := range a.Blobs {
			if !counted[b] {
				counted[b] = true
				total += c.Blobs[b]
			}
		}
		if o.MaxBytes > 0 && total > o.MaxBytes {
			return i
		}
	}
	return len(c.Actions)
}

// unused are the blobs that no action needs, sorted.
func (c *Contents) unused() []recipes.Hash {
	used := map[recipes.Hash]bool{}
	for _, a := range c.Actions {
		for _, b := range a.Blobs {
			used[b] = true
		}
	}
	return slices.DeleteFunc(sortedHashes(c.Blobs), func(h recipes.Hash) bool { return used[h] })
}

// slack is the part of the bound that is written before it is seen to again.
const slack = 16

// boundWait is how long to wait for others in order to keep the bound. They keep it
// too, if this process cannot.
const boundWait = time.Second

// keepBound keeps MaxBytes, after so many bytes were written or, for 0, at the end.
func (s *Store) keepBound(written int64) {
	if s.opt.MaxBytes <= 0 || !s.writable() {
		return
	}
	limit := s.opt.MaxBytes
	if written > 0 {
		limit -= limit / slack
	}
	s.mu.Lock()
	s.fresh += written
	due := s.fresh > 0 && (written == 0 || s.fresh > s.opt.MaxBytes-limit)
	if due {
		s.fresh = 0
	}
	s.mu.Unlock()
	if !due {
		return
	}
	if s.bytes() <= limit {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), boundWait)
	defer cancel()
	_, err := s.GC(ctx, GCOptions{MaxBytes: limit})
	if fault, ok := errors.AsType[*Error](err); ok {
		s.fail(fault)
	}
}

// bytes is what the files of actions and blobs have, roughly: others may be writing.
func (s *Store) bytes() (n int64) {
	for _, dir := range []string{actionsDir, blobsDir} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			continue // for GC to report
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				n += info.Size()
			}
		}
	}
	return n
}

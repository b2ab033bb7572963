package store

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"quill/recipes"
)

// Contents is what a store holds.
type Contents struct {
	Actions []Action               // used last first
	Blobs   map[recipes.Hash]int64 // bytes of their files
	Faults  []*Error               // of what cannot be used; it is not in the lists
}

// Action is an action whose result is kept.
type Action struct {
	Hash  recipes.Hash
	Key   Key
	Blobs []recipes.Hash
	Bytes int64     // of its own file
	Used  time.Time // made or got
}

// Usage is how much a store holds.
type Usage struct {
	Actions int   `json:"actions"`
	Blobs   int   `json:"blobs"`
	Bytes   int64 `json:"bytes"` // of their files
}

// Usage is how much there is.
func (c *Contents) Usage() Usage {
	u := Usage{Actions: len(c.Actions), Blobs: len(c.Blobs)}
	for i := range c.Actions {
		u.Bytes += c.Actions[i].Bytes
	}
	for _, n := range c.Blobs {
		u.Bytes += n
	}
	return u
}

// Unused is how much of it is blobs that no action needs, which GC removes.
func (c *Contents) Unused() Usage {
	var u Usage
	for _, h := range c.unused() {
		u.Blobs++
		u.Bytes += c.Blobs[h]
	}
	return u
}

// Contents reads the actions, and lists the blobs. Its error is that of ctx, or an *Error.
func (s *Store) Contents(ctx context.Context) (*Contents, error) {
	if s.writable() {
		unlock, err := s.lock(ctx, shared)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	return s.contents(nil)
}

// contents lists what there is. Actions that are as they were before are not read again.
func (s *Store) contents(before *Contents) (*Contents, error) {
	c := &Contents{Blobs: map[recipes.Hash]int64{}}
	known := map[recipes.Hash]Action{}
	if before != nil {
		for _, a := range before.Actions {
			known[a.Hash] = a
		}
	}
	// Actions first: their blobs are there when they are.
	err := s.list(c, actionsDir, func(h recipes.Hash, info fs.FileInfo) error {
		if k, ok := known[h]; ok && k.Bytes == info.Size() && k.Used.Equal(info.ModTime()) {
			c.Actions = append(c.Actions, k)
			return nil
		}
		a, err := s.readAction(h)
		if err == nil {
			c.Actions = append(c.Actions, Action{h, a.key, a.blobs, info.Size(), info.ModTime()})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	err = s.list(c, blobsDir, func(h recipes.Hash, info fs.FileInfo) error {
		c.Blobs[h] = info.Size()
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.setAside(c, lacks)
	slices.SortFunc(c.Actions, func(x, y Action) int {
		return cmp.Or(y.Used.Compare(x.Used), cmp.Compare(x.Hash.String(), y.Hash.String()))
	})
	return c, nil
}

// setAside makes faults of the actions that need a blob that is not in the list.
func (s *Store) setAside(c *Contents, why func(recipes.Hash) error) {
	c.Actions = slices.DeleteFunc(c.Actions, func(a Action) bool {
		at := slices.IndexFunc(a.Blobs, func(b recipes.Hash) bool { _, ok := c.Blobs[b]; return !ok })
		if at >= 0 {
			c.Faults = append(c.Faults, newError(s.actionPath(a.Hash), why(a.Blobs[at])))
		}
		return at >= 0
	})
}

// list calls visit for each file of a folder. What it fails for is a fault.
func (s *Store) list(c *Contents, name string, visit func(recipes.Hash, fs.FileInfo) error) error {
	entries, err := os.ReadDir(s.path(name))
	if err != nil {
		return newError(s.path(name), err)
	}
	for _, e := range entries {
		path := s.path(name, e.Name())
		var h recipes.Hash
		if err := h.UnmarshalText([]byte(e.Name())); err != nil || h.String() != e.Name() {
			c.Faults = append(c.Faults, &Error{path, ErrStranger, "remove it"})
			continue
		}
		info, err := e.Info()
		if err == nil {
			err = visit(h, info)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // without a lock files go away
			c.Faults = append(c.Faults, newError(path, err))
		}
	}
	return nil
}

// VerifyOptions says how to verify.
type VerifyOptions struct {
	Drop     bool                    // remove what is damaged
	Progress func(done, total int64) // bytes of files; may be nil
}

// VerifyReport is what Verify found.
type VerifyReport struct {
	Whole   Usage    // what is as it was written
	Faults  []*Error // of the rest; an action whose blob is damaged is one, too
	Dropped int      // files that were removed
}

// Verify reads everything. Its error is that of ctx, or an *Error that kept it from
// reading. Others may read and write meanwhile.
func (s *Store) Verify(ctx context.Context, o VerifyOptions) (*VerifyReport, error) {
	if o.Drop && s.opt.ReadOnly {
		return nil, &Error{s.dir, ErrReadOnly, "open it to be written"}
	}
	c, err := s.verify(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	r := &VerifyReport{Whole: c.Usage(), Faults: c.Faults}
	if o.Drop && len(r.Faults) > 0 {
		r.Dropped, err = s.dropFaults(ctx, r.Faults)
	}
	return r, err
}

// verify is the contents, with faults of whatever cannot be read.
func (s *Store) verify(ctx context.Context, progress func(done, total int64)) (*Contents, error) {
	if s.writable() {
		unlock, err := s.lock(ctx, shared)
		if err != nil {
			return nil, err
		}
		defer unlock()
	}
	c, err := s.contents(nil)
	if err != nil {
		return nil, err
	}
	return c, s.verifyBlobs(ctx, c, progress)
}

// dropFaults removes what was found to be damaged, if it still is: another process may
// have made it again. Blobs precede the actions that are damaged for want of them.
func (s *Store) dropFaults(ctx context.Context, faults []*Error) (dropped int, err error) {
	unlock, err := s.lock(ctx, exclusive)
	if err != nil {
		return 0, err
	}
	defer unlock()
	before := s.Counters().Dropped
	for _, f := range faults {
		var h recipes.Hash
		if !errors.Is(f, ErrDamaged) || h.UnmarshalText([]byte(filepath.Base(f.Path))) != nil {
			continue
		}
		if err := s.checkFile(f.Path, h); errors.Is(err, ErrDamaged) {
			s.remove(f)
		}
	}
	return int(s.Counters().Dropped - before), nil
}

// checkFile reads the file of a blob, or of an action with its blobs.
func (s *Store) checkFile(path string, h recipes.Hash) error {
	if path == s.blobPath(h) {
		_, err := s.readBlob(h)
		return err
	}
	a, err := s.readAction(h)
	if err != nil {
		return err
	}
	_, faults := s.read(a.key, h)
	for _, f := range faults {
		return f
	}
	return nil
}

// verifyBlobs reads all blobs, and makes faults of those that are damaged and of the
// actions that need them.
func (s *Store) verifyBlobs(ctx context.Context, c *Contents, progress func(done, total int64)) error {
	usage := c.Usage()
	done := usage.Bytes
	for _, n := range c.Blobs {
		done -= n
	}
	for _, h := range sortedHashes(c.Blobs) {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := c.Blobs[h]
		if _, err := s.readBlob(h); err != nil {
			delete(c.Blobs, h)
			if !errors.Is(err, fs.ErrNotExist) {
				c.Faults = append(c.Faults, newError(s.blobPath(h), err))
			}
		}
		if done += n; progress != nil {
			progress(done, usage.Bytes)
		}
	}
	s.setAside(c, func(b recipes.Hash) error { return damaged("it needs blob %v, which is damaged", b) })
	return nil
}

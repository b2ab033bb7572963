package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"quill/recipes"
)

// Get reads the result of an action, nil if it is not there. What is damaged is removed
// and reported, and counts as not there. An error is that of ctx, of a key that cannot
// be one, or an *Error.
func (s *Store) Get(ctx context.Context, key Key) (*Result, error) {
	if err := key.check(); err != nil {
		return nil, err
	}
	r, err := s.get(ctx, key, key.Hash())
	if err == nil {
		s.countGet(r)
	}
	return r, err
}

func (s *Store) countGet(r *Result) {
	s.count(func(c *Counters) {
		if r != nil {
			c.Hits++
		} else {
			c.Misses++
		}
	})
}

func (s *Store) get(ctx context.Context, key Key, h recipes.Hash) (*Result, error) {
	if !s.writable() {
		r, faults := s.read(key, h)
		for _, f := range faults {
			if !errors.Is(f, fs.ErrNotExist) {
				s.warn(f)
			}
		}
		return r, nil
	}
	r, faults, err := s.readLocked(ctx, key, h)
	if err != nil || len(faults) == 0 {
		return r, err
	}
	for _, f := range faults {
		if errors.Is(f, ErrDamaged) {
			return s.drop(ctx, key, h)
		}
	}
	for _, f := range faults {
		s.warn(f)
	}
	return nil, nil
}

func (s *Store) readLocked(ctx context.Context, key Key, h recipes.Hash) (*Result, []*Error, error) {
	unlock, err := s.lock(ctx, shared)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	r, faults := s.read(key, h)
	if r != nil {
		now := time.Now()
		_ = os.Chtimes(s.actionPath(h), now, now) // when it was used; perhaps the file is another user's
	}
	return r, faults, nil
}

// read reads an action with its blobs. There is no result if the action is not there, or
// if there are faults.
func (s *Store) read(key Key, h recipes.Hash) (*Result, []*Error) {
	path := s.actionPath(h)
	a, err := s.readAction(h)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, []*Error{newError(path, err)}
	case !slices.Equal(a.key, key):
		return nil, []*Error{{path, ErrCollision, "it is made again whenever it is wanted"}}
	}
	r := &Result{a.data, make(map[recipes.Hash][]byte, len(a.blobs))}
	var faults []*Error
	for _, b := range a.blobs {
		content, err := s.readBlob(b)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, []*Error{newError(path, lacks(b))}
		}
		if err != nil {
			faults = append(faults, newError(s.blobPath(b), err))
			continue
		}
		r.Blobs[b] = content
	}
	if faults != nil {
		return nil, faults
	}
	return r, nil
}

// lacks is what is wrong with an action without one of its blobs. In a store that is not
// locked it may just be going away.
func lacks(blob recipes.Hash) error {
	return damaged("it needs blob %v: %w", blob, fs.ErrNotExist)
}

// drop removes what is damaged of an action that was found so, if it still is: another
// process may have made it again. If it has, its result is returned.
func (s *Store) drop(ctx context.Context, key Key, h recipes.Hash) (*Result, error) {
	unlock, err := s.lock(ctx, exclusive)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, faults := s.read(key, h)
	for _, f := range faults {
		if !errors.Is(f, ErrDamaged) {
			s.warn(f)
			continue
		}
		s.remove(f)
		_ = os.Remove(s.actionPath(h)) // of no use without its blobs; perhaps it was the damaged file
	}
	return r, nil
}

// remove removes a file that is damaged. Who calls it has the lock for himself.
func (s *Store) remove(f *Error) {
	if err := os.RemoveAll(f.Path); err != nil {
		s.warn(newError(f.Path, err))
		return
	}
	s.count(func(c *Counters) { c.Dropped++ })
	s.warn(&Error{f.Path, f.Err, "it was removed, and is made again when it is wanted"})
}

// Put keeps the result of an action, in the place of what was there. Its error is that
// of ctx, of a key or a result that cannot be one, or an *Error.
func (s *Store) Put(ctx context.Context, key Key, r *Result) error {
	if err := errors.Join(key.check(), r.check()); err != nil {
		return err
	}
	if s.opt.ReadOnly {
		return &Error{s.dir, ErrReadOnly, "open it to be written"}
	}
	return s.put(ctx, key, key.Hash(), r)
}

// writers is how many files are written at a time: most of the time goes by waiting for
// the disk.
const writers = 8

func (s *Store) put(ctx context.Context, key Key, h recipes.Hash, r *Result) error {
	before := s.Counters().WrittenBytes
	if err := s.putLocked(ctx, key, h, r); err != nil {
		return err
	}
	s.keepBound(s.Counters().WrittenBytes - before)
	return nil
}

func (s *Store) putLocked(ctx context.Context, key Key, h recipes.Hash, r *Result) error {
	unlock, err := s.lock(ctx, shared)
	if err != nil {
		return err
	}
	defer unlock()
	a := action{key: key, blobs: sortedHashes(r.Blobs), data: r.Data}
	var g errgroup.Group
	g.SetLimit(writers)
	for _, b := range a.blobs {
		g.Go(func() error {
			if info, err := os.Lstat(s.blobPath(b)); err == nil && info.Mode().IsRegular() {
				return nil
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			return s.publish(s.blobPath(b), s.codec.seal(blobKind, r.Blobs[b]))
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := s.syncDir(blobsDir); err != nil { // also for blobs that another process has just renamed
		return err
	}
	if err := s.publish(s.actionPath(h), s.codec.seal(actionKind, a.encode())); err != nil {
		return err
	}
	return s.syncDir(actionsDir)
}

func sortedHashes[V any](m map[recipes.Hash]V) []recipes.Hash {
	return slices.SortedFunc(maps.Keys(m), func(x, y recipes.Hash) int { return bytes.Compare(x[:], y[:]) })
}

// flight is an action that a goroutine of this process gets or makes.
type flight struct {
	done   chan struct{}
	result *Result
	err    error
}

// errAbandoned is the error of a flight whose function did not return.
var errAbandoned = errors.New("the function that made the result ended without returning")

// Do gives the result of an action: that which is kept, or that of build, which is then
// kept. However many goroutines and processes ask for it at once, one of them makes it
// and the others wait. Errors are those of build, of ctx, and of a key or a result that
// cannot be one. A fault of the store is none: it is told to Options.Warn, and after a
// fault of writing nothing more is kept. build must not ask for the same key.
func (s *Store) Do(ctx context.Context, key Key, build func(context.Context) (*Result, error)) (*Result, error) {
	if err := key.check(); err != nil {
		return nil, err
	}
	if s == nil {
		return makeResult(ctx, key, build)
	}
	h := key.Hash()
	for {
		f, mine := s.join(h)
		if mine {
			s.fly(ctx, f, key, h, build)
			return f.result, f.err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-f.done:
		}
		switch {
		case f.err == nil:
			s.countGet(f.result)
			return f.result, nil
		case !errors.Is(f.err, context.Canceled) && !errors.Is(f.err, context.DeadlineExceeded):
			return nil, f.err
		} // the other's context ended, this one may not have
	}
}

// join gives the flight of a key, which is the caller's own if there was none.
func (s *Store) join(h recipes.Hash) (f *flight, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.flights[h]; ok {
		return f, false
	}
	f = &flight{done: make(chan struct{}), err: errAbandoned}
	s.flights[h] = f
	return f, true
}

// fly carries a flight out. Whatever becomes of it, nobody waits for it forever.
func (s *Store) fly(ctx context.Context, f *flight, key Key, h recipes.Hash, build func(context.Context) (*Result, error)) {
	defer func() {
		s.mu.Lock()
		delete(s.flights, h)
		s.mu.Unlock()
		close(f.done)
	}()
	f.result, f.err = s.getOrMake(ctx, key, h, build)
}

func (s *Store) getOrMake(ctx context.Context, key Key, h recipes.Hash, build func(context.Context) (*Result, error)) (*Result, error) {
	r, err := s.lookUp(ctx, key, h)
	if err == nil && r == nil && s.writable() {
		var unlock func()
		if unlock, err = s.lockKey(ctx, key, h); err == nil {
			defer unlock()
			r, err = s.lookUp(ctx, key, h) // another process may have made it before it gave up the lock
		} else {
			err = s.forgive(err)
		}
	}
	if err != nil {
		return nil, err
	}
	s.countGet(r)
	if r != nil {
		return r, nil
	}
	if r, err = makeResult(ctx, key, build); err != nil {
		return nil, err
	}
	if s.writable() {
		err = s.forgive(s.put(ctx, key, h, r))
	}
	return r, err
}

// lookUp is get, with nothing there if the store fails.
func (s *Store) lookUp(ctx context.Context, key Key, h recipes.Hash) (*Result, error) {
	r, err := s.get(ctx, key, h)
	return r, s.forgive(err)
}

// forgive gives up writing after a fault of the store, which is then no error any more.
func (s *Store) forgive(err error) error {
	if fault, ok := errors.AsType[*Error](err); ok {
		s.fail(fault)
		return nil
	}
	return err
}

func makeResult(ctx context.Context, key Key, build func(context.Context) (*Result, error)) (*Result, error) {
	r, err := build(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("action %v: %w", key.Hash(), err)
	}
	return r, nil
}

package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"quill/recipes"
)

// Owner is a process that holds a lock. What is not known of it is zero.
type Owner struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	Since time.Time `json:"since"` // when it took the lock
}

func (o Owner) String() string {
	if o.PID == 0 {
		return "an unknown process"
	}
	return fmt.Sprintf("process %d on %s, since %s", o.PID, o.Host, o.Since.Local().Format(time.DateTime))
}

// sign writes who holds a lock into its file, for messages only.
func sign(path string) {
	host, _ := os.Hostname()
	tag, err := json.Marshal(Owner{os.Getpid(), host, time.Now().Round(time.Second)})
	if err == nil {
		_ = os.WriteFile(path, append(tag, '\n'), 0o666)
	}
}

// ownerOf is who holds the lock of a file, as far as the file says.
func ownerOf(path string) (o Owner) {
	if text, err := recipes.ReadSmall(path, 1<<12); err != nil || json.Unmarshal(text, &o) != nil {
		return Owner{}
	}
	return o
}

// The ways to hold v1/lock, and how often to ask for it.
var (
	shared    = (*flock.Flock).TryRLockContext
	exclusive = (*flock.Flock).TryLockContext
)

const lockEvery = 2 * time.Millisecond

// lock takes v1/lock. Its error is that of ctx, or an *Error.
func (s *Store) lock(ctx context.Context, how func(*flock.Flock, context.Context, time.Duration) (bool, error)) (unlock func(), err error) {
	l := flock.New(s.path(lockFile), flock.SetPermissions(0o666))
	if _, err := how(l, ctx, lockEvery); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, newError(l.Path(), err)
	}
	return func() { _ = l.Unlock() }, nil // closing the file would do
}

// tryFile locks a file that may be removed by whoever has its lock; flag says whether it
// is made. nil is returned if another has it.
func tryFile(path string, flag int) (*flock.Flock, error) {
	l := flock.New(path, flock.SetFlag(os.O_RDWR|flag), flock.SetPermissions(0o666))
	if ok, err := l.TryLock(); !ok || err != nil {
		return nil, err
	}
	there, err := os.Lstat(path)
	if err == nil {
		if held, err := l.Stat(); err == nil && os.SameFile(there, held) {
			return l, nil
		}
	}
	return nil, l.Unlock() // it was removed between opening and locking: the lock is of nothing
}

// tryNew is tryFile of a file that is made, and signed if it could be locked.
func (s *Store) tryNew(path string) (l *flock.Flock, err error) {
	err = s.do("lock", path, func() error {
		l, err = tryFile(path, os.O_CREATE)
		return err
	})
	if l != nil {
		sign(path)
	}
	return l, err
}

// release gives up the lock of a file, and removes it first: who opened it in between
// finds by tryFile that it is gone.
func release(l *flock.Flock) {
	_ = os.Remove(l.Path())
	_ = l.Unlock()
}

// longestPoll is the longest time between two looks at a key's lock.
const longestPoll = 100 * time.Millisecond

// lockKey takes the lock of a key. Its error is that of ctx, or an *Error.
func (s *Store) lockKey(ctx context.Context, key Key, h recipes.Hash) (unlock func(), err error) {
	path := s.path(locksDir, h.String())
	var told Owner
	for poll := time.Millisecond; ; poll = min(2*poll, longestPoll) {
		l, err := s.tryNew(path)
		if err != nil {
			return nil, err
		}
		if l != nil {
			return func() { release(l) }, nil
		}
		if o := ownerOf(path); s.opt.Wait != nil && o != told && o != (Owner{}) {
			told = o
			s.opt.Wait(key, o)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(poll):
		}
	}
}

const ownerSuffix = ".owner"

// enter makes this process known as the owner of its temporaries.
func (s *Store) enter() error {
	for {
		id := fmt.Sprintf("%016x", rand.Uint64())
		path := s.path(tempDir, id+ownerSuffix)
		l, err := s.tryNew(path)
		if err != nil {
			return err
		}
		if l != nil { // if not, someone took it for one whose owner is gone
			s.id, s.owner = id, l
			return nil
		}
	}
}

func (s *Store) leave() {
	release(s.owner)
	s.owner = nil
}

// sweep removes what processes left that are gone. What cannot be removed now is left
// for the next time.
func (s *Store) sweep() {
	for _, name := range names(s.path(tempDir)) {
		id, _, _ := strings.Cut(name, ".")
		if id == s.id {
			continue
		}
		owner, err := tryFile(s.path(tempDir, id+ownerSuffix), 0)
		switch {
		case owner != nil:
			s.removeTemps(id)
			release(owner)
		case errors.Is(err, fs.ErrNotExist):
			_ = os.Remove(s.path(tempDir, name))
		}
	}
	for _, name := range names(s.path(locksDir)) {
		if l, err := tryFile(s.path(locksDir, name), 0); err == nil && l != nil {
			release(l)
		}
	}
}

// removeTemps removes an owner's temporaries, but for its own file.
func (s *Store) removeTemps(id string) {
	all, err := filepath.Glob(s.path(tempDir, id+".*"))
	if err != nil {
		return
	}
	for _, path := range all {
		if !strings.HasSuffix(path, ownerSuffix) {
			_ = os.Remove(path)
		}
	}
}

// names are those in a folder, none if it cannot be read.
func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	all := make([]string, len(entries))
	for i, e := range entries {
		all[i] = e.Name()
	}
	return all
}

// Package store keeps what was compiled, in a folder that processes share, so that
// nothing is compiled twice.
//
//	Key ──SHA-256──→ v1/actions/<hash>   the key, the result's data, hashes of blobs
//	                        │
//	                        └──────────→ v1/blobs/<hash>   by the hash of their content
//
// An action is a piece of work whose result depends on its Key alone. Blobs are parts
// of results that actions share.
//
// What is read is whole, or it is not there:
//
//   - A file is written under another name in v1/tmp, put on the disk and renamed. Blobs
//     precede the action that refers to them.
//   - Every file carries the SHA-256 of what it holds, which is compared whenever it is
//     read; so is the text of a key with the one that is asked for. What is damaged is
//     removed, and counts as not there.
//   - Get hands a result over whole, with all its blobs: nothing is in use after it.
//
// Processes meet at locks of the system, which end with whoever holds them:
//
//   - v1/lock is shared by those who read or write, for the time of one result, and
//     exclusive for those who remove. So nothing goes away under a reader, and no blob
//     before its action is there.
//   - v1/locks/<hash> is held while an action is made. Others wait and take the result.
//   - v1/tmp/<id>.owner is held while a process has the store open. Temporaries of ids
//     that nobody holds are removed.
//
// The folder may be deleted at any time, and a store that fails does not fail its user:
// see Do.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gofrs/flock"

	"quill/recipes"
)

// The names in a store.
const (
	layoutDir  = "v1"
	tagFile    = "CACHEDIR.TAG"
	actionsDir = "actions"
	blobsDir   = "blobs"
	tempDir    = "tmp"
	locksDir   = "locks"
	lockFile   = "lock"
)

// tagText says what the folder is, by its first line to programs that make backups.
const tagText = `Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache of quill: results of compiling, which it can make again.
# It may be deleted at any time. "quill cache --help" says more.
`

// Options is how a store is opened.
type Options struct {
	// MaxBytes bounds the bytes of the store's files: what was used least recently is
	// removed when the store is closed, and now and then while it is written. 0 is no
	// bound.
	MaxBytes int64
	// ReadOnly leaves the store as it is: nothing is written, locked or removed.
	ReadOnly bool
	// Existing refuses a store that is not there; otherwise it is made.
	Existing bool
	// Warn, if it is not nil, is told what went wrong without stopping anything: what was
	// damaged, or that results cannot be kept. Calls do not overlap; each path is reported
	// once. It must not call the store.
	Warn func(*Error)
	// Wait, if it is not nil, is told which process makes what a call of Do wants, before
	// that call waits for it. Calls may overlap.
	Wait func(Key, Owner)

	step func(what, path string) error // of tests: called before each step of writing
}

// Store is an open store. Its methods may be called by several goroutines. A nil *Store
// keeps nothing: Do, Counters and Close work with it.
type Store struct {
	dir   string // of the layout
	opt   Options
	codec *codec

	id    string       // of this process's temporaries
	owner *flock.Flock // nil in a store that is only read
	temps atomic.Int64
	off   atomic.Bool // writing failed

	mu       sync.Mutex
	flights  map[recipes.Hash]*flight
	warned   map[string]bool // paths
	counters Counters
	fresh    int64 // bytes written since the bound was seen to

	warning sync.Mutex // held while Warn runs
}

// Counters is what happened since a store was opened.
type Counters struct {
	Hits         int64 `json:"hits"`
	Misses       int64 `json:"misses"`
	ReadBytes    int64 `json:"read_bytes"`    // of files
	WrittenBytes int64 `json:"written_bytes"` // of files
	Dropped      int64 `json:"dropped"`       // files that were damaged
	Evicted      int64 `json:"evicted"`       // actions that were removed to keep the bound
}

// DefaultDir is where the store is if nothing else is said: $QUILL_CACHE, or quill in
// the user's folder of caches.
func DefaultDir() (string, error) {
	if dir := os.Getenv("QUILL_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for compiled results: %w: name one with QUILL_CACHE", err)
	}
	return filepath.Join(dir, "quill"), nil
}

// Open opens the store in dir. A store that is there but cannot be written is opened to
// be read, with a warning. Every error is an *Error.
func Open(dir string, opt Options) (*Store, error) {
	if dir == "" { // which filepath.Abs takes for the current folder
		return nil, &Error{`""`, ErrNotStore, "name a folder"}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, newError(dir, err)
	}
	s := &Store{
		dir: filepath.Join(abs, layoutDir), opt: opt,
		flights: map[recipes.Hash]*flight{}, warned: map[string]bool{},
	}
	if s.codec, err = newCodec(); err != nil {
		return nil, newError(abs, err)
	}
	here, err := isStore(abs)
	switch {
	case err != nil:
		return nil, err
	case !here && (opt.ReadOnly || opt.Existing):
		return nil, &Error{abs, ErrNoStore, "compile something first, or name the folder of a store"}
	case opt.ReadOnly:
		return s, nil
	}
	err = s.begin(filepath.Join(abs, tagFile))
	if fault, ok := errors.AsType[*Error](err); ok && here && fault.unwritable() {
		s.opt.ReadOnly = true
		s.warn(&Error{fault.Path, fault.Err, "what is there is used, nothing is added: " + fault.Help})
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// isStore reports whether dir holds a store. One that holds anything else is an error:
// a store may be deleted as a whole.
func isStore(dir string) (bool, error) {
	version := func(name string) bool { return name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" }
	if _, err := onlyHolds(dir, func(name string) bool { return name == tagFile || version(name) }); err != nil {
		return false, err
	}
	names := []string{actionsDir, blobsDir, tempDir, locksDir, lockFile}
	return onlyHolds(filepath.Join(dir, layoutDir), func(name string) bool { return slices.Contains(names, name) })
}

// onlyHolds reports whether dir is there, and an error if it holds a name that is not known.
func onlyHolds(dir string, known func(string) bool) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, newError(dir, err)
	}
	for _, e := range entries {
		if !known(e.Name()) {
			return false, &Error{dir, fmt.Errorf("%w: it holds %s", ErrNotStore, e.Name()), "name a folder that is empty or not there"}
		}
	}
	return true, nil
}

// begin makes what is missing of the store, and this process known in it.
func (s *Store) begin(tag string) error {
	for _, name := range []string{tempDir, locksDir, blobsDir, actionsDir} {
		if err := s.do("make folder", s.path(name), func() error { return os.MkdirAll(s.path(name), 0o777) }); err != nil {
			return err
		}
	}
	if err := s.enter(); err != nil {
		return err
	}
	s.sweep()
	if text, err := os.ReadFile(tag); err == nil && string(text) == tagText {
		return nil
	}
	if err := s.publish(tag, []byte(tagText)); err != nil {
		s.leave()
		return err
	}
	return nil
}

// Close ends the use of a store. Calls of its methods must have returned.
func (s *Store) Close() {
	if s == nil || s.owner == nil {
		return
	}
	s.keepBound(0)
	s.leave()
}

// Counters is what happened so far.
func (s *Store) Counters() Counters {
	if s == nil {
		return Counters{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counters
}

func (s *Store) count(add func(*Counters)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.counters)
}

// warn reports a fault of a path that was not reported before.
func (s *Store) warn(e *Error) {
	s.mu.Lock()
	told := s.warned[e.Path]
	s.warned[e.Path] = true
	s.mu.Unlock()
	if told || s.opt.Warn == nil {
		return
	}
	s.warning.Lock()
	defer s.warning.Unlock()
	s.opt.Warn(e)
}

// writable reports whether results are kept.
func (s *Store) writable() bool { return !s.opt.ReadOnly && !s.off.Load() }

// fail gives up writing.
func (s *Store) fail(e *Error) {
	s.off.Store(true)
	s.warn(&Error{e.Path, e.Err, "results are no longer kept: " + e.Help})
}

// path is that of a file of the store.
func (s *Store) path(names ...string) string {
	return filepath.Join(append([]string{s.dir}, names...)...)
}

func (s *Store) actionPath(h recipes.Hash) string { return s.path(actionsDir, h.String()) }
func (s *Store) blobPath(h recipes.Hash) string   { return s.path(blobsDir, h.String()) }

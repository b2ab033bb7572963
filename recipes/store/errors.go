package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// What the Err of an *Error can be, beside errors of the system such as syscall.ENOSPC.
var (
	ErrNoStore   = errors.New("there is no store")
	ErrNotStore  = errors.New("this is no store")
	ErrReadOnly  = errors.New("the store is open to be read only")
	ErrDamaged   = errors.New("damaged")
	ErrCollision = errors.New("another key has the same hash")
	ErrStranger  = errors.New("this is no file of the store")
)

// Error is a fault of a store. It is never a reason not to compile.
type Error struct {
	Path string // of a file or a folder
	Err  error  // what is wrong with it
	Help string // what mends it, or what was done
}

func (e *Error) Error() string { return fmt.Sprintf("store: %s: %v: %s", e.Path, e.Err, e.Help) }

func (e *Error) Unwrap() error { return e.Err }

// newError is a fault that an operation on a path ended with.
func newError(path string, err error) *Error {
	e := &Error{Path: path, Err: cause(err)}
	switch {
	case errors.Is(err, ErrDamaged):
		e.Help = "quill cache verify --drop removes it"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Help = "make space with quill cache gc --max-bytes, or name a folder elsewhere with QUILL_CACHE"
	default:
		e.Help = "make the folder one that can be read and written, or name another with QUILL_CACHE"
	}
	return e
}

// cause is an error without the path, which an *Error has already.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// unwritable reports whether a store with this fault may still be read.
func (e *Error) unwritable() bool {
	for _, err := range []error{fs.ErrPermission, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(e.Err, err) {
			return true
		}
	}
	return false
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrDamaged, fmt.Errorf(format, args...))
}

//go:build linux

package hpu

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Shared memory holds a page of state for each rank, and behind these what plans
// stage and fetch. It is reserved large and takes memory where it is used.
const (
	statePage   = 4096
	sharedLimit = 1 << 32
	sharedAlign = 4096 // ranges that are copied to cards begin at pages
)

// shared is the memory of a group and its ranks.
type shared struct {
	file *os.File
	mem  []byte
	used int64
}

// newShared makes memory for a number of ranks.
func newShared(ranks int) (*shared, error) {
	fd, err := unix.MemfdCreate("quill", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "shared memory")
	if err := f.Truncate(sharedLimit); err != nil {
		f.Close()
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	s, err := openShared(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	s.used = int64(ranks) * statePage
	return s, nil
}

// openShared maps the memory of a file that newShared made.
func openShared(f *os.File) (*shared, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, sharedLimit, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return &shared{file: f, mem: mem}, nil
}

// take is n bytes that nothing else has, and their offset.
func (s *shared) take(n int64) ([]byte, int64, error) {
	at := (s.used + sharedAlign - 1) / sharedAlign * sharedAlign
	if n < 0 || n > sharedLimit-at {
		return nil, 0, fmt.Errorf("shared memory: %d bytes, %d of %d are left", n, sharedLimit-at, int64(sharedLimit))
	}
	s.used = at + n
	return s.mem[at : at+n : at+n], at, nil
}

// bytes is a range that the group took.
func (s *shared) bytes(at, n int64) ([]byte, error) {
	if at < 0 || n < 0 || at > sharedLimit || n > sharedLimit-at {
		return nil, fmt.Errorf("shared memory: %d bytes at byte %d of %d", n, at, int64(sharedLimit))
	}
	return s.mem[at : at+n : at+n], nil
}

func (s *shared) close() error {
	err := unix.Munmap(s.mem)
	s.mem = nil
	if e := s.file.Close(); err == nil {
		err = e
	}
	return err
}

// place is what a rank is at, in shared memory: it can be read while the rank
// hangs.
type place struct {
	runs  atomic.Int64 // requests to run a plan, with the present one
	plan  atomic.Int64 // its number
	step  atomic.Int64 // steps that are enqueued on the card
	waits atomic.Int64 // 1 while the rank waits for the card
	// What was loaded and allocated since the rank was started.
	programs, allocations atomic.Int64
}

// fresh clears what ranks said of themselves.
func (s *shared) fresh(ranks int) { clear(s.mem[:ranks*statePage]) }

// place is the page of a rank.
func (s *shared) place(rank int) *place {
	return (*place)(unsafe.Pointer(&s.mem[rank*statePage]))
}

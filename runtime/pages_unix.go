//go:build linux || darwin

package runtime

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What advise tells the system.
const (
	willNeed = unix.MADV_WILLNEED // read it now, before it is touched
	random   = unix.MADV_RANDOM   // do not read what lies beside what is touched
	drop     = unix.MADV_DONTNEED // it need not stay in memory; for files only
)

// mapPages maps all of a file read-only.
func mapPages(f *os.File, size int64) (*pages, error) {
	if size == 0 {
		return &pages{}, nil
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes of %s: %w", size, f.Name(), err)
	}
	return &pages{data: data, mapped: true, unmap: unmap(data)}, nil
}

// newPages are zeroed pages, large ones where the system has them.
func newPages(size int64) (*pages, error) {
	if size == 0 {
		return &pages{}, nil
	}
	data, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", size, err)
	}
	adviseLarge(data)
	return &pages{data: data, unmap: unmap(data)}, nil
}

func unmap(data []byte) func() error {
	return func() error {
		if err := unix.Munmap(data); err != nil {
			return fmt.Errorf("munmap: %w", err)
		}
		return nil
	}
}

// advise tells the system about the pages of data, which is a part of a
// mapping. Pages at its ends are included. Advice can do without being taken.
func advise(data []byte, advice int) {
	if len(data) == 0 {
		return
	}
	first := unsafe.Pointer(unsafe.SliceData(data))
	before := uintptr(first) % uintptr(os.Getpagesize())
	// Mappings begin with a page, so what lies before is of the same mapping.
	page := unsafe.Slice((*byte)(unsafe.Add(first, -int(before))), len(data)+int(before))
	_ = unix.Madvise(page, advice)
}

//go:build !linux && !darwin

package runtime

import (
	"fmt"
	"io"
	"os"
)

// What advise tells the system; see the other file of this name.
const (
	willNeed = iota
	random
	drop
)

// mapPages reads a file into memory, since this system's mappings are not
// supported.
func mapPages(f *os.File, size int64) (*pages, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, size), data); err != nil {
		return nil, fmt.Errorf("read of %d bytes of %s: %w", size, f.Name(), err)
	}
	return &pages{data: data}, nil
}

func newPages(size int64) (*pages, error) { return &pages{data: make([]byte, size)}, nil }

func advise([]byte, int) {}

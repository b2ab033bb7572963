//go:build !unix

package safetensors

import (
	"fmt"
	"io"
	"os"
)

// mapFile reads the first size bytes of f into memory. Checkpoints are compiled
// on Unix systems; elsewhere it is enough that small ones can be looked at.
func mapFile(f *os.File, size int) (data []byte, unmap func() error, err error) {
	data = make([]byte, size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, nil, fmt.Errorf("read of %d bytes: %w", size, err)
	}
	return data, func() error { return nil }, nil
}

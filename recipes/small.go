package recipes

import (
	"fmt"
	"io"
	"os"
)

// MaxConfig bounds a config.json; published ones have a few kilobytes.
const MaxConfig = 1 << 20

// ReadSmall reads a regular file of at most limit bytes. What is no regular
// file (a pipe, a device) could have no end.
func ReadSmall(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s: %d bytes, more than the %d that it may have", path, info.Size(), limit)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // nothing was written
	return io.ReadAll(io.LimitReader(f, limit))
}

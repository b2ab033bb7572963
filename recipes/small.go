package recipes

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// MaxConfig bounds a config.json; published ones have a few kilobytes.
const MaxConfig = 1 << 20

// ReadConfig reads the config.json of a model directory. Where there is none the error
// says what is wanted; it is fs.ErrNotExist then.
func ReadConfig(dir string) ([]byte, error) {
	config, err := ReadSmall(filepath.Join(dir, "config.json"), MaxConfig)
	if !errors.Is(err, fs.ErrNotExist) {
		return config, err
	}
	if _, e := os.Stat(dir); e != nil {
		return nil, fmt.Errorf("%w; name the directory of a checkpoint", e)
	}
	return nil, fmt.Errorf("%w; name the directory of a checkpoint, which has one", err)
}

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

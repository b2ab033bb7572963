package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// indexFile is what makes a directory of shards a checkpoint.
const indexFile = "model.safetensors.index.json"

// output is a directory that is being filled.
type output struct {
	dir   string
	isNew bool
	files []string // that were written
}

// openOutput makes a directory for a checkpoint of so many bytes, or empties
// the one that is there if force says so. The configuration must not be in it.
func openOutput(dir, config string, force bool, need int64) (*output, error) {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return makeOutput(dir, need)
	case err != nil:
		return nil, fmt.Errorf("--out %s: %w", dir, err)
	case !info.IsDir():
		return nil, fmt.Errorf("--out %s: this is no directory", dir)
	}
	if in, err := os.Stat(filepath.Dir(configPath(config))); err == nil && os.SameFile(in, info) {
		return nil, fmt.Errorf("--out %s: CONFIG is in it, and would be replaced", dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("--out %s: %w", dir, err)
	}
	if len(entries) == 0 {
		return &output{dir: dir}, checkSpace(dir, need, 0)
	}
	if !force {
		return nil, fmt.Errorf("--out %s: the directory is not empty: choose another, or replace the checkpoint in it with --force", dir)
	}
	return &output{dir: dir}, replaceOld(dir, entries, need)
}

func makeOutput(dir string, need int64) (*output, error) {
	parent := filepath.Dir(dir)
	if _, err := os.Stat(parent); err == nil {
		if err := checkSpace(parent, need, 0); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	return &output{dir: dir, isNew: true}, nil
}

// replaceOld removes the checkpoint among a directory's entries if the new one
// will fit.
func replaceOld(dir string, entries []fs.DirEntry, need int64) error {
	var old []string
	var bytes int64
	for _, e := range entries {
		if !isCheckpointFile(e.Name()) {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("--out %s: %w", dir, err)
		}
		if info.Mode().IsRegular() {
			bytes += info.Size()
		}
		old = append(old, filepath.Join(dir, e.Name()))
	}
	if err := checkSpace(dir, need, bytes); err != nil {
		return err
	}
	// The index first: what is left after an interruption is no checkpoint.
	for _, name := range append([]string{filepath.Join(dir, indexFile)}, old...) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--out %s: %w", dir, err)
		}
	}
	return nil
}

// isCheckpointFile reports whether a file belongs to a checkpoint, or is what a
// killed writer left.
func isCheckpointFile(name string) bool {
	return name == indexFile || name == "config.json" || filepath.Ext(name) == ".safetensors" ||
		strings.HasPrefix(name, ".safetensors-") && filepath.Ext(name) == ".tmp"
}

// checkSpace refuses what the file system has no room for, when so many bytes
// of it are about to be freed.
func checkSpace(dir string, need, freed int64) error {
	if have, ok := freeSpace(dir); ok && need > have+freed {
		return fmt.Errorf("--out: the checkpoint needs %s, the file system of %s has %s free: keep fewer --layers, or choose another directory",
			size(need), dir, size(have+freed))
	}
	return nil
}

// path is where a file of the checkpoint goes.
func (o *output) path(name string) string { return filepath.Join(o.dir, name) }

// wrote notes a file that discard is to remove.
func (o *output) wrote(name string) { o.files = append(o.files, o.path(name)) }

// discard removes what was written, and the directory if it is new.
func (o *output) discard() error {
	var errs []error
	for _, path := range o.files {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if o.isNew {
		errs = append(errs, os.Remove(o.dir))
	}
	return errors.Join(errs...)
}

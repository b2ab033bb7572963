package safetensors

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	indexName  = "model.safetensors.index.json"
	singleName = "model.safetensors" // of a checkpoint without an index
	mtpName    = "mtp.safetensors"

	maxIndex = 100_000_000 // bytes; as for a header, which says more of each tensor
)

// index says which file each tensor of a checkpoint is in.
type index struct {
	files    map[string]string // by tensor name
	total    int64             // bytes of all tensors
	hasTotal bool
}

// readIndex reads the index of a directory, nil if it has none. Errors do not
// name the file.
func readIndex(dir string) (*index, error) {
	path := filepath.Join(dir, indexName)
	// Not Stat: a link to an index that is gone is a fault, not a checkpoint
	// without an index.
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	src, err := readSmall(path)
	if err != nil {
		return nil, cause(err)
	}
	return parseIndex(src)
}

// readSmall reads a file of at most maxIndex bytes.
func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("this is no regular file (%s), expected JSON", info.Mode())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, maxIndex+1))
	if err == nil && len(src) > maxIndex {
		err = fmt.Errorf("the file is larger than expected, at most %d bytes", maxIndex)
	}
	return src, err
}

// parseIndex decodes an index. What it does not know it skips: writers put all
// kinds of counts beside total_size.
func parseIndex(src []byte) (*index, error) {
	r, err := newReader(src)
	if err != nil {
		return nil, err
	}
	ix := &index{}
	err = r.object(func(key string) (err error) {
		switch key {
		case "weight_map":
			ix.files, err = r.strings()
		case "metadata":
			err = r.indexMetadata(ix)
		default:
			err = r.skip(0)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", limited(key), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(ix.files) == 0 {
		return nil, errors.New("weight_map is missing or empty, expected the file name of every tensor")
	}
	return ix, r.end(" \t\r\n")
}

// indexMetadata reads the metadata of an index, of which only total_size counts.
func (r *reader) indexMetadata(ix *index) error {
	return r.object(func(key string) (err error) {
		if key == "total_size" {
			ix.hasTotal = true
			ix.total, err = r.natural()
		} else {
			err = r.skip(0)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", limited(key), err)
		}
		return nil
	})
}

// limited is a key for error texts: bare, unless that would be confusing.
func limited(key string) string {
	switch key {
	case "weight_map", "metadata", "total_size":
		return key
	}
	return quote(key)
}

// counts is the number of tensors by file.
func (ix *index) counts() map[string]int {
	n := make(map[string]int)
	for _, file := range ix.files {
		n[file]++
	}
	return n
}

// fileNames are the files that the index names, sorted, apart from those that
// are no plain file names: these are problems.
func (ix *index) fileNames() (names []string, bad []error) {
	counts := ix.counts()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if isBase(name) {
			names = append(names, name)
			continue
		}
		bad = append(bad, fmt.Errorf("%s: file name %s of %s, expected a plain name without a path",
			indexName, quote(name), tensorCount(counts[name])))
	}
	return names, bad
}

// isBase reports whether name is a file directly in a directory, on any system:
// an index must not reach out of its directory.
func isBase(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\\:\x00")
}

func tensorCount(n int) string {
	if n == 1 {
		return "1 tensor"
	}
	return fmt.Sprintf("%d tensors", n)
}

package safetensors

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"unicode/utf8"
)

// WriteIndex writes the index of a directory of shards: files says in which
// file each tensor is, total is the number of bytes of all tensors. A directory
// with an index is a whole checkpoint, so the index is written last. It appears
// whole or not at all.
func WriteIndex(dir string, total int64, files map[string]string) error {
	path := filepath.Join(dir, indexName)
	text, err := encodeIndex(total, files)
	if err == nil {
		err = replace(path, func(w io.Writer) error { _, err := w.Write(text); return err })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, cause(err))
	}
	return nil
}

// encodeIndex is the text of an index, a line a tensor, sorted by name.
func encodeIndex(total int64, files map[string]string) ([]byte, error) {
	if total < 0 {
		return nil, fmt.Errorf("total size %d is negative", total)
	}
	if len(files) == 0 {
		return nil, errors.New("no tensors, expected the file name of every tensor")
	}
	b := append([]byte("{\n  \"metadata\": {\n    \"total_size\": "), strconv.FormatInt(total, 10)...)
	b = append(b, "\n  },\n  \"weight_map\": {"...)
	for i, name := range slices.Sorted(maps.Keys(files)) {
		if !utf8.ValidString(name) || !isBase(files[name]) {
			return nil, tensorError(name, fmt.Errorf("file name %s, expected a plain name without a path, and valid UTF-8", quote(files[name])))
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(append(b, "\n    "...), name), ": "...)
		b = appendString(b, files[name])
	}
	return append(b, "\n  }\n}\n"...), nil
}

package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

const (
	lengthSize  = 8           // bytes of the header length at the start of a file
	minHeader   = 2           // bytes of a header: {}
	maxHeader   = 100_000_000 // bytes of a header; the format's own limit
	metadataKey = "__metadata__"

	again = "download the file again"
)

// entry is what the header says of one tensor.
type entry struct {
	name       string
	dtype      string
	shape      []int64
	begin, end int64 // bytes from the start of the data section
}

// parse checks a whole file and finds its tensors, sorted by name. Their Data
// are parts of raw, and their File is file. Metadata is nil if there is none.
// Errors say which tensor is meant but not which file.
func parse(raw []byte, file string) ([]Tensor, map[string]string, error) {
	header, data, err := split(raw)
	if err != nil {
		return nil, nil, err
	}
	entries, metadata, err := parseHeader(header)
	if err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	if err := checkLayout(entries, int64(len(data))); err != nil {
		return nil, nil, err
	}
	tensors := make([]Tensor, len(entries))
	for i, e := range entries {
		tensors[i] = Tensor{
			Name:  e.name,
			DType: e.dtype,
			Shape: e.shape,
			Data:  data[e.begin:e.end:e.end],
			File:  file,
		}
	}
	sortByName(tensors)
	return tensors, metadata, nil
}

// split finds the header and the data section.
func split(raw []byte) (header, data []byte, err error) {
	if len(raw) < lengthSize+minHeader {
		return nil, nil, sizeError(int64(len(raw)))
	}
	// The usual result of cloning a repository without its large files. Its
	// text would read as an absurd header length.
	if bytes.HasPrefix(raw, []byte("version https://git-lfs")) {
		return nil, nil, fmt.Errorf("this is a Git LFS pointer, expected the tensors it stands for: run git lfs pull")
	}
	n := binary.LittleEndian.Uint64(raw)
	rest := raw[lengthSize:]
	switch {
	case n < minHeader || n > maxHeader:
		return nil, nil, fmt.Errorf("header length is %d bytes, expected %d to %d: this is no safetensors file, or a damaged one",
			n, minHeader, maxHeader)
	case n > uint64(len(rest)):
		return nil, nil, fmt.Errorf("header length is %d bytes but the file has only %d after it, %d bytes are missing: %s",
			n, len(rest), n-uint64(len(rest)), again)
	}
	return rest[:n], rest[n:], nil
}

// sizeError is about a file too small to hold any header.
func sizeError(size int64) error {
	return fmt.Errorf("the file has %d bytes, expected at least %d: %s", size, lengthSize+minHeader, again)
}

// parseHeader decodes the header and checks each tensor by itself.
func parseHeader(src []byte) (entries []entry, metadata map[string]string, err error) {
	if src[0] != '{' {
		return nil, nil, fmt.Errorf("begins with %q, expected \"{\"", src[:1])
	}
	r, err := newReader(src)
	if err != nil {
		return nil, nil, err
	}
	err = r.object(func(key string) error {
		if key == metadataKey {
			if metadata, err = r.strings(); err != nil {
				return fmt.Errorf("%s: %w", metadataKey, err)
			}
			return nil
		}
		e, err := r.entry(key)
		if err != nil {
			return tensorError(key, err)
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return entries, metadata, r.end(" ")
}

// entry reads and checks what the header says of one tensor.
func (r *reader) entry(name string) (entry, error) {
	e := entry{name: name}
	var offsets []int64
	err := r.object(func(key string) (err error) {
		switch key {
		case "dtype":
			e.dtype, err = r.str()
		case "shape":
			e.shape, err = r.naturals()
		case "data_offsets":
			offsets, err = r.naturals()
		default:
			return fmt.Errorf("unknown key %s, expected dtype, shape and data_offsets", quote(key))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	switch {
	case err != nil:
		return e, err
	case e.dtype == "":
		return e, fmt.Errorf("no dtype, expected one of %s", knownDTypes)
	case e.shape == nil:
		return e, fmt.Errorf("no shape, expected a list of dimensions")
	case len(offsets) != 2:
		return e, fmt.Errorf("data_offsets has %d numbers, expected 2: begin and end", len(offsets))
	}
	e.begin, e.end = offsets[0], offsets[1]
	return e, e.check()
}

// check compares the offsets with the size that dtype and shape ask for.
func (e entry) check() error {
	size, err := byteSize(e.dtype, e.shape)
	if err != nil {
		return err
	}
	if e.begin > e.end {
		return fmt.Errorf("data_offsets [%d,%d] begin after their end", e.begin, e.end)
	}
	if e.end-e.begin != size {
		return fmt.Errorf("data_offsets [%d,%d] hold %d bytes, expected %d for %s of shape %s",
			e.begin, e.end, e.end-e.begin, size, e.dtype, dims(e.shape))
	}
	return nil
}

// checkLayout sorts the entries by offset and checks that they cover a data
// section of size bytes exactly.
func checkLayout(entries []entry, size int64) error {
	slices.SortFunc(entries, func(a, b entry) int {
		// Ends too: an empty tensor comes before one with data at its offset.
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), strings.Compare(a.name, b.name))
	})
	at := int64(0)
	for i, e := range entries {
		switch {
		case e.begin > at:
			return tensorError(e.name, fmt.Errorf("data begins at %d, expected %d: a gap of %d bytes that no tensor covers",
				e.begin, at, e.begin-at))
		case e.begin < at:
			return tensorError(e.name, fmt.Errorf("data begins at %d, expected %d: it overlaps tensor %s",
				e.begin, at, quote(entries[i-1].name)))
		}
		at = e.end
	}
	if at < size {
		return fmt.Errorf("the data section has %d bytes, expected %d: %d bytes after the last tensor", size, at, size-at)
	}
	for _, e := range entries {
		if e.end > size {
			return tensorError(e.name, fmt.Errorf("data ends at %d but the data section has %d bytes, expected %d: "+
				"%d bytes of the file are missing, %s", e.end, size, at, at-size, again))
		}
	}
	return nil
}

func sortByName(tensors []Tensor) {
	slices.SortFunc(tensors, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
}

// find is the tensor of a name among tensors sorted by name.
func find(tensors []Tensor, name string) (Tensor, bool) {
	i, ok := slices.BinarySearchFunc(tensors, name, func(t Tensor, name string) int {
		return strings.Compare(t.Name, name)
	})
	if !ok {
		return Tensor{}, false
	}
	return tensors[i], true
}

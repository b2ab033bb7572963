package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
)

// File is an open file. Its methods may be called concurrently, except Close.
type File struct {
	path     string
	tensors  []Tensor // sorted by name
	metadata map[string]string
	unmap    func() error // nil once closed
}

// Open maps the file read-only and checks all of its header. No tensor data is
// read before it is used. The file must not be changed while it is open: to cut
// it short would make an access to its tensors fault. Replacing it, as Write
// does, is fine.
//
// Errors name the file, the tensor, the value and what was expected instead.
func Open(path string) (*File, error) {
	f, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// open is Open; its errors do not name the file.
func open(path string) (*File, error) {
	raw, unmap, err := load(path)
	if err != nil {
		return nil, cause(err)
	}
	tensors, metadata, err := parse(raw, path)
	if err != nil {
		return nil, errors.Join(err, unmap())
	}
	return &File{path: path, tensors: tensors, metadata: metadata, unmap: unmap}, nil
}

// load makes the bytes of a file available until unmap is called.
func load(path string) (raw []byte, unmap func() error, err error) {
	// Asked before opening, which would wait for a writer if it is a pipe.
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("this is no regular file (%s), expected a safetensors file", info.Mode())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close() // a mapping outlives its descriptor
	if info, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	size := info.Size()
	if size < lengthSize+minHeader { // an empty file cannot be mapped
		return nil, nil, sizeError(size)
	}
	if size > math.MaxInt {
		return nil, nil, fmt.Errorf("the file has %d bytes, expected at most %d on this machine", size, math.MaxInt)
	}
	return mapFile(f, int(size))
}

// cause is err without the path that errors of package os begin with: callers
// name the file themselves.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok { // its paths: a temporary file and the target
		return fmt.Errorf("%s: %w", e.Op, e.Err)
	}
	return err
}

// Tensors are all tensors of the file, sorted by name; none after Close.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Tensor is the tensor of that name, and whether there is one.
func (f *File) Tensor(name string) (Tensor, bool) { return find(f.tensors, name) }

// Metadata is a copy of the header's free-form text, nil if it has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Close unmaps the file. Data of its tensors must not be used any more. Further
// calls do nothing.
func (f *File) Close() error {
	unmap := f.unmap
	if unmap == nil {
		return nil
	}
	f.unmap, f.tensors = nil, nil
	if err := unmap(); err != nil {
		return fmt.Errorf("%s: %w", f.path, err)
	}
	return nil
}

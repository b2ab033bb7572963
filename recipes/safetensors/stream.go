package safetensors

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sync/errgroup"
)

const (
	// pieceSize is how much of a streamed file one write carries.
	pieceSize = 4 << 20 // bytes
	// maxPieces bounds how many pieces are in the memory at a time.
	maxPieces = 16
	// blockSize is what offsets, sizes and addresses of writes that pass by the
	// page cache are multiples of.
	blockSize = 4096 // bytes
)

// Fill makes bytes [offset, offset+len(chunk)) of a tensor's data. A chunk may
// begin and end anywhere, even within an element. Several goroutines may be in
// it at once, and chunks come in no particular order.
type Fill func(t *Tensor, offset int64, chunk []byte) error

// WriteStream is Write for tensors that need not fit the memory: their Data is
// not looked at, fill makes it, a chunk of at most a few MiB at a time, on all
// processors. The file is the one that Write would write.
//
// When ctx ends the error is its cause, and nothing is left behind.
func WriteStream(ctx context.Context, path string, tensors []Tensor, metadata map[string]string, fill Fill) error {
	sorted := slices.Clone(tensors)
	sortByName(sorted)
	s, err := newStream(sorted, metadata, fill)
	if err == nil {
		err = replaceFile(path, func(f *os.File) error { return s.write(ctx, f) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, cause(err))
	}
	return nil
}

// Size is the number of bytes that the tensor's DType and Shape ask for,
// whether or not it has Data.
func (t Tensor) Size() (int64, error) {
	size, err := byteSize(t.DType, t.Shape)
	if err != nil {
		return 0, t.fail(err)
	}
	return size, nil
}

// stream is a file that is being made. Pieces are ranges of the file, not of
// tensors, so that all but the last are whole blocks of the disk.
type stream struct {
	head    []byte // all that comes before the data section
	tensors []Tensor
	entries []entry // parallel to tensors
	size    int64   // of the file
	fill    Fill
}

func newStream(tensors []Tensor, metadata map[string]string, fill Fill) (*stream, error) {
	entries, err := layOut(tensors)
	if err != nil {
		return nil, err
	}
	header, err := encodeEntries(entries, metadata)
	if err != nil {
		return nil, err
	}
	head := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	s := &stream{head: append(head, header...), tensors: tensors, entries: entries, fill: fill}
	s.size = int64(len(s.head))
	if n := len(entries); n > 0 {
		s.size += entries[n-1].end
	}
	return s, nil
}

// write writes the whole file.
func (s *stream) write(ctx context.Context, f *os.File) error {
	if err := reserve(f, s.size); err != nil {
		return err
	}
	direct(f)
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	// Twice as many as processors: half of them wait for the disk.
	for range min(2*runtime.GOMAXPROCS(0), maxPieces) {
		group.Go(func() error {
			piece := aligned(pieceSize)
			for {
				at := next.Add(pieceSize) - pieceSize
				if at >= s.size {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return context.Cause(ctx)
				}
				if err := s.writePiece(f, piece, at); err != nil {
					return err
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return f.Truncate(s.size) // the last piece was rounded up
}

// writePiece makes and writes the piece at an offset of the file.
func (s *stream) writePiece(f *os.File, piece []byte, at int64) error {
	n := min(int64(len(piece)), s.size-at)
	if err := s.make(piece[:n], at); err != nil {
		return err
	}
	end := (n + blockSize - 1) / blockSize * blockSize
	clear(piece[n:end])
	_, err := f.WriteAt(piece[:end], at)
	if errors.Is(err, syscall.EINVAL) { // some file systems say only now that they cannot
		buffered(f)
		_, err = f.WriteAt(piece[:end], at)
	}
	return err
}

// make makes what the file holds from an offset on.
func (s *stream) make(piece []byte, at int64) error {
	if at < int64(len(s.head)) {
		n := copy(piece, s.head[at:])
		piece, at = piece[n:], at+int64(n)
	}
	at -= int64(len(s.head)) // in the data section from here on
	first, _ := slices.BinarySearchFunc(s.entries, at, func(e entry, at int64) int {
		if e.end <= at {
			return -1
		}
		return 1
	})
	for i := first; len(piece) > 0; i++ {
		e := &s.entries[i]
		n := min(int64(len(piece)), e.end-at)
		if n == 0 {
			continue // an empty tensor
		}
		if err := s.fill(&s.tensors[i], at-e.begin, piece[:n:n]); err != nil {
			return tensorError(e.name, err)
		}
		piece, at = piece[n:], at+n
	}
	return nil
}

// aligned is memory whose address is a multiple of blockSize.
func aligned(size int) []byte {
	b := make([]byte, size+blockSize)
	skip := -uintptr(unsafe.Pointer(&b[0])) % blockSize
	return b[skip:][:size:size]
}

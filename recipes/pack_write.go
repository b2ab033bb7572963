package recipes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sync/errgroup"

	"quill/recipes/safetensors"
)

// packChunk is how many bytes are made, hashed and written at a time.
const packChunk = 1 << 20

// PackJob is what WritePacked writes.
type PackJob struct {
	Header     *PackHeader // SHA256 is filled in
	Weights    []Weight
	Checkpoint *safetensors.Checkpoint
	// Wrote is called now and then with the bytes of the image that were written
	// since the last call.
	Wrote func(bytes int64)
	// Drop is called with parts of tensors that were read and need not stay in
	// memory.
	Drop func(data []byte)
}

// WritePacked writes a file of packed weights in one pass, through a few
// buffers of a fixed size. The file appears under path whole or not at all: on
// an error, or when ctx ends, whatever was there before is still there.
func WritePacked(ctx context.Context, path string, job PackJob) error {
	return packError(path, job.Header.Bytes, job.replace(ctx, path))
}

// packError says what a failed write of so many bytes was for.
func packError(path string, need int64, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("packed weights %s: the disk is full, they need %d bytes: make room there or write them elsewhere (%w)", path, need, err)
	}
	return fmt.Errorf("packed weights %s: %w", path, err)
}

func (j *PackJob) replace(ctx context.Context, path string) (err error) {
	f, err := createTemp(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// Neither can help any more; Close fails if it was closed already.
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err = j.write(ctx, f); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = ctx.Err(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// write writes the header twice: its digest is known at the end.
func (j *PackJob) write(ctx context.Context, f *os.File) error {
	head, err := j.Header.encode()
	if err != nil {
		return err
	}
	if err := reserve(f, int64(len(head))+j.Header.Bytes); err != nil {
		return err
	}
	if _, err := f.Write(head); err != nil {
		return err
	}
	if j.Header.SHA256, err = j.image(ctx, f); err != nil {
		return err
	}
	if head, err = j.Header.encode(); err != nil {
		return err
	}
	_, err = f.WriteAt(head, 0)
	return err
}

// image writes the image and returns its digest. One goroutine makes chunks,
// the other hashes and writes them.
func (j *PackJob) image(ctx context.Context, f io.Writer) (string, error) {
	chunks, free := make(chan []byte), make(chan []byte, 2)
	free <- make([]byte, packChunk)
	free <- make([]byte, packChunk)
	sum := sha256.New()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(chunks)
		return j.chunks(ctx, free, chunks)
	})
	group.Go(func() error {
		for chunk := range chunks {
			sum.Write(chunk)
			if _, err := f.Write(chunk); err != nil {
				return err
			}
			j.Wrote(int64(len(chunk)))
			free <- chunk[:cap(chunk)]
		}
		return nil
	})
	err := group.Wait()
	return hex.EncodeToString(sum.Sum(nil)), err
}

// chunks makes the image, chunk by chunk.
func (j *PackJob) chunks(ctx context.Context, free <-chan []byte, out chan<- []byte) error {
	image := &imageReader{job: j, pieces: j.Header.Packing().Pieces(j.Weights, j.Header.TensorParallel)}
	for image.at < j.Header.Bytes {
		var chunk []byte
		select {
		case <-ctx.Done():
			return ctx.Err()
		case chunk = <-free:
		}
		n, err := image.fill(chunk[:min(int64(len(chunk)), j.Header.Bytes-image.at)])
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case out <- chunk[:n]:
		}
	}
	return nil
}

// imageReader makes an image from its first byte to its last.
type imageReader struct {
	job    *PackJob
	at     int64
	pieces []Piece       // that do not end before at
	slot   *WeightReader // of the first piece, once it has begun
}

// fill makes the next bytes, of which there are enough: all of dst but for what
// is less than an element.
func (r *imageReader) fill(dst []byte) (int, error) {
	done := 0
	for done < len(dst) {
		n, err := r.next(dst[done:])
		if errors.Is(err, io.ErrShortBuffer) && done > 0 {
			break
		}
		if err != nil {
			return done, err
		}
		r.at += int64(n)
		done += n
	}
	return done, nil
}

// next makes some bytes of a piece or of a gap.
func (r *imageReader) next(dst []byte) (int, error) {
	gap := int64(len(dst))
	if len(r.pieces) > 0 {
		gap = min(gap, r.pieces[0].At-r.at)
	}
	if r.slot == nil && gap > 0 {
		clear(dst[:gap])
		return int(gap), nil
	}
	p := &r.pieces[0]
	if r.slot == nil {
		var err error
		if r.slot, err = p.Open(r.job.Checkpoint, r.job.Header.TensorParallel); err != nil {
			return 0, err
		}
	}
	n, err := r.slot.Read(dst)
	if errors.Is(err, io.EOF) {
		r.slot, r.pieces = nil, r.pieces[1:]
		return 0, nil
	}
	if err == nil {
		r.job.Drop(r.slot.Source())
	}
	return n, err
}

// Open reads the piece.
func (p *Piece) Open(ckpt *safetensors.Checkpoint, tp int) (*WeightReader, error) {
	var t *safetensors.Tensor
	if p.Weight.Tensor != "" {
		found, ok := ckpt.Tensor(p.Weight.Tensor)
		if !ok {
			return nil, fmt.Errorf("the checkpoint has no tensor %s", plain(p.Weight.Tensor))
		}
		t = &found
	}
	return NewWeightReader(p.Weight, t, p.Rank, tp)
}

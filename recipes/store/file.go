package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/klauspost/compress/zstd"

	"quill/recipes"
)

// A file is its kind, the SHA-256 of all that follows, and the content, compressed. So
// a byte that is another one is found even where decompressing would not mind.
const (
	actionKind = "quill action 1\n"
	blobKind   = "quill blob 1\n"
)

// maxContent bounds the bytes of a file and of what is in it. Recipes have some hundred
// kilobytes, native ones some ten megabytes.
const maxContent = 1 << 30

// codec compresses and decompresses.
type codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func newCodec() (*codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxContent), zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, err
	}
	return &codec{enc, dec}, nil
}

// seal makes the bytes of a file.
func (c *codec) seal(kind string, content []byte) []byte {
	packed := c.enc.EncodeAll(content, nil)
	sum := recipes.Sum(packed)
	return append(append([]byte(kind), sum[:]...), packed...)
}

// unseal gives the content of a file that is what seal made.
func (c *codec) unseal(kind string, file []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(file, []byte(kind))
	if !ok {
		return nil, damaged("does not begin with %q", kind)
	}
	var want recipes.Hash
	if len(rest) < len(want) {
		return nil, damaged("is cut short")
	}
	packed := rest[len(want):]
	if copy(want[:], rest); recipes.Sum(packed) != want {
		return nil, damaged("its content is not what its checksum is of")
	}
	content, err := c.dec.DecodeAll(packed, nil)
	if err != nil {
		return nil, damaged("%w", err)
	}
	return content, nil
}

// readFile reads a file. What is there but is no file is damaged: a link could lead anywhere.
func (s *Store) readFile(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, damaged("not a regular file")
	}
	if info.Size() > maxContent {
		return nil, damaged("%d bytes, more than the %d that it may have", info.Size(), maxContent)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // nothing was written
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = damaged("is cut short")
		}
		return nil, err
	}
	s.count(func(c *Counters) { c.ReadBytes += int64(len(data)) })
	return data, nil
}

func (s *Store) readAction(h recipes.Hash) (*action, error) {
	file, err := s.readFile(s.actionPath(h))
	if err != nil {
		return nil, err
	}
	content, err := s.codec.unseal(actionKind, file)
	if err != nil {
		return nil, err
	}
	a, err := decodeAction(content)
	if err != nil {
		return nil, err
	}
	if own := a.key.Hash(); own != h {
		return nil, damaged("it holds the action %v", own)
	}
	return a, nil
}

func (s *Store) readBlob(h recipes.Hash) ([]byte, error) {
	file, err := s.readFile(s.blobPath(h))
	if err != nil {
		return nil, err
	}
	content, err := s.codec.unseal(blobKind, file)
	if err != nil {
		return nil, err
	}
	if sum := recipes.Sum(content); sum != h {
		return nil, damaged("its content has hash %v", sum)
	}
	return content, nil
}

// publish makes a file of the store: it is there whole or not at all. That its name is
// on the disk is for syncDir.
func (s *Store) publish(path string, data []byte) error {
	temp := s.path(tempDir, fmt.Sprintf("%s.%d", s.id, s.temps.Add(1)))
	err := s.writeTemp(temp, data)
	if err == nil {
		err = s.do("rename", path, func() error { return os.Rename(temp, path) })
	}
	if err != nil {
		_ = os.Remove(temp) // if not, whoever opens the store later will
		return err
	}
	s.count(func(c *Counters) { c.WrittenBytes += int64(len(data)) })
	return nil
}

// writeTemp writes a new file, and puts its bytes on the disk.
func (s *Store) writeTemp(path string, data []byte) error {
	var f *os.File
	err := s.do("create", path, func() (err error) {
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		return err
	})
	if err != nil {
		return err
	}
	err = s.do("write", path, func() error {
		_, err := f.Write(data)
		return err
	})
	if err == nil {
		err = s.do("sync", path, f.Sync)
	}
	if closed := f.Close(); err == nil && closed != nil {
		err = newError(path, closed)
	}
	return err
}

// syncDir puts the names in a folder on the disk.
func (s *Store) syncDir(name string) error {
	if runtime.GOOS == "windows" {
		return nil // it has nothing of the kind
	}
	return s.do("sync folder", s.path(name), func() error {
		dir, err := os.Open(s.path(name))
		if err != nil {
			return err
		}
		defer dir.Close() // nothing was written
		return dir.Sync()
	})
}

// do takes one step of writing; its error is an *Error.
func (s *Store) do(what, path string, step func() error) error {
	if s.opt.step != nil {
		if err := s.opt.step(what, path); err != nil {
			return newError(path, err)
		}
	}
	if err := step(); err != nil {
		return newError(path, err)
	}
	return nil
}

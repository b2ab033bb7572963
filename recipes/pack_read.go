package recipes

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Packed is an open file of packed weights.
type Packed struct {
	Header PackHeader
	// Start is where the image begins in the file; it ends with the file.
	Start int64
	File  *os.File
}

// OpenPacked opens a file of packed weights and checks that it is whole. It
// does not read the image. The caller closes File. Errors name the file.
func OpenPacked(path string) (*Packed, error) {
	info, err := os.Stat(path) // before opening, which would wait for a writer if it is a pipe
	if err != nil {
		return nil, fmt.Errorf("packed weights: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("packed weights %s: this is no regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("packed weights: %w", err)
	}
	p := &Packed{File: f}
	if err := p.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("packed weights %s: %w", path, err), f.Close())
	}
	return p, nil
}

func (p *Packed) read() error {
	info, err := p.File.Stat()
	if err != nil {
		return err
	}
	prefix := make([]byte, packPrefix)
	if _, err := p.File.ReadAt(prefix, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(prefix[:len(packMagic)]) != packMagic {
		return errors.New("this is no file of packed weights")
	}
	n := binary.LittleEndian.Uint64(prefix[len(packMagic):])
	if n > maxPackHeader || (n+uint64(packPrefix))%PackAlign != 0 {
		return fmt.Errorf("it is damaged: a header of %d bytes", n)
	}
	if p.Start = int64(n) + int64(packPrefix); p.Start > info.Size() {
		return fmt.Errorf("it is cut short: %d bytes, its header alone has %d", info.Size(), p.Start)
	}
	text := make([]byte, n)
	if _, err := p.File.ReadAt(text, int64(packPrefix)); err != nil {
		return err
	}
	if err := p.decode(text); err != nil {
		return err
	}
	if want := p.Start + p.Header.Bytes; info.Size() != want {
		return fmt.Errorf("it is cut short or damaged: %d bytes, its header says %d", info.Size(), want)
	}
	return nil
}

// decode checks the format before the rest, which another version may spell
// differently.
func (p *Packed) decode(text []byte) error {
	var v struct {
		Format int    `json:"format"`
		Quill  string `json:"quill"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	if v.Format != PackVersion {
		return fmt.Errorf("they have format %d (written by quill %q), this quill reads format %d", v.Format, v.Quill, PackVersion)
	}
	if err := decode("header", text, &p.Header); err != nil {
		return err
	}
	h := &p.Header
	if h.Bytes < 0 || h.Bytes > maxBytes || len(h.SHA256) != hex.EncodedLen(sha256.Size) || h.TensorParallel < 1 || h.TensorParallel > maxRanks {
		return fmt.Errorf("header: %d bytes for %d ranks with digest %q", h.Bytes, h.TensorParallel, h.SHA256)
	}
	for i := range h.Runs {
		if r := &h.Runs[i]; r.Copies < 1 || r.Copies > h.TensorParallel || !within(r.Offset, r.Bytes, maxBytes) || !within(r.At, r.Bytes, h.Bytes) {
			return fmt.Errorf("header: range %d: %d copies of %d bytes at byte %d, for byte %d", i, r.Copies, r.Bytes, r.At, r.Offset)
		}
	}
	return nil
}

// Verify reads all of the image and compares its digest with the header's.
// read is called now and then with the bytes read since the last call.
func (p *Packed) Verify(ctx context.Context, read func(bytes int64)) error {
	sum := sha256.New()
	buf := make([]byte, packChunk)
	image := io.NewSectionReader(p.File, p.Start, p.Header.Bytes)
	for done := int64(0); done < p.Header.Bytes; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := image.Read(buf)
		if err != nil {
			return fmt.Errorf("packed weights %s: %w", p.File.Name(), err)
		}
		sum.Write(buf[:n])
		done += int64(n)
		read(int64(n))
	}
	if have := hex.EncodeToString(sum.Sum(nil)); have != p.Header.SHA256 {
		return fmt.Errorf("packed weights %s: they are damaged: SHA-256 is %s, the header says %s", p.File.Name(), have, p.Header.SHA256)
	}
	return nil
}

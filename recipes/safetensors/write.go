package safetensors

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// headerAlign is what the header is padded to, so that the data section starts
// at a multiple of it. Tensors in it are packed: those after one of an odd size
// may be unaligned.
const headerAlign = 8 // bytes

// maxData is how large a data section can be: sizes of files stay in 63 bits.
const maxData = 1 << 62 // bytes

// Write writes a file. It is canonical: tensors lie in the order of their
// names, keys are sorted, and equal input gives equal bytes whatever its order.
// Empty metadata is left out.
//
// The file appears under path whole or not at all: on an error whatever was
// there before is still there, and no other file is left behind. It is an error
// if two tensors have one name, if a name or metadata is not UTF-8, and if the
// Data of a tensor does not fit its DType and Shape.
func Write(path string, tensors []Tensor, metadata map[string]string) error {
	sorted := slices.Clone(tensors)
	sortByName(sorted)
	header, err := encodeHeader(sorted, metadata)
	if err == nil {
		err = replace(path, func(w io.Writer) error { return encode(w, header, sorted) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, cause(err))
	}
	return nil
}

// encode writes a file with the given header.
func encode(w io.Writer, header []byte, tensors []Tensor) error {
	var n [lengthSize]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(header)))
	if _, err := w.Write(n[:]); err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range tensors {
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
	}
	return nil
}

// encodeHeader checks tensors, which are sorted by name, and makes their
// header, padded with spaces.
func encodeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	entries, err := layOut(tensors)
	if err != nil {
		return nil, err
	}
	for _, t := range tensors {
		if err := t.check(); err != nil {
			return nil, tensorError(t.Name, err)
		}
	}
	return encodeEntries(entries, metadata)
}

// layOut checks tensors, which are sorted by name, apart from their Data, and
// lays them out one after the other.
func layOut(tensors []Tensor) ([]entry, error) {
	entries := make([]entry, len(tensors))
	at := int64(0)
	for i, t := range tensors {
		if err := checkName(tensors, i); err != nil {
			return nil, tensorError(t.Name, err)
		}
		size, err := byteSize(t.DType, t.Shape)
		if err == nil && size > maxData-at {
			err = fmt.Errorf("the file would have more than %d bytes", int64(maxData))
		}
		if err != nil {
			return nil, tensorError(t.Name, err)
		}
		entries[i] = entry{t.Name, t.DType, t.Shape, at, at + size}
		at += size
	}
	return entries, nil
}

// encodeEntries makes the header of a file, padded with spaces.
func encodeEntries(entries []entry, metadata map[string]string) ([]byte, error) {
	b, err := appendMetadata([]byte{'{'}, metadata)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = appendEntry(b, e)
	}
	b = append(b, '}')
	for len(b)%headerAlign != 0 {
		b = append(b, ' ')
	}
	if len(b) > maxHeader {
		return nil, fmt.Errorf("the header would have %d bytes, expected at most %d: write fewer tensors to a file", len(b), maxHeader)
	}
	return b, nil
}

// checkName checks the name of one of the sorted tensors.
func checkName(tensors []Tensor, i int) error {
	name := tensors[i].Name
	switch {
	case name == metadataKey:
		return errors.New("the name is reserved for metadata")
	case !utf8.ValidString(name):
		return errors.New("the name is not valid UTF-8")
	case i > 0 && tensors[i-1].Name == name:
		return errors.New("two tensors have this name, expected each name once")
	}
	return nil
}

// appendMetadata appends the metadata with its key, or nothing if it is empty.
func appendMetadata(b []byte, metadata map[string]string) ([]byte, error) {
	if len(metadata) == 0 {
		return b, nil
	}
	b = append(b, `"`+metadataKey+`":{`...)
	for i, key := range slices.Sorted(maps.Keys(metadata)) {
		v := metadata[key]
		if !utf8.ValidString(key) || !utf8.ValidString(v) {
			return nil, fmt.Errorf("metadata %s: %s is not valid UTF-8", quote(key), quote(v))
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, key), ':')
		b = appendString(b, v)
	}
	return append(b, '}'), nil
}

// appendEntry appends the name and the entry of a tensor.
func appendEntry(b []byte, e entry) []byte {
	b = appendString(b, e.name)
	b = append(b, `:{"dtype":`...)
	b = appendString(b, e.dtype)
	b = append(b, `,"shape":`...)
	b = appendInts(b, e.shape...)
	b = append(b, `,"data_offsets":`...)
	b = appendInts(b, e.begin, e.end)
	return append(b, '}')
}

func appendInts(b []byte, values ...int64) []byte {
	b = append(b, '[')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return append(b, ']')
}

// appendString appends s, which is valid UTF-8, as a JSON string.
func appendString(b []byte, s string) []byte {
	var text strings.Builder
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	// Strings always encode, and a Builder takes everything.
	_ = enc.Encode(s)
	return append(b, strings.TrimSuffix(text.String(), "\n")...)
}

// replace makes write's output the file at path. What was there stays until all
// of the new file is on the disk: a crash leaves the one or the other.
func replace(path string, write func(io.Writer) error) error {
	return replaceFile(path, func(f *os.File) error {
		w := bufio.NewWriter(f)
		if err := write(w); err != nil {
			return err
		}
		return w.Flush()
	})
}

// replaceFile is replace for a write that wants the file itself.
func replaceFile(path string, write func(*os.File) error) (err error) {
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
	if err = write(f); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// createTemp creates a new file in dir. It is os.CreateTemp but for the mode,
// which is that of other new files: a checkpoint is not a secret.
func createTemp(dir string) (f *os.File, err error) {
	for range 100 {
		name := filepath.Join(dir, fmt.Sprintf(".safetensors-%016x.tmp", rand.Uint64()))
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return f, err
}

package recipes

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"
)

// A bundle is a ZIP file of one layout, which is what WriteBundle writes:
//
//	entries    header, name and data of each, one right behind the other, from byte 0 on
//	directory  for each entry in the same order a header and the name
//	end        a record without comment; two more before it where 16 bits do not count the entries
//
// A file in which anything else lies is refused, so no two readers of ZIP files can see
// different things in it, and what is read is bounded before it is read. Dates and
// attributes mean nothing.

// Bounds on what reading a bundle may take, whatever its directory claims: an
// entry, the number of entries, and all of them together in relation to the
// file (entries as quill writes them shrink by a factor of 3 to 40).
const (
	maxEntry    = 64 << 20
	maxPacked   = maxEntry + maxEntry/64 // what does not shrink grows a little
	maxEntries  = 1 << 17
	maxName     = 255
	maxUnpacked = 4 << 30
	maxFile     = 1<<32 - 1 // what 32 bits say of places
	baseBudget  = 16 << 20
	maxRatio    = 256
)

// Sizes and signatures of the records of a ZIP file.
const (
	headerLen    = 30
	directoryLen = 46
	endLen       = 22
	bigEndLen    = 56 + 20 + endLen // the 64-bit end, where it is, the end

	headerSign    = 0x04034b50
	directorySign = 0x02014b50
	endSign       = 0x06054b50
	bigEndSign    = 0x06064b50
	bigPlaceSign  = 0x07064b50
)

var le = binary.LittleEndian

// entry is a file in the archive.
type entry struct {
	name   string
	method uint16
	crc    uint32
	at     int64 // where its data begins
	packed int64 // bytes of data
	size   int64 // bytes once unpacked
}

// archive is a ZIP file whose entries are taken one by one.
type archive struct {
	r      io.ReaderAt
	zstd   *zstd.Decoder
	order  []*entry
	files  map[string]*entry
	hashes map[string]Hash // of entries that are not named by theirs
	taken  map[string]bool
}

// openArchive reads the directory of an archive of size bytes. Nothing is unpacked.
func openArchive(r io.ReaderAt, size int64) (*archive, error) {
	count, from, to, err := readEnd(r, size)
	if err != nil {
		return nil, err
	}
	dir := make([]byte, to-from)
	if err := readAt(r, dir, from); err != nil {
		return nil, err
	}
	a := &archive{r: r, files: make(map[string]*entry, count), taken: make(map[string]bool, count)}
	at, budget := int64(0), min(maxUnpacked, baseBudget+maxRatio*size)
	for range count {
		var e *entry
		if e, dir, err = readEntry(dir, at); err != nil {
			return nil, err
		}
		if a.files[e.name] != nil {
			return nil, fmt.Errorf("%q is there twice", e.name)
		}
		if err := e.check(r, from); err != nil {
			return nil, fmt.Errorf("%s %w", plain(e.name), err)
		}
		limit := min(budget, maxEntry)
		if isNative(e.name) { // reading unpacks none of them, whoever wants one does
			limit = MaxNative
		} else {
			budget -= e.size
		}
		if e.size > limit {
			return nil, fmt.Errorf("%s unpacks to more than %d bytes", plain(e.name), limit)
		}
		at = e.at + e.packed
		a.order, a.files[e.name] = append(a.order, e), e
	}
	if len(dir) > 0 || at != from {
		return nil, fmt.Errorf("not a bundle: %d bytes behind the last of %d entries belong to none", int64(len(dir))+from-at, count)
	}
	// Unpacking goes straight to where the result has its place, so what a frame says of its
	// window costs nothing; that of an entry is never larger than the entry.
	a.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxEntry),
		zstd.WithDecoderMaxWindow(maxEntry), zstd.WithDecodeAllCapLimit(true))
	return a, err
}

func (a *archive) close() { a.zstd.Close() }

func readAt(r io.ReaderAt, b []byte, at int64) error {
	if n, err := r.ReadAt(b, at); n < len(b) {
		return fmt.Errorf("cannot read %d bytes at byte %d: %w", len(b), at, err)
	}
	return nil
}

// errNoEnd is the end of a file that is no ZIP file, or one with something behind it.
var errNoEnd = errors.New("not a bundle, or cut short: it does not end as one does")

// readEnd finds the directory: the number of its entries, where it begins and ends.
func readEnd(r io.ReaderAt, size int64) (count int, from, to int64, err error) {
	tail := make([]byte, min(size, bigEndLen))
	if err := readAt(r, tail, size-int64(len(tail))); err != nil {
		return 0, 0, 0, err
	}
	if len(tail) < endLen {
		return 0, 0, 0, errNoEnd
	}
	end := tail[len(tail)-endLen:]
	here, all, length, begin := uint64(le.Uint16(end[8:])), uint64(le.Uint16(end[10:])), uint64(le.Uint32(end[12:])), uint64(le.Uint32(end[16:]))
	endBytes := int64(endLen)
	if len(tail) == bigEndLen && le.Uint32(tail[56:]) == bigPlaceSign {
		if le.Uint32(tail) != bigEndSign || le.Uint64(tail[4:]) != 56-12 || le.Uint64(tail[56+8:]) != uint64(size-bigEndLen) {
			return 0, 0, 0, errNoEnd
		}
		here, all, length, begin = le.Uint64(tail[24:]), le.Uint64(tail[32:]), le.Uint64(tail[40:]), le.Uint64(tail[48:])
		endBytes = bigEndLen
	}
	if le.Uint32(end) != endSign || le.Uint16(end[20:]) != 0 || here != all {
		return 0, 0, 0, errNoEnd
	}
	if all > maxEntries {
		return 0, 0, 0, fmt.Errorf("%d entries, at most %d are read", all, maxEntries)
	}
	if rest := uint64(size - endBytes); length > all*(directoryLen+maxName) || begin > rest || length != rest-begin {
		return 0, 0, 0, fmt.Errorf("not a bundle: a directory of %d bytes at byte %d, with %d entries, does not end where its end begins, at byte %d", length, begin, all, rest)
	}
	return int(all), int64(begin), int64(begin + length), nil
}

// readEntry takes the first header of the directory, which must be of the entry that
// begins at byte at.
func readEntry(dir []byte, at int64) (e *entry, rest []byte, err error) {
	if len(dir) < directoryLen || le.Uint32(dir) != directorySign {
		return nil, nil, errors.New("not a bundle: its directory has fewer entries than it says")
	}
	n := int(le.Uint16(dir[28:]))
	if n > maxName || len(dir) < directoryLen+n {
		return nil, nil, fmt.Errorf("not a bundle: an entry's name has %d bytes, at most %d are read", n, maxName)
	}
	e = &entry{
		name: string(dir[directoryLen:][:n]), method: le.Uint16(dir[10:]), crc: le.Uint32(dir[16:]),
		packed: int64(le.Uint32(dir[20:])), size: int64(le.Uint32(dir[24:])), at: at + headerLen + int64(n),
	}
	switch {
	case le.Uint16(dir[8:]) != 0:
		err = fmt.Errorf("%s has flags %#x, quill writes none", plain(e.name), le.Uint16(dir[8:]))
	case le.Uint16(dir[30:]) != 0 || le.Uint16(dir[32:]) != 0:
		err = fmt.Errorf("%s has more fields or a comment, quill writes none", plain(e.name))
	case int64(le.Uint32(dir[42:])) != at:
		err = fmt.Errorf("%s is at byte %d, what is before it ends at byte %d", plain(e.name), le.Uint32(dir[42:]), at)
	}
	return e, dir[directoryLen+n:], err
}

// check compares an entry with the header before its data, and with how quill writes it.
func (e *entry) check(r io.ReaderAt, end int64) error {
	most := int64(maxPacked)
	if isNative(e.name) {
		most = MaxNative + MaxNative/64
	}
	if e.packed > most {
		return fmt.Errorf("has %d bytes, at most %d are read", e.packed, most)
	}
	if e.at+e.packed > end {
		return fmt.Errorf("ends at byte %d, the directory begins at byte %d", e.at+e.packed, end)
	}
	if want := methodOf(e.name); e.method != want {
		return fmt.Errorf("is packed by method %d, quill writes it with %d", e.method, want)
	}
	if e.method == zip.Store && e.packed != e.size {
		return fmt.Errorf("is not packed, yet %d bytes are to become %d", e.packed, e.size)
	}
	have := make([]byte, headerLen+len(e.name))
	if err := readAt(r, have, e.at-int64(len(have))); err != nil {
		return err
	}
	want := bytes.Clone(have) // with its version and date
	le.PutUint32(want, headerSign)
	le.PutUint16(want[6:], 0)
	le.PutUint16(want[8:], e.method)
	le.PutUint32(want[14:], e.crc)
	le.PutUint32(want[18:], uint32(e.packed))
	le.PutUint32(want[22:], uint32(e.size))
	le.PutUint16(want[26:], uint16(len(e.name)))
	le.PutUint16(want[28:], 0)
	copy(want[headerLen:], e.name)
	if !bytes.Equal(have, want) {
		return errors.New("has another header before its data than in the directory")
	}
	return nil
}

// methodOf is how an entry is compressed.
func methodOf(name string) uint16 {
	if name == manifestName {
		return zip.Store
	}
	return zstd.ZipMethodWinZip
}

// raw gives an entry as it lies in the file.
func (a *archive) raw(e *entry) ([]byte, error) {
	a.taken[e.name] = true
	data := make([]byte, e.packed)
	if err := readAt(a.r, data, e.at); err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	return data, nil
}

// unpack gives the content of an entry, with its checksum verified.
func (a *archive) unpack(name string) ([]byte, error) {
	e := a.files[name]
	if e == nil {
		return nil, fmt.Errorf("%s is missing", name)
	}
	data, err := a.raw(e)
	if err != nil {
		return nil, err
	}
	if e.method != zip.Store {
		err := oneFrame(data)
		if err == nil {
			data, err = a.zstd.DecodeAll(data, make([]byte, 0, e.size))
		}
		if err != nil {
			return nil, fmt.Errorf("%s is damaged: %w", name, err)
		}
	}
	if int64(len(data)) != e.size || crc32.ChecksumIEEE(data) != e.crc {
		return nil, fmt.Errorf("%s is damaged: its %d bytes are not the %d that the directory has the checksum of", name, len(data), e.size)
	}
	return data, nil
}

var errFrame = errors.New("not one whole frame of Zstandard")

// oneFrame checks that data is one frame of Zstandard without dictionary, and nothing
// else: the decoder would take several, and skip what is none.
func oneFrame(data []byte) error {
	if len(data) < 5 || le.Uint32(data) != 0xfd2fb528 || data[4]&0x0b != 0 {
		return errFrame // a reserved bit or a dictionary
	}
	flags := data[4]
	head := 5 + []int{0, 2, 4, 8}[flags>>6]
	single := flags&0x20 != 0
	if !single || flags>>6 == 0 {
		head++ // the size of the window, or that of the content
	}
	for last := false; !last; {
		if head < 0 || len(data) < head+3 {
			return errFrame
		}
		data = data[head:]
		block := int(data[0]) | int(data[1])<<8 | int(data[2])<<16
		last = block&1 != 0
		head = 3 + block>>3
		if block>>1&3 == 1 { // one byte, repeated
			head = 3 + 1
		}
	}
	if flags&0x04 != 0 {
		head += 4 // a checksum
	}
	if len(data) != head {
		return errFrame
	}
	return nil
}

package recipes

import (
	"archive/zip"
	"bytes"
	"hash/crc32"
	"os"
	"reflect"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// soakReading reports whether tests try every place and not only some.
func soakReading() bool { return os.Getenv("QUILL_SOAK") != "" }

// readClean reads a bundle that may be harmed: the error, if there is one, is one line,
// and what was read is bounded.
func readClean(t testing.TB, data []byte) (*Bundle, error) {
	b, err := readBundle(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 500)
		for _, r := range err.Error() {
			require.GreaterOrEqual(t, r, ' ', "%q", err)
		}
	}
	return b, err
}

// allocated is how many bytes were ever allocated. It stops nothing, so it can be asked
// around each of many reads; what is small may be told a little later.
func allocated() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// readBounded is readClean that allocates no more than it may, whatever the file says.
func readBounded(t testing.TB, data []byte) (*Bundle, error) {
	before := allocated()
	b, err := readClean(t, data)
	require.Less(t, allocated()-before, int64(baseBudget)+8*int64(len(data)), "%v", err)
	return b, err
}

// The bound of readBounded is not more than a harmed size could ask for.
func TestBoundOfReadingIsFelt(t *testing.T) {
	data, err := os.ReadFile(write(t, tinyBundle(t)))
	require.NoError(t, err)
	require.Less(t, int64(baseBudget)+8*int64(len(data)), int64(maxEntry))
	before := allocated()
	sink = make([]byte, maxEntry)
	require.GreaterOrEqual(t, allocated()-before, int64(maxEntry))
}

var sink []byte

// Cut anywhere, a bundle is refused.
func TestReadBundleCut(t *testing.T) {
	data, err := os.ReadFile(write(t, tinyBundle(t)))
	require.NoError(t, err)
	for n := range data {
		_, err := readBounded(t, data[:n])
		require.Error(t, err, "cut at %d", n)
		_, err = readBounded(t, data[n+1:])
		require.Error(t, err, "without the first %d", n+1)
	}
}

// With any bit flipped, a bundle is refused or means the same. Outside of packed data, which
// can say the same in several ways, the bits that mean nothing are counted: those of dates,
// versions, attributes and numbers of disks.
func TestReadBundleEveryBit(t *testing.T) {
	want := tinyBundle(t)
	data, err := os.ReadFile(write(t, want))
	require.NoError(t, err)
	step := 3 // prime to 8: each byte is hit, and of eight neighbours each bit
	if soakReading() {
		step = 1
	}
	entries := openZip(t, write(t, want)).File
	packed := make([]bool, len(data))
	for _, e := range entries {
		at, err := e.DataOffset()
		require.NoError(t, err)
		for i := range e.CompressedSize64 {
			packed[at+int64(i)] = true
		}
	}
	free := 0
	for i := 0; i < 8*len(data); i += step {
		data[i/8] ^= 1 << (i % 8)
		if got, err := readBounded(t, data); err == nil {
			require.True(t, reflect.DeepEqual(want, got), "bit %d of byte %d", i%8, i/8)
			if !packed[i/8] {
				free++
			}
		}
		data[i/8] ^= 1 << (i % 8)
	}
	// Of a header 6 bytes, of one in the directory 16, of the end 4.
	require.LessOrEqual(t, free*step, 8*(len(entries)*(6+16)+4)+8*step)
}

// forged is an entry with headers that may lie.
type forged struct {
	name         string
	method       uint16
	data         []byte // as it lies in the file
	size         int64  // unpacked, as the headers say
	crc          uint32
	inner        func(header []byte) // changes the header before the data
	outer        func(header []byte) // changes the header in the directory
	behind       []byte              // what lies between this entry and the next
	beforeHeader []byte
}

// honest is an entry as quill writes it.
func honest(t testing.TB, name string, content []byte) forged {
	f := forged{name: name, method: methodOf(name), data: content, size: int64(len(content)), crc: crc32.ChecksumIEEE(content)}
	if f.method != zip.Store {
		f.data = squeeze(t, content)
	}
	return f
}

func squeeze(t testing.TB, content []byte) []byte {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstdLevel), zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	return enc.EncodeAll(content, nil)
}

// forge makes a file of entries, byte by byte.
func forge(entries []forged, comment string) []byte {
	var file, dir []byte
	for _, e := range entries {
		file = append(file, e.beforeHeader...)
		at := len(file)
		inner := le.AppendUint32(nil, headerSign)
		inner = append(inner, 20, 0, 0, 0)
		inner = le.AppendUint16(inner, e.method)
		inner = append(inner, 0, 0, 0, 0)
		inner = le.AppendUint32(inner, e.crc)
		inner = le.AppendUint32(inner, uint32(len(e.data)))
		inner = le.AppendUint32(inner, uint32(e.size))
		inner = le.AppendUint16(inner, uint16(len(e.name)))
		inner = append(append(inner, 0, 0), e.name...)
		outer := le.AppendUint32(nil, directorySign)
		outer = append(append(outer, 20, 0), inner[4:30]...)
		outer = append(outer, make([]byte, 10)...)
		outer = le.AppendUint32(outer, uint32(at))
		outer = append(outer, e.name...)
		if e.inner != nil {
			e.inner(inner)
		}
		if e.outer != nil {
			e.outer(outer)
		}
		file = append(append(append(file, inner...), e.data...), e.behind...)
		dir = append(dir, outer...)
	}
	at := len(file)
	file = append(file, dir...)
	return appendEnd(file, len(entries), len(dir), at, comment)
}

func appendEnd(file []byte, count, size, at int, comment string) []byte {
	file = le.AppendUint32(file, endSign)
	file = append(file, 0, 0, 0, 0)
	file = le.AppendUint16(file, uint16(count))
	file = le.AppendUint16(file, uint16(count))
	file = le.AppendUint32(file, uint32(size))
	file = le.AppendUint32(file, uint32(at))
	return append(le.AppendUint16(file, uint16(len(comment))), comment...)
}

// tinyEntries are those of a bundle, to be harmed.
func tinyEntries(t testing.TB) []forged {
	var list []forged
	for _, f := range openZip(t, write(t, tinyBundle(t))).File {
		list = append(list, honest(t, f.Name, unzip(t, f)))
	}
	return list
}

// bomb is a frame of Zstandard that says nothing of its size: one byte, repeated in
// blocks of 128 KiB.
func bomb(blocks int) []byte {
	data := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x68} // a window of 8 MiB
	for i := range blocks {
		head := uint32(128<<10)<<3 | 1<<1
		if i == blocks-1 {
			head |= 1
		}
		data = append(data, byte(head), byte(head>>8), byte(head>>16), ' ')
	}
	return data
}

// withWindow has the packed entries in frames that say a window of 1 KiB << log.
func withWindow(t testing.TB, list []forged, log byte) []forged {
	list = slices.Clone(list)
	for i := range list[1:] {
		f := &list[i+1]
		if isNative(f.name) {
			continue // the manifest has the hash of what is packed
		}
		f.data = append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, log << 3}, rawBlock(contentOf(t, *f))...)
	}
	return list
}

// rawBlock is a block that is the last of its frame and not compressed.
func rawBlock(content []byte) []byte {
	head := uint32(len(content))<<3 | 1
	return append([]byte{byte(head), byte(head >> 8), byte(head >> 16)}, content...)
}

func contentOf(t testing.TB, f forged) []byte {
	dec, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer dec.Close()
	content, err := dec.DecodeAll(f.data, nil)
	require.NoError(t, err)
	return content
}

func deflated(t testing.TB, n int) []byte {
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, 9)
	require.NoError(t, err)
	_, err = w.Write(make([]byte, n))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// Files made to harm are refused, by the name of the entry, and take little memory.
func TestReadBundleOfAnAttacker(t *testing.T) {
	good := tinyEntries(t)
	_, err := readClean(t, forge(good, ""))
	require.NoError(t, err, "what is forged without harm reads")
	_, err = readClean(t, forge(withWindow(t, good, 15), ""))
	require.NoError(t, err, "so does what has a window of 32 MiB")

	at := func(name string) int {
		return slices.IndexFunc(good, func(f forged) bool { return strings.HasPrefix(f.name, name) })
	}
	edit := func(name string, change func(f *forged)) []byte {
		list := slices.Clone(good)
		change(&list[at(name)])
		return forge(list, "")
	}
	with := func(name string, content string) []byte {
		return forge(append(slices.Clone(good), honest(t, name, []byte(content))), "")
	}
	whole := forge(good, "")
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"a zstd bomb that says its size", edit("checkpoint", func(f *forged) { f.data, f.size = bomb(600), 600*128<<10 }), "checkpoint.json unpacks to more than"},
		{"a zstd bomb in an entry said to be small", edit("checkpoint", func(f *forged) { f.data, f.size = bomb(600), 100 }), "checkpoint.json is damaged: "},
		{"a zstd bomb whose frame says less", edit("checkpoint", func(f *forged) {
			f.data, f.size = append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x20, 100}, bomb(100)[6:]...), 100
		}), "checkpoint.json is damaged: "},
		{"a frame that says 64 GiB", edit("checkpoint", func(f *forged) {
			f.data, f.size = append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 16, 0, 0, 0}, bomb(1)[6:]...), 100
		}), "checkpoint.json is damaged: "},
		{"a window of 3.75 TiB", edit("checkpoint", func(f *forged) {
			f.data, f.size = append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff}, bomb(1)[6:]...), 100
		}), "checkpoint.json is damaged: "},
		{"a window of 128 MiB", forge(withWindow(t, good, 17), ""), "config.json is damaged: window size exceeded"},
		{"a dictionary", edit("checkpoint", func(f *forged) {
			f.data = append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 100}, bomb(1)[6:]...)
		}), "checkpoint.json is damaged: not one whole frame"},
		{"frames to be skipped", edit("checkpoint", func(f *forged) {
			f.data = append([]byte{0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 'x'}, f.data...)
		}), "checkpoint.json is damaged: not one whole frame"},
		{"a second frame", edit("checkpoint", func(f *forged) { f.data = append(slices.Clone(f.data), squeeze(t, []byte("[]"))...) }), "checkpoint.json is damaged: not one whole frame"},
		{"a frame cut short", edit("checkpoint", func(f *forged) { f.data = f.data[:len(f.data)-1] }), "checkpoint.json is damaged: not one whole frame"},
		{"an entry without data", edit("checkpoint", func(f *forged) { f.data = nil }), "checkpoint.json is damaged: not one whole frame"},
		{"sizes together beyond what such a file has", func() []byte {
			list := slices.Clone(good)
			for i := range list[1:] {
				list[i+1].size = 8 << 20
			}
			return forge(list, "")
		}(), "bf16/weights.json unpacks to more than"},
		{"a deflate bomb", edit("checkpoint", func(f *forged) { f.method, f.data, f.size = zip.Deflate, deflated(t, 8<<20), 8<<20 }), "checkpoint.json is packed by method 8, quill writes it with 93"},
		{"an entry that is not packed", edit("checkpoint", func(f *forged) { f.method, f.data, f.size = zip.Store, []byte("[]"), 2 }), "checkpoint.json is packed by method 0, quill writes it with 93"},
		{"a manifest that is packed", edit("manifest", func(f *forged) { f.method, f.data = zstd.ZipMethodWinZip, squeeze(t, f.data) }), "manifest.json is packed by method 93, quill writes it with 0"},
		{"a manifest said to be larger", edit("manifest", func(f *forged) { f.size++ }), "manifest.json is not packed, yet"},
		{"sizes that differ between the headers", edit("f32/weights", func(f *forged) { f.inner = func(h []byte) { h[22]++ } }), "f32/weights.json has another header before its data"},
		{"names that differ between the headers", edit("f32/weights", func(f *forged) { f.inner = func(h []byte) { h[30] = 'F' } }), "f32/weights.json has another header before its data"},
		{"checksums that differ between the headers", edit("f32/weights", func(f *forged) { f.outer = func(h []byte) { h[16]++ } }), "f32/weights.json has another header before its data"},
		{"a wrong checksum", edit("f32/weights", func(f *forged) { f.crc++ }), "f32/weights.json is damaged: its"},
		{"an entry said to be smaller", edit("f32/weights", func(f *forged) { f.size-- }), "f32/weights.json is damaged: "},
		{"an entry said to be larger", edit("f32/weights", func(f *forged) { f.size++ }), "f32/weights.json is damaged: "},
		{"encryption", edit("f32/weights", func(f *forged) { f.outer = func(h []byte) { h[8] |= 1 } }), "f32/weights.json has flags 0x1"},
		{"sizes behind the data", edit("f32/weights", func(f *forged) { f.outer = func(h []byte) { h[8] |= 8 } }), "f32/weights.json has flags 0x8"},
		{"more fields", edit("f32/weights", func(f *forged) { f.outer = func(h []byte) { h[30] = 4 } }), "f32/weights.json has more fields"},
		{"a comment of an entry", edit("f32/weights", func(f *forged) { f.outer = func(h []byte) { h[32] = 4 } }), "f32/weights.json has more fields or a comment"},
		{"one place for two entries", edit("config", func(f *forged) { f.outer = func(h []byte) { le.PutUint32(h[42:], 0) } }), "config.json is at byte 0, what is before it ends at byte"},
		{"an entry that reaches into the next", edit("config", func(f *forged) { f.outer = func(h []byte) { h[20]++ } }), "config.json has another header before its data"},
		{"an entry that reaches beyond all", edit("config", func(f *forged) { f.outer = func(h []byte) { h[22]++ } }), "config.json ends at byte"},
		{"an entry of 4 GiB", edit("config", func(f *forged) { f.outer = func(h []byte) { h[23] = 0xff } }), "config.json has 4278190"},
		{"data between entries", edit("config", func(f *forged) { f.behind = []byte("secret") }), "checkpoint.json is at byte"},
		{"data before all entries", edit("manifest", func(f *forged) { f.beforeHeader = []byte("#!/bin/sh\n") }), "manifest.json is at byte 10, what is before it ends at byte 0"},
		{"data behind all entries", edit("recipes/", func(f *forged) { f.behind = []byte("x") }), "recipes/"},
		{"a prefix that no header knows of", append([]byte("MZ"), whole...), "does not end where its end begins"},
		{"data behind the file", append(slices.Clone(whole), "more"...), "it does not end as one does"},
		{"a comment", forge(good, "more"), "it does not end as one does"},
		{"a name twice", with("config.json", "{}"), `"config.json" is there twice`},
		{"a path upwards", with("../x", "{}"), `"../x" does not belong`},
		{"an absolute path", with("/etc/x", "{}"), `"/etc/x" does not belong`},
		{"a path of Windows", with(`..\x`, "{}"), `"..\\x" does not belong`},
		{"a drive", with(`C:x`, "{}"), `"C:x" does not belong`},
		{"another case", with("Config.json", "{}"), `"Config.json" does not belong`},
		{"a name in another folder", with("./config.json", "{}"), `"./config.json" does not belong`},
		{"a folder", with("recipes/", ""), "recipes/"},
		{"a name that ends early", with("config.json\x00.txt", "{}"), `"config.json\x00.txt" does not belong`},
		{"a name that does more than to be read", with("\x1b[2Jx", "{}"), `"\x1b[2Jx" does not belong`},
		{"a long name", with(strings.Repeat("n", 256), "{}"), "name has 256 bytes, at most 255"},
		{"a count that is too small", count(whole, len(good)-1), "bytes behind the last of 12 entries belong to none"},
		{"a count that is too large", count(whole, len(good)+1), "fewer entries than it says"},
		{"a directory that is shorter", func() []byte { f := slices.Clone(whole); f[len(f)-10]--; return f }(), "does not end where its end begins"},
		{"a huge count", appendBigEnd(nil, 1<<40, 0, 0), "1099511627776 entries, at most 131072 are read"},
		{"a huge directory", appendBigEnd(nil, 100, 1<<60, 0), "does not end where its end begins"},
		{"many entries", manyEntries(maxEntries + 1), "131073 entries, at most 131072 are read"},
		{"many empty entries", manyEntries(maxEntries), "is packed by method 0"},
		{"a directory at the end of numbers", appendBigEnd(nil, 100, 5, 1<<64-5), "does not end where its end begins"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readClean(t, c.file)
			runtime.ReadMemStats(&after)
			require.ErrorContains(t, err, c.want)
			// All that is ever allocated: what the file has, entries with their index, and
			// what one decoder needs.
			require.Less(t, int64(after.TotalAlloc-before.TotalAlloc), int64(baseBudget)+8*int64(len(c.file)))
		})
	}
}

// count changes the number of entries that the end of a file has.
func count(file []byte, n int) []byte {
	file = slices.Clone(file)
	end := file[len(file)-endLen:]
	le.PutUint16(end[8:], uint16(n))
	le.PutUint16(end[10:], uint16(n))
	return file
}

// appendBigEnd ends a file with the records of more entries than 16 bits count.
func appendBigEnd(file []byte, count, size, at uint64) []byte {
	place := uint64(len(file))
	file = le.AppendUint32(file, bigEndSign)
	file = le.AppendUint64(file, 56-12)
	file = append(file, 45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	for _, v := range []uint64{count, count, size, at} {
		file = le.AppendUint64(file, v)
	}
	file = le.AppendUint32(file, bigPlaceSign)
	file = le.AppendUint64(append(file, 0, 0, 0, 0), place)
	file = le.AppendUint32(file, 1)
	file = le.AppendUint32(file, endSign)
	return append(file, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0)
}

// manyEntries is a file of n entries without name and data.
func manyEntries(n int) []byte {
	file := make([]byte, 0, n*(headerLen+directoryLen)+bigEndLen)
	for range n {
		file = le.AppendUint32(file, headerSign)
		file = append(file, make([]byte, headerLen-4)...)
	}
	at := len(file)
	for i := range n {
		file = le.AppendUint32(file, directorySign)
		file = append(file, make([]byte, directoryLen-8)...)
		file = le.AppendUint32(file, uint32(i*headerLen))
	}
	return appendBigEnd(file, uint64(n), uint64(len(file)-at), uint64(at))
}

// More entries than 16 bits count are read as Go's writer has them.
func TestArchiveOfManyEntries(t *testing.T) {
	const n = 1<<16 + 5
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	data := squeeze(t, []byte("x"))
	for i := range n {
		w, err := z.CreateRaw(&zip.FileHeader{
			Name: recipeName(Hash{byte(i), byte(i >> 8), byte(i >> 16)}), Method: zstd.ZipMethodWinZip,
			CRC32: crc32.ChecksumIEEE([]byte("x")), CompressedSize64: uint64(len(data)), UncompressedSize64: 1,
		})
		require.NoError(t, err)
		_, err = w.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	a, err := openArchive(bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	defer a.close()
	require.Len(t, a.order, n)
	content, err := a.unpack(a.order[n-1].name)
	require.NoError(t, err)
	require.Equal(t, "x", string(content))
}

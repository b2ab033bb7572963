package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// file is the bytes of a file with that header and as many bytes of data.
func file(header string, data int) []byte {
	raw := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	raw = append(raw, header...)
	for i := range data {
		raw = append(raw, byte(i))
	}
	return raw
}

// length is the bytes of a file whose header length is n.
func length(n uint64, rest string) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
}

// one is a header with one tensor.
func one(dtype, shape, offsets string) string {
	return fmt.Sprintf(`{"x":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
}

const u8x4 = `{"dtype":"U8","shape":[4],"data_offsets":[0,4]}`

// u8 is the entry of bytes from begin to end.
func u8(begin, end int) string {
	return fmt.Sprintf(`{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}`, end-begin, begin, end)
}

var malformed = []struct {
	name string
	raw  []byte
	want string // part of the error
}{
	{"empty file", nil, "the file has 0 bytes, expected at least 10: download the file again"},
	{"seven bytes", []byte("\x02\x00\x00\x00\x00\x00\x00"), "the file has 7 bytes, expected at least 10"},
	{"no header", length(2, ""), "the file has 8 bytes, expected at least 10"},
	{"half a header", length(2, "{"), "the file has 9 bytes, expected at least 10"},
	{"header of 0 bytes", length(0, "{}"), "header length is 0 bytes, expected 2 to 100000000"},
	{"header of 1 byte", length(1, "{}"), "header length is 1 bytes, expected 2 to 100000000"},
	{"header of 2^60 bytes", length(1<<60, "{}"), "header length is 1152921504606846976 bytes, expected 2 to 100000000"},
	{"header of 2^64-1 bytes", length(math.MaxUint64, "{}"), "header length is 18446744073709551615 bytes"},
	{"header above 100 MB", length(100_000_001, "{}"), "header length is 100000001 bytes, expected 2 to 100000000"},
	{"header longer than the file", length(5000, "{}  "), "header length is 5000 bytes but the file has only 4 after it, 4996 bytes are missing: download the file again"},
	{"big-endian length", append([]byte{0, 0, 0, 0, 0, 0, 0, 8}, "{}      "...), "header length is 576460752303423488 bytes"},
	{"Git LFS pointer", []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"), "Git LFS pointer"},

	{"invalid UTF-8", file("{\"\xff\":"+u8x4+"}", 4), "header: byte 2 is not valid UTF-8"},
	{"truncated UTF-8", file("{\"\xe2\x82\":"+u8x4+"}", 4), "header: byte 2 is not valid UTF-8"},
	{"leading space", file(" {}", 0), `header: begins with " ", expected "{"`},
	{"list", file("[]", 0), `header: begins with "[", expected "{"`},
	{"pickle", file("\x80\x04}", 0), `header: begins with "\x80", expected "{"`},
	{"ends early", file(`{"x":`, 0), `header: tensor "x": malformed JSON: it ends in the middle, after 5 bytes`},
	{"no closing brace", file(`{"x":`+u8x4, 4), "header: malformed JSON: it ends in the middle"},
	{"ends in a string", file(`{"x`, 4), "header: malformed JSON: it ends in the middle"},
	{"wrong closing bracket", file(`{"x":`+u8x4+`]`, 4), "header: malformed JSON after byte 52: invalid character ']'"},
	{"no colon", file(`{"x" `+u8x4+`}`, 4), `header: tensor "x": malformed JSON after byte 5: invalid character '{'`},
	{"no comma", file(`{"x":`+u8x4+` "y":`+u8(4, 8)+`}`, 8), `header: malformed JSON after byte 53: invalid character '"'`},
	{"trailing comma", file(`{"x":`+u8x4+`,}`, 4), "header: malformed JSON after byte 53: invalid character '}'"},
	{"trailing comma in a list", file(one(`"U8"`, "[4,]", "[0,4]"), 4), `header: tensor "x": shape: malformed JSON`},
	{"single quotes", file(`{'x':`+u8x4+`}`, 4), "header: malformed JSON after byte 1: invalid character '\\''"},
	{"comment", file(`{/**/}`, 0), "header: malformed JSON after byte 1: "},
	{"key is a number", file(`{1:`+u8x4+`}`, 4), "header: malformed JSON after byte 1: "},
	{"control character in a name", file("{\"\n\":"+u8x4+"}", 4), "header: malformed JSON after byte 1: "},
	{"bad escape", file(`{"\q":`+u8x4+"}", 4), "header: malformed JSON after byte 1: "},
	{"high surrogate alone", file(`{"\ud800":`+u8x4+"}", 4), "header: malformed JSON at byte 2: half of a surrogate pair"},
	{"high surrogate before text", file(`{"\ud800abcdef":`+u8x4+"}", 4), "header: malformed JSON at byte 2: half of a surrogate pair"},
	{"two high surrogates", file(`{"\ud800\ud800":`+u8x4+"}", 4), "header: malformed JSON at byte 2: half of a surrogate pair"},
	{"low surrogate alone", file(`{"a\udc00":`+u8x4+"}", 4), "header: malformed JSON at byte 3: half of a surrogate pair"},
	{"second object", file(`{}{}`, 0), "header: malformed JSON at byte 2: '{' after the object, expected the end"},
	{"newline after the object", file("{}\n", 0), "header: malformed JSON at byte 2: '\\n' after the object, expected the end"},
	{"é after the object", file("{} é", 0), "header: malformed JSON at byte 3: 'é' after the object, expected the end"},
	{"zero bytes after the object", file("{}  \x00\x00", 0), "header: malformed JSON at byte 4: '\\x00' after the object, expected the end"},

	{"tensor twice", file(`{"x":`+u8x4+`,"x":`+u8(4, 8)+`}`, 8), `header: duplicate key "x", expected each key once`},
	{"tensor twice, escaped", file(`{"x":`+u8x4+`,"\u0078":`+u8(4, 8)+`}`, 8), `header: duplicate key "x"`},
	{"dtype twice", file(`{"x":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4), `header: tensor "x": duplicate key "dtype"`},
	{"shape twice", file(`{"x":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}}`, 4), `header: tensor "x": duplicate key "shape"`},
	{"offsets twice", file(`{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"data_offsets":[0,4]}}`, 4), `header: tensor "x": duplicate key "data_offsets"`},
	{"metadata twice", file(`{"__metadata__":{},"__metadata__":{}}`, 0), `header: duplicate key "__metadata__"`},
	{"metadata key twice", file(`{"__metadata__":{"a":"1","a":"1"}}`, 0), `header: __metadata__: duplicate key "a"`},
	{"metadata is a list", file(`{"__metadata__":[]}`, 0), "header: __metadata__: expected an object, got a list"},
	{"metadata is null", file(`{"__metadata__":null}`, 0), "header: __metadata__: expected an object, got null"},
	{"metadata value is a number", file(`{"__metadata__":{"a":1}}`, 0), `header: __metadata__: "a": expected a string, got the number 1`},
	{"metadata value is an object", file(`{"__metadata__":{"a":{}}}`, 0), `header: __metadata__: "a": expected a string, got an object`},
	{"metadata in a tensor's form", file(`{"__metadata__":`+u8x4+`}`, 4), `header: __metadata__: "shape": expected a string, got a list`},

	{"tensor is a number", file(`{"x":1}`, 0), `header: tensor "x": expected an object, got the number 1`},
	{"tensor is true", file(`{"x":true}`, 0), `header: tensor "x": expected an object, got true`},
	{"unknown key", file(`{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"strides":[1]}}`, 4), `header: tensor "x": unknown key "strides", expected dtype, shape and data_offsets`},
	{"wrong case", file(`{"x":{"DType":"U8","shape":[4],"data_offsets":[0,4]}}`, 4), `header: tensor "x": unknown key "DType"`},
	{"no dtype", file(`{"x":{"shape":[4],"data_offsets":[0,4]}}`, 4), `header: tensor "x": no dtype, expected one of F64 F32`},
	{"no shape", file(`{"x":{"dtype":"U8","data_offsets":[0,4]}}`, 4), `header: tensor "x": no shape, expected a list of dimensions`},
	{"no offsets", file(`{"x":{"dtype":"U8","shape":[4]}}`, 4), `header: tensor "x": data_offsets has 0 numbers, expected 2`},
	{"empty entry", file(`{"x":{}}`, 4), `header: tensor "x": no dtype`},
	{"unknown dtype", file(one(`"F12"`, "[4]", "[0,4]"), 4), `header: tensor "x": unknown dtype "F12", expected one of F64 F32`},
	{"lower-case dtype", file(one(`"bf16"`, "[2]", "[0,4]"), 4), `header: tensor "x": unknown dtype "bf16"`},
	{"dtype is a number", file(one(`8`, "[4]", "[0,4]"), 4), `header: tensor "x": dtype: expected a string, got the number 8`},
	{"shape is a number", file(one(`"U8"`, "4", "[0,4]"), 4), `header: tensor "x": shape: expected a list of integers, got the number 4`},
	{"shape is null", file(one(`"U8"`, "null", "[0,4]"), 4), `header: tensor "x": shape: expected a list of integers, got null`},
	{"dimension is a string", file(one(`"U8"`, `["4"]`, "[0,4]"), 4), `header: tensor "x": shape: element 0: expected a non-negative integer, got the string "4"`},
	{"dimension is a list", file(one(`"U8"`, `[[4]]`, "[0,4]"), 4), `header: tensor "x": shape: element 0: expected a non-negative integer, got a list`},
	{"dimension is -1", file(one(`"U8"`, `[4,-1]`, "[0,4]"), 4), `header: tensor "x": shape: element 1: expected a non-negative integer, got the number -1`},
	{"dimension is -0", file(one(`"U8"`, `[-0]`, "[0,0]"), 0), `header: tensor "x": shape: element 0: expected a non-negative integer, got the number -0`},
	{"dimension is 1.5", file(one(`"U8"`, `[1.5]`, "[0,4]"), 4), `header: tensor "x": shape: element 0: expected a non-negative integer, got the number 1.5`},
	{"dimension is 4.0", file(one(`"U8"`, `[4.0]`, "[0,4]"), 4), `header: tensor "x": shape: element 0: expected a non-negative integer, got the number 4.0`},
	{"dimension is 1e3", file(one(`"U8"`, `[1e3]`, "[0,1000]"), 1000), `header: tensor "x": shape: element 0: expected a non-negative integer, got the number 1e3`},
	{"dimension is NaN", file(one(`"U8"`, `[NaN]`, "[0,4]"), 4), `header: tensor "x": shape: malformed JSON`},
	{"dimension is 04", file(one(`"U8"`, `[04]`, "[0,4]"), 4), `header: tensor "x": shape: malformed JSON`},
	{"dimension is 0x4", file(one(`"U8"`, `[0x4]`, "[0,4]"), 4), `header: tensor "x": shape: malformed JSON`},
	{"dimension is +4", file(one(`"U8"`, `[+4]`, "[0,4]"), 4), `header: tensor "x": shape: malformed JSON`},
	{"dimension is 2^63", file(one(`"U8"`, `[9223372036854775808]`, "[0,4]"), 4), `header: tensor "x": shape: element 0: expected an integer below 2^63, got the number 9223372036854775808`},
	{"dimension has 1000 digits", file(one(`"U8"`, `[`+strings.Repeat("9", 1000)+`]`, "[0,4]"), 4), `… (1000 bytes)`},
	{"product overflows", file(one(`"U8"`, `[4294967296,4294967296]`, "[0,0]"), 0), `header: tensor "x": shape [4294967296,4294967296] overflows, expected fewer than 2^63 elements`},
	{"product overflows beside a zero", file(one(`"U8"`, `[0,4294967296,4294967296]`, "[0,0]"), 0), `header: tensor "x": shape [0,4294967296,4294967296] overflows`},
	{"bits overflow", file(one(`"F32"`, `[1152921504606846976]`, "[0,0]"), 0), `header: tensor "x": shape [1152921504606846976] of F32 overflows, expected fewer than 2^63 bits`},
	{"half a byte", file(one(`"F4"`, `[3]`, "[0,2]"), 2), `header: tensor "x": shape [3] of F4 is 12 bits, expected whole bytes`},

	{"one offset", file(one(`"U8"`, `[4]`, "[4]"), 4), `header: tensor "x": data_offsets has 1 numbers, expected 2: begin and end`},
	{"three offsets", file(one(`"U8"`, `[4]`, "[0,4,8]"), 4), `header: tensor "x": data_offsets has 3 numbers, expected 2`},
	{"negative offset", file(one(`"U8"`, `[4]`, "[-4,0]"), 4), `header: tensor "x": data_offsets: element 0: expected a non-negative integer, got the number -4`},
	{"offset 4e0", file(one(`"U8"`, `[4]`, "[0,4e0]"), 4), `header: tensor "x": data_offsets: element 1: expected a non-negative integer, got the number 4e0`},
	{"offset 2^64", file(one(`"U8"`, `[4]`, "[0,18446744073709551616]"), 4), `header: tensor "x": data_offsets: element 1: expected an integer below 2^63`},
	{"offsets are an object", file(one(`"U8"`, `[4]`, "{}"), 4), `header: tensor "x": data_offsets: expected a list of integers, got an object`},
	{"begin after end", file(one(`"U8"`, `[4]`, "[4,0]"), 4), `header: tensor "x": data_offsets [4,0] begin after their end`},
	{"too few bytes for the shape", file(one(`"BF16"`, `[2,3]`, "[0,10]"), 10), `header: tensor "x": data_offsets [0,10] hold 10 bytes, expected 12 for BF16 of shape [2,3]`},
	{"too many bytes for the shape", file(one(`"F32"`, `[]`, "[0,8]"), 8), `header: tensor "x": data_offsets [0,8] hold 8 bytes, expected 4 for F32 of shape []`},
	{"bytes for an empty tensor", file(one(`"F32"`, `[0,7]`, "[0,4]"), 4), `header: tensor "x": data_offsets [0,4] hold 4 bytes, expected 0 for F32 of shape [0,7]`},

	{"gap at the start", file(`{"x":`+u8(2, 4)+`}`, 4), `tensor "x": data begins at 2, expected 0: a gap of 2 bytes that no tensor covers`},
	{"gap in the middle", file(`{"b":`+u8(5, 8)+`,"a":`+u8(0, 4)+`}`, 8), `tensor "b": data begins at 5, expected 4: a gap of 1 bytes`},
	{"overlap", file(`{"b":`+u8(3, 8)+`,"a":`+u8(0, 4)+`}`, 8), `tensor "b": data begins at 3, expected 4: it overlaps tensor "a"`},
	{"same bytes twice", file(`{"b":`+u8(0, 4)+`,"a":`+u8(0, 4)+`}`, 4), `tensor "b": data begins at 0, expected 4: it overlaps tensor "a"`},
	{"empty tensor inside another", file(`{"b":`+u8(2, 2)+`,"a":`+u8(0, 4)+`}`, 4), `tensor "b": data begins at 2, expected 4: it overlaps tensor "a"`},
	{"empty tensor past the end", file(`{"b":`+u8(9, 9)+`,"a":`+u8(0, 4)+`}`, 4), `tensor "b": data begins at 9, expected 4: a gap of 5 bytes`},
	{"bytes after the last tensor", file(`{"x":`+u8x4+`}`, 7), `the data section has 7 bytes, expected 4: 3 bytes after the last tensor`},
	{"bytes without tensors", file(`{}`, 1), `the data section has 1 bytes, expected 0: 1 bytes after the last tensor`},
	{"truncated data", file(`{"a":`+u8(0, 4)+`,"b":`+u8(4, 8)+`,"c":`+u8(8, 20)+`}`, 6), `tensor "b": data ends at 8 but the data section has 6 bytes, expected 20: 14 bytes of the file are missing, download the file again`},
	{"no data", file(`{"x":`+u8x4+`}`, 0), `tensor "x": data ends at 4 but the data section has 0 bytes, expected 4: 4 bytes of the file are missing`},
	{"huge tensor", file(one(`"U8"`, `[9223372036854775]`, "[0,9223372036854775]"), 3), `9223372036854772 bytes of the file are missing`},
}

// Every malformed file is an error that names the file and says what is wrong,
// in a line of moderate length.
func TestOpenMalformed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.safetensors")
	for _, c := range malformed {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, c.raw, 0o666))
			f, err := Open(path)
			require.Nil(t, f)
			require.ErrorContains(t, err, path+": ")
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
			require.Less(t, len(err.Error()), 600)
		})
	}
}

// A hostile name or shape does not fill the screen.
func TestErrorsAreShort(t *testing.T) {
	long := strings.Repeat("é", 1_000_000)
	for name, header := range map[string]string{
		"name":         `{"` + long + `":1}`,
		"dtype":        one(`"`+long+`"`, "[4]", "[0,4]"),
		"key":          `{"x":{"` + long + `":1}}`,
		"duplicate":    `{"__metadata__":{"` + long + `":"","` + long + `":""}}`,
		"string":       one(`"U8"`, `"`+long+`"`, "[0,4]"),
		"shape":        one(`"U8"`, "[1"+strings.Repeat(",1", 100_000)+"]", "[0,4]"),
		"number":       one(`"U8"`, "["+strings.Repeat("1", 100_000)+"]", "[0,4]"),
		"fraction":     one(`"U8"`, "[1."+strings.Repeat("1", 100_000)+"]", "[0,4]"),
		"metadata key": `{"__metadata__":{"` + long + `":1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := parse(file(header, 4), "")
			require.ErrorContains(t, err, "…")
			require.Less(t, len(err.Error()), 600)
		})
	}
}

func TestOpenValid(t *testing.T) {
	for _, c := range []struct {
		name    string
		raw     []byte
		tensors int
	}{
		{"no tensors", file(`{}`, 0), 0},
		{"padded", file(`{}`+strings.Repeat(" ", 100), 0), 0},
		{"only metadata", file(`{"__metadata__":{"a":"1"}}`, 0), 0},
		{"any JSON whitespace inside", file("{\n\t\"x\" : "+u8x4+"\r\n}", 4), 1},
		{"keys in any order", file(`{"x":{"data_offsets":[0,4],"shape":[4],"dtype":"U8"}}`, 4), 1},
		{"scalar", file(one(`"F64"`, "[]", "[0,8]"), 8), 1},
		{"many dimensions", file(one(`"U8"`, "["+strings.Repeat("1,", 99)+"4]", "[0,4]"), 4), 1},
		{"empty tensors between others", file(`{"d":`+u8(4, 4)+`,"c":`+u8(2, 4)+`,"b":`+u8(2, 2)+`,"a":`+u8(0, 2)+`,"e":`+u8(0, 0)+`}`, 4), 5},
		{"empty tensor with a large dimension", file(one(`"U8"`, "[0,9223372036854775]", "[0,0]"), 0), 1},
		{"empty name", file(`{"":`+u8x4+`}`, 4), 1},
		{"unaligned header", file(`{"x":`+u8x4+`}   `, 4), 1},
		{"names that differ in case", file(`{"x":`+u8(0, 2)+`,"X":`+u8(2, 4)+`}`, 4), 2},
		{"surrogate pair", file(`{"\ud83d\ude00":`+u8x4+`}`, 4), 1},
		{"escaped backslash before u", file(`{"\\ud800":`+u8x4+`}`, 4), 1},
		{"replacement character", file(`{"\ufffd":`+u8x4+`}`, 4), 1},
		{"F4", file(one(`"F4"`, "[3,2]", "[0,3]"), 3), 1},
		{"F6", file(one(`"F6_E2M3"`, "[4]", "[0,3]"), 3), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.safetensors")
			require.NoError(t, os.WriteFile(path, c.raw, 0o666))
			f, err := Open(path)
			require.NoError(t, err)
			require.Len(t, f.Tensors(), c.tensors)
			require.NoError(t, f.Close())
		})
	}
}

func TestOpenViews(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	raw := file(`{"b":`+u8(0, 3)+`,"__metadata__":{"k":"v"},"a":`+u8(3, 4)+`}`, 4)
	require.NoError(t, os.WriteFile(path, raw, 0o666))
	f, err := Open(path)
	require.NoError(t, err)
	require.Equal(t, []Tensor{
		{Name: "a", DType: "U8", Shape: []int64{1}, Data: []byte{3}, File: path},
		{Name: "b", DType: "U8", Shape: []int64{3}, Data: []byte{0, 1, 2}, File: path},
	}, f.Tensors())
	b, ok := f.Tensor("b")
	require.True(t, ok)
	require.Equal(t, 3, cap(b.Data), "append to a view must not reach the next tensor")
	_, ok = f.Tensor("c")
	require.False(t, ok)
	f.Tensors()[0].Name = "z"
	require.Equal(t, "a", f.Tensors()[0].Name)

	m := f.Metadata()
	require.Equal(t, map[string]string{"k": "v"}, m)
	m["k"] = "w"
	require.Equal(t, "v", f.Metadata()["k"])

	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	require.Empty(t, f.Tensors())
	_, ok = f.Tensor("b")
	require.False(t, ok)
}

func TestOpenNoFile(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "none.safetensors"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, 1, strings.Count(err.Error(), dir), "the path is said once")
	_, err = Open(dir)
	require.ErrorContains(t, err, "this is no regular file (d")
}

// All dtypes that the format's own implementation knows can be listed.
func TestDTypes(t *testing.T) {
	names := strings.Fields(knownDTypes)
	require.Len(t, names, 22)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			bits := bitSize(name)
			require.Positive(t, bits)
			raw := file(one(`"`+name+`"`, "[2,4]", fmt.Sprintf("[0,%d]", bits)), int(bits))
			tensors, _, err := parse(raw, "")
			require.NoError(t, err)
			require.Equal(t, name, tensors[0].DType)
			if typ, ok := tensors[0].Type(); ok {
				require.EqualValues(t, bits, 8*typ.Size())
			}
		})
	}
}

// FuzzOpen checks that no bytes make the parser panic, that the tensors of what
// parses tile the data section, and that to write them gives the same tensors.
func FuzzOpen(f *testing.F) {
	for _, c := range malformed {
		f.Add(c.raw)
	}
	f.Add(file(`{"d":`+u8(4, 4)+`,"c":`+u8(2, 4)+`,"a":`+u8(0, 2)+`,"__metadata__":{"a":"<\u2028>"}}  `, 4))
	f.Add(file(one(`"F32"`, "[2]", "[0,8]"), 8))
	f.Add(file(one(`"BF16"`, "[2]", "[0,4]"), 4))
	f.Add(file(one(`"I32"`, "[]", "[0,4]"), 4))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tensors, metadata, err := parse(raw, "f")
		if err != nil {
			require.Less(t, len(err.Error()), 2000)
			return
		}
		total := lengthSize + int(binary.LittleEndian.Uint64(raw))
		for i, tensor := range tensors {
			require.NoError(t, tensor.check())
			require.True(t, i == 0 || tensors[i-1].Name < tensor.Name)
			total += len(tensor.Data)
			_, _ = tensor.F32()
			_, _ = tensor.I32()
		}
		require.Len(t, raw, total)

		again, metadataAgain, err := parse(mustEncode(t, tensors, metadata), "f")
		require.NoError(t, err)
		require.Len(t, again, len(tensors))
		for i := range tensors {
			requireSame(t, tensors[i], again[i])
		}
		require.Len(t, metadataAgain, len(metadata))
		for k, v := range metadata {
			require.Equal(t, v, metadataAgain[k])
		}
	})
}

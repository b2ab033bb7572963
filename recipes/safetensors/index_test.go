package safetensors

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var malformedIndexes = []struct {
	name string
	src  string
	want string // part of the error
}{
	{"empty", ``, `malformed JSON: it ends in the middle, after 0 bytes`},
	{"cut off", `{"weight_map":{"a":"f"`, `malformed JSON: it ends in the middle`},
	{"list", `[]`, `expected an object, got a list`},
	{"text", `model`, `malformed JSON after byte 0: `},
	{"invalid UTF-8", "{\"weight_map\":{\"\xff\":\"f\"}}", `byte 16 is not valid UTF-8`},
	{"lone surrogate", `{"weight_map":{"\udc00":"f"}}`, `malformed JSON at byte 16: half of a surrogate pair`},
	{"byte order mark", "\ufeff{}", `malformed JSON after byte 0: `},
	{"no weight_map", `{"metadata":{"total_size":1}}`, `weight_map is missing or empty`},
	{"empty weight_map", `{"weight_map":{}}`, `weight_map is missing or empty`},
	{"weight_map is a list", `{"weight_map":["a"]}`, `weight_map: expected an object, got a list`},
	{"weight_map is null", `{"weight_map":null}`, `weight_map: expected an object, got null`},
	{"file name is a number", `{"weight_map":{"a":1}}`, `weight_map: "a": expected a string, got the number 1`},
	{"file name is a list", `{"weight_map":{"a":["f"]}}`, `weight_map: "a": expected a string, got a list`},
	{"tensor twice", `{"weight_map":{"a":"f","a":"f"}}`, `weight_map: duplicate key "a", expected each key once`},
	{"weight_map twice", `{"weight_map":{"a":"f"},"weight_map":{"a":"f"}}`, `duplicate key "weight_map"`},
	{"metadata twice", `{"metadata":{},"metadata":{},"weight_map":{"a":"f"}}`, `duplicate key "metadata"`},
	{"total_size twice", `{"metadata":{"total_size":1,"total_size":1},"weight_map":{"a":"f"}}`, `metadata: duplicate key "total_size"`},
	{"duplicate in what is skipped", `{"x":[{"y":{"z":1,"z":1}}],"weight_map":{"a":"f"}}`, `"x": duplicate key "z"`},
	{"duplicate in skipped metadata", `{"metadata":{"x":{"z":1,"z":1}},"weight_map":{"a":"f"}}`, `metadata: "x": duplicate key "z"`},
	{"deep nesting", `{"x":` + strings.Repeat("[", 100_000), `"x": values nest deeper than 64 levels`},
	{"deep objects", `{"x":` + strings.Repeat(`{"x":`, 100_000), `"x": values nest deeper than 64 levels`},
	{"metadata is a number", `{"metadata":1,"weight_map":{"a":"f"}}`, `metadata: expected an object, got the number 1`},
	{"total_size is a string", `{"metadata":{"total_size":"1"},"weight_map":{"a":"f"}}`, `metadata: total_size: expected a non-negative integer, got the string "1"`},
	{"total_size is 1.5", `{"metadata":{"total_size":1.5},"weight_map":{"a":"f"}}`, `metadata: total_size: expected a non-negative integer, got the number 1.5`},
	{"total_size is 1e3", `{"metadata":{"total_size":1e3},"weight_map":{"a":"f"}}`, `metadata: total_size: expected a non-negative integer, got the number 1e3`},
	{"total_size is -1", `{"metadata":{"total_size":-1},"weight_map":{"a":"f"}}`, `metadata: total_size: expected a non-negative integer, got the number -1`},
	{"total_size is NaN", `{"metadata":{"total_size":NaN},"weight_map":{"a":"f"}}`, `metadata: total_size: malformed JSON`},
	{"total_size is null", `{"metadata":{"total_size":null},"weight_map":{"a":"f"}}`, `metadata: total_size: expected a non-negative integer, got null`},
	{"total_size is 2^63", `{"metadata":{"total_size":9223372036854775808},"weight_map":{"a":"f"}}`, `metadata: total_size: expected an integer below 2^63`},
	{"second object", `{"weight_map":{"a":"f"}} {}`, `malformed JSON at byte 25: '{' after the object, expected the end`},
	{"text after the object", "{\"weight_map\":{\"a\":\"f\"}}\nx", `malformed JSON at byte 25: 'x' after the object, expected the end`},
}

func TestIndexMalformed(t *testing.T) {
	dir := t.TempDir()
	for _, c := range malformedIndexes {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, indexName), []byte(c.src), 0o666))
			ck, err := OpenDir(dir)
			require.Nil(t, ck)
			require.ErrorContains(t, err, "checkpoint "+dir+": "+indexName+": ")
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), 600)
		})
	}
}

func TestIndex(t *testing.T) {
	ix, err := parseIndex([]byte(" {\"metadata\":{\"total_size\":7},\"weight_map\":{\"b\":\"g\",\"a\":\"f\",\"c\":\"f\"}}\r\n"))
	require.NoError(t, err)
	require.Equal(t, &index{files: map[string]string{"a": "f", "b": "g", "c": "f"}, total: 7, hasTotal: true}, ix)
	names, bad := ix.fileNames()
	require.Equal(t, []string{"f", "g"}, names)
	require.Empty(t, bad)
}

func TestIndexNoFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, indexName)
	require.NoError(t, os.Mkdir(path, 0o777))
	_, err := OpenDir(dir)
	require.ErrorContains(t, err, indexName+": this is no regular file (d")

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, nil, 0o666))
	require.NoError(t, os.Truncate(path, maxIndex+1))
	_, err = OpenDir(dir)
	require.ErrorContains(t, err, indexName+": the file is larger than expected, at most 100000000 bytes")
}

// FuzzIndex checks that no bytes make the parser panic, and that no file name
// that passes leaves the directory.
func FuzzIndex(f *testing.F) {
	for _, c := range malformedIndexes {
		if len(c.src) < 1000 {
			f.Add([]byte(c.src))
		}
	}
	f.Add([]byte(`{"metadata":{"total_size":7,"x":[1,{"y":null}]},"weight_map":{"b":"g","a":"../f","c":"x\\y"}}` + "\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		ix, err := parseIndex(src)
		if err != nil {
			require.Less(t, len(err.Error()), 2000)
			return
		}
		require.NotEmpty(t, ix.files)
		require.GreaterOrEqual(t, ix.total, int64(0))
		names, bad := ix.fileNames()
		require.Len(t, ix.counts(), len(names)+len(bad))
		for _, name := range names {
			require.Equal(t, filepath.Join("dir", name), "dir"+string(filepath.Separator)+name)
			require.True(t, filepath.IsLocal(name))
		}
	})
}

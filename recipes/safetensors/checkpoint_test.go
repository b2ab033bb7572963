package safetensors

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	shard1 = "model-00001-of-00002.safetensors"
	shard2 = "model-00002-of-00002.safetensors"
)

func testdata(name ...string) string {
	return filepath.Join(append([]string{"..", "..", "testdata"}, name...)...)
}

// ints are I32 scalars of these names, each 4 bytes.
func ints(names ...string) []Tensor {
	out := make([]Tensor, len(names))
	for i, name := range names {
		out[i] = FromI32(name, nil, []int32{int32(i)})
	}
	return out
}

// indexOf is the text of an index; total below 0 leaves total_size out.
func indexOf(total int, files map[string]string) string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		pairs = append(pairs, fmt.Sprintf("%q:%q", name, files[name]))
	}
	metadata := ""
	if total >= 0 {
		metadata = fmt.Sprintf(`"metadata":{"total_size":%d},`, total)
	}
	return "{" + metadata + `"weight_map":{` + strings.Join(pairs, ",") + "}}\n"
}

// makeDir makes a checkpoint. An empty index is left out.
func makeDir(t *testing.T, index string, files map[string][]Tensor) string {
	t.Helper()
	dir := t.TempDir()
	for name, tensors := range files {
		require.NoError(t, Write(filepath.Join(dir, name), tensors, nil))
	}
	if index != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, indexName), []byte(index), 0o666))
	}
	return dir
}

func names(tensors []Tensor) []string {
	out := make([]string, len(tensors))
	for i, t := range tensors {
		out[i] = t.Name
	}
	return out
}

// digest is a hash of all names, dtypes, shapes and data.
func digest(tensors []Tensor) string {
	h := sha256.New()
	for _, t := range tensors {
		fmt.Fprintf(h, "%s %s %s\n", t.Name, t.DType, dims(t.Shape))
		h.Write(t.Data)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func TestTestdata(t *testing.T) {
	for _, c := range []struct {
		dir    string
		shards map[string]int // tensors by file
		digest string         // computed by an independent reader
	}{
		{"nano-small", map[string]int{shard1: 124, shard2: 124}, "1fabcd73d9dbc53b"},
		{"nano-big", map[string]int{shard1: 71, shard2: 72}, "625ccda757d1fd51"},
		{"nano-dense", map[string]int{shard1: 53, shard2: 53}, "84360f1853bf5383"},
		{"nano-chat", map[string]int{singleName: 164}, "e2ba5267937d8714"},
	} {
		t.Run(c.dir, func(t *testing.T) {
			ck, err := OpenDir(testdata(c.dir))
			require.NoError(t, err)
			defer ck.Close()
			require.Equal(t, testdata(c.dir), ck.Dir())
			require.Equal(t, map[string]string{"format": "pt"}, ck.Metadata())
			tensors := ck.Tensors()
			require.True(t, slices.IsSorted(names(tensors)))
			require.Equal(t, c.digest, digest(tensors))

			byFile := make(map[string]int)
			for _, tensor := range tensors {
				byFile[filepath.Base(tensor.File)]++
				got, ok := ck.Tensor(tensor.Name)
				require.True(t, ok)
				requireSame(t, tensor, got)
				values, err := tensor.F32()
				require.NoError(t, err)
				n, err := elements(tensor.Shape)
				require.NoError(t, err)
				require.Len(t, values, int(n))
			}
			require.Equal(t, c.shards, byFile)
			for file, n := range c.shards {
				f, err := Open(testdata(c.dir, file))
				require.NoError(t, err)
				require.Len(t, f.Tensors(), n)
				require.NoError(t, f.Close())
			}
		})
	}
}

func TestTestdataSingleFiles(t *testing.T) {
	f, err := Open(testdata("real-head", "real-head.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	require.Len(t, f.Tensors(), 7)
	require.Equal(t, "fb10292753c314bb", digest(f.Tensors()))
	require.Equal(t, "apache-2.0", f.Metadata()["license"])
	for dir, n := range map[string]int{"nano-small": 52, "nano-big": 37, "nano-dense": 30} {
		f, err := Open(testdata(dir, "expected.safetensors"))
		require.NoError(t, err)
		require.Len(t, f.Tensors(), n)
		require.Nil(t, f.Metadata())
		require.NoError(t, f.Close())
	}
}

func TestOpenDirValid(t *testing.T) {
	two := map[string][]Tensor{shard1: ints("a", "c"), shard2: ints("b")}
	abc := map[string]string{"a": shard1, "b": shard2, "c": shard1}
	with := func(files map[string][]Tensor, name string, tensors []Tensor) map[string][]Tensor {
		files = maps.Clone(files)
		files[name] = tensors
		return files
	}
	indexed := maps.Clone(abc)
	indexed["m"] = mtpName
	for _, c := range []struct {
		name  string
		index string
		files map[string][]Tensor
		want  []string
	}{
		{"two shards", indexOf(12, abc), two, []string{"a", "b", "c"}},
		{"no total_size", indexOf(-1, abc), two, []string{"a", "b", "c"}},
		{
			"other keys", `{"x":[{"y":[null]},[]],"metadata":{"total_parameters":1.5e3,"z":{}},"weight_map":{"b":"` + shard2 + `"}}`,
			map[string][]Tensor{shard2: ints("b")},
			[]string{"b"},
		},
		{"single file", "", map[string][]Tensor{singleName: ints("a", "b")}, []string{"a", "b"}},
		{"single file with an index", indexOf(4, map[string]string{"a": singleName}), map[string][]Tensor{singleName: ints("a")}, []string{"a"}},
		{"other files", indexOf(12, abc), with(two, "expected.safetensors", ints("a")), []string{"a", "b", "c"}},
		{"mtp that the index names", indexOf(16, indexed), with(two, mtpName, ints("m")), []string{"a", "b", "c", "m"}},
		{"mtp that the index leaves out", indexOf(12, abc), with(two, mtpName, ints("m", "0")), []string{"0", "a", "b", "c", "m"}},
		{"mtp beside a single file", "", map[string][]Tensor{singleName: ints("a"), mtpName: ints("m")}, []string{"a", "m"}},
		{"empty shard", indexOf(4, map[string]string{"a": shard1}), map[string][]Tensor{shard1: ints("a")}, []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := makeDir(t, c.index, c.files)
			ck, err := OpenDir(dir)
			require.NoError(t, err)
			require.Equal(t, c.want, names(ck.Tensors()))
			for _, name := range c.want {
				tensor, ok := ck.Tensor(name)
				require.True(t, ok)
				require.Contains(t, names(c.files[filepath.Base(tensor.File)]), name)
				require.Equal(t, dir, filepath.Dir(tensor.File))
			}
			_, ok := ck.Tensor("nope")
			require.False(t, ok)
			require.NoError(t, ck.Close())
			require.NoError(t, ck.Close())
			require.Empty(t, ck.Tensors())
		})
	}
}

func TestCheckpointMetadata(t *testing.T) {
	dir := t.TempDir()
	write := func(name, tensor string, metadata map[string]string) {
		require.NoError(t, Write(filepath.Join(dir, name), ints(tensor), metadata))
	}
	write("a.safetensors", "a", map[string]string{"same": "1", "differs": "1", "a": "1"})
	write("b.safetensors", "b", map[string]string{"same": "1", "differs": "2"})
	write("c.safetensors", "c", map[string]string{"same": "1", "differs": "1", "c": "3"})
	write("d.safetensors", "d", nil)
	index := indexOf(16, map[string]string{
		"a": "a.safetensors", "b": "b.safetensors", "c": "c.safetensors", "d": "d.safetensors",
	})
	require.NoError(t, os.WriteFile(filepath.Join(dir, indexName), []byte(index), 0o666))
	ck, err := OpenDir(dir)
	require.NoError(t, err)
	defer ck.Close()
	require.Equal(t, map[string]string{"same": "1", "a": "1", "c": "3"}, ck.Metadata())

	ck, err = OpenDir(makeDir(t, "", map[string][]Tensor{singleName: ints("a")}))
	require.NoError(t, err)
	defer ck.Close()
	require.Nil(t, ck.Metadata())
}

// Every fault of a directory is in the error, and nothing else is.
func TestOpenDirProblems(t *testing.T) {
	ab := map[string]string{"a": shard1, "b": shard2}
	good := map[string][]Tensor{shard1: ints("a"), shard2: ints("b")}
	for _, c := range []struct {
		name  string
		index string
		files map[string][]Tensor
		want  []string // all problems, in order
	}{
		{
			"nothing there", "", nil,
			[]string{"neither model.safetensors.index.json nor model.safetensors is there: download the checkpoint again"},
		},
		{
			"shards without an index", "", good,
			[]string{"neither model.safetensors.index.json nor model.safetensors is there: download the checkpoint again (there are 2 other .safetensors files; the index of shards is part of a checkpoint)"},
		},
		{
			"missing shard", indexOf(8, ab),
			map[string][]Tensor{shard1: ints("a")},
			[]string{shard2 + ": the file is missing but model.safetensors.index.json says that it has 1 tensor: download it (stat: no such file or directory)"},
		},
		{
			"missing file with an odd name", indexOf(-1, map[string]string{"a": "x\n.safetensors"}), nil,
			[]string{`"x\n.safetensors": the file is missing but model.safetensors.index.json says that it has 1 tensor: download it (stat: no such file or directory)`},
		},
		{"all shards missing", indexOf(8, map[string]string{"a": shard1, "b": shard2, "c": shard2}), nil, []string{
			shard1 + ": the file is missing but model.safetensors.index.json says that it has 1 tensor: download it (stat: no such file or directory)",
			shard2 + ": the file is missing but model.safetensors.index.json says that it has 2 tensors: download it (stat: no such file or directory)",
		}},
		{
			"missing mtp", indexOf(4, map[string]string{"a": shard1, "m": mtpName}),
			map[string][]Tensor{shard1: ints("a")},
			[]string{"mtp.safetensors: the file is missing but model.safetensors.index.json says that it has 1 tensor: download it (stat: no such file or directory)"},
		},
		{
			"missing tensor", indexOf(8, map[string]string{"a": shard1, "b": shard2, "c": shard1}), good,
			[]string{`tensor "c": expected in ` + shard1 + ` as model.safetensors.index.json says, but no file has it`},
		},
		{
			"extra tensor", indexOf(12, ab),
			map[string][]Tensor{shard1: ints("a"), shard2: ints("b", "c")},
			[]string{`tensor "c": is in ` + shard2 + ` but not in model.safetensors.index.json`},
		},
		{
			"tensor in the wrong shard", indexOf(12, map[string]string{"a": shard1, "b": shard2, "c": shard1}),
			map[string][]Tensor{shard1: ints("a"), shard2: ints("b", "c")},
			[]string{`tensor "c": expected in ` + shard1 + ` as model.safetensors.index.json says, but it is in ` + shard2},
		},
		{
			"tensor in two shards", indexOf(12, ab),
			map[string][]Tensor{shard1: ints("a", "b"), shard2: ints("b")},
			[]string{`tensor "b": is in ` + shard1 + " and " + shard2 + ", expected in one file only"},
		},
		{"unknown tensor in two shards", indexOf(16, ab), map[string][]Tensor{shard1: ints("a", "c"), shard2: ints("b", "c")}, []string{
			`tensor "c": is in ` + shard1 + " and " + shard2 + ", expected in one file only",
			`tensor "c": is in ` + shard1 + " and " + shard2 + " but not in model.safetensors.index.json",
		}},
		{
			"tensor in a shard and in mtp", indexOf(8, ab),
			map[string][]Tensor{shard1: ints("a"), shard2: ints("b"), mtpName: ints("b")},
			[]string{`tensor "b": is in ` + shard2 + " and mtp.safetensors, expected in one file only"},
		},
		{
			"tensor in mtp instead of a shard", indexOf(4, ab),
			map[string][]Tensor{shard1: ints("a"), shard2: nil, mtpName: ints("b")},
			[]string{`tensor "b": expected in ` + shard2 + ` as model.safetensors.index.json says, but it is in mtp.safetensors`},
		},
		{
			"tensor in a single file and in mtp", "",
			map[string][]Tensor{singleName: ints("a"), mtpName: ints("a")},
			[]string{`tensor "a": is in model.safetensors and mtp.safetensors, expected in one file only`},
		},
		{
			"wrong total_size", indexOf(9, ab), good,
			[]string{"model.safetensors.index.json: metadata.total_size is 9 but the tensors of its files have 8 bytes: index and shards are of different downloads"},
		},
		{
			"total_size 0", indexOf(0, ab), good,
			[]string{"model.safetensors.index.json: metadata.total_size is 0 but the tensors of its files have 8 bytes: index and shards are of different downloads"},
		},
		{"file names with a path", indexOf(-1, map[string]string{"a": "../a", "b": "..", "c": "/etc/passwd", "d": "x/y", "e": `x\y`, "f": "", "g": "C:x", "h": ".", "i": "x/y", "j": "x\x00y"}), nil, []string{
			`model.safetensors.index.json: file name "" of 1 tensor, expected a plain name without a path`,
			`model.safetensors.index.json: file name "." of 1 tensor, expected a plain name without a path`,
			`model.safetensors.index.json: file name ".." of 1 tensor, expected a plain name without a path`,
			`model.safetensors.index.json: file name "../a" of 1 tensor, expected a plain name without a path`,
			`model.safetensors.index.json: file name "/etc/passwd" of 1 tensor, expected a plain name without a path`,
			`model.safetensors.index.json: file name "C:x" of 1 tensor, expected a plain name without a path`,
			`model.safetensors.index.json: file name "x\x00y" of 1 tensor, expected a plain name without a path`,
			`model.safetensors.index.json: file name "x/y" of 2 tensors, expected a plain name without a path`,
			`model.safetensors.index.json: file name "x\\y" of 1 tensor, expected a plain name without a path`,
		}},
		{"several", indexOf(8, map[string]string{"a": shard1, "b": shard2, "z": "no.safetensors", "y": "../y", "c": shard1}), map[string][]Tensor{shard1: ints("a", "d"), shard2: ints("a", "b")}, []string{
			`model.safetensors.index.json: file name "../y" of 1 tensor, expected a plain name without a path`,
			`no.safetensors: the file is missing but model.safetensors.index.json says that it has 1 tensor: download it (stat: no such file or directory)`,
			`tensor "a": is in ` + shard1 + " and " + shard2 + ", expected in one file only",
			`tensor "c": expected in ` + shard1 + ` as model.safetensors.index.json says, but no file has it`,
			`tensor "d": is in ` + shard1 + ` but not in model.safetensors.index.json`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Go's %q says \x00, which JSON does not know.
			dir := makeDir(t, strings.ReplaceAll(c.index, `\x00`, `\u0000`), c.files)
			want := fmt.Sprintf("checkpoint %s: %s", dir, c.want[0])
			if len(c.want) > 1 {
				want = fmt.Sprintf("checkpoint %s: %d problems:\n  %s", dir, len(c.want), strings.Join(c.want, "\n  "))
			}
			for range 3 { // maps must not change the order
				ck, err := OpenDir(dir)
				require.Nil(t, ck)
				require.EqualError(t, err, want)
			}
		})
	}
}

// A damaged shard is named with what is wrong inside, and its tensors are not
// reported missing as well.
func TestOpenDirDamagedShard(t *testing.T) {
	dir := makeDir(t, indexOf(8, map[string]string{"a": shard1, "b": shard2}),
		map[string][]Tensor{shard1: ints("a"), shard2: ints("b")})
	path := filepath.Join(dir, shard2)
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, raw[:len(raw)-3], 0o666))
	_, err = OpenDir(dir)
	require.EqualError(t, err, "checkpoint "+dir+": "+shard2+`: tensor "b": data ends at 4 but the data section has 1 bytes, `+
		"expected 4: 3 bytes of the file are missing, download the file again")

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(dir, mtpName), nil, 0o666))
	_, err = OpenDir(dir)
	require.ErrorContains(t, err, "2 problems:\n  "+shard2+": this is no regular file (d")
	require.ErrorContains(t, err, "\n  mtp.safetensors: the file has 0 bytes, expected at least 10")
}

func TestOpenDirManyProblems(t *testing.T) {
	files := map[string]string{"a": singleName}
	for i := range 50_000 {
		files[fmt.Sprintf("missing.%05d", i)] = singleName
	}
	dir := makeDir(t, indexOf(4, files), map[string][]Tensor{singleName: ints("a")})
	_, err := OpenDir(dir)
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, 1+maxProblems+1)
	require.Equal(t, "checkpoint "+dir+": 50000 problems:", lines[0])
	require.Contains(t, lines[20], `tensor "missing.00019": `)
	require.Equal(t, "  and 49980 more", lines[21])
}

func TestOpenDirNoDir(t *testing.T) {
	dir := t.TempDir()
	_, err := OpenDir(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, 1, strings.Count(err.Error(), dir), "the path is said once")

	path := filepath.Join(dir, singleName)
	require.NoError(t, Write(path, nil, nil))
	_, err = OpenDir(path)
	require.ErrorContains(t, err, "this is no directory, expected one with model.safetensors.index.json or model.safetensors")
}

// A link into a cache works; one to nowhere is a fault, not an absent file.
func TestOpenDirLinks(t *testing.T) {
	blobs := makeDir(t, indexOf(4, map[string]string{"a": singleName}), map[string][]Tensor{singleName: ints("a")})
	dir := t.TempDir()
	for _, name := range []string{indexName, singleName} {
		if err := os.Symlink(filepath.Join(blobs, name), filepath.Join(dir, name)); err != nil {
			t.Skip(err)
		}
	}
	ck, err := OpenDir(dir)
	require.NoError(t, err)
	require.NoError(t, ck.Close())

	require.NoError(t, os.Symlink("gone", filepath.Join(dir, mtpName)))
	_, err = OpenDir(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "mtp.safetensors: ")
	require.NoError(t, os.Remove(filepath.Join(dir, mtpName)))

	require.NoError(t, os.Remove(filepath.Join(blobs, indexName)))
	_, err = OpenDir(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "model.safetensors.index.json: ")
}

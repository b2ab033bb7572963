package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// more is how often a test repeats what few repetitions usually find.
func more(few int) int {
	if os.Getenv("QUILL_SOAK") != "" {
		return 20 * few
	}
	return few
}

// testKey and testResult are those of the n-th action. Neighbours share a blob.
func testKey(n int) Key {
	return Key{{"kind", "test"}, {"architecture", "layers: 2\nhidden: 64\n"}, {"bucket", strconv.Itoa(n)}}
}

func testResult(n int) *Result {
	r := &Result{Data: fmt.Appendf(nil, "plan %d", n), Blobs: map[recipes.Hash][]byte{}}
	for _, seed := range []int{n, n + 1} {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		blob := bytes.Repeat(fmt.Appendf(nil, "recipe %d\n", seed), 50)
		for range 1000 {
			blob = append(blob, byte(rng.Uint32()))
		}
		r.Blobs[recipes.Sum(blob)] = blob
	}
	return r
}

func build(n int) func(context.Context) (*Result, error) {
	return func(context.Context) (*Result, error) { return testResult(n), nil }
}

func unexpected(context.Context) (*Result, error) { return nil, errors.New("built once more") }

// log collects warnings.
type log struct {
	mu   sync.Mutex
	list []*Error
}

func (l *log) warn(e *Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, e)
}

func (l *log) take() []*Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

func open(t testing.TB, dir string, o Options) (*Store, *log) {
	l := new(log)
	o.Warn = l.warn
	s, err := Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s, l
}

// tidy checks that a store is whole and that nobody left anything.
func tidy(t testing.TB, dir string) *VerifyReport {
	t.Helper()
	s, err := Open(dir, Options{ReadOnly: true})
	require.NoError(t, err)
	r, err := s.Verify(t.Context(), VerifyOptions{})
	require.NoError(t, err)
	require.Empty(t, r.Faults)
	require.Empty(t, names(filepath.Join(dir, layoutDir, tempDir)))
	require.Empty(t, names(filepath.Join(dir, layoutDir, locksDir)))
	return r
}

func TestResultsAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "store")
	s, warned := open(t, dir, Options{})
	results := map[int]*Result{
		1: testResult(1), 2: testResult(2),
		3: {Data: []byte{}, Blobs: map[recipes.Hash][]byte{}},
		4: {Data: []byte{}, Blobs: map[recipes.Hash][]byte{recipes.Sum(nil): {}}},
	}
	for n, want := range results {
		r, err := s.Get(t.Context(), testKey(n))
		require.NoError(t, err)
		require.Nil(t, r)
		require.NoError(t, s.Put(t.Context(), testKey(n), want))
	}
	s.Close()
	s, err := Open(dir, Options{Existing: true})
	require.NoError(t, err)
	for n, want := range results {
		r, err := s.Get(t.Context(), testKey(n))
		require.NoError(t, err)
		require.Equal(t, want.Data, append([]byte{}, r.Data...))
		require.Len(t, r.Blobs, len(want.Blobs))
		for h, blob := range want.Blobs {
			require.True(t, bytes.Equal(blob, r.Blobs[h]))
		}
		again, err := s.Do(t.Context(), testKey(n), unexpected)
		require.NoError(t, err)
		require.Equal(t, r, again)
	}
	require.Equal(t, int64(8), s.Counters().Hits)
	require.Zero(t, s.Counters().Misses)
	require.Positive(t, s.Counters().ReadBytes)
	s.Close()
	require.Empty(t, warned.take())
	require.Equal(t, 4, tidy(t, dir).Whole.Blobs) // 1 and 2 share one
}

// Every name in a store is one that it gives: the text of a key is in no path.
func TestNamesAreHashes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, _ := open(t, dir, Options{})
	key := Key{{"bucket", "../../../etc/passwd\x00/\n"}}
	require.NoError(t, s.Put(t.Context(), key, testResult(1)))
	require.Error(t, s.Put(t.Context(), Key{{"../x", ""}}, testResult(1)))
	s.Close()
	var files []string
	require.NoError(t, filepath.WalkDir(filepath.Dir(dir), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			files = append(files, filepath.ToSlash(rel))
		}
		return err
	}))
	require.Len(t, files, 5)
	require.Equal(t, []string{"CACHEDIR.TAG", "v1/actions/" + key.Hash().String()}, files[:2])
	for _, f := range files[2:4] {
		require.Regexp(t, `^v1/blobs/[0-9a-f]{64}$`, f)
	}
	require.Equal(t, "v1/lock", files[4])
	tag, err := os.ReadFile(filepath.Join(dir, "CACHEDIR.TAG"))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(tag), "Signature: 8a477f597d28d172789f06886806bc55\n"))
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	other := filepath.Join(dir, "api")
	require.NoError(t, os.MkdirAll(filepath.Join(other, "v1", "handlers"), 0o777))
	for _, c := range []struct {
		dir  string
		opt  Options
		want error
		text string
	}{
		{dir, Options{}, ErrNotStore, "store: " + dir + ": this is no store: it holds api: name a folder that is empty or not there"},
		{other, Options{}, ErrNotStore, "it holds handlers"},
		{"", Options{}, ErrNotStore, "name a folder"},
		{file, Options{}, syscall.ENOTDIR, "store: " + file + ": not a directory: make the folder one"},
		{filepath.Join(file, "x"), Options{}, syscall.ENOTDIR, "name another with QUILL_CACHE"},
		{filepath.Join(dir, "none"), Options{Existing: true}, ErrNoStore, "none: there is no store: compile something first"},
		{filepath.Join(dir, "none"), Options{ReadOnly: true}, ErrNoStore, ""},
	} {
		_, err := Open(c.dir, c.opt)
		require.ErrorIs(t, err, c.want)
		require.ErrorContains(t, err, c.text)
		require.ErrorAs(t, err, new(*Error))
	}
	require.NoFileExists(t, filepath.Join(dir, "CACHEDIR.TAG"))
	require.NoDirExists(t, filepath.Join(dir, "none"))
	// Other versions of the layout are let be.
	versions := filepath.Join(dir, "versions")
	require.NoError(t, os.MkdirAll(filepath.Join(versions, "v12", "any"), 0o777))
	s, err := Open(versions, Options{})
	require.NoError(t, err)
	s.Close()
	require.DirExists(t, filepath.Join(versions, "v12", "any"))
}

func TestDefaultDir(t *testing.T) {
	t.Setenv("QUILL_CACHE", "/some/where")
	dir, err := DefaultDir()
	require.NoError(t, err)
	require.Equal(t, "/some/where", dir)
	t.Setenv("QUILL_CACHE", "")
	t.Setenv("XDG_CACHE_HOME", "/caches")
	t.Setenv("HOME", "/home/u")
	want, err := os.UserCacheDir()
	require.NoError(t, err)
	dir, err = DefaultDir()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(want, "quill"), dir)
}

// What is refused is a mistake of the caller's, and no *Error, which he may pass over.
func TestMistakes(t *testing.T) {
	s, _ := open(t, t.TempDir(), Options{})
	wrong := testResult(1)
	wrong.Blobs[recipes.Sum([]byte("x"))] = []byte("y")
	for _, c := range []struct {
		key  Key
		r    *Result
		want string
	}{
		{nil, testResult(1), "a key without fields"},
		{Key{{"Name", "x"}}, testResult(1), `a key with a field named "Name": want lower-case letters`},
		{Key{{"", "x"}}, testResult(1), `a field named ""`},
		{Key{{"a", "x"}, {"a", "x"}}, testResult(1), "a key with two fields named a"},
		{testKey(1), wrong, "has content of hash " + recipes.Sum([]byte("y")).String()},
		{testKey(1), nil, "no result"},
	} {
		_, err := s.Do(t.Context(), c.key, func(context.Context) (*Result, error) { return c.r, nil })
		require.ErrorContains(t, err, c.want)
		_, ok := errors.AsType[*Error](err)
		require.False(t, ok)
		require.ErrorContains(t, s.Put(t.Context(), c.key, c.r), c.want)
	}
	require.True(t, s.writable())
}

// A store that is not there keeps nothing, and is no obstacle.
func TestNilStore(t *testing.T) {
	var s *Store
	r, err := s.Do(t.Context(), testKey(1), build(1))
	require.NoError(t, err)
	require.Equal(t, testResult(1), r)
	require.Zero(t, s.Counters())
	s.Close()
}

func TestReadOnlyChangesNothing(t *testing.T) {
	dir := t.TempDir()
	w, _ := open(t, dir, Options{})
	require.NoError(t, w.Put(t.Context(), testKey(1), testResult(1)))
	w.Close()
	before := snapshot(t, dir)

	s, warned := open(t, dir, Options{ReadOnly: true})
	r, err := s.Do(t.Context(), testKey(1), unexpected)
	require.NoError(t, err)
	require.Equal(t, testResult(1), r)
	r, err = s.Do(t.Context(), testKey(2), build(2))
	require.NoError(t, err)
	require.Equal(t, testResult(2), r)
	require.ErrorIs(t, s.Put(t.Context(), testKey(2), testResult(2)), ErrReadOnly)
	_, err = s.GC(t.Context(), GCOptions{MaxBytes: 1})
	require.ErrorIs(t, err, ErrReadOnly)
	_, err = s.Verify(t.Context(), VerifyOptions{Drop: true})
	require.ErrorIs(t, err, ErrReadOnly)
	s.Close()
	require.Empty(t, warned.take())
	require.Equal(t, before, snapshot(t, dir))
}

// snapshot is all names in a folder, with content and time.
func snapshot(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		require.NoError(t, err)
		all[path] = info.ModTime().String()
		if !d.IsDir() {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			all[path] += string(data)
		}
		return nil
	}))
	return all
}

// The folder may be deleted while a store is open.
func TestDeletedWhileOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s, warned := open(t, dir, Options{MaxBytes: 1 << 20})
	require.NoError(t, s.Put(t.Context(), testKey(1), testResult(1)))
	require.NoError(t, os.RemoveAll(dir))
	for n := range 3 {
		r, err := s.Do(t.Context(), testKey(n), build(n))
		require.NoError(t, err)
		require.Equal(t, testResult(n), r)
	}
	s.Close()
	list := warned.take()
	require.Len(t, list, 1)
	require.ErrorContains(t, list[0], "no such file or directory: results are no longer kept: make the folder")
	require.NoDirExists(t, dir)
}

package store

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// small is a result whose files have few bytes.
func small() (Key, *Result) {
	blob := []byte("a recipe")
	return Key{{"bucket", "q=1"}}, &Result{[]byte("plan"), map[recipes.Hash][]byte{recipes.Sum(blob): blob}}
}

// smallFiles are the files of the small result in a store that holds it.
func smallFiles(t *testing.T, s *Store) []string {
	key, r := small()
	require.NoError(t, s.Put(t.Context(), key, r))
	paths := []string{s.actionPath(key.Hash())}
	for h := range r.Blobs {
		paths = append(paths, s.blobPath(h))
	}
	return paths
}

// Every byte that is another one and every file that is cut short is found, reported
// once, removed, and made again.
func TestDamageIsFound(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, Options{})
	paths := smallFiles(t, s)
	var whole [2][]byte
	for i, path := range paths {
		var err error
		whole[i], err = os.ReadFile(path)
		require.NoError(t, err)
	}
	key, want := small()
	check := func(at int, harm string, file []byte) {
		t.Helper()
		for i, path := range paths {
			require.NoError(t, os.WriteFile(path, whole[i], 0o666))
		}
		require.NoError(t, os.WriteFile(paths[at], file, 0o666))
		warned := new(log)
		s.opt.Warn, s.warned, s.counters = warned.warn, map[string]bool{}, Counters{}
		r, err := s.Get(t.Context(), key)
		require.NoError(t, err)
		require.Nil(t, r, harm)
		require.NoFileExists(t, paths[at], harm)
		require.NoFileExists(t, paths[0], harm) // without its blob an action is of no use
		list := warned.take()
		require.Len(t, list, 1, harm)
		require.Equal(t, paths[at], list[0].Path)
		require.ErrorIs(t, list[0], ErrDamaged)
		require.ErrorContains(t, list[0], "it was removed, and is made again when it is wanted")
		require.Equal(t, int64(1), s.Counters().Dropped)
		r, err = s.Get(t.Context(), key)
		require.NoError(t, err)
		require.Nil(t, r)
		require.Empty(t, warned.take())
	}
	for at, file := range whole {
		for i := range file {
			for _, flip := range []byte{1, 0x80, 0xff} {
				harmed := bytes.Clone(file)
				harmed[i] ^= flip
				check(at, "flip", harmed)
			}
			check(at, "cut", file[:i])
		}
		check(at, "longer", append(bytes.Clone(file), 0))
		check(at, "other kind", whole[1-at])
	}
	r, err := s.Do(t.Context(), key, func(context.Context) (*Result, error) { return want, nil })
	require.NoError(t, err)
	require.Equal(t, want, r)
	r, err = s.Do(t.Context(), key, unexpected)
	require.NoError(t, err)
	require.Equal(t, want, r)
	s.Close()
	tidy(t, dir)
}

// What is no file in the place of one is removed; what it leads to stays.
func TestWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	key, want := small()
	precious := filepath.Join(t.TempDir(), "precious")
	for at := range 2 {
		for _, put := range []func(path string) error{
			func(path string) error { return os.Symlink(precious, path) },
			func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o777) },
		} {
			s, warned := open(t, dir, Options{})
			path := smallFiles(t, s)[at]
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.WriteFile(precious, []byte("precious"), 0o666))
			require.NoError(t, put(path))
			r, err := s.Do(t.Context(), key, func(context.Context) (*Result, error) { return want, nil })
			require.NoError(t, err)
			require.Equal(t, want, r)
			require.ErrorContains(t, warned.take()[0], "damaged: not a regular file")
			s.Close()
			tidy(t, dir)
			text, err := os.ReadFile(precious)
			require.NoError(t, err)
			require.Equal(t, "precious", string(text))
		}
	}
}

// An action is not taken for another, whatever its file is called.
func TestActionUnderAnotherName(t *testing.T) {
	s, warned := open(t, t.TempDir(), Options{})
	require.NoError(t, s.Put(t.Context(), testKey(1), testResult(1)))
	require.NoError(t, os.Rename(s.actionPath(testKey(1).Hash()), s.actionPath(testKey(2).Hash())))
	r, err := s.Do(t.Context(), testKey(2), build(2))
	require.NoError(t, err)
	require.Equal(t, testResult(2), r)
	list := warned.take()
	require.Len(t, list, 1)
	require.ErrorContains(t, list[0], "damaged: it holds the action "+testKey(1).Hash().String())
}

// Keys that had one hash would not get each other's results.
func TestCollision(t *testing.T) {
	s, warned := open(t, t.TempDir(), Options{})
	require.NoError(t, s.Put(t.Context(), testKey(1), testResult(1)))
	for range 2 {
		r, err := s.get(t.Context(), testKey(2), testKey(1).Hash())
		require.NoError(t, err)
		require.Nil(t, r)
	}
	list := warned.take()
	require.Len(t, list, 1)
	require.ErrorIs(t, list[0], ErrCollision)
	r, err := s.Get(t.Context(), testKey(1))
	require.NoError(t, err)
	require.Equal(t, testResult(1), r)
}

// An action without one of its blobs is made again.
func TestMissingBlob(t *testing.T) {
	dir := t.TempDir()
	s, warned := open(t, dir, Options{})
	path := smallFiles(t, s)[1]
	require.NoError(t, os.Remove(path))
	c, err := s.Contents(t.Context())
	require.NoError(t, err)
	require.Empty(t, c.Actions)
	require.ErrorContains(t, c.Faults[0], "damaged: it needs blob "+filepath.Base(path)+": file does not exist: quill cache verify --drop removes it")
	key, want := small()
	r, err := s.Do(t.Context(), key, func(context.Context) (*Result, error) { return want, nil })
	require.NoError(t, err)
	require.Equal(t, want, r)
	require.Len(t, warned.take(), 1)
	require.FileExists(t, path)
	s.Close()
	tidy(t, dir)
}

// A store that is only read passes over what is damaged, reports it once and lets it be.
func TestDamageInAReadOnlyStore(t *testing.T) {
	dir := t.TempDir()
	w, _ := open(t, dir, Options{})
	paths := smallFiles(t, w)
	w.Close()
	require.NoError(t, os.Truncate(paths[1], 50))
	before := snapshot(t, dir)
	s, warned := open(t, dir, Options{ReadOnly: true})
	key, want := small()
	for range 3 {
		r, err := s.Do(t.Context(), key, func(context.Context) (*Result, error) { return want, nil })
		require.NoError(t, err)
		require.Equal(t, want, r)
	}
	require.Len(t, warned.take(), 1)
	require.Equal(t, before, snapshot(t, dir))
}

func TestVerify(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir, Options{})
	for n := range 4 {
		require.NoError(t, s.Put(t.Context(), testKey(n), testResult(n)))
	}
	var last int64
	r, err := s.Verify(t.Context(), VerifyOptions{Progress: func(done, total int64) {
		require.LessOrEqual(t, done, total)
		last = total - done
	}})
	require.NoError(t, err)
	require.Empty(t, r.Faults)
	require.Zero(t, last)
	require.Equal(t, 4, r.Whole.Actions)
	require.Equal(t, 5, r.Whole.Blobs)

	// A blob that two actions share, an action, and a file that is not the store's.
	var sharedBlob recipes.Hash
	for h := range testResult(1).Blobs {
		if _, ok := testResult(2).Blobs[h]; ok {
			sharedBlob = h
		}
	}
	require.NoError(t, os.Truncate(s.blobPath(sharedBlob), 100))
	require.NoError(t, os.WriteFile(s.actionPath(testKey(3).Hash()), nil, 0o666))
	require.NoError(t, os.WriteFile(s.path(blobsDir, "notes.txt"), nil, 0o666))
	for _, drop := range []bool{false, true} {
		r, err = s.Verify(t.Context(), VerifyOptions{Drop: drop})
		require.NoError(t, err)
		require.Len(t, r.Faults, 5)
		require.Equal(t, 1, r.Whole.Actions)
		require.Equal(t, 4, r.Whole.Blobs)
	}
	require.Equal(t, 4, r.Dropped)
	r, err = s.Verify(t.Context(), VerifyOptions{})
	require.NoError(t, err)
	require.Len(t, r.Faults, 1)
	require.ErrorIs(t, r.Faults[0], ErrStranger)
}

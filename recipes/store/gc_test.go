package store

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// filled is a store with n actions, of which the first were used least recently.
func filled(t *testing.T, dir string, n int, o Options) *Store {
	s, _ := open(t, dir, o)
	for i := range n {
		require.NoError(t, s.Put(t.Context(), testKey(i), testResult(i)))
		used := time.Now().Add(time.Duration(i-n) * time.Hour)
		require.NoError(t, os.Chtimes(s.actionPath(testKey(i).Hash()), used, used))
	}
	return s
}

// kept are the actions that are there, last used first.
func kept(t *testing.T, s *Store) (buckets []string) {
	c, err := s.Contents(t.Context())
	require.NoError(t, err)
	require.Empty(t, c.Faults)
	require.Empty(t, c.unused())
	for _, a := range c.Actions {
		buckets = append(buckets, a.Key.Text("bucket"))
	}
	return buckets
}

// What was used least recently goes first, with the blobs that nothing else needs.
func TestGCRemovesWhatWasUsedLeastRecently(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, 5, Options{})
	require.Equal(t, []string{"4", "3", "2", "1", "0"}, kept(t, s))
	_, err := s.Get(t.Context(), testKey(1)) // now it is used
	require.NoError(t, err)
	require.Equal(t, []string{"1", "4", "3", "2", "0"}, kept(t, s))
	c, err := s.Contents(t.Context())
	require.NoError(t, err)
	total := c.Usage()
	require.Equal(t, 6, total.Blobs)

	r, err := s.GC(t.Context(), GCOptions{})
	require.NoError(t, err)
	require.Equal(t, &GCReport{Left: total}, r)
	r, err = s.GC(t.Context(), GCOptions{MaxBytes: total.Bytes - 1})
	require.NoError(t, err)
	require.Equal(t, []string{"1", "4", "3", "2"}, kept(t, s))
	require.Equal(t, 1, r.Actions)
	require.Equal(t, 1, r.Blobs) // the other is that of 1, too
	require.Equal(t, total.Bytes, r.Left.Bytes+r.Bytes)

	r, err = s.GC(t.Context(), GCOptions{Older: 90 * time.Minute})
	require.NoError(t, err)
	require.Equal(t, []string{"1", "4"}, kept(t, s))
	require.Equal(t, 2, r.Actions)
	r, err = s.GC(t.Context(), GCOptions{MaxBytes: 1})
	require.NoError(t, err)
	require.Equal(t, Usage{}, r.Left)
	require.Empty(t, names(s.path(blobsDir)))
	require.Equal(t, int64(5), s.Counters().Evicted)
}

// GC removes what is of no use: blobs without actions, damaged actions, what processes
// left that are gone. What is a living one's stays.
func TestGCRemovesWhatIsOfNoUse(t *testing.T) {
	dir := t.TempDir()
	s := filled(t, dir, 3, Options{})
	require.NoError(t, os.Remove(s.actionPath(testKey(0).Hash())))
	require.NoError(t, os.Truncate(s.actionPath(testKey(2).Hash()), 5))
	living, _ := open(t, dir, Options{})
	for _, name := range []string{"00000000000000aa.1", "00000000000000bb.owner", "00000000000000bb.7", living.id + ".1", s.id + ".9"} {
		require.NoError(t, os.WriteFile(s.path(tempDir, name), []byte("half"), 0o666))
	}
	held, err := living.lockKey(t.Context(), testKey(7), testKey(7).Hash())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(s.path(locksDir, testKey(8).Hash().String()), nil, 0o666))

	r, err := s.GC(t.Context(), GCOptions{})
	require.NoError(t, err)
	require.Equal(t, 0, r.Actions)
	require.Equal(t, 1, r.Damaged)
	require.Equal(t, 2, r.Blobs) // of 0 and 2; they share theirs with 1
	require.Equal(t, []string{"1"}, kept(t, s))
	require.ElementsMatch(t, []string{living.id + ownerSuffix, living.id + ".1", s.id + ownerSuffix, s.id + ".9"}, names(s.path(tempDir)))
	require.Equal(t, []string{testKey(7).Hash().String()}, names(s.path(locksDir)))
	held()
	require.NoError(t, os.Remove(s.path(tempDir, living.id+".1")))
	require.NoError(t, os.Remove(s.path(tempDir, s.id+".9")))
	living.Close()
	s.Close()
	tidy(t, dir)
}

// Many write, read and collect at once, in a store that is too small for all: what is
// got is right, and in the end the bound holds.
func TestCollectingUnderLoad(t *testing.T) {
	dir := t.TempDir()
	const bound, actions = 20_000, 30
	var all sync.WaitGroup
	for worker := range 6 {
		s, warned := open(t, dir, Options{MaxBytes: bound})
		all.Go(func() {
			defer s.Close()
			rng := rand.New(rand.NewPCG(7, uint64(worker)))
			for range more(60) {
				n := rng.IntN(actions)
				r, err := s.Do(t.Context(), testKey(n), build(n))
				if err == nil {
					want := testResult(n)
					for h := range want.Blobs {
						if string(r.Blobs[h]) != string(want.Blobs[h]) {
							err = errors.New("another blob")
						}
					}
				}
				if rng.IntN(20) == 0 && err == nil {
					_, err = s.GC(t.Context(), GCOptions{MaxBytes: bound / 2})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			for _, e := range warned.take() {
				t.Error(e)
			}
		})
	}
	all.Wait()
	r := tidy(t, dir)
	require.LessOrEqual(t, r.Whole.Bytes, int64(bound))
	require.Positive(t, r.Whole.Actions)
}

// The bound holds while one process writes, not only in the end; without one nothing
// is removed.
func TestBoundWhileWriting(t *testing.T) {
	const bound = 40_000
	s, _ := open(t, t.TempDir(), Options{MaxBytes: bound})
	for n := range 40 {
		_, err := s.Do(t.Context(), testKey(n), build(n))
		require.NoError(t, err)
		require.LessOrEqual(t, s.bytes(), int64(bound))
	}
	require.Equal(t, "39", kept(t, s)[0])
	require.Greater(t, s.bytes(), int64(bound/2))
	require.Positive(t, s.Counters().Evicted)
}

// Waiting for readers and writers ends with the context.
func TestGCWaits(t *testing.T) {
	s := filled(t, filepath.Join(t.TempDir(), "s"), 1, Options{})
	unlock, err := s.lock(t.Context(), shared)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = s.GC(short, GCOptions{MaxBytes: 1})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	unlock()
	require.Equal(t, []string{"0"}, kept(t, s))
}

package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Of all goroutines that want a result one makes it, whether or not it can be kept, and
// those of two stores on one folder are as processes are.
func TestOneOfManyMakesIt(t *testing.T) {
	dir := t.TempDir()
	first, _ := open(t, dir, Options{})
	second, _ := open(t, dir, Options{})
	unwritable, _ := open(t, t.TempDir(), Options{})
	unwritable.off.Store(true)
	for _, stores := range [][]*Store{{first}, {first, second}, {unwritable}} {
		var made, asked atomic.Int64
		const want = 20
		key := Key{{"case", time.Now().String()}}
		var all sync.WaitGroup
		for i := range want {
			s := stores[i%len(stores)]
			all.Go(func() {
				asked.Add(1)
				r, err := s.Do(t.Context(), key, func(context.Context) (*Result, error) {
					made.Add(1)
					for asked.Load() < want {
						time.Sleep(time.Millisecond)
					}
					time.Sleep(20 * time.Millisecond)
					return testResult(1), nil
				})
				if err != nil || string(r.Data) != "plan 1" {
					t.Errorf("%v, %v", r, err)
				}
			})
		}
		all.Wait()
		require.Equal(t, int64(1), made.Load())
	}
	c := first.Counters()
	require.Equal(t, int64(1), c.Misses+second.Counters().Misses-1) // of the two keys one miss each
	first.Close()
	second.Close()
	tidy(t, dir)
}

// Who waits need not, once his own context ends; and whose context ends does not end
// those that wait for him.
func TestContextsOfOthers(t *testing.T) {
	s, _ := open(t, t.TempDir(), Options{})
	mine, cancelMine := context.WithCancel(t.Context())
	building, finished := make(chan struct{}), make(chan error)
	go func() {
		_, err := s.Do(mine, testKey(1), func(ctx context.Context) (*Result, error) {
			close(building)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		finished <- err
	}()
	<-building
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := s.Do(short, testKey(1), unexpected)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	go func() {
		r, err := s.Do(t.Context(), testKey(1), build(1))
		if err == nil && string(r.Data) != "plan 1" {
			err = errors.New("another result")
		}
		finished <- err
	}()
	time.Sleep(10 * time.Millisecond) // most likely it waits by now; if not, it builds anyway
	cancelMine()
	errs := []error{<-finished, <-finished}
	require.ErrorIs(t, errors.Join(errs...), context.Canceled)
	require.True(t, errs[0] == nil || errs[1] == nil, "%v", errs)
}

// A failure is that of all who wait for it, and is not kept.
func TestFailuresAreNotKept(t *testing.T) {
	dir := t.TempDir()
	s, warned := open(t, dir, Options{})
	failure := errors.New("bucket q=1: no")
	_, err := s.Do(t.Context(), testKey(1), func(context.Context) (*Result, error) { return nil, failure })
	require.Equal(t, failure, err)
	require.Panics(t, func() {
		_, _ = s.Do(t.Context(), testKey(1), func(context.Context) (*Result, error) { panic("broken") })
	})
	r, err := s.Do(t.Context(), testKey(1), build(1))
	require.NoError(t, err)
	require.Equal(t, testResult(1), r)
	require.Equal(t, Counters{Misses: 3, WrittenBytes: s.Counters().WrittenBytes, ReadBytes: s.Counters().ReadBytes}, s.Counters())
	require.Empty(t, warned.take())
	s.Close()
	tidy(t, dir)
}

// Who waits for another process is told which, and takes what that one made.
func TestWaitingForAnother(t *testing.T) {
	dir := t.TempDir()
	first, _ := open(t, dir, Options{})
	told := make(chan Owner, 10)
	second, _ := open(t, dir, Options{Wait: func(k Key, o Owner) {
		require.Equal(t, "1", k.Text("bucket"))
		told <- o
	}})
	building, proceed := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_, err := first.Do(t.Context(), testKey(1), func(context.Context) (*Result, error) {
			close(building)
			<-proceed
			return testResult(1), nil
		})
		require.NoError(t, err)
	})
	<-building
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := second.Do(short, testKey(1), unexpected)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	all.Go(func() {
		r, err := second.Do(t.Context(), testKey(1), unexpected)
		require.NoError(t, err)
		require.Equal(t, testResult(1), r)
	})
	host, err := os.Hostname()
	require.NoError(t, err)
	for range 2 {
		o := <-told
		require.Equal(t, os.Getpid(), o.PID)
		require.Equal(t, host, o.Host)
		require.Less(t, time.Since(o.Since).Abs(), time.Minute)
		require.Regexp(t, `^process \d+ on .+, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$`, o.String())
	}
	close(proceed)
	all.Wait()
	require.Empty(t, told)
	require.Equal(t, "an unknown process", Owner{}.String())
}

// A lock is of a name: one of a file that was removed after it was opened is none.
func TestLockOfARemovedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := tryFile(path, os.O_CREATE)
	require.NoError(t, err)
	again, err := tryFile(path, os.O_CREATE)
	require.NoError(t, err)
	require.Nil(t, again)
	require.NoError(t, os.Remove(path))
	other, err := tryFile(path, os.O_CREATE) // of another file
	require.NoError(t, err)
	require.NotNil(t, other)
	release(other)
	release(held)
	// The file is put away and made anew whenever it is there: whoever locks it has,
	// most of the time, opened another one than that which is there.
	var stop atomic.Bool
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for !stop.Load() {
			_ = os.WriteFile(path+".new", nil, 0o666)
			_ = os.Rename(path+".new", path)
		}
	})
	none := 0
	for end := time.Now().Add(5 * time.Second); none < 3 && time.Now().Before(end); {
		l, err := tryFile(path, os.O_CREATE)
		require.NoError(t, err)
		if l == nil {
			none++
			continue
		}
		_ = l.Unlock()
	}
	stop.Store(true)
	swapping.Wait()
	require.Equal(t, 3, none)
}

// Whatever step of writing fails, and for good: the result is there, one warning says
// why it is not kept, nothing is left over, and the store is as it was.
func TestDiskFails(t *testing.T) {
	for n := 1; ; n++ {
		dir := t.TempDir()
		before, _ := open(t, dir, Options{})
		require.NoError(t, before.Put(t.Context(), testKey(5), testResult(5)))
		before.Close()
		var steps atomic.Int64
		s, warned := open(t, dir, Options{step: func(what, path string) error {
			if steps.Add(1) >= int64(n) {
				return syscall.ENOSPC
			}
			return nil
		}})
		for i := range 2 {
			r, err := s.Do(t.Context(), testKey(i), build(i))
			require.NoError(t, err)
			require.Equal(t, testResult(i), r)
		}
		r, err := s.Do(t.Context(), testKey(5), unexpected)
		require.NoError(t, err)
		require.Equal(t, testResult(5), r)
		s.Close()
		tidy(t, dir)
		list := warned.take()
		if n > int(steps.Load()) {
			require.Empty(t, list)
			require.Greater(t, n, 20)
			return
		}
		require.Len(t, list, 1)
		require.ErrorIs(t, list[0], syscall.ENOSPC)
		if s.opt.ReadOnly {
			require.ErrorContains(t, list[0], "no space left on device: what is there is used, nothing is added: make space with quill cache gc")
		} else {
			require.ErrorContains(t, list[0], "no space left on device: results are no longer kept: make space with quill cache gc")
		}
	}
}

// A store that is there is used even if nothing can be written; one that is not is an
// error, whatever step of making it fails, and so is one that cannot be one.
func TestStoresThatCannotBeWritten(t *testing.T) {
	there := t.TempDir()
	w, _ := open(t, there, Options{})
	require.NoError(t, w.Put(t.Context(), testKey(1), testResult(1)))
	w.Close()
	for _, cause := range []syscall.Errno{syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.ENOTDIR} {
		failing := Options{step: func(string, string) error { return &os.PathError{Op: "open", Path: "/x", Err: cause} }}
		_, err := Open(t.TempDir(), failing)
		require.ErrorIs(t, err, cause)
		require.ErrorAs(t, err, new(*Error))
		if cause == syscall.ENOTDIR {
			_, err := Open(there, failing)
			require.ErrorIs(t, err, cause)
			continue
		}
		s, warned := open(t, there, failing)
		list := warned.take()
		require.Len(t, list, 1)
		require.ErrorContains(t, list[0], cause.Error()+": what is there is used, nothing is added: make ")
		require.ErrorContains(t, list[0], "QUILL_CACHE")
		r, err := s.Do(t.Context(), testKey(1), unexpected)
		require.NoError(t, err)
		require.Equal(t, testResult(1), r)
		r, err = s.Do(t.Context(), testKey(2), build(2))
		require.NoError(t, err)
		require.Equal(t, testResult(2), r)
		s.Close()
		require.Empty(t, warned.take())
	}
	tidy(t, there)
	for n := int64(1); ; n++ {
		dir := filepath.Join(t.TempDir(), "new")
		var steps atomic.Int64
		s, err := Open(dir, Options{step: func(string, string) error {
			if steps.Add(1) == n {
				return syscall.EDQUOT
			}
			return nil
		}})
		if err == nil {
			s.Close()
			require.Greater(t, n, int64(8))
			return
		}
		require.ErrorIs(t, err, syscall.EDQUOT)
		s, warned := open(t, dir, Options{})
		require.NoError(t, doRight(s, 1))
		s.Close()
		require.Empty(t, warned.take())
		tidy(t, dir)
	}
}

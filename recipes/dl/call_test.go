//go:build linux && amd64 && !nohpu

package dl_test

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"quill/recipes/dl"
	"quill/recipes/dl/dltest"
)

func TestCall(t *testing.T) {
	lib := dltest.New(t)
	sum := lib.Symbol("fake_sum")
	require.EqualValues(t, 1+2*2+3*3+4*4+5*5+6*6+7*7, dl.Call(sum, 1, 2, 3, 4, 5, 6, 7))
	require.EqualValues(t, 7<<32, dl.Call(sum, 0, 0, 0, 0, 0, 0, 1<<32))
	lib.Quiet(true)
	require.Zero(t, testing.AllocsPerRun(1000, func() { dl.Call(sum, 1, 2, 3, 4, 5, 6, 7) }))
}

// A pointer that is converted in the argument points to memory that does not move.
func TestCallPointer(t *testing.T) {
	lib := dltest.New(t)
	lookup := lib.Symbol("synDriverGetVersion")
	var buf [32]byte
	require.Zero(t, dl.Call(lookup, uintptr(unsafe.Pointer(&buf)), 32, 0, 0, 0, 0, 0))
	require.Equal(t, "1.21.0-test", dl.CString(buf[:]))
}

// The id arrives by value, whole, with the other arguments in their registers, on a
// stack that is aligned, from any goroutine.
func TestCommInitRank(t *testing.T) {
	lib := dltest.New(t)
	fn := lib.Symbol("hcclCommInitRank")
	id := &dl.UniqueID{Length: 0x0123456789abcdef}
	var want uint64
	for i := range id.Internal {
		id.Internal[i] = byte(i*13 + 5)
		want += uint64(i+1) * uint64(id.Internal[i])
	}
	var comm dl.Handle
	require.Equal(t, dl.ResultSuccess, dl.CommInitRank(fn, &comm, 8, id, 5))
	require.NotZero(t, comm)
	require.Equal(t, dltest.Line("hcclCommInitRank", 8, want, id.Length, 5, 0, uint64(comm)), lib.Trace())

	lib.Quiet(true)
	done := make(chan bool)
	for range 4 {
		go func() {
			defer func() { done <- true }()
			for range 200 {
				var c dl.Handle
				if r := dl.CommInitRank(fn, &c, 8, id, 5); r != dl.ResultSuccess {
					t.Errorf("result %v", r)
				}
				runtime.Gosched()
			}
		}()
	}
	for range 4 {
		<-done
	}
	lib.Quiet(false)
	lib.Fail("hcclCommInitRank", 9, "")
	require.Equal(t, dl.Result(9), dl.CommInitRank(fn, &comm, 8, id, 5))
	lib.Fail("hcclCommInitRank", -1, "")
	require.Equal(t, dl.Result(-1), dl.CommInitRank(fn, &comm, 8, id, 5))
}

func TestStartStop(t *testing.T) {
	lib := dltest.New(t)
	v, err := lib.Version()
	require.NoError(t, err)
	require.Equal(t, "1.21.0-test", v)
	require.NoError(t, lib.Start())
	require.NoError(t, lib.Start())
	require.NoError(t, lib.Stop())
	require.Equal(t, "synDriverGetVersion 256\nsynInitialize\n", lib.Trace(), "another user is left")
	require.NoError(t, lib.Stop())
	require.NoError(t, lib.Stop())
	require.Equal(t, "synDestroy\n", lib.Trace())

	// Something else in the process may have initialised it, or ended it.
	for _, s := range []dl.Status{dl.AlreadyObject, dl.AlreadyInit} {
		lib.Fail("synInitialize", int32(s), "")
		require.NoError(t, lib.Start())
		lib.Fail("synDestroy", int32(dl.Uninitialized), "")
		require.NoError(t, lib.Stop())
	}
	lib.Fail("synInitialize", 26, "no driver")
	err = lib.Start()
	require.ErrorIs(t, err, dl.StatusFail)
	require.ErrorContains(t, err, "synInitialize: status 26 (synFail)")
	require.ErrorContains(t, err, "the library says: brief of 26: no driver; help: ")
}

// Old libraries have no words: what they export is enough.
func TestOldLibrary(t *testing.T) {
	lib := dltest.New(t, "-DOLD")
	require.False(t, lib.Symbol("synGetLastErrorMessage") != 0)
	lib.Fail("synInitialize", 26, "not to be had")
	err := lib.Start()
	require.ErrorContains(t, err, "the library says: brief of 26; help")
	require.NotContains(t, err.Error(), "not to be had")
	require.ErrorContains(t, lib.Library.Fail("hcclX", dl.Result(5), ""), "the library says: system error")
}

//go:build !linux || !amd64 || nohpu

package dl

// Without a loader there is no library, so no function to call: what follows but open
// is never reached.

func open(string) (uintptr, error) { return 0, ErrUnavailable }

func symbol(uintptr, string) uintptr { return 0 }

func register(any, uintptr) {}

// Call cannot call anything in this build.
func Call(fn, a1, a2, a3, a4, a5, a6, a7 uintptr) uintptr { return uintptr(Uninitialized) }

// CommInitRank cannot call anything in this build.
func CommInitRank(uintptr, *Handle, int32, *UniqueID, int32) Result { return ResultUnsupported }

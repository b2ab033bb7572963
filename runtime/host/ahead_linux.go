package host

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readAhead asks the system to read the pages of b, which may be mapped from a
// file, without waiting for them. It is advice: what goes wrong changes nothing.
func readAhead(b []byte) {
	if len(b) == 0 {
		return
	}
	first := unsafe.Pointer(unsafe.SliceData(b))
	before := int(uintptr(first) & uintptr(os.Getpagesize()-1))
	// The bytes before b are those of its first page.
	_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(first, -before)), before+len(b)), unix.MADV_WILLNEED)
}

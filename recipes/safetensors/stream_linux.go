package safetensors

import (
	"errors"
	"os"
	"syscall"
)

// reserve finds a file its place on the disk, so that a disk that is too small
// shows before anything is written. Not every file system can.
func reserve(f *os.File, size int64) error {
	err := syscall.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINTR) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	return nil
}

// direct lets writes pass by the page cache, where the file system can: what
// is much larger than the memory would only push everything else out of it,
// and copying it there costs more than making it.
func direct(f *os.File) { setFlags(f, syscall.O_DIRECT, 0) }

// buffered undoes direct.
func buffered(f *os.File) { setFlags(f, 0, syscall.O_DIRECT) }

// setFlags changes the status flags of a file. A refusal leaves it as it is.
func setFlags(f *os.File, set, unset uintptr) {
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_GETFL, 0)
	if errno == 0 {
		_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, f.Fd(), syscall.F_SETFL, flags&^unset|set)
	}
}

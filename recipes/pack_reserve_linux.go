package recipes

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
	return os.NewSyscallError("fallocate", err)
}

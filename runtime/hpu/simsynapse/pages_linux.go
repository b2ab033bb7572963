package simsynapse

import "syscall"

// newPages is zeroed memory that the system gives where it is written.
func newPages(n int64) ([]byte, error) {
	return syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
}

func freePages(b []byte) error { return syscall.Munmap(b) }

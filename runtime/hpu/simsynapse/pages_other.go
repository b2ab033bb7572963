//go:build !linux

package simsynapse

import "unsafe"

// newPages is zeroed memory that begins at a multiple of 64.
func newPages(n int64) ([]byte, error) {
	b := make([]byte, n+63)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(b))) & 63
	return b[skip:][:n:n], nil
}

func freePages([]byte) error { return nil }

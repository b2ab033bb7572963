package main

import "syscall"

// freeSpace is how many bytes can still be written to a directory's file
// system, if it says so.
func freeSpace(dir string) (int64, bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, false
	}
	return int64(s.Bavail) * s.Bsize, true
}

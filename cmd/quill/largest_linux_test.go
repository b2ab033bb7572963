package main

import (
	"os"
	"syscall"
)

// largestMemory is the most resident memory that an ended process had, in bytes.
func largestMemory(p *os.ProcessState) int64 { return p.SysUsage().(*syscall.Rusage).Maxrss << 10 }

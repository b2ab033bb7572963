package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// peakMemory is the most memory that the process had in use since it began or
// since resetPeak, 0 if the system does not say.
func peakMemory() int64 {
	var kib int64
	if _, err := fmt.Sscanf(procField("/proc/self/status", "VmHWM"), "%d kB", &kib); err != nil {
		return 0
	}
	return kib * 1024
}

// resetPeak begins a new peak, where the system can: what was in use before the
// measured run does not count.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// cpuName is the processor as it calls itself, "" if the system does not say.
func cpuName() string { return procField("/proc/cpuinfo", "model name") }

// procField is the first value of a key in a file of lines "key: value".
func procField(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if k, v, ok := strings.Cut(in.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

package runtime

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// AvailableMemory is how many bytes of memory this process can have without others
// having to give theirs up, 0 where the system does not say.
func AvailableMemory() int64 { return availableMemory(os.DirFS("/")) }

// availableMemory is AvailableMemory of a system with this root: what Linux calls
// available, or less where a control group allows less.
func availableMemory(root fs.FS) int64 {
	have := memAvailable(root)
	for _, limit := range cgroupLimits(root) {
		if have == 0 || limit < have {
			have = limit
		}
	}
	return have
}

// MemoryLimit is the most memory, in bytes, that control groups let this process
// have, 0 if they do not limit it.
func MemoryLimit() int64 {
	limits := cgroupLimits(os.DirFS("/"))
	if len(limits) == 0 {
		return 0
	}
	return slices.Min(limits)
}

func memAvailable(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); n == 1 {
			return kib * 1024
		}
	}
	return 0
}

// cgroupLimits are the limits of the groups that the process is in, those of
// their parents included. Lines of proc/self/cgroup are id:controllers:path.
func cgroupLimits(root fs.FS) []int64 {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	var limits []int64
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.SplitN(lines.Text(), ":", 3)
		switch {
		case len(f) < 3:
		case f[1] == "": // version 2
			limits = append(limits, limitsUpward(root, "sys/fs/cgroup", f[2], "memory.max")...)
		case strings.Contains(","+f[1]+",", ",memory,"):
			limits = append(limits, limitsUpward(root, "sys/fs/cgroup/memory", f[2], "memory.limit_in_bytes")...)
		}
	}
	return limits
}

// limitsUpward reads the limit of a group and of those that it is in. Within a
// container the outer ones may be out of sight, and the group at the mount.
func limitsUpward(root fs.FS, mount, group, file string) []int64 {
	var limits []int64
	for dir := path.Clean("/" + group); ; dir = path.Dir(dir) {
		if text, err := fs.ReadFile(root, path.Join(mount, dir, file)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // not "max"
				limits = append(limits, n)
			}
		}
		if dir == "/" {
			return limits
		}
	}
}

package runtime

import (
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestAvailableMemory(t *testing.T) {
	const meminfo = "MemTotal:       2048 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\nBuffers: 5 kB\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"nothing is known", nil, 0},
		{"no groups", map[string]string{"proc/meminfo": meminfo}, 1000 * 1024},
		{"no such line", map[string]string{"proc/meminfo": "MemTotal: 2048 kB\n"}, 0},
		{"version 2", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "5000\n",
		}, 5000},
		{"version 2, no limit", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "max\n",
		}, 1000 * 1024},
		{"version 2, limit of the parent", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/memory.max": "4000\n",
		}, 4000},
		{"version 2, limit above what is available", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n",
			"sys/fs/cgroup/a/memory.max": "99999999999\n",
		}, 1000 * 1024},
		{"version 1", map[string]string{
			"proc/meminfo":     meminfo,
			"proc/self/cgroup": "9:cpu,cpuacct:/c\n4:memory:/a\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "7000\n",
			"sys/fs/cgroup/memory/c/memory.limit_in_bytes": "1\n",
		}, 7000},
		{"version 1, container", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/docker/1234\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "6000\n",
		}, 6000},
		{"only a group", map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "5000\n",
		}, 5000},
		{"odd lines", map[string]string{
			"proc/meminfo": meminfo, "proc/self/cgroup": "nothing\n0::../../x\n4:memory\n",
			"sys/fs/cgroup/x/memory.max": "many\n",
		}, 1000 * 1024},
	} {
		root := fstest.MapFS{}
		for name, text := range c.files {
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
		require.Equal(t, c.want, availableMemory(root), c.name)
	}
	if _, err := os.Stat("/proc/meminfo"); err == nil {
		require.Positive(t, availableMemory(os.DirFS("/")))
	}
}

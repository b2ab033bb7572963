package cmd_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bug is a fault that a test must find.
type bug struct{ name, file, pkg, test, old, new string }

// readBugs reads testdata/bugs/bugs.txt.
func readBugs(t *testing.T) []bug {
	text, err := os.ReadFile("../testdata/bugs/bugs.txt")
	require.NoError(t, err)
	var bugs []bug
	for _, part := range strings.Split(string(text), "\n== ")[1:] {
		lines := strings.Split(strings.TrimSpace(part), "\n")
		require.Len(t, lines, 4, part)
		at := strings.Fields(lines[1])
		require.Len(t, at, 3, part)
		require.True(t, strings.HasPrefix(lines[2], "- ") && strings.HasPrefix(lines[3], "+ "), part)
		bugs = append(bugs, bug{lines[0], at[0], at[1], at[2], lines[2][2:], lines[3][2:]})
	}
	return bugs
}

// Every bug can be planted: what it replaces is there once. So the list does not
// fall behind the code.
func TestBugsCanBePlanted(t *testing.T) {
	t.Parallel()
	bugs := readBugs(t)
	require.GreaterOrEqual(t, len(bugs), 30)
	for _, b := range bugs {
		src, err := os.ReadFile(filepath.Join("..", b.file))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(src), b.old), "%s: %q in %s", b.name, b.old, b.file)
	}
}

// Each bug, planted in a copy, fails the test it names. It takes minutes, so it
// only runs if QUILL_BUGS is set.
func TestPlantedBugsAreFound(t *testing.T) {
	if os.Getenv("QUILL_BUGS") == "" {
		t.Skip("QUILL_BUGS is not set")
	}
	dir := t.TempDir()
	files, err := exec.Command("git", "-C", "..", "ls-files", "-z").Output()
	require.NoError(t, err)
	for _, name := range strings.Split(strings.TrimRight(string(files), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o755))
	}
	for _, b := range readBugs(t) {
		t.Run(b.name, func(t *testing.T) {
			path := filepath.Join(dir, b.file)
			src, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(src), b.old, b.new, 1)), 0o755))
			defer func() { require.NoError(t, os.WriteFile(path, src, 0o755)) }()
			cmd := exec.Command("go", "test", "-timeout", "5m", "-run", b.test, b.pkg)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "no test found it")
			require.Contains(t, string(out), "--- FAIL", "%s", out)
			require.NotContains(t, string(out), "[build failed]")
			fmt.Fprintf(os.Stderr, "found: %s\n", b.name)
		})
	}
}

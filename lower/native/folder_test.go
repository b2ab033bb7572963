//go:build unix

package native

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// waitInFolder is a program with a folder, whose path it prints.
func waitInFolder() {
	f, err := newFolder()
	if err == nil {
		err = os.MkdirAll(filepath.Join(f.path, "worker-0", "logs"), 0o777)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(f.path)
	select {}
}

// programInFolder starts one.
func programInFolder(t *testing.T) (path string, kill func()) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), openVariable+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill = sync.OnceFunc(func() {
		require.NoError(t, cmd.Process.Kill())
		require.ErrorContains(t, cmd.Wait(), "killed")
	})
	t.Cleanup(kill)
	path, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(path), kill
}

// What programs left that were killed is removed, all else is left: folders of programs that
// live, and what is not theirs.
func TestFoldersOfKilledPrograms(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	foreign := filepath.Join(tmp, "quill-native-foreign", "file")
	require.NoError(t, os.MkdirAll(foreign, 0o777))
	file := filepath.Join(tmp, "quill-native-file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	other := filepath.Join(tmp, "other", ownerFile)
	require.NoError(t, os.MkdirAll(filepath.Dir(other), 0o777))
	require.NoError(t, os.WriteFile(other, nil, 0o666))
	empty := filepath.Join(tmp, "quill-native-empty")
	require.NoError(t, os.Mkdir(empty, 0o777))

	killed, kill := programInFolder(t)
	require.Equal(t, tmp, filepath.Dir(killed))
	living, end := programInFolder(t)
	kill()
	require.DirExists(t, filepath.Join(killed, "worker-0", "logs"))
	f, err := newFolder()
	require.NoError(t, err)
	defer f.close()
	require.NoDirExists(t, killed)
	require.NoDirExists(t, empty)
	require.DirExists(t, filepath.Join(living, "worker-0", "logs"))
	require.DirExists(t, foreign)
	require.FileExists(t, file)
	require.FileExists(t, other)

	end()
	removeStale()
	require.NoDirExists(t, living)
	require.DirExists(t, f.path, "this program lives")
}

// Programs that begin at once take no folder from each other.
func TestFoldersAtOnce(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				f, err := newFolder()
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.Mkdir(filepath.Join(f.path, "worker-0"), 0o777); err != nil {
					t.Error(err)
				}
				f.close()
			}
		})
	}
	group.Wait()
	left, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, left)
}

// A compiler leaves nothing.
func TestNothingIsLeft(t *testing.T) {
	b := newBench(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	_, err := b.compile(someBundle("good-0", "rejected-1"))
	require.Error(t, err)
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

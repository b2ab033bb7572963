//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// elsewhere are the commands of the README that a test cannot run: those that take
// gigabytes, or the vendor's files. What cards do the CPU can, too.
var (
	elsewhere = regexp.MustCompile(`out/ckpt|out/shard|/usr/include/|--native|gaudi2\.json|doctor|\.qir --passes|bisect FILE|opt FILE|recipe FILE`)
	onCards   = regexp.MustCompile(` --device hpu --ranks \d+`)
	codes     = regexp.MustCompile(`# exit code (\d)`)
)

// The commands of the README do what it says, in its order, with the deployment that it
// has written.
func TestReadmeCommands(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	dir := t.TempDir()
	testdata, err := filepath.Abs("../../testdata")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(testdata, filepath.Join(dir, "testdata")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "bin"), 0o777))
	// The test's program is the command where it is called so.
	quill, err := exec.LookPath("quill")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(quill, filepath.Join(dir, "bin", "quill")))
	deployment := regexp.MustCompile("(?s)```yaml\n# chat\\.yaml\n(.*?)```").FindSubmatch(readme)
	require.NotNil(t, deployment)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat.yaml"), deployment[1], 0o666))

	ran := 0
	// A command is a line of four spaces; the lines behind a backslash belong to it.
	for _, m := range regexp.MustCompile(`(?m)^    ((?:bin/quill|python3) (?:.*\\\n)*.*)$`).FindAllStringSubmatch(string(readme), -1) {
		line := onCards.ReplaceAllString(m[1], "")
		if elsewhere.MatchString(line) {
			continue
		}
		want := "0"
		if code := codes.FindStringSubmatch(line); code != nil {
			want = code[1]
		}
		if program, _, _ := strings.Cut(line, " "); program == "python3" || strings.Contains(line, "mask.safetensors") || strings.Contains(line, "| jq") {
			continue // programs that a machine need not have
		}
		cmd := exec.Command("sh", "-c", line+"\necho code $? >code")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.NoError(t, err)
		code, err := os.ReadFile(filepath.Join(dir, "code"))
		require.NoError(t, err)
		require.Equal(t, "code "+want+"\n", string(code), "%s\n%s", line, out)
		ran++
	}
	require.Greater(t, ran, 14)
}

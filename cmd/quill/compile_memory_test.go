package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// peakOf is the most memory that a compile had, as its --json says; 0 without one.
func peakOf(t testing.TB, out []byte) int64 {
	t.Helper()
	var m made
	if len(out) > 0 {
		require.NoError(t, json.Unmarshal(out, &m))
	}
	return m.PeakBytes
}

// A compile keeps to the memory that it is given, gives the same bundle, and says what it
// holds where that is too much.
func TestCompileKeepsToItsMemory(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	deployment := writeDeployment(t, "configs/inkling-small", "model: MODEL\ntensor_parallel: 8\nmax_model_len: 8192\nmax_num_seqs: 2\nmax_batched_tokens: 1024\n")
	dir := t.TempDir()
	compile := func(name string, more ...string) (peak int64, text string, err error) {
		args := append([]string{"compile", deployment, "-o", filepath.Join(dir, name), "--no-cache", "--jobs", "4", "--json"}, more...)
		cmd := exec.CommandContext(t.Context(), "quill", args...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		return peakOf(t, out), stderr.String(), err
	}
	free, text, err := compile("free")
	require.NoError(t, err, text)
	bound, text, err := compile("bound", "--memory", "96MiB")
	require.NoError(t, err, text)
	require.Equal(t, sum(t, filepath.Join(dir, "free")), sum(t, filepath.Join(dir, "bound")))
	t.Logf("%d MiB without a bound, %d MiB with one of 96", free/mib, bound/mib)
	if free > 0 { // the system says
		require.Greater(t, free, int64(120*mib), "the bound would not be felt")
		require.LessOrEqual(t, bound, int64(112*mib))
	}
	_, text, err = compile("little", "--memory", "16MiB")
	require.Error(t, err)
	require.Regexp(t, `bucket \S+: compiling holds [\d.]+ MiB with one bucket in work, the model's graphs and the results of \d+ buckets included, of 14\.0 MiB that objects may have: allow more memory`, text)
	require.NoFileExists(t, filepath.Join(dir, "little"))
	_, text, err = compile("none", "--memory", "much")
	require.Error(t, err)
	require.Contains(t, text, `--memory "much": want a number from 1`)
}

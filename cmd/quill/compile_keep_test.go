package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// keptDeployment has enough buckets to be killed among.
const keptDeployment = "model: MODEL\ntensor_parallel: 2\nmax_model_len: 256\nmax_num_seqs: 4\nblock_size: 16\nmax_batched_tokens: 64\n"

// quillCompile is a process that compiles with a store.
func quillCompile(t testing.TB, cache, deployment, out string, more ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "quill", append([]string{"compile", deployment, "-o", out, "--cache", cache}, more...)...)
	return cmd
}

// sum is the hash of a file.
func sum(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

// noTemporaries checks that a store has no file that somebody was writing.
func noTemporaries(t *testing.T, cache string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Base(filepath.Dir(path)) == "tmp" && filepath.Dir(filepath.Dir(path)) == filepath.Join(cache, "v1") {
			return fmt.Errorf("%s is left", path)
		}
		return err
	}))
}

// A compile that is killed at any moment leaves a store with which the next one goes on:
// what it had compiled is not compiled again, and the bundle is the same. QUILL_SOAK has
// fifty moments.
func TestKilledCompilesGoOn(t *testing.T) {
	t.Parallel()
	deployment, dir := writeDeployment(t, "nano-small", keptDeployment), t.TempDir()
	want := filepath.Join(dir, "want.quill")
	start := time.Now()
	require.NoError(t, quillCompile(t, filepath.Join(dir, "whole"), deployment, want).Run())
	whole := time.Since(start)
	kills := 3
	if os.Getenv("QUILL_SOAK") != "" {
		kills = 50
	}
	rng := rand.New(rand.NewPCG(3, 7))
	cache, out := filepath.Join(dir, "killed"), filepath.Join(dir, "out.quill")
	for i := range kills {
		cmd := quillCompile(t, cache, deployment, out)
		require.NoError(t, cmd.Start())
		time.Sleep(time.Duration(rng.Int64N(int64(whole))))
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		_, err := os.Stat(out)
		if err == nil {
			require.Equal(t, sum(t, want), sum(t, out), "kill %d", i)
			require.NoError(t, os.Remove(out))
		}
		if i%5 == 4 {
			require.NoError(t, os.RemoveAll(cache)) // the first buckets again
		}
	}
	events, err := quillCompile(t, cache, deployment, out, "--events", "json").CombinedOutput()
	require.NoError(t, err, "%s", events)
	require.Equal(t, sum(t, want), sum(t, out))
	again, err := quillCompile(t, cache, deployment, out, "--json").Output()
	require.NoError(t, err)
	require.Contains(t, string(again), `"kept":45`)
	require.Equal(t, sum(t, want), sum(t, out))
	noTemporaries(t, cache)
}

// Processes that compile the same at the same time with one store all succeed with the
// same bundle. QUILL_SOAK has eight of them twenty times.
func TestProcessesShareAStore(t *testing.T) {
	t.Parallel()
	deployment, dir := writeDeployment(t, "nano-dense", strings.Replace(keptDeployment, "tensor_parallel: 2", "tensor_parallel: 1", 1)), t.TempDir()
	want := filepath.Join(dir, "want.quill")
	require.NoError(t, exec.CommandContext(t.Context(), "quill", "compile", deployment, "-o", want, "--no-cache", "--jobs", "1").Run())
	rounds, processes := 1, 3
	if os.Getenv("QUILL_SOAK") != "" {
		rounds, processes = 20, 8
	}
	for round := range rounds {
		cache := filepath.Join(dir, fmt.Sprint("store", round))
		var group sync.WaitGroup
		failed := make([]error, processes)
		for i := range processes {
			group.Go(func() {
				text, err := quillCompile(t, cache, deployment, filepath.Join(dir, fmt.Sprint("out", i)), "--jobs", fmt.Sprint(1+i%3)).CombinedOutput()
				if err != nil {
					failed[i] = fmt.Errorf("%w: %s", err, text)
				}
			})
		}
		group.Wait()
		for i := range processes {
			require.NoError(t, failed[i])
			require.Equal(t, sum(t, want), sum(t, filepath.Join(dir, fmt.Sprint("out", i))))
		}
		noTemporaries(t, cache)
	}
}

// shuffledBuckets is a list of buckets that covers keptDeployment, its lines and the sizes
// on a line in an order of its own.
func shuffledBuckets(rng *rand.Rand) string {
	sizes := func(name string, values ...int) string {
		rng.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
		return name + "=" + strings.ReplaceAll(strings.Trim(fmt.Sprint(values), "[]"), " ", ",")
	}
	lines := []string{
		"prefill " + sizes("q", 16, 64) + " " + sizes("c", 0, 4, 16),
		"prefill " + sizes("c", 2, 4) + " " + sizes("q", 32),
		"decode " + sizes("b", 1) + " " + sizes("n", 1, 16),
		"decode " + sizes("b", 4, 2) + " " + sizes("n", 8, 32),
		"decode " + sizes("n", 64) + " " + sizes("b", 4),
	}
	rng.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	return strings.Join(lines, "\n") + "\n"
}

// Wherever, however parallel and under whatever surroundings it is compiled, with a store
// or without, and in whatever order its buckets are listed, a bundle has the same bytes.
func TestBundleBytesDependOnInputsAlone(t *testing.T) {
	t.Parallel()
	dir, rng := t.TempDir(), rand.New(rand.NewPCG(5, 11))
	text := strings.Replace(keptDeployment, "tensor_parallel: 2", "tensor_parallel: 1", 1) + "buckets: {strategy: file, path: list.txt}\n"
	kept, lists := map[string]bool{}, map[string]bool{}
	var want string
	for i := range 10 {
		deployment := writeDeployment(t, "nano-dense", text)
		list := shuffledBuckets(rng)
		lists[list] = true
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(deployment), "list.txt"), []byte(list), 0o644))
		out := filepath.Join(dir, fmt.Sprint("out", i))
		cmd := exec.CommandContext(t.Context(), "sh", "-c", []string{"umask 022", "umask 077"}[i/2%2]+`; exec quill "$@"`, "quill",
			"compile", deployment, "-o", out, "--jobs", fmt.Sprint(1+i%4), "--json")
		if i == 9 {
			cmd.Args = append(cmd.Args, "--no-cache")
		} else {
			cmd.Args = append(cmd.Args, "--cache", filepath.Join(dir, fmt.Sprint("cache", i/3))) // one cold, two warm
		}
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "TZ="+[]string{"UTC", "Asia/Tokyo"}[i%2], fmt.Sprint("GOMAXPROCS=", 1+i%2), "LC_ALL="+[]string{"C", "C.UTF-8"}[i/2%2])
		var errors bytes.Buffer
		cmd.Stderr = &errors
		said, err := cmd.Output()
		require.NoError(t, err, "%s", &errors)
		kept[regexp.MustCompile(`"kept":\d+`).FindString(string(said))] = true
		if got := sum(t, out); want == "" {
			want = got
		} else {
			require.Equal(t, want, got, "compile %d", i)
		}
	}
	require.Equal(t, map[string]bool{`"kept":0`: true, `"kept":18`: true}, kept, "cold and warm stores")
	require.Greater(t, len(lists), 5)
}

// BenchmarkCompile reports what compiling a whole deployment takes, with an empty store
// and with one that has everything: time, the largest memory of the process, the bundle.
func BenchmarkCompile(b *testing.B) {
	const published = "tensor_parallel: RANKS\nmax_model_len: 262144\nmax_num_seqs: 16\nblock_size: 128\nkv_blocks: 2560\nmax_batched_tokens: 8192\n"
	const nano = "tensor_parallel: 1\nmax_model_len: 256\nmax_num_seqs: 4\nblock_size: 16\nmax_batched_tokens: 64\nprecision: both\n"
	for _, c := range []struct{ model, text string }{
		{"configs/inkling-small", strings.Replace(published, "RANKS", "8", 1)},
		{"configs/inkling", strings.Replace(published, "RANKS", "32", 1)},
		{"nano-small", nano},
		{"nano-big", nano},
		{"nano-dense", nano},
		{"nano-chat", nano},
	} {
		for _, state := range []string{"cold", "warm"} {
			b.Run(c.model+"/"+state, func(b *testing.B) {
				deployment, dir := writeDeployment(b, c.model, "model: MODEL\n"+c.text), b.TempDir()
				out := filepath.Join(dir, "out.quill")
				compile := func(cache string) (peak int64) {
					said, err := quillCompile(b, filepath.Join(dir, cache), deployment, out, "--json").Output()
					require.NoError(b, err)
					return peakOf(b, said)
				}
				if state == "warm" {
					compile("cache")
				}
				runs := 0
				var peak int64
				for b.Loop() {
					cache := "cache"
					if state == "cold" {
						cache += fmt.Sprint(runs)
					}
					runs++
					peak = max(peak, compile(cache))
				}
				info, err := os.Stat(out)
				require.NoError(b, err)
				b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
				b.ReportMetric(float64(info.Size())/(1<<20), "bundle-MiB")
			})
		}
	}
}

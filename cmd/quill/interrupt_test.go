package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"quill/lower"
	"quill/recipes"
)

// largeDeployment takes long enough to compile to be interrupted.
const largeDeployment = `
model: MODEL
tensor_parallel: 8
max_model_len: 131072
max_num_seqs: 64
max_batched_tokens: 8192
precision: both
`

// writeDeployment writes a deployment of one of the models of the repository.
func writeDeployment(t testing.TB, model, text string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("../../testdata", model))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "d.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "MODEL", dir)), 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestInterruptedCompileLeavesNothing(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("processes cannot be sent an interrupt")
	}
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			// Of a signal that these tests were told to ignore, as by nohup, a compile
			// would be told too; of one that they catch it is not.
			caught := make(chan os.Signal, 1)
			signal.Notify(caught, s)
			defer signal.Stop(caught)
			interruptedCompile(t, s)
		})
	}
}

func interruptedCompile(t *testing.T, s os.Signal) {
	deployment, dir := writeDeployment(t, "configs/inkling-small", largeDeployment), t.TempDir()
	cmd := exec.CommandContext(t.Context(), "quill", "compile", deployment, "-o", filepath.Join(dir, "x.quill"))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for in := bufio.NewScanner(stderr); in.Scan(); {
		text.WriteString(in.Text() + "\n")
		if strings.HasPrefix(in.Text(), "quill: compiling: ") {
			if err := cmd.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	exit, ok := errors.AsType[*exec.ExitError](cmd.Wait())
	if !ok || exit.ExitCode() != exitInterrupted {
		t.Fatalf("%v, want exit code %d\n%s", exit, exitInterrupted, &text)
	}
	if !strings.HasSuffix(text.String(), "\nquill: interrupted\n") {
		t.Errorf("standard error:\n%s", &text)
	}
	assertEmpty(t, dir)
}

// Whoever reads results may have enough of them. That is the end, without a word, and
// not a sudden one.
func TestUnreadResults(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("it has no such pipes")
	}
	t.Parallel()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out.Close()
	defer in.Close()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), "quill", "passes")
	cmd.Stdout, cmd.Stderr = in, &stderr
	exit, ok := errors.AsType[*exec.ExitError](cmd.Run())
	if !ok || exit.ExitCode() != exitUnread || stderr.Len() > 0 {
		t.Errorf("%v, want exit code %d\n%s", exit, exitUnread, &stderr)
	}
}

// An interrupt may come at any moment of the writing.
func TestInterruptedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	d, err := lower.ReadDeployment(writeDeployment(t, "nano-small", "model: MODEL\nmax_model_len: 256\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := lower.Compile(t.Context(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for after := time.Duration(0); after < 200*time.Millisecond; after = 2*after + time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		err := recipes.WriteBundle(ctx, filepath.Join(dir, "x.quill"), b)
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("after %v: %v", after, err)
		}
		assertEmpty(t, dir)
	}
}

func assertEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left in the directory", e.Name())
	}
}

func TestCancelledCommandsExit130(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	deployment := writeDeployment(t, "nano-dense", "model: MODEL\nmax_model_len: 64\nprecision: f32\n")
	bundle := filepath.Join(t.TempDir(), "x.quill")
	run(t, exitOK, t.Context(), "compile", deployment, "-o", bundle)
	model := "../../testdata/nano-dense"
	run(t, exitInterrupted, ctx, "compile", deployment, "-o", filepath.Join(dir, "x.quill"))
	run(t, exitInterrupted, ctx, "run", bundle, "--model", model, "--tokens", "1,2,3")
	run(t, exitInterrupted, ctx, "score", bundle, "--model", model,
		"--tokens-from", model+"/expected.safetensors:seq5.tokens", "--out", filepath.Join(dir, "l.safetensors"))
	assertEmpty(t, dir)
}

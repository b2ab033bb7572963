package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vbauerster/mpb/v8"

	"quill/runtime"
)

// run executes a command line in this process and returns its output.
func run(t *testing.T, want int, ctx context.Context, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if got := execute(ctx, args, &stdout, &stderr); got != want {
		t.Fatalf("quill %s: exit code %d, want %d\n%s", strings.Join(args, " "), got, want, &stderr)
	}
	return stdout.String()
}

// Whatever is done to a bundle, reading it is an error or harmless.
func TestDamagedBundles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	deployment := writeDeployment(t, "nano-dense", "model: MODEL\nmax_model_len: 16\nmax_num_seqs: 1\nblock_size: 16\n")
	path := filepath.Join(dir, "x.quill")
	run(t, exitOK, t.Context(), "compile", deployment, "-o", path)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	check := func(b []byte, allowed ...int) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o666); err != nil {
			t.Fatal(err)
		}
		code := execute(t.Context(), []string{"inspect", path}, io.Discard, io.Discard)
		for _, a := range allowed {
			if code == a {
				return
			}
		}
		t.Errorf("exit code %d, want one of %v", code, allowed)
	}
	for _, n := range []int{0, 1, 4, 30, len(whole) / 2, len(whole) - 1} {
		check(whole[:n], exitError)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		b := bytes.Clone(whole)
		b[rng.IntN(len(b))] ^= byte(1 + rng.IntN(255))
		check(b, exitOK, exitError)
	}
}

// full is a file on a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A command whose result cannot be written has failed.
func TestOutputThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	bundle := filepath.Join(t.TempDir(), "x.quill")
	deployment := writeDeployment(t, "nano-dense", "model: MODEL\nmax_model_len: 64\nprecision: f32\n")
	model := "../../testdata/nano-dense"
	for _, args := range [][]string{
		{"compile", deployment, "-o", bundle},
		{"inspect", bundle},
		{"inspect", bundle, "--json"},
		{"check", bundle},
		{"check", bundle, "--json"},
		{"version"},
		{"version", "--json"},
		{"run", bundle, "--model", model, "--tokens", "1,2"},
		{"run", bundle, "--model", model, "--tokens", "1,2", "--json"},
	} {
		var stderr bytes.Buffer
		if code := execute(t.Context(), args, full{}, &stderr); code != exitError || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("quill %s: exit code %d\n%s", strings.Join(args, " "), code, &stderr)
		}
	}
}

func TestSplitTensor(t *testing.T) {
	for _, c := range []struct{ from, path, name string }{
		{"a.safetensors:t", "a.safetensors", "t"},
		{"a.safetensors:b:c", "a.safetensors", "b:c"},
		{"C:/x/a.safetensors:t", "C:/x/a.safetensors", "t"},
		{"dir:1/file:t", "dir:1/file", "t"},
	} {
		if path, name, err := splitTensor("--tokens-from", c.from); path != c.path || name != c.name || err != nil {
			t.Errorf("%s: %q, %q, %v", c.from, path, name, err)
		}
	}
	for _, from := range []string{"", ":", "a", "a:", ":t", "a.safetensors", "a.safetensors:"} {
		if _, _, err := splitTensor("--tokens-from", from); err == nil {
			t.Errorf("%q is no error", from)
		}
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1 << 20: "1.0 MiB", 1 << 30: "1.0 GiB", 1 << 40: "1.0 TiB", 1 << 60: "1024.0 PiB",
	} {
		if got := size(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// The bar is drawn by a goroutine of its own while others update it: nothing
// may wait for the other. Closing ends a bar that is not full.
func TestMeterBar(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	m := newMeter(&out, "working", size)
	m.bars = mpb.New(mpb.WithOutput(&out), mpb.WithAutoRefresh(), mpb.WithRefreshRate(time.Millisecond))
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		m.update(1, 1000, "step")
	}
	m.close()
	if !strings.Contains(out.String(), "working ") {
		t.Errorf("no bar was drawn: %q", out.String())
	}
}

// Where nothing can be redrawn there are lines, now and then.
func TestMeterLines(t *testing.T) {
	var out bytes.Buffer
	m := newMeter(&out, "working", size)
	m.update(1, 10, "fast")
	if out.Len() > 0 {
		t.Errorf("a line at once: %q", &out)
	}
	m.next = time.Now()
	m.update(2, 10, "slow")
	m.update(3, 10, "soon after")
	m.close()
	if want := "quill: working: 2 B of 10 B, slow\n"; out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
}

// A session that the machine cannot hold is refused; the system would end the
// program. Mapped weights take no memory of that kind.
func TestSessionBeyondMemory(t *testing.T) {
	if memory() == 0 {
		t.Skip("the system does not say how much memory there is")
	}
	const much = 1 << 48
	for _, c := range []struct {
		m    runtime.Memory
		want []string // parts of the error
		not  string
	}{
		{m: runtime.Memory{Mapped: much}},
		{m: runtime.Memory{Buffers: much}, want: []string{"256.0 TiB of memory, this machine has "}, not: "quill pack"},
		{m: runtime.Memory{Copied: much}, want: []string{"256.0 TiB of memory, this machine has ", "256.0 TiB weights, which take none after quill pack"}},
	} {
		err := admit(c.m)
		if (err != nil) != (c.want != nil) {
			t.Errorf("%+v: %v", c.m, err)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%+v: %v, want %q", c.m, err, part)
			}
		}
		if c.not != "" && strings.Contains(err.Error(), c.not) {
			t.Errorf("%+v: %v", c.m, err)
		}
	}
}

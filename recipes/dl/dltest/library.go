package dltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"quill/recipes/dl"
)

// Fake is a library that writes down its calls (recipes/dl/testdata/fake.c).
type Fake struct {
	*dl.Library
	Path string

	ctl control
}

type control struct {
	Trace func() string                             `sym:"fake_trace"`
	Quiet func(on bool)                             `sym:"fake_quiet"`
	Fail  func(call string, with int32, say string) `sym:"fake_fail"`
}

// Need skips a test that is for make test-abi, where nothing else runs it. There a C
// compiler must be.
func Need(t testing.TB) {
	t.Helper()
	if os.Getenv("QUILL_ABI") == "" {
		t.Skip("make test-abi runs it: it needs a C compiler")
	}
}

// Simulated is the path of the library that simulates cards, which make test-abi has
// built. Without that the test is skipped.
func Simulated(t testing.TB) string {
	t.Helper()
	Need(t)
	path := os.Getenv("QUILL_ABI_LIB")
	if path == "" {
		t.Fatal("QUILL_ABI_LIB is not set to the library that simulates cards: make test-abi builds it, and sets what tests need")
	}
	return path
}

// New compiles and loads a library of its own for the test, with flags of the C
// compiler, for make test-abi (see Need).
func New(t testing.TB, flags ...string) *Fake {
	t.Helper()
	Need(t)
	_, file, _, _ := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(file), "..", "testdata", "fake.c")
	f := &Fake{Path: filepath.Join(t.TempDir(), "libfake.so")}
	args := append([]string{"-std=c11", "-O2", "-Wall", "-Werror", "-Wno-unused-value", "-shared", "-fPIC", "-o", f.Path, source}, flags...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v; these tests need a C compiler\n%s", err, out)
	}
	lib, err := dl.Open(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	f.Library = lib
	if err := lib.Bind(&f.ctl); err != nil {
		t.Fatal(err)
	}
	return f
}

// Trace is what was called since the last Trace, a line a call.
func (f *Fake) Trace() string { return f.ctl.Trace() }

// Quiet stops the writing down, to measure.
func (f *Fake) Quiet(on bool) { f.ctl.Quiet(on) }

// Fail makes calls of one function return that, with a text for those who ask.
func (f *Fake) Fail(call string, with int32, say string) { f.ctl.Fail(call, with, say) }

// Line is a line of a trace.
func Line(call string, args ...any) string {
	s := call
	for _, a := range args {
		switch v := a.(type) {
		case string:
			s += " " + v
		default:
			s += fmt.Sprintf(" %d", v)
		}
	}
	return s + "\n"
}

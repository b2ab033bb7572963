package filetest

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// T is what the runner needs of [testing.T]. It is an interface so that the
// runner's own failures can be tested.
type T interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Run(name string, f func(T)) bool
}

// std makes a T of a testing.T, whose Run takes a function of another type.
type std struct{ *testing.T }

func (s std) Run(name string, f func(T)) bool {
	return s.T.Run(name, func(t *testing.T) { f(std{t}) })
}

// Extension ends the names of test files.
const Extension = ".qir"

// RunDir runs every test file in a directory and those below it, each as a
// subtest with a subtest for each case. A directory without test files fails.
func (r *Runner) RunDir(t *testing.T, dir string) {
	t.Helper()
	r.runDir(std{t}, dir)
}

// RunFile runs a test file with a subtest for each case.
func (r *Runner) RunFile(t *testing.T, path string) {
	t.Helper()
	r.runFile(std{t}, path)
}

func (r *Runner) runDir(t T, dir string) {
	t.Helper()
	paths, err := testFiles(dir)
	if err != nil {
		t.Fatalf("%v", err)
		return
	}
	if len(paths) == 0 {
		t.Fatalf("%s: there are no %s files", dir, Extension)
		return
	}
	for _, path := range paths {
		name, err := filepath.Rel(dir, path)
		if err != nil {
			name = path
		}
		t.Run(filepath.ToSlash(name), func(t T) { r.runFile(t, path) })
	}
}

// testFiles lists the test files below a directory in lexical order.
func testFiles(dir string) ([]string, error) {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Ext(path) == Extension {
			paths = append(paths, path)
		}
		return err
	})
	return paths, err
}

func (r *Runner) runFile(t T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v", err)
		return
	}
	f, err := Parse(path, string(text))
	if err != nil {
		t.Fatalf("%v", err)
		return
	}
	bless := os.Getenv(BlessVariable) == "1"
	var blessings []blessing
	for _, c := range f.Cases {
		t.Run(c.Name, func(t T) {
			t.Helper()
			e := r.evaluate(t.Context(), c, bless)
			if e.blessed != nil {
				blessings = append(blessings, blessing{block: c.Output, lines: e.blessed})
			}
			for _, failure := range e.failures {
				t.Errorf("%s", failure)
			}
		})
	}
	saveBlessings(t, f, blessings)
}

func saveBlessings(t T, f *File, blessings []blessing) {
	t.Helper()
	if len(blessings) == 0 {
		return
	}
	changed, err := f.save(blessings)
	if err != nil {
		t.Errorf("%v", err)
	} else if changed {
		t.Logf("%s: rewrote OUTPUT", f.Path)
	}
}

package filetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recorder is a T that writes down what happens to it.
type recorder struct {
	name   string
	events *[]string
	failed bool
}

func newRecorder() *recorder { return &recorder{events: new([]string)} }

func (r *recorder) note(kind, format string, args ...any) {
	*r.events = append(*r.events, fmt.Sprintf("%s %s: ", kind, r.name)+fmt.Sprintf(format, args...))
}

func (r *recorder) Helper()                         {}
func (r *recorder) Context() context.Context        { return context.Background() }
func (r *recorder) Logf(format string, args ...any) { r.note("log", format, args...) }
func (r *recorder) Errorf(format string, args ...any) {
	r.note("error", format, args...)
	r.failed = true
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.note("fatal", format, args...)
	r.failed = true
}

func (r *recorder) Run(name string, f func(T)) bool {
	sub := &recorder{name: strings.TrimPrefix(r.name+"/"+name, "/"), events: r.events}
	f(sub)
	r.failed = r.failed || sub.failed
	if !sub.failed {
		sub.note("ok", "")
	}
	return !sub.failed
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o640))
	return path
}

func TestRunDir(t *testing.T) {
	t.Setenv(BlessVariable, "")
	dir := t.TempDir()
	write(t, dir, "b.qir", "; Good.\nx\n; -----\nbad y\n")
	write(t, dir, "a/c.qir", "x\n")
	broken := write(t, dir, "d.qir", "")
	write(t, dir, "other.txt", "bad")

	rec := newRecorder()
	toyRunner().runDir(rec, dir)
	assert.True(t, rec.failed)
	events := *rec.events
	require.Len(t, events, 5)
	assert.Equal(t, "ok a/c.qir/01: ", events[0])
	assert.Equal(t, "ok a/c.qir: ", events[1])
	assert.Equal(t, "ok b.qir/01_Good.: ", events[2])
	assert.Contains(t, events[3], "error b.qir/02: "+filepath.Join(dir, "b.qir")+":4:1: unexpected error: bad y")
	assert.Contains(t, events[4], "fatal d.qir: "+broken+":1:1: the file holds no case")
	// b.qir failed as a whole, and so did d.qir.
	assert.NotContains(t, strings.Join(events, "\n"), "ok b.qir: ")
	assert.NotContains(t, strings.Join(events, "\n"), "ok d.qir: ")
}

func TestRunDirWithoutFiles(t *testing.T) {
	dir := t.TempDir()
	rec := newRecorder()
	toyRunner().runDir(rec, dir)
	assert.Equal(t, []string{"fatal : " + dir + ": there are no .qir files"}, *rec.events)

	rec = newRecorder()
	toyRunner().runDir(rec, filepath.Join(dir, "missing"))
	assert.True(t, rec.failed)
}

func TestRunFileMissing(t *testing.T) {
	rec := newRecorder()
	toyRunner().runFile(rec, filepath.Join(t.TempDir(), "a.qir"))
	assert.True(t, rec.failed)
}

func TestRunWithTesting(t *testing.T) {
	t.Setenv(BlessVariable, "")
	dir := t.TempDir()
	path := write(t, dir, "a.qir", "; RUN: print\nx\n; CHECK: x\n; -----\n; RUN: same\ny\n; run: 1 == 1\n")
	toyRunner().RunDir(t, dir)
	toyRunner().RunFile(t, path)
}

const unblessed = `; RUN: print

	a
b  ; comment
; OUTPUT:
;| old
;| lines
;| gone
; CHECK: a
; -----
c
  ; OUTPUT:
; prose stays
; -----
; RUN: say 'x' '' ' y'
d
; OUTPUT:
;| x
;|
;|  y
; -----
; RUN: same
e
`

const blessed = `; RUN: print

	a
b  ; comment
; OUTPUT:
;| a
;| b
; CHECK: a
; -----
c
  ; OUTPUT:
  ;| c
; prose stays
; -----
; RUN: say 'x' '' ' y'
d
; OUTPUT:
;| x
;|
;|  y
; -----
; RUN: same
e
`

func TestOutputMismatch(t *testing.T) {
	t.Setenv(BlessVariable, "")
	path := write(t, t.TempDir(), "a.qir", unblessed)
	rec := newRecorder()
	toyRunner().runFile(rec, path)
	assert.True(t, rec.failed)
	require.Len(t, *rec.events, 4)
	first := (*rec.events)[0]
	assert.Contains(t, first, ":5: the output differs\ndiff OUTPUT print\n")
	assert.Contains(t, first, "-old\n-lines\n-gone\n+a\n+b\n")
	assert.Contains(t, first, "set QUILL_BLESS=1 to rewrite the block")
	assert.Contains(t, (*rec.events)[1], ":12: the output differs")
	assertFile(t, path, unblessed)
}

func assertFile(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, want, string(got))
}

func TestBless(t *testing.T) {
	t.Setenv(BlessVariable, "1")
	path := write(t, t.TempDir(), "a.qir", unblessed)
	rec := newRecorder()
	toyRunner().runFile(rec, path)
	assert.False(t, rec.failed, *rec.events)
	assert.Contains(t, *rec.events, "log : "+path+": rewrote OUTPUT")
	assertFile(t, path, blessed)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o640), info.Mode().Perm())

	// A second time nothing changes, and without the variable it passes.
	rec = newRecorder()
	toyRunner().runFile(rec, path)
	assert.False(t, rec.failed)
	assert.NotContains(t, strings.Join(*rec.events, "\n"), "rewrote")
	t.Setenv(BlessVariable, "")
	toyRunner().RunFile(t, path)
}

func TestBlessKeepsCarriageReturns(t *testing.T) {
	t.Setenv(BlessVariable, "1")
	path := write(t, t.TempDir(), "a.qir", "; RUN: print\r\na\r\n; OUTPUT:\r\n;| b\r\n; end\r\n")
	rec := newRecorder()
	toyRunner().runFile(rec, path)
	assert.False(t, rec.failed, *rec.events)
	assertFile(t, path, "; RUN: print\r\na\r\n; OUTPUT:\r\n;| a\r\n; end\r\n")
}

func TestBlessOnlyWhatRan(t *testing.T) {
	t.Setenv(BlessVariable, "1")
	for name, src := range map[string]string{
		"error":         "; RUN: print\nbad x\n; OUTPUT:\n;| y\n",
		"no command":    "x\n; OUTPUT:\n;| y\n",
		"self-checking": "; RUN: same\nx\n; OUTPUT:\n;| y\n",
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, t.TempDir(), "a.qir", src)
			rec := newRecorder()
			toyRunner().runFile(rec, path)
			assert.True(t, rec.failed)
			assertFile(t, path, src)
		})
	}
}

func TestBlessKeepsOtherFailures(t *testing.T) {
	t.Setenv(BlessVariable, "1")
	path := write(t, t.TempDir(), "a.qir", "; RUN: print\nx\n; OUTPUT:\n; CHECK: y\n")
	rec := newRecorder()
	toyRunner().runFile(rec, path)
	assert.Contains(t, (*rec.events)[0], ":4: CHECK: not found")
	assertFile(t, path, "; RUN: print\nx\n; OUTPUT:\n;| x\n; CHECK: y\n")
}

func TestBlessCommandsMustAgree(t *testing.T) {
	t.Setenv(BlessVariable, "1")
	path := write(t, t.TempDir(), "a.qir", "; RUN: print\n; RUN: say y\nx\n; OUTPUT:\n")
	rec := newRecorder()
	toyRunner().runFile(rec, path)
	assert.Contains(t, (*rec.events)[0], "-x\n+y\n")
	assert.True(t, rec.failed)
}

func TestBlessCannotWrite(t *testing.T) {
	t.Setenv(BlessVariable, "1")
	f, err := Parse(filepath.Join(t.TempDir(), "gone.qir"), "x\n; OUTPUT:\n")
	require.NoError(t, err)
	rec := newRecorder()
	saveBlessings(rec, f, []blessing{{block: f.Cases[0].Output, lines: []string{"x"}}})
	assert.True(t, rec.failed)
}

func TestBlessEmptyOutput(t *testing.T) {
	t.Setenv(BlessVariable, "1")
	path := write(t, t.TempDir(), "a.qir", "; RUN: say\nx\n; OUTPUT:\n;| old\n")
	rec := newRecorder()
	toyRunner().runFile(rec, path)
	assert.False(t, rec.failed, *rec.events)
	assertFile(t, path, "; RUN: say\nx\n; OUTPUT:\n")
}

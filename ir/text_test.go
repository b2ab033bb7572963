package ir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/filetest"
)

// problems are the diagnostics of an error as the file tests see them: code,
// message, notes and help joined by semicolons.
func problems(err error) []filetest.Error {
	if err == nil {
		return nil
	}
	ds, ok := errors.AsType[Diags](err)
	if !ok {
		return []filetest.Error{{Msg: err.Error()}}
	}
	var out []filetest.Error
	for _, d := range ds {
		msg := fmt.Sprintf("error[%s]: %s", d.Code, d.Msg)
		for _, n := range d.Notes {
			msg += "; note: " + n
		}
		if d.Help != "" {
			msg += "; help: " + d.Help
		}
		out = append(out, filetest.Error{Line: d.Pos.Line, Col: d.Pos.Col, Msg: msg})
	}
	return out
}

func roundTrip(src string) (string, []filetest.Error) {
	m, err := Parse("test.qir", []byte(src))
	if err != nil {
		return "", problems(err)
	}
	return m.String(), nil
}

func TestVerifyFiles(t *testing.T) {
	r := &filetest.Runner{
		Commands: map[string]filetest.Command{
			"verify": func(_ context.Context, _ []string, c filetest.Case) filetest.Result {
				_, err := VerifyText("test.qir", []byte(c.Src))
				return filetest.Result{SelfChecked: true, Errors: problems(err)}
			},
		},
		RoundTrip: roundTrip,
	}
	r.RunDir(t, "testdata/verify")
}

// Diagnostics as a user sees them.
func TestParseFiles(t *testing.T) {
	r := &filetest.Runner{
		Commands: map[string]filetest.Command{
			"check": func(_ context.Context, _ []string, c filetest.Case) filetest.Result {
				if _, err := VerifyText("test.qir", []byte(source(c.Src))); err != nil {
					return filetest.Result{Output: err.Error()}
				}
				return filetest.Result{Output: "no error"}
			},
		},
	}
	r.RunDir(t, "testdata/parse")
}

// source is the part of a case above the expected output.
func source(src string) string {
	src, _, _ = strings.Cut(src, "; OUTPUT:")
	return src
}

// Every invariant that verify.go lists has a test file in which it is violated,
// and the diagnostics cite no others.
func TestEveryInvariantHasAFailingCase(t *testing.T) {
	listed := map[string]bool{}
	src, err := os.ReadFile("verify.go")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^//\t(V\d\d) `).FindAllStringSubmatch(string(src), -1) {
		listed[m[1]] = true
	}
	require.GreaterOrEqual(t, len(listed), 19)
	for code := range listed {
		path := filepath.Join("testdata", "verify", code+".qir")
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		f, err := filetest.Parse(path, string(text))
		require.NoError(t, err)
		failing := slices.ContainsFunc(f.Cases, func(c *filetest.Case) bool {
			return slices.ContainsFunc(c.Errors, func(e filetest.ExpectedError) bool { return strings.Contains(e.Text, "error["+code+"]") })
		})
		passing := slices.ContainsFunc(f.Cases, func(c *filetest.Case) bool { return len(c.Errors) == 0 })
		require.True(t, failing, "%s: no failing case", code)
		require.True(t, passing, "%s: no passing case", code)
	}
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range sources {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		src, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`"(V\d\d)"`).FindAllStringSubmatch(string(src), -1) {
			require.True(t, listed[m[1]], "%s cites %s", path, m[1])
		}
	}
}

package ir

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir/ops"
)

// FuzzParse feeds texts to the parser and the verifier: they do not panic and
// take no longer than the text is long, errors have places, and what verifies
// prints to a fixed point and stays sound when its symbols get values.
func FuzzParse(f *testing.F) {
	for i := range ops.Table {
		f.Add(exampleModule(&ops.Table[i]))
	}
	for _, dir := range []string{"verify", "parse"} {
		paths, err := filepath.Glob(filepath.Join("testdata", dir, "*.qir"))
		require.NoError(f, err)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(f, err)
			for c := range strings.SplitSeq(string(text), "; -----\n") {
				f.Add(source(c))
			}
		}
	}
	for i := range 20 {
		f.Add(rapid.Custom(drawModule).Example(i).String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<16 {
			t.Skip()
		}
		start := time.Now()
		checkText(t, text)
		require.Less(t, time.Since(start), 10*time.Second)
	})
}

// checkText reads and verifies any text, and reports whether it is a module.
func checkText(t require.TestingT, text string) bool {
	m, err := Parse("fuzz.qir", []byte(text))
	if err != nil {
		ds, ok := errors.AsType[Diags](err)
		require.True(t, ok, "%T: %s", err, err)
		require.NotEmpty(t, ds)
		for _, d := range ds {
			require.Positive(t, d.Pos.Line, "%s", d)
			require.False(t, strings.HasPrefix(d.Msg, "unexpected token"), "the grammar shows: %s", d)
		}
		return false
	}
	if _, err := VerifyText("fuzz.qir", []byte(text)); err != nil {
		require.NotEmpty(t, err.Error())
		require.NotEmpty(t, m.String())
		return false
	}
	once := m.String()
	back, err := VerifyText("printed.qir", []byte(once))
	require.NoError(t, err, "%s", once)
	require.Equal(t, once, back.String())
	requireSame(t, m, back)
	for _, f := range m.Funcs {
		_ = f.Shape()
		for _, o := range f.Ops {
			requireWhole(t, o)
		}
	}
	for _, env := range m.corners() {
		s, err := Specialise(m, env)
		require.NoError(t, err)
		require.NoError(t, Verify(s), "%s\nspecialised for %v:\n%s", m, env, s)
	}
	return true
}

var tokenRE = regexp.MustCompile(`\s+|"(?:\\.|[^"\\\n])*"|[%@]?[A-Za-z0-9_.]+|->|.`)

// Valid modules with a few tokens changed reach further than random bytes.
func TestMutatedModules(t *testing.T) {
	valid, broken := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		text := drawModule(t).String()
		if rapid.IntRange(0, 2).Draw(t, "bare") == 0 {
			text = withoutTypes(text)
		}
		tokens := tokenRE.FindAllString(text, -1)
		at := func(s string) int { return rapid.IntRange(0, len(tokens)-1).Draw(t, s) }
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			i := at("place")
			switch rapid.IntRange(0, 5).Draw(t, "change") {
			case 0:
				tokens[i] = ""
			case 1:
				tokens[i] = tokens[at("other")]
			case 2:
				tokens[i] += " " + tokens[at("other")]
			case 3:
				tokens[i] = rapid.SampledFrom([]string{
					"0", "1", "-1", "2", "3", "7", "q", "w", "2*q", "9223372036854775806", "1e-06", "true", "f32", "i32", "bf16", "i8",
					"%x0", "@shard(0, 2)", "@shard(7, 2)", "@partial", "[]", "[1]", "}", "{", "plan", "fused", "state", "temp", "weight", `"a"`, ";", "add", "call",
				}).Draw(t, "token")
			case 4:
				j := at("other")
				tokens[i], tokens[j] = tokens[j], tokens[i]
			case 5: // a line is lost or repeated
				lines := strings.SplitAfter(strings.Join(tokens, ""), "\n")
				j := rapid.IntRange(0, len(lines)-1).Draw(t, "line")
				lines[j] = strings.Repeat(lines[j], rapid.IntRange(0, 1).Draw(t, "times")*2)
				tokens = tokenRE.FindAllString(strings.Join(lines, ""), -1)
			}
		}
		if checkText(t, strings.Join(tokens, "")) {
			valid++
		} else {
			broken++
		}
	})
	require.Greater(t, valid, 0)
	require.Greater(t, broken, 0)
}

package filetest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const example = `; About the file.
; RUN: opt -passes=fuse-rel-bias,sub-block{budget=64MiB}
; RUN: same -seeds=8 -atol=1e-5          (interpret before and after, compare)

; A relative bias becomes the mask, e.g. in T5 v1.1 models. More text
; that is not in the name.
func @f() { }
; FIRE: fuse-rel-bias=1 sub-block=12
; CHECK-LABEL: func @f
; CHECK-COUNT-2:  softmax
; run: @f(1, 2) == 3
; -----
; The bias is also returned, so it must stay: no
; fusion.
func @g() { } ; not this
; NO-FIRE: fuse-rel-bias x
; REMARK: %b is also returned
; ----------
; RUN: other
func @h() { bad } ; prose ; ERROR: first ; ERROR@13: second
; OUTPUT:
;| text
;|
;|  indented
`

func TestParse(t *testing.T) {
	f, err := Parse("a.qir", example)
	require.NoError(t, err)
	require.Len(t, f.Cases, 3)
	fileRuns := []Run{
		{Line: 2, Text: "opt -passes=fuse-rel-bias,sub-block{budget=64MiB}", Name: "opt", Args: []string{"-passes=fuse-rel-bias,sub-block{budget=64MiB}"}},
		{Line: 3, Text: "same -seeds=8 -atol=1e-5          (interpret before and after, compare)", Name: "same", Args: []string{"-seeds=8", "-atol=1e-5"}},
	}

	c := f.Cases[0]
	assert.Equal(t, "a.qir", c.File)
	assert.Equal(t, "A relative bias becomes the mask, e.g. in T5 v1.1 models.", c.Description)
	assert.Equal(t, "01_A_relative_bias_becomes_the_mask,_e.g._in_T5_v1.1_models.", c.Name)
	assert.Equal(t, 1, c.StartLine)
	assert.Equal(t, fileRuns, c.Runs)
	assert.Equal(t, []ExpectedFire{{8, "fuse-rel-bias", 1}, {8, "sub-block", 12}}, c.Fires)
	assert.Equal(t, []Directive{
		{Kind: KindCheckLabel, Text: "func @f", File: "a.qir", Line: 9, Col: 16},
		{Kind: KindCheckCount, Count: 2, Text: "softmax", File: "a.qir", Line: 10, Col: 19},
	}, c.Checks)
	assert.Equal(t, []Directive{{Kind: KindRunFunction, Text: "@f(1, 2) == 3", File: "a.qir", Line: 11, Col: 8}}, c.Evals)

	c = f.Cases[1]
	assert.Equal(t, 13, c.StartLine)
	assert.Equal(t, "The bias is also returned, so it must stay: no fusion.", c.Description)
	assert.Equal(t, fileRuns, c.Runs)
	assert.Equal(t, []ExpectedFire{{16, "fuse-rel-bias", 0}, {16, "x", 0}}, c.Fires)
	assert.Len(t, c.Remarks, 1)
	assert.True(t, strings.HasPrefix(c.Src, "; The bias is also"))
	assert.True(t, strings.HasSuffix(c.Src, "also returned\n"))
	assert.Equal(t, 15, c.FileLine(3))

	c = f.Cases[2]
	assert.Empty(t, c.Description)
	assert.Equal(t, "03", c.Name)
	assert.Equal(t, []Run{{Line: 19, Text: "other", Name: "other", Args: []string{}}}, c.Runs)
	assert.Equal(t, []ExpectedError{
		{Text: "first", Line: 20, Target: 20},
		{Text: "second", Line: 20, Target: 20, Col: 13},
	}, c.Errors)
	require.NotNil(t, c.Output)
	assert.Equal(t, 21, c.Output.Line)
	assert.Equal(t, []string{"text", "", " indented"}, c.Output.Lines)
}

func TestParseKeepsSourceLines(t *testing.T) {
	f, err := Parse("a.qir", example)
	require.NoError(t, err)
	lines := strings.Split(example, "\n")
	for _, c := range f.Cases {
		for i, text := range strings.Split(strings.TrimSuffix(c.Src, "\n"), "\n") {
			assert.Equal(t, lines[c.FileLine(i+1)-1], text)
		}
	}
}

func TestParseHeaderSection(t *testing.T) {
	f, err := Parse("a.qir", "; RUN: a\n; -----\n; RUN: b\nx\n; -----\ny\n")
	require.NoError(t, err)
	require.Len(t, f.Cases, 2)
	assert.Equal(t, "b", f.Cases[0].Runs[0].Name, "the first case may override the header too")
	assert.Equal(t, "a", f.Cases[1].Runs[0].Name)
	assert.Equal(t, 3, f.Cases[0].StartLine)
}

func TestParseErrorPlacement(t *testing.T) {
	src := "a\n; ERROR: one\n; prose\n\n; ERROR@3: two\nb \"; ERROR: in a string\" ; ERROR: three\nc \"\\\";\" ; ERROR: four\n; ERROR: five\n"
	f, err := Parse("a.qir", src)
	require.NoError(t, err)
	assert.Equal(t, []ExpectedError{
		{Text: "one", Line: 2, Target: 6},
		{Text: "two", Line: 5, Target: 6, Col: 3},
		{Text: "three", Line: 6, Target: 6},
		{Text: "four", Line: 7, Target: 7},
		{Text: "five", Line: 8, After: 7},
	}, f.Cases[0].Errors)
}

func TestParseCarriageReturns(t *testing.T) {
	f, err := Parse("a.qir", "; RUN: a b\r\nx ; ERROR: e\r\n; CHECK: c\r\n; -----\r\ny\r\n")
	require.NoError(t, err)
	require.Len(t, f.Cases, 2)
	assert.Equal(t, []string{"b"}, f.Cases[0].Runs[0].Args)
	assert.Equal(t, "c", f.Cases[0].Checks[0].Text)
	assert.Equal(t, "e", f.Cases[0].Errors[0].Text)
}

func TestDescription(t *testing.T) {
	for _, test := range []struct{ name, src, want string }{
		{"sentence", "; One. Two.\nx", "One."},
		{"question", "; Why? So.\nx", "Why?"},
		{"no full stop", "; One\n; two\nx", "One two"},
		{"abbreviation", "; See e.g. this. That.\nx", "See e.g. this."},
		{"paragraph", "; One\n\n; two\nx", "One"},
		{"empty comment", "; One\n;\n; two\nx", "One"},
		{"rule", "; ==== \n; One.\nx", "One."},
		{"directive ends it", "; One\n; CHECK: a\n; two\nx", "One"},
		{"above RUN", "; File.\n; RUN: a\nx", ""},
		{"below RUN", "; File.\n; RUN: a\n; Case.\nx", "Case."},
		{"below source", "x\n; Late.\n", ""},
		{"at source", "x ; Late.\n", ""},
		{"later case", "x\n; -----\n; Mine.\n; RUN: a\ny\n", "Mine."},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := Parse("a.qir", test.src)
			require.NoError(t, err)
			assert.Equal(t, test.want, f.Cases[len(f.Cases)-1].Description)
		})
	}
}

func TestCaseName(t *testing.T) {
	assert.Equal(t, "07", caseName(7, ""))
	assert.Equal(t, "07_a-b_c", caseName(7, "a/b  c"))
	long := caseName(7, strings.Repeat("word ", 40))
	assert.LessOrEqual(t, len(long), maxNameRunes+3)
	assert.True(t, strings.HasSuffix(long, "_word"))
}

func TestParseMistakes(t *testing.T) {
	for _, test := range []struct{ name, src, want string }{
		{"empty file", "", "a.qir:1:1: the file holds no case"},
		{"header only", "; RUN: a\n", "a.qir:1:1: the file holds no case"},
		{"empty case", "x\n; -----\n; prose\n; -----\ny", "a.qir:3:1: the case holds no source"},
		{"trailing separator", "x\n; -----\n", "a.qir:3:1: the case holds no source"},
		{"directives without source", "; CHECK: a\n; -----\ny", "a.qir:1:1: the case holds no source"},
		{"short separator", "x\n; ---\ny", "a.qir:2:3: a separator of cases has at least five dashes"},
		{"late RUN", "x\n; RUN: a", "a.qir:2:8: RUN lines of the file stand above"},
		{"empty RUN", "; RUN:\nx", "a.qir:1:7: RUN needs a text"},
		{"only a note", "; RUN: (note)\nx", "a.qir:1:8: RUN needs a command"},
		{"open quote", "; RUN: a 'b\nx", "a.qir:1:8: quote is not closed"},
		{"early note", "; RUN: a (b) c\nx", "a.qir:1:8: a note in parentheses must end the line"},
		{"empty CHECK", "; CHECK:\nx", "a.qir:1:9: CHECK needs a text"},
		{"empty ERROR", "x ; ERROR:", "a.qir:1:11: ERROR needs a text"},
		{"directive at source", "x ; CHECK: a", "a.qir:1:5: CHECK must stand on a line of its own"},
		{"run at source", "x ; run: a", "a.qir:1:5: run must stand on a line of its own"},
		{"FIRE without count", "; FIRE: a\nx", "a.qir:1:9: FIRE takes pass=n"},
		{"FIRE bad count", "; FIRE: b=1 a=x\nx", "a.qir:1:13: FIRE takes pass=n"},
		{"FIRE zero", "; FIRE: a=0\nx", "a.qir:1:9: a pass that must not fire belongs in NO-FIRE"},
		{"FIRE comma", "; FIRE: a=1,b=2\nx", "a.qir:1:9: pass names are separated by blanks"},
		{"FIRE twice", "; FIRE: a=1\n; NO-FIRE: a\nx", `a.qir:2:12: pass "a" is named twice`},
		{"NO-FIRE count", "; NO-FIRE: a=1\nx", "a.qir:1:12: NO-FIRE takes names only"},
		{"NO-FIRE without description", "x\n; NO-FIRE: a", "a.qir:2:1: a case with NO-FIRE needs a sentence"},
		{"NO-FIRE with the file's description", "; File.\n; RUN: a\nx\n; NO-FIRE: a", "a.qir:4:1: a case with NO-FIRE needs a sentence"},
		{"OUTPUT with text", "x\n; OUTPUT: a", "a.qir:2:11: the text of OUTPUT follows it"},
		{"OUTPUT twice", "x\n; OUTPUT:\n; OUTPUT:", "a.qir:3:10: a case holds one OUTPUT block at most"},
		{"stray output", "x\n  ;| a", `a.qir:2:3: a line that begins with ";|" must follow`},
		{"interrupted output", "x\n; OUTPUT:\n;| a\n\n;| b", "a.qir:5:1: a line that begins"},
		{"run and ERROR", "x ; ERROR: a\n; run: b", "a.qir:2:1: a case with ERROR lines cannot be run"},
		{"bad pattern", "x\n; CHECK: {{(}}", "a.qir:2:12: error parsing regexp"},
		{"unplaced NEXT", "x\n; CHECK-NEXT: a", "a.qir:2:15: CHECK-NEXT needs a line above it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, err := Parse("a.qir", test.src)
			require.ErrorContains(t, err, test.want)
			assert.NotContains(t, err.Error(), "\n", "one mistake is reported once")
			assert.Nil(t, f)
			var syntax *SyntaxError
			assert.ErrorAs(t, err, &syntax)
		})
	}
}

func TestParseReportsAllMistakes(t *testing.T) {
	_, err := Parse("a.qir", "; FIRE: a\n; CHECK: {{\nx\n; -----\n; REMARK:\ny")
	require.Error(t, err)
	assert.Len(t, strings.Split(err.Error(), "\n"), 3)
}

func TestTypoGuard(t *testing.T) {
	for comment, want := range map[string]string{
		"CHECK-NXT: a":                      `unknown directive "CHECK-NXT"; did you mean CHECK-NEXT?`,
		"CHECK_NEXT: a":                     `unknown directive "CHECK_NEXT"; did you mean CHECK-NEXT?`,
		"CHECK-FOOBAR: a":                   `unknown directive "CHECK-FOOBAR"`,
		"CHECK-FOOBAR a":                    `unknown directive "CHECK-FOOBAR"`,
		"CHECK-COUNT: a":                    "did you mean CHECK-COUNT-n?",
		"CHECK-COUNT-0: a":                  "did you mean CHECK-COUNT-n?",
		"CHECK-COUNT-n: a":                  "did you mean CHECK-COUNT-n?",
		"CHECK a":                           "CHECK must be followed directly by ':'",
		"CHECK : a":                         "CHECK must be followed directly by ':'",
		"CHECK{LITERAL}: a":                 "CHECK must be followed directly by ':'",
		"CHECK@3: a":                        "CHECK must be followed directly by ':'",
		"ERROR@0: a":                        "ERROR must be followed directly by ':'",
		"RUN opt":                           "RUN must be followed directly by ':'",
		"CHEK: a":                           "did you mean CHECK?",
		"CEHCK: a":                          "did you mean CHECK?",
		"CHECKS: a":                         "did you mean CHECK?",
		"Check: a":                          "did you mean CHECK?",
		"check-next: a":                     "did you mean CHECK-NEXT?",
		"Check Not: a":                      "did you mean CHECK-NOT?",
		"NO FIRE: a":                        "did you mean NO-FIRE?",
		"NOFIRE: a":                         "did you mean NO-FIRE?",
		"FIRES: a=1":                        "did you mean FIRE?",
		"Run: a":                            "did you mean RUN?",
		"REMARKS: a":                        "did you mean REMARK?",
		"Error: a":                          "did you mean ERROR?",
		"ERORR: a":                          "did you mean ERROR?",
		"OUTPUTS:":                          "did you mean OUTPUT?",
		"NOTE: a":                           "",
		"TODO: a":                           "",
		"RNN: a":                            "",
		"GQA: heads repeat":                 "",
		"INPUT: a":                          "",
		"Errors: many":                      "",
		"Checks the mask":                   "",
		"Check that a: b":                   "",
		"CHECKPOINT format":                 "",
		"run the model":                     "",
		"The output: a":                     "",
		"a very long sentence, then: CHECK": "",
		"":                                  "",
	} {
		for _, src := range []string{"; " + comment + "\nx", "x ; " + comment} {
			_, err := Parse("a.qir", src)
			if want == "" {
				assert.NoError(t, err, comment)
			} else {
				assert.ErrorContains(t, err, want, comment)
			}
		}
	}
}

func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		`a  b	c`:            {"a", "b", "c"},
		`a 'b c' "d e"`:     {"a", "b c", "d e"},
		`a -x='b c'd`:       {"a", "-x=b cd"},
		`a "\"\\ \d"`:       {"a", `"\ \d`},
		`a '\d'`:            {"a", `\d`},
		`a b\ c \(d`:        {"a", "b c", "(d"},
		`a ''`:              {"a", ""},
		`a f(x) (note (b))`: {"a", "f(x)"},
		`a '(b)'`:           {"a", "(b)"},
		`a b\`:              {"a", `b\`},
		``:                  nil,
	} {
		got, err := splitWords(text)
		assert.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{`a "b`, `a 'b`, `a (b`, `a (b) c`, `a (b) (c)`} {
		_, err := splitWords(text)
		assert.Error(t, err, text)
	}
}

func TestKindNames(t *testing.T) {
	for kind := KindCheck; kind <= KindOutput; kind++ {
		if kind == KindCheckCount {
			continue
		}
		got, _, ok := lookup(kind.String())
		assert.True(t, ok)
		assert.Equal(t, kind, got)
	}
	assert.Equal(t, "Kind(0)", Kind(0).String())
	assert.Equal(t, "CHECK-COUNT-3", Directive{Kind: KindCheckCount, Count: 3}.Name())
}

func FuzzParse(f *testing.F) {
	f.Add(example)
	f.Add("; RUN: a 'b\n; CHECK-NXT: c\n;|\n; ---\nx ; ERROR: y ; ERROR:")
	f.Add("x\n; CHECK: [[A:{{.*}}]] {{[}} [[$B]] [[@LINE]]\n; CHECK-NEXT: [[A]]\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse("a.qir", text)
		if err != nil {
			return
		}
		if len(file.Cases) == 0 {
			t.Fatal("no cases and no error")
		}
		if got := file.rewritten(nil); got != text {
			t.Fatalf("rewriting nothing changed %q to %q", text, got)
		}
		lines := strings.Split(text, "\n")
		for _, c := range file.Cases {
			for i, line := range strings.Split(strings.TrimSuffix(c.Src, "\n"), "\n") {
				if lines[c.FileLine(i+1)-1] != line {
					t.Fatalf("line %d of %s is not where it should be", i+1, c.Name)
				}
			}
		}
	})
}

package filetest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The toy language of these tests has one statement a line. "bad x" is an error
// "bad x" at the column of "bad"; several on a line are several errors.

// toyParse returns the statements and the errors of a text.
func toyParse(src string) (statements []string, errs []Error) {
	for i, raw := range strings.Split(src, "\n") {
		code := raw
		if at := commentStart(raw); at >= 0 {
			code = raw[:at]
		}
		for col := strings.Index(code, "bad"); col >= 0; {
			end := strings.IndexByte(code[col:]+",", ',')
			errs = append(errs, Error{Line: i + 1, Col: col + 1, Msg: strings.TrimSpace(code[col:min(len(code), col+end)])})
			next := strings.Index(code[col+1:], "bad")
			if next < 0 {
				break
			}
			col += 1 + next
		}
		if code = strings.TrimSpace(code); code != "" {
			statements = append(statements, code)
		}
	}
	if len(statements) > 0 && statements[len(statements)-1] == "open" {
		errs = append(errs, Error{Line: strings.Count(src, "\n") + 1, Col: 1, Msg: "not closed"})
	}
	return statements, errs
}

func toyRoundTrip(src string) (string, []Error) {
	statements, errs := toyParse(src)
	switch {
	case len(errs) > 0:
		return "", errs
	case statements[0] == "panic":
		panic("at the disco")
	case statements[0] == "growing":
		return strings.Join(statements, "\n") + "\nmore\n", nil
	case statements[0] == "unprintable":
		return "bad print\n", nil
	}
	return strings.Join(statements, "\n") + "\n", nil
}

// toyPrint prints the statements.
func toyPrint(_ context.Context, _ []string, c Case) Result {
	statements, errs := toyParse(c.Src)
	return Result{Output: strings.Join(statements, "\n") + "\n", Errors: errs}
}

// toyOpt reports what its arguments say: name=n is a pass, others are remarks.
func toyOpt(_ context.Context, args []string, c Case) Result {
	res := Result{Fired: map[string]int{}}
	for _, arg := range args {
		name, n, ok := strings.Cut(arg, "=")
		if !ok {
			res.Remarks = append(res.Remarks, arg)
			continue
		}
		res.Fired[name], _ = strconv.Atoi(n)
	}
	_, res.Errors = toyParse(c.Src)
	return res
}

// toyRun evaluates "a == a".
func toyRun(_ context.Context, args []string, _ Case) Result {
	got, want, _ := strings.Cut(args[0], " == ")
	if got == "placed" {
		return Result{Errors: []Error{{Line: 1, Col: 1, Msg: "placed"}}}
	}
	if got != want {
		return Result{Errors: []Error{{Msg: fmt.Sprintf("got %s", got)}}}
	}
	return Result{}
}

func toyRunner() *Runner {
	return &Runner{
		RoundTrip: toyRoundTrip,
		Commands: map[string]Command{
			"print": toyPrint,
			"opt":   toyOpt,
			"run":   toyRun,
			"same": func(context.Context, []string, Case) Result {
				return Result{SelfChecked: true}
			},
			"differ": func(context.Context, []string, Case) Result {
				return Result{SelfChecked: true, Errors: []Error{{Msg: "results differ"}}}
			},
			"placeless": func(context.Context, []string, Case) Result {
				return Result{Errors: []Error{{Msg: "no such flag"}}}
			},
			"panic": func(context.Context, []string, Case) Result { panic("at the disco") },
			"say": func(_ context.Context, args []string, _ Case) Result {
				return Result{Output: strings.Join(args, "\n")}
			},
		},
	}
}

// evalTest is a file and the failures of all its cases, as "line: text" or
// "line:col: text" of which the message must hold the text.
type evalTest struct {
	name string
	src  string
	want []string
}

func runEvals(t *testing.T, r *Runner, tests []evalTest) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, err := Parse("a.qir", test.src)
			require.NoError(t, err)
			var got []Failure
			for _, c := range f.Cases {
				got = append(got, r.Eval(t.Context(), c)...)
			}
			require.Len(t, got, len(test.want), "%v", got)
			for i, want := range test.want {
				place, text, _ := strings.Cut(want, ": ")
				assert.True(t, strings.HasPrefix(got[i].String(), "a.qir:"+place+": "), "%s is not at %s", got[i], place)
				assert.Contains(t, got[i].Msg, text)
			}
		})
	}
}

func TestEvalRoundTrip(t *testing.T) {
	runEvals(t, toyRunner(), []evalTest{
		{"good", "x\n", nil},
		{"changes", "x\n; -----\ngrowing\n", []string{"3: round trip: parsing and printing again changes the text"}},
		{"diff", "growing\n", []string{"1: \n more\n+more\n"}},
		{"does not parse again", "unprintable\n", []string{"1: round trip: the printed text does not parse: 1:1: bad print\nbad print"}},
		{"unexpected error", "x\n; -----\n; c\n  bad y\n", []string{"4:3: unexpected error: bad y\n    |   bad y\n    |   ^"}},
		{"error stops the commands", "; RUN: print\nbad y\n; CHECK: z\n", []string{"2:1: unexpected error: bad y"}},
		{"panic", "panic\n", []string{"1: round trip panicked: at the disco"}},
	})
}

func TestEvalWithoutRoundTrip(t *testing.T) {
	r := toyRunner()
	r.RoundTrip = nil
	runEvals(t, r, []evalTest{
		{"checks nothing", "x\n; -----\n\nx\n", []string{"1: the case checks nothing", "3: the case checks nothing"}},
		{"run is a check", "x\n; run: 1 == 1\n", nil},
		{"command is a check", "; RUN: same\nx\n", nil},
		{"nothing parses", "bad x ; ERROR: bad\n", []string{"1: ERROR is never compared with anything"}},
		{"command parses", "; RUN: print\nbad x ; ERROR: bad\n", nil},
		{"unexpected error", "; RUN: print\nx\nbad x\n; CHECK: y\n", []string{"3:1: unexpected error: bad x"}},
	})
}

func TestEvalErrors(t *testing.T) {
	runEvals(t, toyRunner(), []evalTest{
		{"at the end of the line", "x\nbad a ; ERROR: bad a\n", nil},
		{"above", "; ERROR: bad a\n; prose\n\nbad a\n", nil},
		{
			"above, wrong line", "; ERROR: bad a\nx\nbad a\n",
			[]string{`1: missing error "bad a", expected on line 2; it is reported at 3:1`, "3:1: unexpected error: bad a"},
		},
		{
			"wrong text", "bad a ; ERROR: bad b\n",
			[]string{`1: missing error "bad b", expected on line 1; reported there: bad a`, "1:1: unexpected error: bad a"},
		},
		{"not reported", "x ; ERROR: bad\n", []string{`1: missing error "bad", expected on line 1`}},
		{"substring", "bad abc ; ERROR: abc\n", nil},
		{"several on a line", "bad a, bad b ; ERROR: bad b ; ERROR: bad a\n", nil},
		{"each used once", "bad a ; ERROR: bad ; ERROR: a\n", []string{`1: missing error "a"`}},
		{"needed by another", "bad a, bad ab ; ERROR: bad a ; ERROR: bad ab\n", nil},
		{"needed by another, reversed", "bad ab, bad a ; ERROR: bad a ; ERROR: bad ab\n", nil},
		{"one is not expected", "bad a, bad b ; ERROR: bad a\n", []string{"1:8: unexpected error: bad b\n    | bad a, bad b ; ERROR: bad a\n    |        ^"}},
		{"above and at the end", "; ERROR: bad a\nbad a, bad b ; ERROR: bad b\n", nil},
		{"column", "  bad a ; ERROR@3: bad\n", nil},
		{
			"wrong column", "  bad a ; ERROR@4: bad\n",
			[]string{`1: missing error "bad", expected on line 1, column 4; it is reported at 1:3`, "1:3: unexpected error"},
		},
		{"after the end", "x\nopen\n; ERROR: not closed\n", nil},
		{
			"after the end, reported before", "bad x\n; ERROR: bad\n",
			[]string{`2: missing error "bad", expected after line 1; it is reported at 1:1`, "1:1: unexpected"},
		},
		{"later case", "x\n; -----\nx\nbad a ; ERROR@1: bad\n", nil},
		{
			"in a later case, wrong line", "x\n; -----\nx ; ERROR: bad\nbad a\n",
			[]string{`3: missing error "bad", expected on line 3; it is reported at 4:1`, "4:1: unexpected"},
		},
		{"several commands report it", "; RUN: print\n; RUN: opt\nbad a ; ERROR: bad\n", nil},
		{"one command reports it", "; RUN: print\n; RUN: same\nbad a ; ERROR: bad\n", nil},
		{
			"no place", "; RUN: placeless\nx ; ERROR: flag\n",
			[]string{`2: missing error "flag", expected on line 2; it is reported at no place`, "1: unexpected error: no such flag"},
		},
		{"with output", "; RUN: print\nbad a ; ERROR: bad\n; CHECK: bad a\n", nil},
		{"panic", "panic ; ERROR: x\n", []string{`1: missing error "x"`, "1: unexpected error: round trip panicked"}},
	})
}

func TestEvalCommands(t *testing.T) {
	runEvals(t, toyRunner(), []evalTest{
		{"check", "; RUN: print\nx\n; CHECK: x\n", nil},
		{"check fails", "; RUN: print\nx\n; CHECK: x\n; CHECK: y\n", []string{"4: CHECK: not found\n  CHECK: y\n"}},
		{"names the command", "; RUN: print\nx\n; CHECK: y\n", []string{"3: RUN: print (line 1)"}},
		{"every output is checked", "; RUN: print\n; RUN: say y\nx\n; CHECK: x\n", []string{"4: RUN: say y (line 2)"}},
		{"two blocks fail", "; RUN: print\nf\ng\n; CHECK-LABEL: f\n; CHECK: x\n; CHECK-LABEL: g\n; CHECK: y\n", []string{"5: CHECK", "7: CHECK"}},
		{"nothing looks", "; RUN: print\nx\n", []string{"1: nothing in the case looks at the result of this command\n  RUN: print (line 1)"}},
		{"nothing looks at one", "; RUN: print\n; RUN: opt a=1\nx\n; FIRE: a=1\n", []string{"1: nothing in the case looks"}},
		{"checks itself", "; RUN: same\nx\n", nil},
		{"checks itself and fails", "; RUN: differ\nx\n", []string{"1: unexpected error: results differ"}},
		{"only self-checking commands", "; RUN: same\nx\n; CHECK: x\n; OUTPUT:\n", []string{"3: CHECK is never compared with anything", "4: OUTPUT is never compared"}},
		{"no commands", "x\n; CHECK-NOT: x\n", []string{"2: CHECK-NOT is never compared with anything"}},
		{"unknown command", "; RUN: prnt\nx\n", []string{`1: unknown command "prnt"; there are: differ, opt, panic, placeless, print, run, same, say`}},
		{"panic", "; RUN: panic\nx\n; -----\ny\n; CHECK: y\n; RUN: print\n", []string{"1: panic panicked: at the disco"}},
		{"run", "x\n; run: 1 == 1\n; run: 1 == 2\n; run: 3 == 4\n", []string{"3: run: 1 == 2: got 1", "4: run: 3 == 4: got 3"}},
		{"run with a place", "x\n; -----\ny\n; run: placed\n", []string{"3:1: placed"}},
		{"run does not look at commands", "; RUN: print\nx\n; run: 1 == 1\n", []string{"1: nothing in the case looks"}},
	})
}

func TestEvalUnknownRunHandler(t *testing.T) {
	runEvals(t, &Runner{}, []evalTest{{"none", "x\n; run: a\n", []string{`2: unknown command "run"`}}})
}

func TestEvalPasses(t *testing.T) {
	runEvals(t, toyRunner(), []evalTest{
		{"fire", "; RUN: opt a=1 b=2 c=3\nx\n; FIRE: a=1 b=2\n", nil},
		{"too often", "; RUN: opt a=2\nx\n; FIRE: a=1\n", []string{"3: pass a fired 2 times, expected 1"}},
		{"not at all", "; RUN: opt a=0\nx\n; FIRE: a=1\n", []string{"3: pass a fired 0 times, expected 1"}},
		{"did not run", "; RUN: opt b=1 a=1\nx\n; FIRE: c=1\n", []string{"3: pass c did not run; those that did: a, b", "1: nothing in the case looks"}},
		{"no passes", "x\n; FIRE: c=1\n", []string{"2: pass c did not run; no command reports"}},
		{"no fire", "; RUN: opt a=0\n; Why.\nx\n; NO-FIRE: a\n", nil},
		{"no fire but fired", "; RUN: opt a=3\n; Why.\nx\n; NO-FIRE: a\n", []string{"4: pass a fired 3 times, but must not"}},
		{"no fire misspelt", "; RUN: opt a=0\n; Why.\nx\n; NO-FIRE: aa a\n", []string{"4: pass aa did not run; those that did: a"}},
		{"every command that ran it", "; RUN: opt a=1\n; RUN: opt a=2\n; RUN: same\nx\n; FIRE: a=1\n", []string{"5: fired 2 times, expected 1\n  RUN: opt a=2 (line 2)"}},
		{"remark", "; RUN: opt 'a: not fused'\nx\n; REMARK: not fused\n", nil},
		{"remark missing", "; RUN: opt one two\nx\n; REMARK: three\n", []string{"3: missing remark \"three\"; the remarks are:\n    one\n    two"}},
		{"no remarks", "; RUN: opt\nx\n; REMARK: three\n", []string{`3: missing remark "three"; there are no remarks`, "1: nothing in the case looks"}},
		{"two need two", "; RUN: opt one\nx\n; REMARK: one\n; REMARK: one\n", []string{`4: missing remark "one"`}},
		{"needed by another", "; RUN: opt ab a\nx\n; REMARK: a\n; REMARK: ab\n", nil},
	})
}

func TestFailureNamesTheCase(t *testing.T) {
	f, err := Parse("a.qir", "; What for.\nbad x\n; -----\nbad y\n")
	require.NoError(t, err)
	first := toyRunner().Eval(t.Context(), f.Cases[0])
	assert.Equal(t, "a.qir:2:1: unexpected error: bad x\n    | bad x\n    | ^\n  case: What for.", first[0].String())
	second := toyRunner().Eval(t.Context(), f.Cases[1])
	assert.Equal(t, "02", second[0].Case)
}

func TestErrorOutsideTheSource(t *testing.T) {
	r := &Runner{RoundTrip: func(string) (string, []Error) {
		return "", []Error{{Line: 9, Col: 9, Msg: "far"}, {Line: 1, Col: 99, Msg: "wide"}}
	}}
	runEvals(t, r, []evalTest{{"far", "x", []string{"9:9: unexpected error: far", "1:99: unexpected error: wide"}}})
}

func TestHandlersGetTheCase(t *testing.T) {
	var got Case
	var gotArgs []string
	type key struct{}
	r := &Runner{Commands: map[string]Command{"c": func(ctx context.Context, args []string, c Case) Result {
		got, gotArgs = c, args
		assert.Equal(t, "v", ctx.Value(key{}))
		return Result{SelfChecked: true}
	}}}
	f, err := Parse("a.qir", "x\n; RUNS\n; -----\n; D.\n; RUN: c -a 'b c'\ny ; z\n")
	require.NoError(t, err)
	require.Empty(t, r.Eval(context.WithValue(t.Context(), key{}, "v"), f.Cases[1]))
	assert.Equal(t, []string{"-a", "b c"}, gotArgs)
	assert.Equal(t, "a.qir", got.File)
	assert.Equal(t, "02_D.", got.Name)
	assert.Equal(t, 4, got.StartLine)
	assert.Equal(t, "; D.\n; RUN: c -a 'b c'\ny ; z\n", got.Src)
}

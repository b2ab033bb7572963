package filetest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// directives reads CHECK lines, one a line, as a file named t.qir would hold
// them from line 1 on.
func directives(t testing.TB, text string) []Directive {
	t.Helper()
	var ds []Directive
	for i, raw := range strings.Split(strings.TrimSpace(text), "\n") {
		l := classify(i+1, "; "+strings.TrimSpace(raw))
		h, ok := parseHeader(l.comment)
		require.True(t, ok, raw)
		ds = append(ds, directive("t.qir", l, h))
	}
	return ds
}

// checkTest is a set of checks on an output. No want means that they hold;
// otherwise every want must be part of the error.
type checkTest struct {
	name   string
	checks string
	output string
	want   []string
}

func runChecks(t *testing.T, tests []checkTest) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := Check(directives(t, test.checks), test.output)
			if test.want == nil {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			for _, want := range test.want {
				assert.Contains(t, err.Error(), want)
			}
		})
	}
}

func TestCheckPlain(t *testing.T) {
	runChecks(t, []checkTest{
		{"in order", "CHECK: a\nCHECK: b", "x\na\nx\nb\n", nil},
		{"same line", "CHECK: a\nCHECK: b", "a b\n", nil},
		{"no final newline", "CHECK: a", "a", nil},
		{"blanks", "CHECK: a  b\tc", "  a \t b   c\n", nil},
		{"blanks at the end", "CHECK: a{{$}}", "a  \n", nil},
		{"metacharacters are literal", "CHECK: a.b(c)*[d]", "a.b(c)*[d]\n", nil},
		{"nested lists are literal", "CHECK: [[1, 2], [3]] [[%a]]", "[[1, 2], [3]] [[%a]]\n", nil},
		{
			"wrong order", "CHECK: a\nCHECK: b", "b\na\n",
			[]string{"t.qir:2: CHECK: not found", "\n  CHECK: b", "output:2:2: scanning from here\n    | a\n    |  ^"},
		},
		{"not twice", "CHECK: a\nCHECK: a", "a\n", []string{"t.qir:2: CHECK: not found"}},
		{"dot is literal", "CHECK: a.b", "axb\n", []string{"not found"}},
		{"not across lines", "CHECK: a{{[^x]*}}b", "a\nb\n", []string{"not found"}},
		{"empty output", "CHECK-NOT: a", "\n", []string{"t.qir:1: CHECK-NOT: the output is empty"}},
		{"nothing left", "CHECK: a{{$}}\nCHECK: b", "a\n", []string{"scanning from here\n    | a\n    |  ^"}},
	})
	assert.NoError(t, Check(nil, ""))
}

func TestCheckIntendedMatch(t *testing.T) {
	runChecks(t, []checkTest{
		{
			"nearest", "CHECK: %1 = fused_sdpa %q, %k", "x = y\n%1 = fused_sdpa %q, %kk, %v\n%1 = fused_sdap %q, %k\n",
			nil,
		},
		{
			"misspelt", "CHECK: = fused_sdpa %q", "x = y\n  %1 = fused_sdap %q\n",
			[]string{"output:2:5: possible intended match\n    |  %1 = fused_sdap %q\n    |     ^~~~~~~~~~~~~~~"},
		},
		{
			"variable", "CHECK: def [[A:%.]]\nCHECK: neg [[A]], [[A]]", "def %a\nneg %a, %b\n",
			[]string{`with A = "%a"`, "output:2:1: possible intended match"},
		},
	})
	err := Check(directives(t, "CHECK: completely different"), "x\n")
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "intended")
}

func TestCheckNext(t *testing.T) {
	runChecks(t, []checkTest{
		{"next", "CHECK: a\nCHECK-NEXT: b", "a\nb\n", nil},
		{"anywhere on it", "CHECK: a\nCHECK-NEXT: b", "a\nx b\n", nil},
		{"also on the same line", "CHECK: a\nCHECK-NEXT: b", "a b\nb\n", nil},
		{"after label", "CHECK-LABEL: f\nCHECK-NEXT: a", "f\na\n", nil},
		{"chain", "CHECK: a\nCHECK-NEXT: b\nCHECK-NEXT: c", "a\nb\nc\n", nil},
		{
			"later", "CHECK: a\nCHECK-NEXT: b", "a\nx\nb\n",
			[]string{"t.qir:2: CHECK-NEXT: not found on the next line", "output:2:1: scanning", "output:3:1: it is 2 lines after"},
		},
		{
			"same line", "CHECK: a\nCHECK-NEXT: b", "a b\nx\n",
			[]string{"not found on the next line", "output:1:3: it is on the same line as the previous match"},
		},
		{"end", "CHECK: a\nCHECK-NEXT: b", "a\n", []string{"there is no next line: the output ends here", "output:1:2: previous match ends"}},
		{
			"end of block", "CHECK-LABEL: f\nCHECK-NEXT: b\nCHECK-LABEL: g", "f\ng\nb\n",
			[]string{"t.qir:2: CHECK-NEXT: there is no next line: the next label is here"},
		},
		{"unplaced", "CHECK-NOT: x\nCHECK-NEXT: a", "a\n", []string{"t.qir:2:15: CHECK-NEXT needs a line above it that matches"}},
		{"undefined", "CHECK: a\nCHECK-NEXT: [[A]]", "a\nb\n", []string{"variable A is not defined here"}},
	})
}

func TestCheckSame(t *testing.T) {
	runChecks(t, []checkTest{
		{"same", "CHECK: a\nCHECK-SAME: b\nCHECK-SAME: c", "a b x c\n", nil},
		{"before", "CHECK: a\nCHECK-SAME: b", "b a\n", []string{"t.qir:2: CHECK-SAME: not found on the line of the previous match"}},
		{"later", "CHECK: a\nCHECK-SAME: b", "a\nb\n", []string{"CHECK-SAME: not found", "output:2:1: it is on a later line"}},
		{"then next", "CHECK: a\nCHECK-SAME: b\nCHECK-NEXT: c", "a b\nc\n", nil},
		{"unplaced", "CHECK-SAME: a", "a\n", []string{"t.qir:1:15: CHECK-SAME needs a line above it"}},
		{"undefined", "CHECK: a\nCHECK-SAME: [[A]]", "a b\n", []string{"variable A is not defined here"}},
	})
}

func TestCheckEmpty(t *testing.T) {
	runChecks(t, []checkTest{
		{"empty", "CHECK: a\nCHECK-EMPTY:\nCHECK-NEXT: b", "a\n  \nb\n", nil},
		{"two", "CHECK: a\nCHECK-EMPTY:\nCHECK-EMPTY:\nCHECK-NEXT: b", "a\n\n\nb\n", nil},
		{"not empty", "CHECK: a\nCHECK-EMPTY:", "a\nb\n\n", []string{"t.qir:2: CHECK-EMPTY: the next line is not empty", "output:2:1: it is\n    | b"}},
		{"end", "CHECK: a\nCHECK-EMPTY:", "a\n", []string{"CHECK-EMPTY: there is no next line"}},
		{"text", "CHECK: a\nCHECK-EMPTY: b", "a\n\n", []string{"CHECK-EMPTY takes no text"}},
		{"unplaced", "CHECK-EMPTY:", "\na", []string{"CHECK-EMPTY needs a line above it"}},
	})
}

func TestCheckCount(t *testing.T) {
	runChecks(t, []checkTest{
		{"exactly", "CHECK-COUNT-3: a", "a a\na\n", nil},
		{"more", "CHECK-COUNT-2: a\nCHECK: a", "a\na\na\n", nil},
		{"no more", "CHECK-COUNT-2: a\nCHECK-NOT: a", "a\na\n", nil},
		{"one too many", "CHECK-COUNT-2: a\nCHECK-NOT: a", "a\na\nb\na\n", []string{"t.qir:2: CHECK-NOT: found", "output:4:1"}},
		{"too few", "CHECK-COUNT-3: a", "a\na\n", []string{"t.qir:1: CHECK-COUNT-3: found 2 of 3"}},
		{"not before", "CHECK-NOT: x\nCHECK-COUNT-2: a", "a\nx\na\n", nil},
		{"not before first", "CHECK-NOT: x\nCHECK-COUNT-2: a", "x\na\na\n", []string{"t.qir:1: CHECK-NOT: found"}},
		{"last definition stays", "CHECK-COUNT-2: a[[N:[0-9]]]\nCHECK: b[[N]]", "a1\na2\nb2\n", nil},
		{"undefined", "CHECK-COUNT-2: [[A]]", "a\n", []string{"variable A is not defined here"}},
	})
	for _, n := range []int{0, maxCount + 1} {
		err := Check([]Directive{{Kind: KindCheckCount, Count: n, Text: "a"}}, "a\n")
		assert.ErrorContains(t, err, "the count must be between")
	}
}

func TestCheckNot(t *testing.T) {
	runChecks(t, []checkTest{
		{"between", "CHECK: a\nCHECK-NOT: x\nCHECK: b", "x\na\nb\nx\n", nil},
		{
			"found between", "CHECK: a\nCHECK-NOT: x\nCHECK: b", "a\n y xx\nb\n",
			[]string{"t.qir:2: CHECK-NOT: found, but it must not be here", "output:2:4: found\n    |  y xx\n    |    ^"},
		},
		{"on the line before the match", "CHECK: a\nCHECK-NOT: x\nCHECK: b", "a\nx b\n", []string{"CHECK-NOT: found"}},
		{"on the line after the match", "CHECK: a\nCHECK-NOT: x\nCHECK: b", "a x\nb\n", []string{"CHECK-NOT: found"}},
		{"after the next match on its line", "CHECK: a\nCHECK-NOT: x\nCHECK: b", "a\nb x\n", nil},
		{"at the start", "CHECK-NOT: x\nCHECK: a", "x\na\n", []string{"t.qir:1: CHECK-NOT: found"}},
		{"at the end", "CHECK: a\nCHECK-NOT: x", "a\nb\nx\n", []string{"t.qir:2: CHECK-NOT: found"}},
		{"alone", "CHECK-NOT: x", "a\n", nil},
		{"several, first fails", "CHECK-NOT: x\nCHECK-NOT: y", "y\nx\n", []string{"t.qir:1: CHECK-NOT: found"}},
		{"several, second fails", "CHECK-NOT: x\nCHECK-NOT: y", "y\n", []string{"t.qir:2: CHECK-NOT: found"}},
		{"before next", "CHECK: a\nCHECK-NOT: x\nCHECK-NEXT: b", "a x\nb\n", []string{"t.qir:2: CHECK-NOT: found"}},
		{"before same", "CHECK: a\nCHECK-NOT: x\nCHECK-SAME: b", "a x b\n", []string{"t.qir:2: CHECK-NOT: found"}},
		{"before same, clean", "CHECK: a\nCHECK-NOT: x\nCHECK-SAME: b", "a b x\n", nil},
		{"within a label's block", "CHECK-LABEL: f\nCHECK-NOT: x\nCHECK-LABEL: g", "f\ng\nx\n", nil},
		{"regex", "CHECK-NOT: {{x+}}y", "xxx\n", nil},
		{"variable", "CHECK: [[A:%.]] =\nCHECK-NOT: use [[A]]", "%a =\nuse %b\n", nil},
		{"variable found", "CHECK: [[A:%.]] =\nCHECK-NOT: use [[A]]", "%a =\nuse %a\n", []string{"CHECK-NOT: found", `with A = "%a"`}},
		{"variable from above", "CHECK: [[A:%.]] =\nCHECK-NOT: use [[A]]\nCHECK: [[A:%.]] =", "%a =\nuse %b\n%b =\n", nil},
		{"own variable", "CHECK: a\nCHECK-NOT: [[A:.]][[A]]\nCHECK: b", "a\nxyx\nb\n", nil},
		{"own variable found", "CHECK: a\nCHECK-NOT: [[A:.]][[A]]\nCHECK: b", "a\nxyy\nb\n", []string{"output:2:2: found"}},
		{"own variable stays its own", "CHECK-NOT: [[A:x]]\nCHECK: [[A]]", "a\n", []string{"variable A is not defined here"}},
		{"undefined", "CHECK-NOT: [[A]]\nCHECK: a", "a\n", []string{"t.qir:1: CHECK-NOT: variable A is not defined here"}},
	})
}

func TestCheckNotBetweenTouchingMatches(t *testing.T) {
	// The gap is empty, so there is nothing that even an empty match could be.
	runChecks(t, []checkTest{
		{"touching", "CHECK: a{{ }}\nCHECK-NOT: {{^|z*}}\nCHECK-SAME: b", "a b\n", nil},
	})
}

func TestCheckDAG(t *testing.T) {
	runChecks(t, []checkTest{
		{"any order", "CHECK-DAG: a\nCHECK-DAG: b", "b\na\n", nil},
		{"one line", "CHECK-DAG: a\nCHECK-DAG: b", "b a\n", nil},
		{"no overlap", "CHECK-DAG: a\nCHECK-DAG: a", "a a\n", nil},
		{
			"overlap", "CHECK-DAG: ab\nCHECK-DAG: bc", "abc\n",
			[]string{"t.qir:2: CHECK-DAG: not found", "output:1:2: this would match, but a CHECK-DAG line above took it"},
		},
		{"twice the same", "CHECK-DAG: a\nCHECK-DAG: a", "a\n", []string{"t.qir:2: CHECK-DAG: not found"}},
		{"missing", "CHECK-DAG: a\nCHECK-DAG: c", "b\na\n", []string{"t.qir:2: CHECK-DAG: not found"}},
		{"after previous", "CHECK: a\nCHECK-DAG: b", "b\na\n", []string{"t.qir:2: CHECK-DAG: not found"}},
		{"then plain after the last", "CHECK-DAG: a\nCHECK-DAG: b\nCHECK: c", "b\nc\na\n", []string{"t.qir:3: CHECK: not found", "output:3:2"}},
		{"then next", "CHECK-DAG: a\nCHECK-DAG: b\nCHECK-NEXT: c", "b\na\nc\n", nil},
		{"then same", "CHECK-DAG: a\nCHECK-DAG: b\nCHECK-SAME: c", "b\na c\n", nil},
		{"variables flow down", "CHECK-DAG: [[A:%.]] = x\nCHECK-DAG: use [[A]]", "use %b\nuse %a\n%a = x\n", nil},
		{"undefined", "CHECK-DAG: [[A]]", "a\n", []string{"variable A is not defined here"}},
		{"not before", "CHECK-NOT: x\nCHECK-DAG: a\nCHECK-DAG: b", "b\nx\na\n", nil},
		{"not before the first of them", "CHECK-NOT: x\nCHECK-DAG: a\nCHECK-DAG: b", "x\nb\na\n", []string{"t.qir:1: CHECK-NOT: found"}},
		{"not after", "CHECK-DAG: a\nCHECK-DAG: b\nCHECK-NOT: x", "b\nx\na\n", nil},
		{"not after the last of them", "CHECK-DAG: a\nCHECK-DAG: b\nCHECK-NOT: x", "b\na\nx\n", []string{"t.qir:3: CHECK-NOT: found"}},
		{"not splits", "CHECK-DAG: a\nCHECK-NOT: x\nCHECK-DAG: b", "b\na\n", []string{"t.qir:3: CHECK-DAG: not found"}},
		{"not between", "CHECK-DAG: a\nCHECK-NOT: x\nCHECK-DAG: b", "a\nx\nb\n", []string{"t.qir:2: CHECK-NOT: found"}},
		{"not between, clean", "CHECK-DAG: a\nCHECK-NOT: x\nCHECK-DAG: b", "x\na\nb\nx\n", nil},
	})
}

func TestCheckLabel(t *testing.T) {
	two := "func @f\n  a\n  c\nfunc @g\n  b\n"
	runChecks(t, []checkTest{
		{"blocks", "CHECK-LABEL: @f\nCHECK: a\nCHECK-LABEL: @g\nCHECK: b", two, nil},
		{
			"not in this block", "CHECK-LABEL: @f\nCHECK: b\nCHECK-LABEL: @g\nCHECK: b", two,
			[]string{"t.qir:2: CHECK: not found", "scanning from here to the label on line 4"},
		},
		{
			"each block fails by itself", "CHECK-LABEL: @f\nCHECK: b\nCHECK-LABEL: @g\nCHECK: a\nCHECK: b", two,
			[]string{"t.qir:2: CHECK: not found", "t.qir:4: CHECK: not found"},
		},
		{"missing label", "CHECK: func\nCHECK-LABEL: @h\nCHECK: b", two, []string{"t.qir:2: CHECK-LABEL: not found"}},
		{"labels in order", "CHECK-LABEL: @g\nCHECK-LABEL: @f", two, []string{"t.qir:2: CHECK-LABEL: not found"}},
		{"before the first", "CHECK: a\nCHECK-LABEL: @g", two, nil},
		{"rest of the label's line", "CHECK-LABEL: func\nCHECK-SAME: @f\nCHECK-LABEL: func\nCHECK-SAME: @g", two, nil},
		{"label within its line", "CHECK: func\nCHECK: func\nCHECK-LABEL: @g", two, nil},
		{"regex", "CHECK-LABEL: {{@[g-z]}}\nCHECK: b", two, nil},
		{"variable", "CHECK-LABEL: [[A:@f]]", two, []string{"t.qir:1:16: CHECK-LABEL cannot hold variables"}},
		{"local variable", "CHECK-LABEL: @f\nCHECK: [[A:a]]\nCHECK-LABEL: @g\nCHECK: [[A]]", two, []string{"t.qir:4: CHECK: variable A is not defined here"}},
		{"global variable", "CHECK-LABEL: @f\nCHECK: [[$A:c]]\nCHECK-LABEL: @g\nCHECK-NOT: [[$A]]", two, nil},
		{"global variable used", "CHECK-LABEL: @f\nCHECK: [[$A:c]]\nCHECK-LABEL: @g\nCHECK: [[$A]]", two, []string{`with $A = "c"`}},
	})
}

func TestCheckBlocksBeforeMissingLabel(t *testing.T) {
	err := Check(directives(t, "CHECK-LABEL: f\nCHECK: x\nCHECK-LABEL: g\nCHECK-LABEL: h"), "f\ng\n")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "t.qir:2: CHECK: not found")
	assert.Contains(t, err.Error(), "t.qir:4: CHECK-LABEL: not found")
}

func TestCheckVariables(t *testing.T) {
	runChecks(t, []checkTest{
		{"use", "CHECK: [[A:%[a-z0-9]+]] = x\nCHECK: use [[A]]{{$}}", "%a1 = x\nuse %a12\nuse %a1\n", nil},
		{"value is literal", "CHECK: [[A:.*]] =\nCHECK: use [[A]]", "a.* =\nuse a.*\n", nil},
		{"value is not a regex", "CHECK: [[A:.*]] =\nCHECK: use [[A]]", "a.* =\nuse abc\n", []string{`with A = "a.*"`}},
		{"redefined", "CHECK: [[A:.]] =\nCHECK: [[A:.]] =\nCHECK: [[A]][[A]]", "a =\nb =\naa bb\n", nil},
		{"several", "CHECK: [[A:.]] = [[B:.]]\nCHECK: [[B]][[A]]", "x = y\nyx\n", nil},
		{"groups in regexes", "CHECK: {{(a|b)}} [[A:(c|d)]] {{(e)}}[[B:f]]\nCHECK: [[A]][[B]]", "b d ef\ndf\n", nil},
		{"used where defined", "CHECK: mul [[X:%[a-z]+]], [[X]]{{$}}", "mul %a, %b\nmul %ab, %a\nmul %b, %b\n", nil},
		{"used where defined fails", "CHECK: mul [[X:%.]], [[X]]", "mul %a, %b\nmul %b, %a\n", []string{"not found"}},
		{"two used where defined", "CHECK: [[X:.]] [[Y:.]] [[X]][[Y]]\nCHECK: [[Y]]", "a b ba\na b ab\nb\n", nil},
		{"longest", "CHECK: [[X:a+]] [[X]]\nCHECK: {{^}}[[X]]{{$}}", "aaa aaa\na\naaa\n", nil},
		{"leftmost", "CHECK: [[X:.]]-[[X]]\nCHECK: {{^}}[[X]]{{$}}", "a-a b-b\na\n", nil},
		{"earlier value before redefinition", "CHECK: [[X:.]]=\nCHECK: [[X]] [[X:.]] [[X]]\nCHECK: ![[X]]", "a=\na b b\n!b\n", nil},
		{"longer than a byte", "CHECK: <[[X:.+]]|[[X]]>\nCHECK: {{^}}[[X]]{{$}}", "<aé|é>\n<éa|éa>\néa\n", nil},
		{"value is not UTF-8", "CHECK: <[[X:.]]>\nCHECK: [[X]]", "<\xff>\n\xff\n", []string{"invalid UTF-8"}},
		{"empty value", "CHECK: <[[X:b*]]|[[X]]>", "<|>\n", nil},
	})
}

func TestCheckRegex(t *testing.T) {
	runChecks(t, []checkTest{
		{"repetition", "CHECK: x{{[0-9]{3}}}y", "x123y\n", nil},
		{"brace after a regex", "CHECK: {budget={{.*}}}", "{budget=1}\n", nil},
		{"brace in a class", "CHECK: a{{[}]+}}b", "a}}}b\n", nil},
		{"bracket in a class", "CHECK: a{{[]x]+}}b{{[^]]}}", "a]xb.\n", nil},
		{"escaped bracket in a class", `CHECK: a{{[\]x]+}}b`, "a]xb\n", nil},
		{"named class", "CHECK: [[A:[[:alpha:]]+]]1", "abc1\n", nil},
		{"class at the end of a variable", "CHECK: [[A:%[a-z]]]!", "%a!\n", nil},
		{"escaped brace", `CHECK: {{a\}\}b}}`, "a}}b\n", nil},
		{"alternatives", "CHECK: x{{a|b}}y", "xby\n", nil},
		{"bracket before a variable", "CHECK: [[[A:.]]]", "[x]\n", nil},
		{"line start", "CHECK: {{^}}b", "ab\nb\n", nil},
		{"line start is not mid-line", "CHECK: a\nCHECK-SAME: {{^b}}", "ab\n", []string{"not found"}},
		{"blanks", "CHECK: {{a  b}}", "a    b\n", nil},
		{"unicode", "CHECK: é\nCHECK-SAME: {{^|.}}é", "éxé\n", nil},
		{"no marker", "CHECK: {{a", "a\n", []string{`t.qir:1:10: "{{" is not closed by "}}"`}},
		{"no marker, class", "CHECK: {{[a}}", "a\n", []string{`"{{" is not closed`}},
		{"no marker, variable", "CHECK: b [[A:a]", "a\n", []string{`t.qir:1:12: "[[" is not closed by "]]"`}},
		{"invalid", "CHECK: b {{a(}}", "a\n", []string{"t.qir:1:14: error parsing regexp: missing closing )"}},
		{"invalid definition", "CHECK: [[A:*]]", "a\n", []string{"t.qir:1:14: error parsing regexp: missing argument"}},
		{"unbalanced across items", "CHECK: {{a)(b}}", "a\n", []string{"error parsing regexp: unexpected )"}},
		{"empty regex", "CHECK: {{}}", "a\n", []string{"t.qir:1:12: the regex is empty"}},
		{"empty definition", "CHECK: [[A:]]", "a\n", []string{"the regex is empty"}},
		{"not UTF-8", "CHECK: a\xff", "a\xff\n", []string{"invalid UTF-8"}},
		{"bad name", "CHECK: [[A-B]]", "a\n", []string{"t.qir:1:13: expected ':' or ']]' after the variable's name"}},
		{"numeric variable", "CHECK: [[#A]]", "a\n", []string{"t.qir:1:12: a variable's name is"}},
		{"line variable", "CHECK: [[@LINE]]", "a\n", []string{"a variable's name is"}},
		{"defined twice", "CHECK: [[A:a]][[A:b]]", "ab\n", []string{"t.qir:1:19: the line defines A twice"}},
		{"no text", "CHECK:", "a\n", []string{"CHECK needs a text"}},
	})
}

func TestWordBoundarySeesPreviousMatch(t *testing.T) {
	runChecks(t, []checkTest{
		{"none", "CHECK: a\nCHECK-SAME: {{\\bb}}", "ab\n", []string{"t.qir:2: CHECK-SAME: not found"}},
		{"one", "CHECK: a\nCHECK-SAME: {{\\bb}}", "ab b\n", nil},
	})
}

func TestCheckReportsAllBadDirectives(t *testing.T) {
	err := Check(directives(t, "CHECK: {{(}}\nCHECK: [[A"), "a\n")
	require.Error(t, err)
	assert.Contains(t, err.Error(), "t.qir:1:")
	assert.Contains(t, err.Error(), "t.qir:2:")
}

func TestCheckRefusesOtherDirectives(t *testing.T) {
	err := Check([]Directive{{Kind: KindRemark, Text: "a", File: "t.qir", Line: 3, Col: 1}}, "a\n")
	assert.ErrorContains(t, err, "t.qir:3:1: REMARK is not matched against output")
}

func TestCheckCaretBelowTabs(t *testing.T) {
	assert.Equal(t, "    | \té b\n    | \t  ^", excerpt("\té b", 4, 4))
}

func TestCheckErrorIsTyped(t *testing.T) {
	err := Check(directives(t, "CHECK: b"), "a\n")
	var check *CheckError
	require.ErrorAs(t, err, &check)
	assert.Equal(t, 1, check.Directive.Line)
	assert.Equal(t, "not found", check.Msg)
}

func TestNearestSubstring(t *testing.T) {
	for _, test := range []struct {
		wanted, text         string
		distance, start, end int
	}{
		{"abc", "xxabcxx", 0, 2, 5},
		{"abc", "xxabxx", 1, 2, 4},
		{"abc", "", 3, 0, 0},
		{"", "abc", 0, 0, 0},
		{"abcd", "xabXcdx", 1, 1, 6},
	} {
		distance, start, end := nearestSubstring(test.wanted, test.text)
		assert.Equal(t, test.distance, distance, test)
		assert.Equal(t, test.start, start, test)
		assert.Equal(t, test.end, end, test)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("a {{b+}} [[A:.*]] [[A]]", "a bb x x\n", "[[A]]{{$}}")
	f.Add("{{[}]}}}", "}", "[[[A:[[:alpha:]]]]]")
	f.Fuzz(func(t *testing.T, first, output, second string) {
		if len(output) > 200 {
			return // a variable used where it is defined is tried in many ways
		}
		for _, kind := range []Kind{KindCheck, KindCheckDAG, KindCheckNot} {
			for _, follow := range []Kind{KindCheckNext, KindCheckSame, KindCheckNot, KindCheckDAG, KindCheckLabel, KindCheck} {
				err := Check([]Directive{
					{Kind: kind, Text: strings.TrimSpace(first)},
					{Kind: follow, Text: strings.TrimSpace(second)},
				}, output)
				if err != nil {
					_ = err.Error()
				}
			}
		}
	})
}

package filetest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Kind says what a directive does.
type Kind int

// The kinds of directives. The package comment describes them.
const (
	KindCheck Kind = iota + 1
	KindCheckNext
	KindCheckSame
	KindCheckNot
	KindCheckDAG
	KindCheckLabel
	KindCheckEmpty
	KindCheckCount
	KindRunCommand
	KindRunFunction
	KindError
	KindFire
	KindNoFire
	KindRemark
	KindOutput
)

// kindNames lists the words of the format; CHECK-COUNT is completed by -n.
var kindNames = map[Kind]string{
	KindCheck:       "CHECK",
	KindCheckNext:   "CHECK-NEXT",
	KindCheckSame:   "CHECK-SAME",
	KindCheckNot:    "CHECK-NOT",
	KindCheckDAG:    "CHECK-DAG",
	KindCheckLabel:  "CHECK-LABEL",
	KindCheckEmpty:  "CHECK-EMPTY",
	KindCheckCount:  "CHECK-COUNT",
	KindRunCommand:  "RUN",
	KindRunFunction: "run",
	KindError:       "ERROR",
	KindFire:        "FIRE",
	KindNoFire:      "NO-FIRE",
	KindRemark:      "REMARK",
	KindOutput:      "OUTPUT",
}

// String returns the word that introduces directives of the kind.
func (k Kind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// isCheck tells whether the kind is matched against output by [Check].
func (k Kind) isCheck() bool { return KindCheck <= k && k <= KindCheckCount }

// needsPrevious tells whether the kind is placed relative to the line matched
// before it.
func (k Kind) needsPrevious() bool {
	return k == KindCheckNext || k == KindCheckSame || k == KindCheckEmpty
}

// Directive is one directive of a test file.
type Directive struct {
	// Kind is what the directive does.
	Kind Kind
	// Count is the n of CHECK-COUNT-n.
	Count int
	// Text is what follows the colon, without the blanks around it.
	Text string
	// File and Line say where the directive is, Col where its text begins.
	File      string
	Line, Col int
}

// Name returns the word of the directive as written.
func (d Directive) Name() string {
	if d.Kind == KindCheckCount {
		return fmt.Sprintf("%s-%d", d.Kind, d.Count)
	}
	return d.Kind.String()
}

// syntaxError places a mistake at a byte offset of the directive's text.
func (d Directive) syntaxError(offset int, format string, args ...any) *SyntaxError {
	return &SyntaxError{Path: d.File, Line: d.Line, Col: d.Col + offset, Msg: fmt.Sprintf(format, args...)}
}

// maxCount bounds CHECK-COUNT-n so that a slip of the keyboard cannot hang a
// test.
const maxCount = 9999

// lookup finds the kind a word stands for.
func lookup(word string) (kind Kind, count int, ok bool) {
	if digits, found := strings.CutPrefix(word, "CHECK-COUNT-"); found {
		n, err := strconv.Atoi(digits)
		return KindCheckCount, n, err == nil && 0 < n && n <= maxCount
	}
	for kind, name := range kindNames {
		if name == word && kind != KindCheckCount {
			return kind, 0, true
		}
	}
	return 0, 0, false
}

// header is the introducing part of a directive: its word and, for ERROR, the
// column.
type header struct {
	kind   Kind
	count  int
	col    int
	length int // bytes up to and including the colon
}

var headerPattern = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9-]*)(?:@([1-9][0-9]{0,5}))?:`)

// parseHeader reads the start of a comment's text as a directive's header.
func parseHeader(comment string) (header, bool) {
	m := headerPattern.FindStringSubmatch(comment)
	if m == nil {
		return header{}, false
	}
	kind, count, ok := lookup(m[1])
	if !ok || m[2] != "" && kind != KindError {
		return header{}, false
	}
	col := 0
	if m[2] != "" {
		col, _ = strconv.Atoi(m[2]) // the pattern admits only small numbers
	}
	return header{kind: kind, count: count, col: col, length: len(m[0])}, true
}

package filetest

import (
	"fmt"
	"strings"
)

// located is an error together with the line it belongs to if it has no place
// of its own.
type located struct {
	Error
	fallback int
}

// matchErrors compares the errors reported with those expected. It tells
// whether to go on: after an unexpected error output means little.
func (e *evaluation) matchErrors() bool {
	actual, asked := e.collectErrors()
	if !asked && len(e.c.Errors) > 0 {
		e.fail(e.c.Errors[0].Line, 0, "ERROR is never compared with anything: nothing parses the case")
		return false
	}
	matched := assign(len(e.c.Errors), len(actual), func(i, j int) bool {
		return e.c.Errors[i].matches(actual[j].Error, e.c)
	})
	used := map[int]bool{}
	for i, want := range e.c.Errors {
		if matched[i] < 0 {
			e.fail(want.Line, 0, "%s", e.missing(want, actual))
			continue
		}
		used[matched[i]] = true
	}
	clean := true
	for j, got := range actual {
		if !used[j] {
			clean = false
			got.Msg = "unexpected error: " + got.Msg
			e.reported(got.Error, got.fallback)
		}
	}
	return clean
}

// collectErrors gathers the errors of all commands, or of the parse if there
// are no commands, each once. It tells whether there was anything to ask.
func (e *evaluation) collectErrors() (errs []located, asked bool) {
	seen := map[Error]bool{}
	collect := func(from []Error, line int) {
		for _, err := range from {
			if !seen[err] {
				seen[err] = true
				errs = append(errs, located{err, line})
			}
		}
	}
	for i := range e.outcomes {
		o := &e.outcomes[i]
		o.seen = o.seen || len(e.c.Errors) > 0
		collect(o.res.Errors, o.run.Line)
	}
	if len(e.outcomes) == 0 && len(e.c.Errors) > 0 && e.r.RoundTrip != nil {
		_, found := e.r.roundTrip(e.c.Src)
		collect(found, e.c.StartLine)
		return errs, true
	}
	return errs, len(e.outcomes) > 0
}

// matches tells whether an error is the one expected.
func (x ExpectedError) matches(err Error, c *Case) bool {
	return strings.Contains(err.Msg, x.Text) && x.placedAt(err, c)
}

// placedAt tells whether an error is where one is expected.
func (x ExpectedError) placedAt(err Error, c *Case) bool {
	if err.Line <= 0 || x.Col > 0 && err.Col != x.Col {
		return false
	}
	if x.Target == 0 {
		return c.FileLine(err.Line) > x.After
	}
	return c.FileLine(err.Line) == x.Target
}

// missing describes an expected error that was not reported, and the reported
// one that comes nearest.
func (e *evaluation) missing(want ExpectedError, actual []located) string {
	msg := fmt.Sprintf("missing error %q, expected %s", want.Text, want.place())
	for _, got := range actual {
		if strings.Contains(got.Msg, want.Text) {
			return msg + fmt.Sprintf("; it is reported at %s", e.place(got.Error))
		}
	}
	for _, got := range actual {
		if want.placedAt(got.Error, e.c) {
			return msg + fmt.Sprintf("; reported there: %s", got.Msg)
		}
	}
	return msg
}

// place says in words where the error is expected.
func (x ExpectedError) place() string {
	where := fmt.Sprintf("on line %d", x.Target)
	if x.Target == 0 {
		where = fmt.Sprintf("after line %d", x.After)
	}
	if x.Col > 0 {
		where += fmt.Sprintf(", column %d", x.Col)
	}
	return where
}

// place says where in the file an error is.
func (e *evaluation) place(err Error) string {
	if err.Line <= 0 {
		return "no place"
	}
	return fmt.Sprintf("%d:%d", e.c.FileLine(err.Line), err.Col)
}

// assign pairs as many as possible of n things with m others, each used once,
// and returns the partner of each, or -1. Taking the first that fits would not
// do: "rank" must leave "rank of %a" to the one that needs it.
func assign(n, m int, fits func(i, j int) bool) []int {
	partner := make([]int, n)
	owner := make([]int, m)
	for i := range partner {
		partner[i] = -1
	}
	for j := range owner {
		owner[j] = -1
	}
	var place func(i int, tried []bool) bool
	place = func(i int, tried []bool) bool {
		for j := range m {
			if tried[j] || !fits(i, j) {
				continue
			}
			tried[j] = true
			if owner[j] < 0 || place(owner[j], tried) {
				owner[j], partner[i] = i, j
				return true
			}
		}
		return false
	}
	for i := range n {
		place(i, make([]bool, m))
	}
	return partner
}

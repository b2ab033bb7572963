package filetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Eval runs a case and returns all that is not as expected.
func (r *Runner) Eval(ctx context.Context, c *Case) []Failure {
	e := r.evaluate(ctx, c, false)
	return e.failures
}

// evaluation is the state of running one case.
type evaluation struct {
	r        *Runner
	ctx      context.Context
	c        *Case
	failures []Failure
	outcomes []outcome
	// bless turns a mismatch of the OUTPUT block into blessed, its new lines.
	bless   bool
	blessed []string
}

// outcome is what a RUN line led to.
type outcome struct {
	run Run
	res Result
	// seen is set once some directive looked at the result.
	seen bool
}

func (r *Runner) evaluate(ctx context.Context, c *Case, bless bool) *evaluation {
	e := &evaluation{r: r, ctx: ctx, c: c, bless: bless}
	if !e.roundTrip() {
		return e
	}
	for _, run := range c.Runs {
		e.outcomes = append(e.outcomes, outcome{run: run, res: r.call(ctx, run.Name, run.Args, *c)})
	}
	if !e.matchErrors() {
		return e
	}
	e.checkOutputs()
	e.checkFires()
	e.checkRemarks()
	e.runFunctions()
	e.requireLook()
	return e
}

// fail records a failure at a line of the file.
func (e *evaluation) fail(line, col int, format string, args ...any) {
	name := e.c.Description
	if name == "" {
		name = e.c.Name
	}
	e.failures = append(e.failures, Failure{
		Path: e.c.File, Line: line, Col: col, Case: name, Msg: fmt.Sprintf(format, args...),
	})
}

// reported fails for an error of a handler, which belongs to a line of the file
// if it has no place of its own.
func (e *evaluation) reported(err Error, line int) {
	if err.Line <= 0 {
		e.fail(line, 0, "%s", err.Msg)
		return
	}
	e.fail(e.c.FileLine(err.Line), err.Col, "%s%s", err.Msg, e.sourceExcerpt(err))
}

// sourceExcerpt shows the place of an error in the case, if it is there.
func (e *evaluation) sourceExcerpt(err Error) string {
	lines := strings.Split(e.c.Src, "\n")
	if err.Line > len(lines) {
		return ""
	}
	text := strings.TrimRight(lines[err.Line-1], blanks)
	col := min(max(err.Col-1, 0), len(text))
	return "\n" + excerpt(text, col, col)
}

// checkOutputs compares the outputs with CHECK and OUTPUT.
func (e *evaluation) checkOutputs() {
	if len(e.c.Checks) == 0 && e.c.Output == nil {
		return
	}
	compared := false
	for i := range e.outcomes {
		o := &e.outcomes[i]
		if o.res.SelfChecked {
			continue
		}
		compared, o.seen = true, true
		if err := Check(e.c.Checks, o.res.Output); err != nil {
			e.checkFailed(err, o.run)
		}
		e.compareBlock(o)
	}
	if compared {
		return
	}
	const msg = "%s is never compared with anything: no RUN line of the case has output to check"
	if len(e.c.Checks) > 0 {
		e.fail(e.c.Checks[0].Line, 0, msg, e.c.Checks[0].Name())
	}
	if e.c.Output != nil {
		e.fail(e.c.Output.Line, 0, msg, KindOutput)
	}
}

// checkFailed records each of the failures that an error of [Check] joins.
func (e *evaluation) checkFailed(err error, run Run) {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		for _, part := range joined.Unwrap() {
			e.checkFailed(part, run)
		}
		return
	}
	var check *CheckError
	var syntax *SyntaxError
	switch {
	case errors.As(err, &check):
		e.fail(check.Directive.Line, 0, "%s\n  %s", check.detail(), run)
	case errors.As(err, &syntax):
		e.fail(syntax.Line, syntax.Col, "%s", syntax.Msg)
	default:
		e.fail(run.Line, 0, "%v", err)
	}
}

// String names the command in messages.
func (r Run) String() string { return fmt.Sprintf("RUN: %s (line %d)", r.Text, r.Line) }

// runFunctions hands the "run:" lines to their command.
func (e *evaluation) runFunctions() {
	for _, d := range e.c.Evals {
		res := e.r.call(e.ctx, RunFunctionCommand, []string{d.Text}, *e.c)
		for _, err := range res.Errors {
			if err.Line <= 0 {
				err.Msg = fmt.Sprintf("run: %s: %s", d.Text, err.Msg)
			}
			e.reported(err, d.Line)
		}
	}
}

// requireLook fails for results that nothing looks at, and for a case that
// checks nothing at all.
func (e *evaluation) requireLook() {
	for _, o := range e.outcomes {
		if !o.seen && !o.res.SelfChecked {
			e.fail(o.run.Line, 0, "nothing in the case looks at the result of this command\n  %s", o.run)
		}
	}
	if len(e.outcomes) == 0 && len(e.c.Evals) == 0 && e.r.RoundTrip == nil {
		e.fail(e.c.StartLine, 0, "the case checks nothing")
	}
}

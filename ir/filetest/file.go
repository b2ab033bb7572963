package filetest

import "fmt"

// File is a parsed test file.
type File struct {
	// Path is the name the file was parsed under.
	Path string
	// Cases are the file's cases in order; there is at least one.
	Cases []*Case

	// lines is the text by line, without "\n", kept for blessing.
	lines []string
}

// Case is one case of a file: a text and what is expected of it.
type Case struct {
	// File is the path of the file that holds the case.
	File string
	// Name is the case's number in the file and, shortened, its description.
	// It is fit for a subtest's name.
	Name string
	// Description is the first sentence of the case's first comment.
	Description string
	// Src is the text of the case, comments included.
	Src string
	// StartLine is the line of the file on which Src starts, from 1.
	StartLine int

	// Runs are the commands to run, the file's unless the case has its own.
	Runs []Run
	// Checks are the CHECK directives in order.
	Checks []Directive
	// Errors are the errors that must be reported.
	Errors []ExpectedError
	// Fires are the passes of FIRE and NO-FIRE.
	Fires []ExpectedFire
	// Remarks are the REMARK directives.
	Remarks []Directive
	// Evals are the "run:" directives.
	Evals []Directive
	// Output is the exact output expected, nil if there is no such block.
	Output *OutputBlock
}

// FileLine maps a line of Src, counted from 1, to a line of the file.
func (c Case) FileLine(line int) int { return c.StartLine + line - 1 }

// Run is a command line.
type Run struct {
	// Line is the line of the file that holds the command.
	Line int
	// Text is the command line as written.
	Text string
	// Name is the command's name.
	Name string
	// Args are the arguments after the name.
	Args []string
}

// ExpectedError is an ERROR directive.
type ExpectedError struct {
	// Text must be part of the error's message.
	Text string
	// Line is the line of the file that holds the directive.
	Line int
	// Target is the line of the file the error is reported on, or 0 if it is
	// reported after the last line of source.
	Target int
	// After is, when Target is 0, the last line of source.
	After int
	// Col is the column of the error, or 0 for any.
	Col int
}

// ExpectedFire is one pass of a FIRE or NO-FIRE directive.
type ExpectedFire struct {
	// Line is the line of the file that holds the directive.
	Line int
	// Pass is the name of the pass.
	Pass string
	// Count is the number of rewrites, 0 for NO-FIRE.
	Count int
}

// OutputBlock is the exact output expected by an OUTPUT directive.
type OutputBlock struct {
	// Line is the line of the file that holds the directive. The text follows
	// it, one line each.
	Line int
	// Lines is the text.
	Lines []string

	// indent precedes the directive and the text, lineEnd follows them before
	// "\n"; both are kept when the block is rewritten.
	indent, lineEnd string
}

// SyntaxError is a mistake in a test file itself.
type SyntaxError struct {
	Path      string
	Line, Col int
	Msg       string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.Path, e.Line, e.Col, e.Msg)
}

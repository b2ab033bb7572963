package filetest

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

// Error is an error a handler reports about the text it was given.
type Error struct {
	// Line and Col count from 1 within that text; Col counts bytes. An error
	// that has no place, such as a bad argument, has Line 0.
	Line, Col int
	// Msg is the message without the place.
	Msg string
}

// Result is what a command made of a case.
type Result struct {
	// Output is compared with CHECK and OUTPUT.
	Output string
	// Fired counts the rewrites of every pass that ran, including those that
	// rewrote nothing: NO-FIRE insists that the pass ran.
	Fired map[string]int
	// Remarks are compared with REMARK.
	Remarks []string
	// Errors are compared with ERROR. One that is not expected is a failure.
	Errors []Error
	// SelfChecked tells that the command is itself a check, such as comparing
	// two runs, and fails by reporting errors. Its output is not looked at.
	SelfChecked bool
}

// Command runs one command on one case.
type Command func(ctx context.Context, args []string, c Case) Result

// RunFunctionCommand is the name of the command that "run:" lines go to.
const RunFunctionCommand = "run"

// Runner runs test files. The zero value has no handlers.
type Runner struct {
	// Commands are the commands of RUN lines by name.
	Commands map[string]Command
	// RoundTrip parses a text and prints it again, or reports the errors in
	// it. Nil turns the round trip off.
	RoundTrip func(src string) (string, []Error)
}

// Failure is something in a case that is not as expected.
type Failure struct {
	// Path and Line say where in the test file; Col is 0 if it is the line as
	// a whole.
	Path      string
	Line, Col int
	// Case is the description of the case, or its name if it has none.
	Case string
	// Msg says what is wrong. It may have several lines.
	Msg string
}

// String returns the failure as a message.
func (f Failure) String() string {
	place := fmt.Sprintf("%s:%d", f.Path, f.Line)
	if f.Col > 0 {
		place += fmt.Sprintf(":%d", f.Col)
	}
	return fmt.Sprintf("%s: %s\n  case: %s", place, f.Msg, f.Case)
}

// call runs a command. A panic becomes an error, so that one case cannot hide
// the results of the others.
func (r *Runner) call(ctx context.Context, name string, args []string, c Case) (res Result) {
	command, ok := r.Commands[name]
	if !ok {
		return Result{Errors: []Error{{Msg: r.unknownCommand(name)}}}
	}
	defer func() {
		if p := recover(); p != nil {
			res = Result{Errors: []Error{{Msg: panicMessage(name, p)}}}
		}
	}()
	return command(ctx, args, c)
}

// roundTrip calls the handler likewise.
func (r *Runner) roundTrip(src string) (printed string, errs []Error) {
	defer func() {
		if p := recover(); p != nil {
			printed, errs = "", []Error{{Msg: panicMessage("round trip", p)}}
		}
	}()
	return r.RoundTrip(src)
}

func panicMessage(name string, value any) string {
	return fmt.Sprintf("%s panicked: %v\n%s", name, value, debug.Stack())
}

func (r *Runner) unknownCommand(name string) string {
	var names []string
	for known := range r.Commands {
		names = append(names, known)
	}
	slices.Sort(names)
	return fmt.Sprintf("unknown command %q; there are: %s", name, strings.Join(names, ", "))
}

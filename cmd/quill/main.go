// Command quill compiles checkpoints of Inkling models ahead of time into
// bundles of static recipes, and replays them.
//
//	deployment.yaml ──┐  ┌→ quill plan
//	config.json ──────┴──┴→ quill compile → bundle ──┬→ quill inspect
//	                             checkpoint ─────────┴→ quill run, quill score
//
// Results go to the standard output, everything else to the standard error.
// The exit code is 0 on success, 1 on an error, 2 on wrong usage, 130 after
// an interrupt and 141 if nobody reads the results. quill check has one for each state of a bundle, and quill diff those of
// diff(1).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitInterrupted = 130
	exitUnread      = 141 // what a shell makes of SIGPIPE

	// Of quill check, beside exitOK for an optimal bundle.
	exitRebuild     = 3
	exitUnsupported = 4
	exitUnknown     = 5

	// Of quill diff.
	exitDiffer  = 1
	exitTrouble = 2
)

// outcome is an exit code that is no error: the standard output says all.
type outcome int

func (o outcome) Error() string { return fmt.Sprintf("exit code %d", int(o)) }

// trouble is an error of a command whose exit code exitError means something else.
type trouble struct{ error }

func (t trouble) Unwrap() error { return t.error }

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup wants it
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	// Writing to a pipe that nobody reads is an error then, not the end: cards and folders
	// for temporary files are given back.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// unread reports whether an error is that nobody reads the standard output.
func unread(err error) bool {
	path, ok := errors.AsType[*fs.PathError](err)
	return ok && path.Path == os.Stdout.Name() && errors.Is(path, syscall.EPIPE)
}

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	outcome, isOutcome := errors.AsType[outcome](err)
	usage, isUsage := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "quill: interrupted")
		return exitInterrupted
	case isOutcome:
		return int(outcome)
	case unread(err):
		return exitUnread
	case isUsage:
		fmt.Fprintf(stderr, "quill: %v\nRun '%s --help' for usage.\n", usage, cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "quill: %s\n", strings.TrimSpace(err.Error()))
	if _, ok := errors.AsType[trouble](err); ok {
		return exitTrouble
	}
	return exitError
}

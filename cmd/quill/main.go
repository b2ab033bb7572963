// Command quill compiles checkpoints of Inkling models ahead of time into
// bundles of static recipes, and replays them.
//
//	deployment.yaml ──┐  ┌→ quill plan
//	config.json ──────┴──┴→ quill compile → bundle ──┬→ quill inspect
//	                             checkpoint ─────────┴→ quill run, quill score
//
// Results go to the standard output, everything else to the standard error.
// The exit code is 0 on success, 1 on an error, 2 on wrong usage and 130 after
// an interrupt.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the program at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	usage, isUsage := errors.AsType[usageError](err)
	switch {
	case err == nil:
		return exitOK
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "quill: interrupted")
		return exitInterrupted
	case isUsage:
		fmt.Fprintf(stderr, "quill: %v\nRun '%s --help' for usage.\n", usage, cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "quill: %s\n", strings.TrimSpace(err.Error()))
	return exitError
}

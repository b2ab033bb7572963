package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/lower/native"
	"quill/recipes"
	"quill/recipes/target"
)

// nativeOptions say how the vendor's compiler makes native recipes.
type nativeOptions struct {
	on       bool
	synapse  string
	profile  string
	jobs     int
	deadline time.Duration
	failures string
	fallback bool

	compiler *native.Compiler
	meter    *meter // nil for events
	begun    time.Time
	last     native.Step
}

func (n *nativeOptions) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&n.on, "native", false, "have the vendor's compiler make every recipe for cards, too")
	f.StringVar(&n.synapse, "synapse", "", "with --native: "+synapseUsage)
	f.StringVar(&n.profile, "native-profile", target.Default, "with --native: target profile that lays parameters out, a name or a file of quill target import")
	f.IntVar(&n.jobs, "native-jobs", 0, "with --native: processes that compile at once (default: the processors there are)")
	f.DurationVar(&n.deadline, "native-deadline", native.DefaultDeadline, "with --native: longest time for one recipe")
	f.StringVar(&n.failures, "native-failures", "", "with --native: folder for what reproduces failures (default: the bundle's name with "+failedExt+")")
	f.BoolVar(&n.fallback, "native-fallback", false, "with --native: write the bundle without native recipes if one fails; the exit code is 1 still")
}

// failedExt ends the name of the folder with what reproduces failures.
const failedExt = ".failed"

// check checks the flags.
func (n *nativeOptions) check(cmd *cobra.Command) error {
	given := cmd.Flags().Changed
	if !n.on {
		for _, name := range []string{"synapse", "native-profile", "native-jobs", "native-deadline", "native-failures", "native-fallback"} {
			if given(name) {
				return usagef("--%s is for --native", name)
			}
		}
		return nil
	}
	for _, name := range []string{"synapse", "native-profile", "native-failures"} {
		if given(name) && cmd.Flags().Lookup(name).Value.String() == "" {
			return usagef("--%s is empty", name)
		}
	}
	switch {
	case n.jobs < 0 || given("native-jobs") && n.jobs == 0:
		return usagef("--native-jobs is %d, want 1 or more", n.jobs)
	case n.deadline <= 0:
		return usagef("--native-deadline is %v, want more than 0", n.deadline)
	}
	return nil
}

// open checks what is installed, so that nothing is compiled in vain.
func (n *nativeOptions) open(ctx context.Context, out string, stderr io.Writer, keep *keeping) (err error) {
	if !n.on {
		return nil
	}
	opt := native.Options{
		Synapse: n.synapse, Jobs: n.jobs, Deadline: n.deadline, Failures: n.failures, Store: keep.store,
		Progress: func(s native.Step) { n.progress(stderr, s) },
	}
	if opt.Jobs == 0 {
		opt.Jobs = runtime.GOMAXPROCS(0)
	}
	if opt.Failures == "" {
		opt.Failures = strings.TrimSuffix(out, filepath.Ext(out)) + failedExt
	}
	if opt.Profile, err = loadProfile(n.profile); err != nil {
		return fmt.Errorf("--native-profile: %w", err)
	}
	if n.compiler, err = native.Open(ctx, opt); err != nil && ctx.Err() == nil {
		return fmt.Errorf("--native: %w", err)
	}
	return err
}

func (n *nativeOptions) close() {
	if n.compiler != nil {
		n.compiler.Close()
	}
}

// compile adds native recipes to a bundle. fallback says that they failed, and that the
// bundle is to be written without them all the same.
func (n *nativeOptions) compile(ctx context.Context, b *recipes.Bundle, out string, stderr io.Writer, keep *keeping) (fallback, err error) {
	if !n.on {
		return nil, nil
	}
	if keep.events == "" {
		n.meter = newMeter(stderr, "native recipes", func(i int64) string { return strconv.FormatInt(i, 10) })
		defer n.meter.close()
	}
	n.begun = time.Now()
	b.Native, err = n.compiler.Compile(ctx, b)
	if _, failed := errors.AsType[*native.FailedError](err); !failed {
		return nil, err
	}
	if n.fallback {
		return fmt.Errorf("%w\n%s was written without native recipes", err, out), nil
	}
	return nil, fmt.Errorf("%w\n%s was not written; --native-fallback writes it without native recipes", err, out)
}

// progress tells of a recipe that is done.
func (n *nativeOptions) progress(stderr io.Writer, s native.Step) {
	n.last = s
	if n.meter == nil {
		compileEvent{"native", s.What, s.Done, s.Total, s.Kept, s.Running, s.Took.Seconds()}.write(stderr)
		return
	}
	n.meter.update(int64(s.Done), int64(s.Total), progressText(lower.Step(s), time.Since(n.begun)))
}

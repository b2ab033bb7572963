package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/cobra"

	"quill/passes"
)

// noLimit is the rewrite limit that stands for none.
const noLimit = -1

// passFlags are the flags of commands that run passes.
type passFlags struct {
	pipeline   string
	disable    []string
	printAfter []string
	dumpDir    string
	limit      int
	timings    bool
	remarks    bool
	validate   bool

	stderr   io.Writer
	manager  *passes.Manager
	valid    *validator
	remarked atomic.Bool
	printed  marked
}

// marked is a writer that knows whether anything was written.
type marked struct {
	io.Writer
	wrote atomic.Bool
}

func (m *marked) Write(p []byte) (int, error) {
	m.wrote.Store(true)
	return m.Writer.Write(p)
}

func (f *passFlags) add(cmd *cobra.Command, pipeline string) {
	fs := cmd.Flags()
	fs.StringVar(&f.pipeline, "passes", pipeline, "passes to run, as in a,b{option=value}; quill passes lists them")
	fs.StringSliceVar(&f.disable, "disable-pass", nil, "passes to leave out")
	fs.StringSliceVar(&f.printAfter, "print-after", nil, "print modules after these passes where they changed them, to the standard error: names or all; with diff in the list only what changed")
	fs.StringVar(&f.dumpDir, "dump-dir", "", "directory for modules, numbered by the pass after which they looked so; it must not hold any yet")
	fs.IntVar(&f.limit, "rewrite-limit", noLimit, "most rewrites that optional passes may do, to find the one that breaks something")
	fs.Lookup("rewrite-limit").DefValue = "0" // so that help does not show a number that means nothing
	fs.BoolVar(&f.timings, "pass-timings", false, "print what each pass took and did, to the standard error")
	fs.BoolVar(&f.remarks, "remarks", false, "print what passes have to say, to the standard error")
	fs.BoolVar(&f.validate, "validate", false, "interpret modules before and after each pass on random inputs and compare")
}

// check reads the flags. A pipeline that must be complete has all passes that
// lowering needs.
func (f *passFlags) check(cmd *cobra.Command, complete bool) (passes.Config, error) {
	f.stderr = cmd.ErrOrStderr()
	f.printed.Writer = f.stderr
	var cfg passes.Config
	p, err := passes.Parse(f.pipeline)
	if err != nil {
		return cfg, usagef("--passes: %v", err)
	}
	if p, err = p.Without(passes.Passes(), f.disable...); err != nil {
		return cfg, usagef("--disable-pass: %v", err)
	}
	if complete {
		if err := p.CheckComplete(passes.Passes()); err != nil {
			return cfg, usagef("--passes: %v", err)
		}
	}
	cfg = passes.Config{Pipeline: p, PrintAfter: f.printAfter, Out: &f.printed, DumpDir: f.dumpDir}
	if err := cfg.Check(); err != nil {
		return cfg, usagef("--print-after: %v", err)
	}
	if limit := cmd.Flags().Lookup("rewrite-limit"); limit.Changed {
		if f.limit < 0 {
			return cfg, usagef("--rewrite-limit %d is negative", f.limit)
		}
		cfg.RewriteLimit = &f.limit
	}
	if f.dumpDir != "" {
		if err := makeDumpDir(f.dumpDir); err != nil {
			return cfg, err
		}
	}
	if f.remarks {
		cfg.Remark = func(r passes.Remark) {
			f.remarked.Store(true)
			fmt.Fprintf(f.stderr, "quill: remark: %s\n", r)
		}
	}
	if f.validate {
		f.valid = newValidator()
		cfg.Validate = f.valid.change
	}
	return cfg, nil
}

// makeDumpDir makes the directory for dumps. Dumps of an earlier run are refused:
// a pass that changes nothing leaves no file, so theirs would pass for its.
func makeDumpDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--dump-dir: %w", err)
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && filepath.Ext(path) == ".qir" {
			return fmt.Errorf("it holds modules already, such as %s: remove it, or choose another directory", path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("--dump-dir %s: %w", dir, err)
	}
	return nil
}

// make makes the manager.
func (f *passFlags) make(cfg passes.Config) *passes.Manager {
	f.manager = passes.NewManager(cfg)
	return f.manager
}

// report prints what the flags ask for once the passes have run, be it with an
// error.
func (f *passFlags) report(ctx context.Context, err error) error {
	if f.manager == nil || ctx.Err() != nil {
		return err
	}
	if f.timings {
		err = errors.Join(err, passes.WriteTimings(f.stderr, f.manager.Stats()))
	}
	if len(f.printAfter) > 0 && err == nil && !f.printed.wrote.Load() {
		note(f.stderr, "nothing to print: none of the passes of --print-after changed a module")
	}
	if f.remarks && err == nil && !f.remarked.Load() {
		note(f.stderr, "no remarks")
	}
	if f.valid != nil && err == nil {
		note(f.stderr, "%s", f.valid)
	}
	return err
}

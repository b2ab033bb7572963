package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"quill/ir"
	"quill/ir/interp"
	"quill/passes"
)

type bisectOptions struct {
	pipeline string
	params   []string
	check    string
	atol     float64
	json     bool
}

func newBisect() *cobra.Command {
	var o bisectOptions
	cmd := &cobra.Command{
		Use:   "bisect FILE.qir",
		Short: "Find the pass and the rewrite that break a check",
		Long: `Run passes on a file of IR step by step, find the first step after which a check
fails, and in it the first rewrite.

The check is that the module still computes what it did, on random inputs with
small sizes: what each step leaves is compared with what it got, bit by bit or, for
passes that are not exact, up to last bits; with --atol it is compared with the file
as it is. With --check it is a shell command, to which the name of a file with the
module is added as last argument, and which fails for a broken one. It must hold for
the file as it is; for more than a line write a script.

Facts about the deployment that passes may ask for are given by --param, as to
quill opt.`,
		Example: examples(
			"quill bisect decode.qir",
			"quill bisect decode.qir --passes=canonicalize,cse --atol=1e-5",
			"quill bisect decode.qir --check='grep -q softmax'",
		),
		Args: oneArg("FILE.qir"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.pipeline, "passes", passes.Default().Stage(passes.Family).String(), "passes to run, as in a,b{option=value}; quill passes lists them")
	fs.StringArrayVar(&o.params, "param", nil, "a fact about the deployment, as key=value")
	fs.StringVar(&o.check, "check", "", "shell command to check a file with instead")
	fs.Float64Var(&o.atol, "atol", 0, "difference that results may have to those of the file (default: as above)")
	fs.Lookup("atol").DefValue = "0" // so that help does not say it twice
	fs.BoolVar(&o.json, "json", false, "print as JSON")
	return cmd
}

// bisectReport is what bisect found, as JSON.
type bisectReport struct {
	Holds   bool   `json:"holds"` // after all passes
	Step    string `json:"step,omitempty"`
	Rewrite int    `json:"rewrite,omitempty"` // of the step, from 1; 0 is the whole step
	Error   string `json:"error,omitempty"`
	Diff    string `json:"diff,omitempty"`
}

func (o *bisectOptions) run(cmd *cobra.Command, path string) error {
	p, err := passes.Parse(o.pipeline)
	if err != nil {
		return usagef("--passes: %v", err)
	}
	if !(o.atol >= 0) {
		return usagef("--atol %v is no distance", o.atol)
	}
	cfg := passes.Config{Pipeline: p}
	for _, p := range o.params {
		if err := cfg.Params.Set(p); err != nil {
			return usagef("--param: %v", err)
		}
	}
	m, err := readModule(cmd.InOrStdin(), path)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "quill-bisect-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cfg.DumpDir = dir // for reproducers, which are of no use here
	check := shellCheck(o.check, dir)
	if o.check == "" {
		check = o.sameCheck(cmd.Flags().Changed("atol"), m)
	}
	c, err := passes.Bisect(cmd.Context(), m, cfg, check)
	if err != nil {
		return err
	}
	r := bisectReport{Holds: c == nil}
	if c != nil {
		r.Step, r.Rewrite, r.Diff = c.Step.String(), c.Rewrite, c.Diff
		r.Error, _, _ = strings.Cut(c.Err.Error(), "\n")
	}
	w := cmd.OutOrStdout()
	switch {
	case o.json:
		err = writeJSON(w, r)
	case c == nil:
		_, err = fmt.Fprintf(w, "the check holds after all %s\n", count(len(p), "step"))
	case c.Rewrite > 0:
		_, err = fmt.Fprintf(w, "rewrite %d of pass %s: %s\n%s", r.Rewrite, r.Step, r.Error, r.Diff)
	default:
		_, err = fmt.Fprintf(w, "pass %s: %s\n%s", r.Step, r.Error, r.Diff)
	}
	return err
}

// sameCheck checks that a module computes what it did: within --atol, if that is
// given, else each step as exactly as its pass says.
func (o *bisectOptions) sameCheck(atol bool, m *ir.Module) passes.Check {
	type results = [][]map[string]*interp.Tensor
	env := smallSizes(m)
	var current *passes.Step
	var want, last results // of the module before the current step, and of the last one that was fine
	return func(ctx context.Context, step *passes.Step, n *ir.Module) error {
		got, err := interpret(ctx, m, n, env)
		if err != nil {
			return err
		}
		switch {
		case step == nil || want == nil:
			want = got
		case step != current && !atol:
			want = last
		}
		current = step
		for seed := range got {
			if step == nil || atol {
				err = interp.Same(got[seed], want[seed], o.atol)
			} else {
				err = same(step.Pass, got[seed], want[seed])
			}
			if err != nil {
				return fmt.Errorf("at %s, seed %d: %w", sizesText(m, env), seed, err)
			}
		}
		last = got
		return nil
	}
}

// shellCheck runs a command on a file of the module.
func shellCheck(command, dir string) passes.Check {
	return func(ctx context.Context, _ *passes.Step, m *ir.Module) error {
		f, err := os.CreateTemp(dir, "*.qir")
		if err != nil {
			return err
		}
		defer os.Remove(f.Name())
		if err := errors.Join(m.Print(f), f.Close()); err != nil {
			return err
		}
		out, err := exec.CommandContext(ctx, "sh", "-c", command+` "$1"`, "sh", f.Name()).CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 127 {
			return fmt.Errorf("the command cannot be run: %s", strings.TrimSpace(string(out)))
		}
		if err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, out)
		}
		return nil
	}
}

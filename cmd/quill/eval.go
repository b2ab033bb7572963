package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"quill/ir"
	"quill/ir/interp"
	"quill/recipes/safetensors"
)

type evalOptions struct {
	inputs []string
	out    string
	set    []string
	fn     string
	zero   bool
}

func newEval() *cobra.Command {
	var o evalOptions
	cmd := &cobra.Command{
		Use:   "eval FILE.qir",
		Short: "Interpret a file of IR",
		Long: `Interpret a file of IR with the reference interpreter, on all ranks, and print its
results. FILE.qir may be - for the standard input.

Every parameter of the function needs a tensor of its name: inputs, carried
values and states as all ranks together hold them. Weights may also go by the
name of their checkpoint tensor, in the checkpoint's layout; weights with a fill
need none, and with --zero-states neither do states. What the inputs of a step
are, of a prefill or of a decode, is documented with their graphs:
ir/inkling/prefill.go and ir/inkling/decode.go. Symbols get the values that the shapes of the tensors imply; those
that no shape tells are given by --set.`,
		Example: examples(
			"quill eval layer.qir --inputs layer.safetensors",
			"quill eval decode.qir --inputs model/model.safetensors --inputs step.safetensors --out logits.safetensors",
			"quill eval mask.qir --set q=17",
		),
		Args: oneArg("FILE.qir"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.inputs, "inputs", nil, "file with tensors of parameters; may be given more than once, later files come first")
	f.StringVar(&o.out, "out", "", "file to write the results to")
	f.StringArrayVar(&o.set, "set", nil, "value of a symbol, as q=17")
	f.BoolVar(&o.zero, "zero-states", false, "states that no file has are zeros")
	f.StringVar(&o.fn, "func", "", "function to interpret (default: the last one)")
	return cmd
}

func (o *evalOptions) run(ctx context.Context, path string, stdin io.Reader, stdout io.Writer) (err error) {
	m, err := readModule(stdin, path)
	if err != nil {
		return err
	}
	f := m.Entry()
	if o.fn != "" {
		if f = m.Func(strings.TrimPrefix(o.fn, "@")); f == nil {
			return fmt.Errorf("--func: %s has no function @%s", path, strings.TrimPrefix(o.fn, "@"))
		}
	}
	if o.out != "" {
		if err := checkOutput("--out", o.out, append(o.inputs, path)...); err != nil {
			return err
		}
	}
	e := evaluation{mod: m, fn: f, zero: o.zero}
	if e.env, err = symbolValues(m, o.set); err != nil {
		return err
	}
	for _, name := range o.inputs {
		file, err := safetensors.Open(name)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		e.files = append([]*safetensors.File{file}, e.files...)
	}
	args, err := e.args()
	if err != nil {
		return err
	}
	out, err := interp.Run(ctx, m, f, e.env, args, interp.Options{})
	if err != nil {
		return err
	}
	return o.write(f, out, stdout)
}

// symbolValues reads --set.
func symbolValues(m *ir.Module, set []string) (map[string]int64, error) {
	env := map[string]int64{}
	for _, s := range set {
		name, text, ok := strings.Cut(s, "=")
		n, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil {
			return nil, usagef("--set %q: want a symbol and its value, such as q=17", s)
		}
		known := false
		for _, sym := range m.Syms {
			known = known || sym.Name == name
		}
		if !known {
			return nil, fmt.Errorf("--set: module @%s has no symbol %s", m.Name, name)
		}
		env[name] = n
	}
	return env, nil
}

// write prints the results, of all ranks together, and writes them to --out.
func (o *evalOptions) write(f *ir.Func, out []map[string]*interp.Tensor, stdout io.Writer) error {
	var tensors []safetensors.Tensor
	for _, r := range f.Results {
		parts := make([]*interp.Tensor, len(out))
		for rank := range out {
			parts[rank] = out[rank][r.Name]
		}
		whole, err := interp.Join(parts, r.Type.Dist)
		if err != nil {
			return fmt.Errorf("result %s: %w", r.Name, err)
		}
		if _, err := fmt.Fprintf(stdout, "%s: %s\n", r.Name, whole); err != nil {
			return err
		}
		t, err := toSafetensor(r.Name, whole)
		if err != nil {
			return fmt.Errorf("result %s: %w", r.Name, err)
		}
		tensors = append(tensors, t)
	}
	if o.out == "" {
		return nil
	}
	return safetensors.Write(o.out, tensors, nil)
}

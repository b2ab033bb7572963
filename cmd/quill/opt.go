package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"quill/ir"
	"quill/lower"
	"quill/recipes"
)

// maxIR bounds an IR file; the largest families have a few megabytes.
const maxIR = 1 << 28

type optOptions struct {
	passFlags
	params []string
	lower  string // bucket
	out    string
}

func newOpt() *cobra.Command {
	var o optOptions
	cmd := &cobra.Command{
		Use:   "opt FILE.qir",
		Short: "Run passes on a file of IR",
		Long: `Run passes on a file of IR and print the result. FILE.qir may be - for the
standard input. Without --passes the file is only parsed, verified and printed.

Facts about the deployment that passes may ask for are given by --param, with
the keys of a deployment: --param block_size=128. For moe, what auto stands for is
said: fused or gather. quill inspect shows those of a bundle.

--lower makes recipes and the plan of the result, too, and checks them as compile does:
the module must be one of a bucket, outlined and of concrete sizes. What fails then is
what compile would fail with; the line that it prints for a bucket is such a one.`,
		Example: examples(
			"quill opt decode.qir --passes=canonicalize,cse,dce",
			"quill opt decode.qir --passes=canonicalize,cse,dce --print-after=diff -o /dev/null",
			"quill opt decode.qir --passes='cse{scope=function}' --rewrite-limit=12 --validate",
			"quill opt --lower=decode/b=1,n=1 -o /dev/null dumps/f32/decode-few/b=1,n=1/16-input.qir",
		),
		Args: oneArg("FILE.qir"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args[0]) },
	}
	o.add(cmd, "")
	cmd.Flags().StringArrayVar(&o.params, "param", nil, "a fact about the deployment, as key=value")
	cmd.Flags().StringVar(&o.lower, "lower", "", "bucket, such as decode/b=1,n=1, whose plan and recipes to make of the result and to check")
	cmd.Flags().StringVarP(&o.out, "output", "o", "", "file to write (default: the standard output)")
	return cmd
}

func (o *optOptions) run(cmd *cobra.Command, path string) error {
	cfg, err := o.check(cmd, false)
	if err != nil {
		return err
	}
	for _, p := range o.params {
		if err := cfg.Params.Set(p); err != nil {
			return usagef("--param: %v", err)
		}
	}
	var bucket recipes.Bucket
	if o.lower != "" {
		if bucket, err = recipes.ParseBucket(o.lower); err != nil {
			return usagef("--lower: %v", err)
		}
	}
	m, err := readModule(cmd.InOrStdin(), path)
	if err != nil {
		return err
	}
	if err := o.report(cmd.Context(), o.make(cfg).Run(cmd.Context(), "", m)); err != nil {
		return err
	}
	if o.lower != "" {
		if _, _, err := lower.Lower(m, bucket); err != nil {
			return fmt.Errorf("%s: bucket %s: %w", path, bucket, err)
		}
	}
	if o.out == "" {
		return m.Print(cmd.OutOrStdout())
	}
	if err := os.WriteFile(o.out, []byte(m.String()), 0o666); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	return nil
}

// readModule reads and verifies a file of IR.
func readModule(stdin io.Reader, path string) (*ir.Module, error) {
	if path != "-" {
		src, err := recipes.ReadSmall(path, maxIR)
		if err != nil {
			return nil, err
		}
		if isBinary(src) {
			return nil, fmt.Errorf("%s: this is no .qir file, which is text", path)
		}
		return ir.VerifyText(path, src)
	}
	src, err := io.ReadAll(io.LimitReader(stdin, maxIR+1))
	if err != nil {
		return nil, fmt.Errorf("reading the standard input: %w", err)
	}
	if len(src) > maxIR {
		return nil, fmt.Errorf("the standard input has more than %d bytes", maxIR)
	}
	if isBinary(src) {
		return nil, errors.New("the standard input is no .qir file, which is text")
	}
	return ir.VerifyText("<stdin>", src)
}

// isBinary reports whether a file cannot be IR: that has no NUL and is UTF-8.
func isBinary(src []byte) bool { return bytes.IndexByte(src, 0) >= 0 || !utf8.Valid(src) }

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/runtime"
)

// weightsExt is how the names of packed weights end.
const weightsExt = ".weights"

type packOptions struct {
	bundle    string
	model     string
	precision string
	out       string
	verify    string
	all       bool
	json      bool
}

func newPack() *cobra.Command {
	var o packOptions
	cmd := &cobra.Command{
		Use:   "pack BUNDLE.quill --model DIR | pack --verify FILE.weights",
		Short: "Lay weights out once, so that opening a bundle copies nothing",
		Long: `Write the weights that a checkpoint does not have as the ranks of a bundle want
them, such as parts of a matrix or another type, into a file beside the bundle.
Other commands find it there and map it; so they start at once, take no memory
for weights, and serve checkpoints that are larger than the memory. Results are
the same with and without.

The rest is mapped from the checkpoint, which must not change afterwards. --all
packs everything: then only config.json and the tokenizer are read from it.

The file appears whole or not at all. --verify reads one and compares it with
the digest in it.`,
		Example: examples(
			"quill pack chat.quill --model models/chat",
			"quill pack chat.quill --model /mnt/slow/chat --all -o /nvme/chat.weights",
			"quill pack --verify chat.bf16.weights",
		),
		Args: func(cmd *cobra.Command, args []string) error {
			if o.verify != "" {
				return noArgs(cmd, args)
			}
			return oneArg("BUNDLE.quill")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			done, err := o.run(cmd, args)
			if err != nil {
				return err
			}
			if o.json {
				return writeJSON(cmd.OutOrStdout(), done)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), done)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "", "directory of the checkpoint: config.json and safetensors")
	f.StringVar(&o.precision, "precision", "", "recipe set to pack for, bf16 or f32 (default: the bundle's first)")
	f.StringVarP(&o.out, "output", "o", "", "file to write (default: beside the bundle, chat.bf16"+weightsExt+" for chat.quill)")
	f.BoolVar(&o.all, "all", false, "pack all weights, so that the checkpoint's are not needed any more")
	f.StringVar(&o.verify, "verify", "", "file of packed weights to check; nothing is packed")
	f.BoolVar(&o.json, "json", false, "print what was made or checked as JSON")
	return cmd
}

func (o *packOptions) run(cmd *cobra.Command, args []string) (*packed, error) {
	stderr := cmd.ErrOrStderr()
	if cmd.Flags().Changed("verify") {
		for _, name := range []string{"model", "precision", "output", "all"} {
			if cmd.Flags().Changed(name) {
				return nil, usagef("--verify checks a file, --%s is of no use to it", name)
			}
		}
		return o.check(cmd.Context(), stderr)
	}
	if err := checkModelFlags(cmd, o.precision); err != nil {
		return nil, err
	}
	o.bundle = args[0]
	return o.pack(cmd.Context(), stderr)
}

// packed is what a pack produced or a check found.
type packed struct {
	Weights        string  `json:"weights"`
	Precision      string  `json:"precision"`
	TensorParallel int     `json:"tensor_parallel"`
	All            bool    `json:"all"`
	Ranges         int     `json:"ranges"`
	Bytes          int64   `json:"bytes"`                // of the packed weights
	LeftBytes      *int64  `json:"left_bytes,omitempty"` // that stay in the checkpoint; not known to a check
	SHA256         string  `json:"sha256"`
	Seconds        float64 `json:"seconds"`
}

func (p *packed) String() string {
	text := fmt.Sprintf("%s: %s for %s, %s in %s", p.Weights, p.Precision, count(p.TensorParallel, "rank"), size(p.Bytes), count(p.Ranges, "range"))
	if p.LeftBytes == nil {
		return fmt.Sprintf("%s: whole, SHA-256 %s, %.1f s", text, p.SHA256, p.Seconds)
	}
	return fmt.Sprintf("%s, %s left in the checkpoint, %.1f s", text, size(*p.LeftBytes), p.Seconds)
}

func newPacked(p *runtime.PackedWeights, start time.Time) *packed {
	h := &p.Header
	return &packed{
		Weights: p.Path, Precision: h.Precision, TensorParallel: h.TensorParallel, All: h.All,
		Ranges: len(h.Runs), Bytes: h.Bytes, SHA256: h.SHA256, Seconds: time.Since(start).Seconds(),
	}
}

func (o *packOptions) pack(ctx context.Context, stderr io.Writer) (*packed, error) {
	start := time.Now()
	if o.out != "" {
		if err := checkOutput("-o", o.out, append(o.inputs(), o.bundle)...); err != nil {
			return nil, err
		}
	}
	m := newMeter(stderr, "packing weights", size)
	defer m.close()
	p, err := runtime.Pack(ctx, o.bundle, runtime.PackOptions{
		Model: o.model, Precision: o.precision, Output: o.out, All: o.all, Quill: lower.Version,
		Progress: func(done, total int64) { m.update(done, total, "") },
	})
	if err != nil {
		return nil, err
	}
	done := newPacked(p, start)
	done.LeftBytes = &p.Left
	return done, nil
}

// inputs are the files of the model directory, but for packed weights, which
// may be replaced.
func (o *packOptions) inputs() []string {
	entries, err := os.ReadDir(o.model)
	if err != nil {
		return nil // for those who read it to report
	}
	var files []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) != weightsExt {
			files = append(files, filepath.Join(o.model, e.Name()))
		}
	}
	return files
}

// check verifies a file.
func (o *packOptions) check(ctx context.Context, stderr io.Writer) (*packed, error) {
	start := time.Now()
	m := newMeter(stderr, "checking weights", size)
	defer m.close()
	p, err := runtime.VerifyPacked(ctx, o.verify, func(done, total int64) { m.update(done, total, "") })
	if err != nil {
		return nil, err
	}
	return newPacked(p, start), nil
}

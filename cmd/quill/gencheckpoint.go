package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"quill/ir/inkling"
	"quill/recipes/safetensors"
)

// defaultShard is the size that files of a checkpoint have at most if nothing
// is said and no tensor is larger.
const defaultShard = 4 << 30

type genOptions struct {
	config string
	out    string
	seed   uint64
	layers int
	shard  int64
	force  bool
	json   bool
}

func newGenCheckpoint() *cobra.Command {
	var o genOptions
	cmd := &cobra.Command{
		Use:   "gen-checkpoint CONFIG --out DIR",
		Short: "Write a checkpoint of random weights for a config.json",
		Long: `Write a checkpoint of random weights, of any size, in the published layout, for
an architecture whose weights are not at hand: to size machines and measure.

CONFIG is a config.json or its directory. DIR gets the text part: shards, the
configuration and, last, the index, without which it is no checkpoint. --layers
cuts the model after its first layers.

Weights are such that activations stay of order 1 through all layers and routers
spread over their experts. Every value depends on the seed, the tensor's name
and its place in it only: equal seeds give equal bytes on any machine.`,
		Example: examples(
			"quill gen-checkpoint testdata/configs/inkling-small --out /data/small --seed 1",
			"quill gen-checkpoint testdata/configs/inkling --layers 4 --out /data/four-layers",
			"quill gen-checkpoint config.json --out /data/ckpt --shard-bytes 1073741824 --force --json",
		),
		Args: oneArg("CONFIG"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.config = args[0]
			if err := o.check(cmd); err != nil {
				return err
			}
			done, err := o.run(cmd.Context(), cmd.ErrOrStderr())
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
	f.StringVar(&o.out, "out", "", "directory to write; it must be empty or not exist")
	f.Uint64Var(&o.seed, "seed", 0, "what chooses the weights")
	f.IntVar(&o.layers, "layers", 0, "layers to keep, from the first on (default: all)")
	f.Int64Var(&o.shard, "shard-bytes", defaultShard, "most bytes of tensors in a file; a larger tensor gets a file of its own")
	f.BoolVar(&o.force, "force", false, "replace the checkpoint in DIR; files of other kinds stay")
	f.BoolVar(&o.json, "json", false, "print what was written as JSON")
	return cmd
}

func (o *genOptions) check(cmd *cobra.Command) error {
	if err := needFlag(cmd, "out", "the directory to write"); err != nil {
		return err
	}
	if cmd.Flags().Changed("layers") && o.layers < 1 {
		return usagef("--layers %d: want at least 1", o.layers)
	}
	if o.shard < 1 {
		return usagef("--shard-bytes %d: want at least 1", o.shard)
	}
	return nil
}

// generated is what was written.
type generated struct {
	Out     string  `json:"out"`
	Seed    uint64  `json:"seed"`
	Layers  int     `json:"layers"`
	Tensors int     `json:"tensors"`
	Bytes   int64   `json:"bytes"` // of the tensors
	Files   int     `json:"files"` // with tensors
	Seconds float64 `json:"seconds"`
}

func (g *generated) String() string {
	return fmt.Sprintf("%s: %s, %s, %s in %s, seed %d, %.1f s (%s/s)", g.Out, count(g.Layers, "layer"), count(g.Tensors, "tensor"),
		size(g.Bytes), count(g.Files, "file"), g.Seed, g.Seconds, size(int64(float64(g.Bytes)/max(g.Seconds, 1e-9))))
}

func (o *genOptions) run(ctx context.Context, stderr io.Writer) (*generated, error) {
	start := time.Now()
	text, config, err := o.readConfig()
	if err != nil {
		return nil, err
	}
	shards, err := planShards(config, o.shard)
	if err != nil {
		return nil, fmt.Errorf("--shard-bytes %d: %w", o.shard, err)
	}
	out, err := openOutput(o.out, o.config, o.force, totalBytes(shards))
	if err != nil {
		return nil, err
	}
	if err := o.write(ctx, out, text, config, shards, stderr); err != nil {
		return nil, errors.Join(err, out.discard())
	}
	g := &generated{Out: o.out, Seed: o.seed, Layers: config.Layers, Bytes: totalBytes(shards), Files: len(shards), Seconds: time.Since(start).Seconds()}
	for _, s := range shards {
		g.Tensors += len(s.tensors)
	}
	return g, nil
}

// write writes all files, the index last.
func (o *genOptions) write(ctx context.Context, out *output, text []byte, config *inkling.Config, shards []shardPlan, stderr io.Writer) error {
	m := newMeter(stderr, "writing weights", size)
	defer m.close()
	values := newValues(config, o.seed)
	total, done := totalBytes(shards), atomic.Int64{}
	for _, s := range shards {
		fill := func(t *safetensors.Tensor, offset int64, chunk []byte) error {
			values.fill(t, offset, chunk)
			m.update(done.Add(int64(len(chunk))), total, s.name)
			return nil
		}
		if err := safetensors.WriteStream(ctx, out.path(s.name), s.tensors, shardMetadata, fill); err != nil {
			return err
		}
		out.wrote(s.name)
	}
	out.wrote("config.json") // or a part of it
	if err := os.WriteFile(out.path("config.json"), text, 0o666); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return safetensors.WriteIndex(out.dir, total, weightMap(shards))
}

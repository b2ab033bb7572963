package main

import (
	"os"

	"github.com/spf13/cobra"

	"quill/recipes"
)

func newInspect() *cobra.Command {
	var asJSON bool
	var bucket string
	cmd := &cobra.Command{
		Use:   "inspect BUNDLE.quill",
		Short: "Show what a bundle holds",
		Long: `Show what a bundle holds: the model and the deployment that it was compiled for
and, for each precision, its device memory, weights, buckets and nodes.

Bytes are those of one rank. Launches, collectives and nodes are those of one
step; buckets of one family have the same graph at other sizes. Compute nodes are
those that compute or copy, not those that only say where something is; the chain
is the most of them of which each needs the one before. Masks are the additive ones
of attention that a step writes, and at once those of the launch with most of them;
--json has them by layer too, and why launches are not one with the one before. What
passes did is in quill compile --report.

Memory is the arena, where inputs and what crosses launches lie, and the workspace of
recipes, which the compiler estimates: the target's graph compiler places it itself.
The peak is where most bytes of both hold values that are still to be read; carried
rows, which lie elsewhere, are among the tensors if they are alive then. Dims are
fastest first.

Costs are what the runtime chooses the cheapest bucket by, in multiply-adds of one
rank: of a row of tokens, padding or not, with the weights that it meets; of reading
the experts of padding rows, once a decode step; of reading a block of keys and
values; and of the attention of a row to one key.

Params are what passes were told of the deployment, as --param of quill opt takes it.`,
		Example: examples(
			"quill inspect chat.quill",
			"quill inspect chat.quill --bucket decode/b=1,n=16",
			"quill inspect chat.quill --json | jq '.sets[].bytes'",
		),
		Args: oneArg("BUNDLE.quill"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON && bucket != "" {
				return usagef("--bucket chooses what is printed; --json has every bucket: give one of them")
			}
			b, err := recipes.ReadBundle(args[0])
			if err != nil {
				return err
			}
			info, err := os.Stat(args[0])
			if err != nil {
				return err
			}
			r := newReport(args[0], info.Size(), b)
			if err := r.checkBucket(bucket); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			return r.print(cmd.OutOrStdout(), bucket)
		},
	}
	cmd.Flags().StringVar(&bucket, "bucket", "", "show the largest tensors of this bucket, as decode/b=1,n=16 (default: of the largest of each family)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

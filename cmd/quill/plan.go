package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/lower/buckets"
)

func newPlan() *cobra.Command {
	var asJSON, full bool
	var compare []string
	cmd := &cobra.Command{
		Use:   "plan DEPLOY.yaml",
		Short: "Show which buckets and how much memory a deployment will need",
		Long: `Show what a deployment will need before it is compiled: its buckets, what they pad and
whether they cover every step that the limits admit, the memory of each card, and the
largest pool and the longest request that would fit. The model directory needs
config.json only.

Other ways to choose buckets are shown beside the deployment's (--compare). Padding is
the size of a bucket by that of the step that it serves, over all admissible shapes:
the mean and, in brackets, the worst. Families are buckets of one graph.

Memory is that of a rank. Weights, keys and values, and rows of convolutions are exact.
Arena, carried rows and workspace are those of compiled buckets: without --full of
those that no other one of their family covers, which are the ones that need most. The
workspace is an estimate: the target's graph compiler places it itself. Programs of
recipes and buffers of collectives are not in the sum, as only the target's software
knows them; what is said of programs is an estimate, of the compiled buckets.

The largest kv_blocks and the longest max_model_len are each what would fit with all
other keys as they are. Requests are tried in whole blocks. A pool that has no kv_blocks
in the file grows with them.

Memory of the host is that of all ranks: what cards read and write each step, and on
the CPU device its buffers, and weights that are copied at start and those that stay
mapped, which need not fit. quill pack makes the first ones mapped, too.

The exit code is 0 if the deployment can be compiled and fits, 1 if it has holes or does
not fit, or on an error, and 2 on wrong usage.`,
		Example: examples(
			"quill plan chat.yaml",
			"quill plan chat.yaml --full --compare pad,optimal",
			"quill plan chat.yaml --json | jq '.memory[].lines'",
		),
		Args: oneArg("DEPLOY.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkCompare(compare); err != nil {
				return err
			}
			f, err := forecast(cmd.Context(), args[0], cmd.ErrOrStderr(), lower.ForecastOptions{Full: full, Compare: compare})
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), f)
			} else {
				err = printForecast(cmd.OutOrStdout(), args[0], f)
			}
			if err == nil && len(f.Problems) > 0 {
				return errors.New(args[0] + ": " + strings.Join(f.Problems, "\n"))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "compile all buckets, not only those that need most")
	cmd.Flags().StringSliceVar(&compare, "compare", []string{buckets.Exp, buckets.Optimal}, "strategies to show beside the deployment's; an empty one is none")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// checkCompare refuses what is no strategy that needs nothing but a name.
func checkCompare(names []string) error {
	all := strings.Split(buckets.Strategies, ", ")
	for i, name := range names {
		switch {
		case name == buckets.File:
			return usagef("--compare %s: this strategy needs a list; name it in the deployment", name)
		case !slices.Contains(all, name):
			return usagef("--compare %q: want some of %s", name, strings.Replace(buckets.Strategies, "file, ", "", 1))
		case slices.Contains(names[:i], name):
			return usagef("--compare %s: it is there twice", name)
		}
	}
	return nil
}

// forecast computes one under a meter.
func forecast(ctx context.Context, path string, stderr io.Writer, opt lower.ForecastOptions) (*lower.Forecast, error) {
	d, err := lower.ReadDeployment(path)
	if err != nil {
		return nil, err
	}
	m := newMeter(stderr, "planning", func(n int64) string { return strconv.FormatInt(n, 10) })
	defer m.close()
	opt.Progress = func(s lower.Step) { m.update(int64(s.Done), int64(s.Total), s.What) }
	return lower.NewForecast(ctx, d, opt)
}

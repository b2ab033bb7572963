package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"quill/lower"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/safetensors"
)

// bundleExt is how the names of bundles end.
const bundleExt = ".quill"

func newCompile() *cobra.Command {
	var out string
	var report string
	var asJSON bool
	var flags passFlags
	var keep keeping
	cmd := &cobra.Command{
		Use:   "compile DEPLOY.yaml",
		Short: "Compile a deployment into a bundle",
		Long: `Compile a deployment into a bundle: every recipe that serving can need.

The model directory, which the deployment names, must hold config.json. If it
holds weights too, they are checked against what the model needs. The bundle
appears whole or not at all.

Buckets are compiled several at once, and each is kept in a store that all compiles
share, until the next time: quill cache says more of it. So a compile that was
interrupted goes on where it was, and one for which only some of what a bucket depends
on has changed compiles it anew. Bundles are the same bytes with the store or without it.
Of a bucket that cannot be compiled the error has a command that fails the same way, on
a file beside the dumps or with temporary files. --keep-going has all such buckets.

What is held at once is bounded by --memory: near it fewer buckets are compiled at once,
down to one. If that is too much, the error says what is held.

With --native the vendor's compiler, libSynapse.so, makes every recipe in the form that
cards load, which the bundle then holds too. No card is needed, but the vendor's
software is, and GC_KERNEL_PATH must name its kernel libraries. It runs in processes of
its own, so a recipe that makes it crash, hang or run out of memory costs only itself:
all others are compiled, and at the end it is said which failed and why, with a folder
for each that reproduces it; then no bundle is written.
What was compiled is kept for the next time, as buckets are.

The flags about passes are for finding out what the compiler does, and which
rewrite breaks something. --report says what the compiler made, a summary by family
of phases and what each pass did: ops, launches, collectives, breaks by reason, masks,
what was hoisted and what not, and why. With a name that ends in .json it has
everything, for each bucket and each pass, and - is the standard output. What a
bundle alone tells is in quill inspect --json. --validate needs a model that can be interpreted in
seconds, such as the small ones under testdata.`,
		Example: examples(
			"quill compile chat.yaml",
			"quill compile chat.yaml --jobs 8 --memory 4GiB --keep-going --events json 2>events.jsonl",
			"quill compile chat.yaml --native --native-jobs 4 --native-deadline 20m",
			"quill compile chat.yaml -o /srv/bundles/chat.quill --json 2>/dev/null",
			"quill compile chat.yaml --report chat.json && jq '.sets[].buckets[] | select(.launches > 90) | .name' chat.json",
		),
		Args: oneArg("DEPLOY.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := flags.check(cmd, true)
			if err != nil {
				return err
			}
			if out == "" {
				out = defaultBundle(args[0])
			}
			if report == stdoutFile && asJSON {
				return usagef("--report - and --json both write to the standard output: give --report a file")
			}
			if report != "" && report != stdoutFile {
				if err := checkReport(report, out, args[0]); err != nil {
					return err
				}
			}
			opt := lower.Options{Passes: func(params passes.Params) *passes.Manager {
				cfg.Params = params
				return flags.make(cfg)
			}}
			reporter := newReporter(cmd.Context())
			if report != "" {
				reporter.listen(&cfg)
				opt.Planned = reporter.plan
			}
			if err := keep.options(cmd, &opt); err != nil {
				return err
			}
			keep.none = keep.none || flags.timings // of what is run
			made, b, err := compile(cmd.Context(), args[0], out, cmd.ErrOrStderr(), opt, &keep)
			if err := flags.report(cmd.Context(), err); err != nil {
				return err
			}
			if report != "" {
				err := reporter.err
				if err == nil {
					err = reporter.report(out, b).write(report, cmd.OutOrStdout())
				}
				if err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), made)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), made)
			return err
		},
	}
	flags.add(cmd, passes.Default().String())
	keep.add(cmd)
	cmd.Flags().StringVarP(&out, "output", "o", "", "bundle to write (default: the deployment's name with "+bundleExt+", in the current directory)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was made as JSON")
	cmd.Flags().StringVar(&report, "report", "", "file for a report of what was compiled and what passes did: JSON if its name ends in .json, else text; - is the standard output")
	return cmd
}

// checkReport reports early that a report cannot be written.
func checkReport(file, bundle, deployment string) error {
	if filepath.Clean(file) == filepath.Clean(bundle) {
		return usagef("--report %s: this is the bundle to write", file)
	}
	return checkOutput("--report", file, deployment, bundle)
}

// defaultBundle is where a deployment's bundle goes if nothing else is said.
func defaultBundle(deployment string) string {
	base := filepath.Base(deployment)
	return strings.TrimSuffix(base, filepath.Ext(base)) + bundleExt
}

// made is what a compile produced.
type made struct {
	Bundle     string   `json:"bundle"`
	Target     string   `json:"target"`
	Precisions []string `json:"precisions"`
	Buckets    int      `json:"buckets"`
	Plans      int      `json:"plans"`
	Kept       int      `json:"kept"` // plans that the store had
	Recipes    int      `json:"recipes"`
	Native     int      `json:"native"`      // native recipes
	NativeKept int      `json:"native_kept"` // of them, what the store had
	Driver     string   `json:"driver"`      // that compiled them, "" if there are none
	Bytes      int64    `json:"bytes"`
	Seconds    float64  `json:"seconds"`
	PeakBytes  int64    `json:"peak_memory_bytes"` // of the process, 0 if the system does not say
}

func (m *made) String() string {
	made := count(m.Recipes, "recipe")
	if m.Native > 0 {
		made += fmt.Sprintf(" (native for driver %s)", m.Driver)
	}
	return fmt.Sprintf("%s: %s (%s), %s, %s, %s, %.1f s", m.Bundle, count(m.Buckets, "bucket"), strings.Join(m.Precisions, " and "),
		count(m.Plans, "plan"), made, size(m.Bytes), m.Seconds)
}

func compile(ctx context.Context, deployment, out string, stderr io.Writer, opt lower.Options, keep *keeping) (*made, *recipes.Bundle, error) {
	start := time.Now()
	if err := checkOutput("-o", out, deployment); err != nil {
		return nil, nil, err
	}
	d, err := lower.ReadDeployment(deployment)
	if err != nil {
		return nil, nil, err
	}
	if err := checkOutput("-o", out, d.Reads()...); err != nil {
		return nil, nil, err
	}
	notes, err := checkWeights(d)
	if err != nil {
		return nil, nil, err
	}
	defer bound(opt.Memory)()
	keep.open(&opt, stderr)
	defer keep.store.Close()
	if err := keep.native.open(ctx, out, stderr, keep); err != nil {
		return nil, nil, err
	}
	defer keep.native.close()
	b, more, err := build(ctx, d, stderr, opt, keep)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range append(notes, more...) {
		note(stderr, "%s", n)
	}
	fallback, err := keep.native.compile(ctx, b, out, stderr, keep)
	if err != nil {
		return nil, nil, err
	}
	if err := recipes.WriteBundle(ctx, out, b); err != nil {
		return nil, nil, err
	}
	m, err := describe(out, b, start)
	if m != nil {
		m.Kept, m.NativeKept = keep.last.Kept, keep.native.last.Kept
	}
	return m, b, cmp.Or(fallback, err)
}

// build compiles under a meter.
func build(ctx context.Context, d *lower.Deployment, stderr io.Writer, opt lower.Options, keep *keeping) (*recipes.Bundle, []string, error) {
	m := newMeter(stderr, "compiling", func(n int64) string { return strconv.FormatInt(n, 10) })
	defer m.close()
	begun := time.Now()
	opt.Progress = func(s lower.Step) {
		keep.last = s
		if keep.events != "" {
			keep.event(stderr, s)
			return
		}
		m.update(int64(s.Done), int64(s.Total), progressText(s, time.Since(begun)))
	}
	return lower.CompileWith(ctx, d, opt)
}

// progressText says how far compiling is, beside how many buckets of how many.
func progressText(s lower.Step, since time.Duration) string {
	text := s.What
	if s.Running > 0 {
		text += fmt.Sprintf(", %d running", s.Running)
	}
	if s.Kept > 0 {
		text += fmt.Sprintf(", %d were kept", s.Kept)
	}
	if fresh := s.Done - s.Kept; fresh > 0 {
		left := since / time.Duration(fresh) * time.Duration(s.Total-s.Done)
		text += fmt.Sprintf(", slowest %s %.1f s, %.0f s left", s.Slowest, s.SlowestTook.Seconds(), left.Seconds())
	}
	return text
}

// checkWeights compares the weights of the model directory, if it has any, with
// what the model needs.
func checkWeights(d *lower.Deployment) (notes []string, err error) {
	want, err := lower.Checkpoint(d)
	if err != nil {
		return nil, err
	}
	if !hasWeights(d.ModelDir()) {
		return []string{d.ModelDir() + " holds no weights, so there were none to check"}, nil
	}
	ckpt, err := safetensors.OpenDir(d.ModelDir())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ckpt.Close()) }()
	return recipes.CheckCheckpoint(want, ckpt)
}

func hasWeights(dir string) bool {
	for _, pattern := range []string{"*.safetensors", "*.safetensors.index.json"} {
		if found, err := filepath.Glob(filepath.Join(dir, pattern)); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

func describe(path string, b *recipes.Bundle, start time.Time) (*made, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	m := &made{Bundle: path, Target: b.Manifest.Target, Recipes: len(b.Recipes), Bytes: info.Size(), Seconds: time.Since(start).Seconds(), PeakBytes: peakMemory()}
	if b.Native != nil {
		m.Native, m.Driver = len(b.Native.Recipes), b.Native.Driver
	}
	for i := range b.Sets {
		m.Precisions = append(m.Precisions, b.Sets[i].Info.Precision)
		m.Buckets = max(m.Buckets, len(b.Sets[i].Plans))
		m.Plans += len(b.Sets[i].Plans)
	}
	return m, nil
}

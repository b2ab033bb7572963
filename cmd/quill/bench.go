package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"github.com/spf13/cobra"

	"quill/ir/inkling"
	"quill/runtime"
	"quill/runtime/host/kern"
)

type benchOptions struct {
	modelFlags
	bundle  string
	prefill int
	batch   int
	decode  int
	warmup  int
	pprof   string
	trace   string
	json    bool

	bank int // the largest number of experts of a node of the bundle
}

func newBench() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench BUNDLE.quill --model DIR",
		Short: "Measure a bundle against what the machine can do",
		Long: `Prefill sequences of random tokens, decode steps of all of them together, and
report how fast that was: by phase, by kind of node, and against the roofs of the
machine, which are measured with the same threads.

Each prompt is between two bursts of multiply-adds, and each few decode steps,
150 ms or more, between two bursts of reading memory. What they reach is compared
with the mean of the two bursts, since machines that share their memory with
others change speed from second to second: the report has the median of these
shares, and their quartiles. Times of prompts and steps do not include bursts.
The roofs in the report are the best of before and after the run; what decode
steps compute is compared with those.

Bytes and operations are what the model needs at least, worked out from its
configuration: a decode step reads each weight once, of the experts those that
were chosen, and of the cache what each layer sees; a prefill takes two
operations for each weight of a token, causal attention, and one row of logits.

Times are of a run without a trace; a second, shorter run with one, of a prompt and
of a few steps, is for the shares of kinds of nodes. There UNITS are how often units
of a kind were executed, a unit being a node or several that are fused, TIME is what
they took in all of the traced prompt or steps, and SHARE is that of the whole time
of these; the last kind is what no unit accounts for. GB/s and GFLOP/s of a kind
count weights and products only. --trace writes it for https://ui.perfetto.dev, --pprof
writes a CPU profile of the first run, bursts included.`,
		Example: examples(
			"quill bench chat.quill --model models/chat",
			"quill bench chat.quill --model models/chat --prefill 1024 --batch 8 --decode 64 --json",
			"quill bench chat.quill --model models/chat --threads 1 --pprof cpu.prof --trace trace.json",
		),
		Args: oneArg("BUNDLE.quill"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.bundle = args[0]
			if err := o.check(cmd); err != nil {
				return err
			}
			r, err := o.run(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if o.json {
				return writeJSON(cmd.OutOrStdout(), r)
			}
			return r.print(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.modelFlags.add(cmd)
	f.IntVar(&o.prefill, "prefill", 128, "tokens of each prompt")
	f.IntVar(&o.batch, "batch", 1, "sequences that are decoded together")
	f.IntVar(&o.decode, "decode", 32, "decode steps; 0 measures the prefill only")
	f.IntVar(&o.warmup, "warmup", 2, "decode steps, and if there are any one prefill, that are not measured")
	f.StringVar(&o.pprof, "pprof", "", "file to write a CPU profile to")
	f.StringVar(&o.trace, "trace", "", "file to write a trace to, as JSON for Perfetto")
	f.BoolVar(&o.json, "json", false, "print the report as JSON")
	return cmd
}

func (o *benchOptions) check(cmd *cobra.Command) error {
	if err := o.modelFlags.check(cmd); err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		v, from int
	}{{"prefill", o.prefill, 1}, {"batch", o.batch, 1}, {"decode", o.decode, 0}, {"warmup", o.warmup, 0}} {
		if f.v < f.from {
			return usagef("--%s %d: want at least %d", f.name, f.v, f.from)
		}
		if f.v > maxBench {
			return usagef("--%s %d: want at most %d", f.name, f.v, maxBench)
		}
	}
	if o.trace != "" && filepath.Clean(o.trace) == filepath.Clean(o.pprof) {
		return usagef("--trace and --pprof are one file, %s", o.trace)
	}
	return nil
}

// maxBench bounds numbers of tokens, steps and sequences, so that they add up.
const maxBench = 1 << 30

// run measures and writes the files.
func (o *benchOptions) run(ctx context.Context, stderr io.Writer) (*benchReport, error) {
	for _, f := range []struct{ flag, path string }{{"--pprof", o.pprof}, {"--trace", o.trace}} {
		if f.path == "" {
			continue
		}
		if err := checkOutput(f.flag, f.path, o.bundle, o.model, o.weights); err != nil {
			return nil, err
		}
	}
	kernels, err := kern.FromEnv()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	opt := o.options()
	opt.Check = o.fitsBundle
	s, err := openSession(ctx, o.bundle, opt, stderr)
	if err != nil {
		return nil, err
	}
	defer s.Close() // everything was read from it
	loaded, peak := time.Since(start), peakMemory()
	config, err := inkling.ReadConfig(filepath.Join(o.model, "config.json"))
	if err != nil {
		return nil, err
	}
	m, err := o.measure(ctx, s, kernels, stderr)
	if err != nil {
		return nil, err
	}
	r := o.report(s, config, kernels, m)
	r.LoadSeconds, r.PeakBytes = loaded.Seconds(), max(peak, m.peak)
	if o.trace != "" {
		return r, o.writeTrace(m)
	}
	return r, nil
}

// measured is what the runs gave.
type measured struct {
	roofs           roofs
	peak            int64 // bytes, without the roof meter's; 0 if the system does not say
	prefill, decode paired
	prefillTrace    *recording
	decodeTrace     *recording // nil if there were no steps
}

func (o *benchOptions) measure(ctx context.Context, s *runtime.Session, k kern.Kernels, stderr io.Writer) (*measured, error) {
	b := newBencher(o, s, stderr)
	defer b.close()
	if o.warmup > 0 {
		if err := b.prefillOnce(ctx, "warm-up"); err != nil {
			return nil, err
		}
	}
	m := &measured{}
	if err := m.runBetweenRoofs(ctx, b, newRoofMeter(k, s.Threads(), s.Info().Precision)); err != nil {
		return nil, err
	}
	return m, m.record(ctx, b)
}

// runBetweenRoofs is the measured run, with the roofs before and after it.
func (m *measured) runBetweenRoofs(ctx context.Context, b *bencher, meter *roofMeter) error {
	before, err := meter.measure(ctx)
	if err != nil {
		return err
	}
	m.prefill = paired{burst: meter.flopsNow}
	m.decode = paired{burst: meter.readNow, atLeast: windowTime}
	debug.FreeOSMemory() // what loading left behind is not the run's
	resetPeak()
	if err := b.opt.profiled(func() error { return m.run(ctx, b) }); err != nil {
		return err
	}
	// The meter's buffer was in memory all the time, and it is not the model's.
	m.peak = max(0, peakMemory()-meter.bytes())
	after, err := meter.measure(ctx)
	m.roofs = before.better(after)
	return err
}

// run is the measured run.
func (m *measured) run(ctx context.Context, b *bencher) error {
	if err := b.prefillBatch(ctx, &m.prefill); err != nil || b.opt.decode == 0 {
		return err
	}
	for range b.opt.warmup {
		if _, err := b.decode(ctx, "warm-up"); err != nil {
			return err
		}
	}
	for range b.opt.decode {
		if err := m.decode.call(ctx, func() (time.Duration, error) { return b.decode(ctx, "decode") }); err != nil {
			return err
		}
	}
	return m.decode.finish(ctx)
}

// record is the traced run.
func (m *measured) record(ctx context.Context, b *bencher) (err error) {
	if b.opt.decode > 0 {
		if m.decodeTrace, err = b.traceDecode(ctx); err != nil {
			return err
		}
	}
	b.closeBatch() // it may be all that the session takes
	m.prefillTrace, err = b.tracePrefill(ctx)
	return err
}

// profiled runs f under the CPU profile, if one is wanted. If f fails there is
// no file.
func (o *benchOptions) profiled(f func() error) error {
	if o.pprof == "" {
		return f()
	}
	return writeFile(o.pprof, func(w io.Writer) error {
		if err := pprof.StartCPUProfile(w); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
		return f()
	})
}

func (o *benchOptions) writeTrace(m *measured) error {
	recordings := []recording{*m.prefillTrace}
	if m.decodeTrace != nil {
		recordings = append(recordings, *m.decodeTrace)
	}
	return writeFile(o.trace, func(w io.Writer) error { return writeChrome(w, recordings) })
}

// writeFile creates a file; if write fails there is none.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Close())
	if err != nil {
		_ = os.Remove(path) // err is what counts
	}
	return err
}

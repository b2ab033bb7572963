package main

import (
	"context"
	"fmt"
	"io"
	"os"
	goruntime "runtime"

	"github.com/spf13/cobra"

	"quill/runtime"
)

// modelFlags are the flags of commands that open a session.
type modelFlags struct {
	model, precision, weights string
	threads                   int
	unfused                   bool
}

func (o *modelFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "", "directory of the checkpoint: config.json and safetensors")
	f.StringVar(&o.precision, "precision", "", "recipe set to use, bf16 or f32 (default: the bundle's first)")
	f.StringVar(&o.weights, "weights", "", "file that quill pack made, or "+runtime.NoWeights+" (default: the one beside the bundle, if it fits)")
	f.IntVar(&o.threads, "threads", 0, "threads of the CPU device, rounded down to a multiple of the ranks unless there are fewer; no result depends on it (default: one a processor)")
	f.BoolVar(&o.unfused, "unfused", false, "execute every node on its own, which is slower and gives the same (docs/nodes.md has the one exception)")
}

// check refuses values that no session has.
func (o *modelFlags) check(cmd *cobra.Command) error {
	if o.threads < 0 || cmd.Flags().Changed("threads") && o.threads == 0 {
		return usagef("--threads %d: want at least 1", o.threads)
	}
	return checkModelFlags(cmd, o.precision)
}

// options are those of the session.
func (o *modelFlags) options() runtime.Options {
	return runtime.Options{Model: o.model, Precision: o.precision, Weights: o.weights, Threads: o.threads, Unfused: o.unfused}
}

func checkModelFlags(cmd *cobra.Command, precision string) error {
	if err := needFlag(cmd, "model", "the directory of the checkpoint"); err != nil {
		return err
	}
	if cmd.Flags().Changed("precision") && precision != "bf16" && precision != "f32" {
		return usagef("--precision %q is neither bf16 nor f32", precision)
	}
	return nil
}

// openSession opens a bundle under a meter and passes on its notes.
func openSession(ctx context.Context, bundle string, opt runtime.Options, stderr io.Writer) (*runtime.Session, error) {
	if n := goruntime.NumCPU(); opt.Threads > n {
		note(stderr, "--threads %d is more than the %s of this machine", opt.Threads, count(n, "processor"))
	}
	m := newMeter(stderr, "loading weights", size)
	defer m.close()
	opt.Progress = func(done, total int64) { m.update(done, total, "") }
	opt.Admit = admit
	s, err := runtime.Open(ctx, bundle, opt)
	if err != nil {
		return nil, err
	}
	for _, n := range s.Info().Notes {
		note(stderr, "%s", n)
	}
	return s, nil
}

// served is what a session did, for machines. The last three are 0 whatever is served:
// nothing is compiled or allocated after opening, and every step has a bucket.
type served struct {
	Steps           int64 `json:"steps"`
	Launches        int64 `json:"launches"`
	Collectives     int64 `json:"collectives"`
	Compiles        int64 `json:"compiles"`
	BucketMisses    int64 `json:"bucket_misses"`
	LateAllocations int64 `json:"late_allocations"`
}

func servedBy(s *runtime.Session) served {
	c := s.Info().Counters
	return served{c.Steps, c.Launches, c.Collectives, c.Compiles, c.Misses, c.LateAllocations}
}

// admit refuses sessions that are larger than the machine. Mapped weights are
// not a part of that: they are page cache.
func admit(m runtime.Memory) error {
	err := checkMemory("they", m.Buffers+m.Copied)
	if err != nil && checkMemory("they", m.Buffers) == nil {
		err = fmt.Errorf("%w: of that are %s weights, which take none after quill pack", err, size(m.Copied))
	}
	return err
}

// checkMemory refuses what the machine cannot hold: running out of memory
// would end the program without an error.
func checkMemory(what string, need int64) error {
	if have := memory(); have > 0 && need > have {
		return fmt.Errorf("%s need %s of memory, this machine has %s", what, size(need), size(have))
	}
	if most := runtime.MemoryLimit(); most > 0 && need > most {
		return fmt.Errorf("%s need %s of memory, this process may have %s", what, size(need), size(most))
	}
	return nil
}

// memory is the size of the machine's memory, 0 if the system does not say.
func memory() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	var kib int64
	if _, err := fmt.Fscanf(f, "MemTotal: %d kB", &kib); err != nil {
		return 0
	}
	return kib * 1024
}

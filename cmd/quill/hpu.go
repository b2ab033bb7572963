package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"quill/recipes"
	"quill/runtime"
	"quill/runtime/hpu"
)

// synapseUsage tells of --synapse.
const synapseUsage = "path of libSynapse.so (default: $QUILL_SYNAPSE, or what the dynamic linker finds)"

// deviceFlags choose what executes recipes.
type deviceFlags struct {
	device   string
	library  string
	modules  []uint
	ranks    int
	deadline time.Duration
	restarts int
}

// onlyHPU are the flags that mean something on cards alone.
var onlyHPU = []string{"synapse", "modules", "ranks", "step-deadline", "restarts"}

func (o *deviceFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.device, "device", "host", "what executes the recipes: host, the CPU, or hpu, one Gaudi 2 card a rank")
	f.StringVar(&o.library, "synapse", "", "with --device hpu: "+synapseUsage)
	f.UintSliceVar(&o.modules, "modules", nil, "with --device hpu: module ids of the cards, in the order of the ranks (default: 0,1,2,…)")
	f.Lookup("modules").DefValue = "" // which is not shown
	f.IntVar(&o.ranks, "ranks", 0, "with --device hpu: number of cards to use, which is the bundle's tensor_parallel (default: that)")
	f.DurationVar(&o.deadline, "step-deadline", hpu.DefaultDeadline, "with --device hpu: how long a step may take before the cards are given up")
	f.IntVar(&o.restarts, "restarts", 2, "with --device hpu: how often cards that are lost are started again")
}

// maxModule is the largest id of a module that there can be.
const maxModule = math.MaxInt32

func (o *deviceFlags) check(cmd *cobra.Command) error {
	if o.device != "host" && o.device != "hpu" {
		return usagef("--device %q is neither host nor hpu", o.device)
	}
	for _, name := range onlyHPU {
		if o.device == "host" && cmd.Flags().Changed(name) {
			return usagef("--%s is for --device hpu", name)
		}
	}
	for _, name := range []string{"threads", "unfused", "weights"} {
		if o.device == "hpu" && cmd.Flags().Changed(name) {
			return usagef("--%s is for the CPU, not for --device hpu", name)
		}
	}
	switch {
	case o.ranks < 0 || o.ranks == 0 && cmd.Flags().Changed("ranks"):
		return usagef("--ranks %d: want at least 1", o.ranks)
	case o.ranks != 0 && o.modules != nil && len(o.modules) != o.ranks:
		return usagef("--modules has %d cards, --ranks wants %d", len(o.modules), o.ranks)
	case slices.ContainsFunc(o.modules, func(m uint) bool { return m > maxModule }):
		return usagef("--modules %v: want module ids, from 0 to %d", o.modules, maxModule)
	case o.deadline <= 0:
		return usagef("--step-deadline %v: want more than 0", o.deadline)
	case o.restarts < 0:
		return usagef("--restarts %d is negative", o.restarts)
	}
	return nil
}

// open opens a session on the device, unless check, which is given the bundle before,
// refuses it. What processes of ranks have to say is on stderr.
func (o *deviceFlags) open(ctx context.Context, bundle string, opt runtime.Options, check func(*recipes.Bundle) error, stderr io.Writer) (*runtime.Session, error) {
	opt.Check = check
	if o.device == "host" {
		return openSession(ctx, bundle, opt, stderr)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("--device hpu: %w", err)
	}
	h := hpu.Options{
		Bundle: bundle, Model: opt.Model, Library: o.library, Deadline: o.deadline, Log: stderr,
		Command: func() *exec.Cmd { return exec.Command(self, rankCommand) },
	}
	for _, m := range o.modules {
		h.Modules = append(h.Modules, uint32(m))
	}
	opt.Check = func(b *recipes.Bundle) error {
		if err := o.fits(b); err != nil {
			return err
		}
		return check(b)
	}
	opt.NewDevice = func(b *recipes.Bundle, set *recipes.Set) (runtime.Device, error) {
		g, err := hpu.New(ctx, h, b, set)
		if err != nil {
			return nil, err
		}
		return g, nil
	}
	return openSession(ctx, bundle, opt, stderr)
}

// fits checks the cards that are named against the ranks of the bundle.
func (o *deviceFlags) fits(b *recipes.Bundle) error {
	tp := b.Manifest.Deployment.TensorParallel
	flag, n := "--ranks", o.ranks
	if n == 0 {
		flag, n = "--modules", len(o.modules)
	}
	if n == 0 || n == tp {
		return nil
	}
	return fmt.Errorf("%s is for %s, the bundle was compiled for tensor_parallel %d: leave it out, or compile the deployment with tensor_parallel: %d", flag, count(n, "card"), tp, n)
}

// lasting does something that needs the device, and does it again when the device was
// lost and could be started anew. A device that is lost again while it is started has
// used up a restart.
func (o *deviceFlags) lasting(ctx context.Context, s runtime.Restarting, stderr io.Writer, do func() error) error {
	err := do()
	for left := o.restarts; left > 0 && errors.Is(err, runtime.ErrDeviceLost) && ctx.Err() == nil; left-- {
		note(stderr, "%v", err)
		note(stderr, "the cards are started again, and what was in them is computed again")
		m := newMeter(stderr, "loading weights", size)
		err = s.Restart(ctx, func(done, total int64) { m.update(done, total, "") })
		m.close()
		if err == nil {
			err = do()
		}
	}
	return err
}

// rankCommand is the command of the process of a rank.
const rankCommand = "hpu-rank"

// newRank is the process of a rank, which people do not start.
func newRank() *cobra.Command {
	return &cobra.Command{
		Use:    rankCommand,
		Short:  "The process of one rank, which --device hpu starts",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return hpu.Serve(cmd.Context()) },
	}
}

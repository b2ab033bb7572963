package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"quill/recipes"
	"quill/runtime"
	"quill/runtime/host"
)

// addModelFlags adds the flags of commands that open a session.
func addModelFlags(cmd *cobra.Command, model, precision *string) {
	cmd.Flags().StringVar(model, "model", "", "directory of the checkpoint: config.json and safetensors")
	cmd.Flags().StringVar(precision, "precision", "", "recipe set to use, bf16 or f32 (default: the bundle's first)")
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
func openSession(ctx context.Context, bundle, model, precision string, stderr io.Writer) (*runtime.Session, error) {
	m := newMeter(stderr, "loading weights", size)
	defer m.close()
	s, err := runtime.Open(ctx, bundle, runtime.Options{
		Model: model, Precision: precision,
		Progress:  func(done, total int64) { m.update(done, total, "") },
		NewDevice: newDevice,
	})
	if err != nil {
		return nil, err
	}
	for _, n := range s.Info().Notes {
		note(stderr, "%s", n)
	}
	return s, nil
}

// newDevice makes the CPU device, but not one larger than the machine.
func newDevice(ranks int, bytes map[recipes.Buffer]int64) (runtime.Device, error) {
	var need int64
	for _, n := range bytes {
		need += n * int64(ranks)
	}
	if err := checkMemory("they", need); err != nil {
		return nil, err
	}
	return runtime.NewHostDevice(host.Options{Ranks: ranks, Bytes: bytes})
}

// checkMemory refuses what the machine cannot hold: running out of memory
// would end the program without an error.
func checkMemory(what string, need int64) error {
	if have := memory(); have > 0 && need > have {
		return fmt.Errorf("%s need %s of memory, this machine has %s", what, size(need), size(have))
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

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"quill/lower"
	"quill/recipes"
	"quill/runtime"
)

// packModel is a checkpoint with experts, of which ranks take parts that the
// checkpoint has as they are and parts that it does not.
const packModel = "nano-small"

func packBundle(t *testing.T, tp int) string {
	t.Helper()
	text := fmt.Sprintf("model: MODEL\ntensor_parallel: %d\nmax_model_len: 64\nmax_num_seqs: 2\nblock_size: 16\nmax_batched_tokens: 16\nprecision: both\n", tp)
	d, err := lower.ReadDeployment(writeDeployment(t, packModel, text))
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := lower.Compile(t.Context(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.quill")
	if err := recipes.WriteBundle(t.Context(), path, b); err != nil {
		t.Fatal(err)
	}
	return path
}

// scoredBits are the logits of a text, prefilled and decoded.
func scoredBits(t *testing.T, bundle string, opt runtime.Options) (bits []uint32, m runtime.Memory) {
	t.Helper()
	s, err := runtime.Open(t.Context(), bundle, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	tokens, err := readTokens(filepath.Join(opt.Model, "expected.safetensors") + ":greedy.prompt")
	if err != nil {
		t.Fatal(err)
	}
	err = s.Score(t.Context(), tokens, runtime.ScoreOptions{DecodeFrom: len(tokens) - 4}, func(_ int, logits []float32) error {
		for _, v := range logits {
			bits = append(bits, math.Float32bits(v))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Info().Notes); n > 0 {
		t.Errorf("%d notes: %q", n, s.Info().Notes)
	}
	return bits, s.Memory()
}

// Logits are the same bits whether weights are copied, packed and mapped, or
// all packed.
func TestLogitsDoNotDependOnWhereWeightsLie(t *testing.T) {
	t.Parallel()
	model := filepath.Join("../../testdata", packModel)
	for _, tp := range []int{1, 2, 4} {
		bundle := packBundle(t, tp)
		for _, precision := range []string{"bf16", "f32"} {
			t.Run(fmt.Sprintf("tp=%d,%s", tp, precision), func(t *testing.T) {
				opt := runtime.Options{Model: model, Precision: precision}
				want, m := scoredBits(t, bundle, opt)
				if m.Copied == 0 {
					t.Fatal("nothing was copied: this compares nothing")
				}
				if precision == "bf16" && m.Mapped == 0 {
					t.Error("nothing is mapped from the checkpoint")
				}
				all := filepath.Join(t.TempDir(), "all.weights")
				for _, o := range []runtime.PackOptions{{}, {All: true, Output: all}} {
					o.Model, o.Precision = model, precision
					if _, err := runtime.Pack(t.Context(), bundle, o); err != nil {
						t.Fatal(err)
					}
					opt.Weights = o.Output
					got, m := scoredBits(t, bundle, opt)
					if m.Copied != 0 {
						t.Errorf("%d bytes were copied", m.Copied)
					}
					compareBits(t, want, got)
				}
			})
		}
	}
}

func compareBits(t *testing.T, want, got []uint32) {
	t.Helper()
	if len(want) != len(got) || len(want) == 0 {
		t.Fatalf("%d logits, want %d", len(got), len(want))
	}
	for i := range want {
		if want[i] != got[i] {
			t.Fatalf("logit %d is %v, want %v", i, math.Float32frombits(got[i]), math.Float32frombits(want[i]))
		}
	}
}

// An interrupt may come at any moment of the packing.
func TestInterruptedPackLeavesNothing(t *testing.T) {
	t.Parallel()
	bundle := packBundle(t, 2)
	opt := runtime.PackOptions{Model: filepath.Join("../../testdata", packModel), Precision: "f32"}
	dir := t.TempDir()
	opt.Output = filepath.Join(dir, "x.weights")
	for after := time.Duration(0); after < 5*time.Second; after = after*3/2 + time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		_, err := runtime.Pack(ctx, bundle, opt)
		cancel()
		if err == nil {
			if _, err := runtime.VerifyPacked(t.Context(), opt.Output, nil); err != nil {
				t.Error(err)
			}
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("after %v: %v", after, err)
		}
		assertEmpty(t, dir)
	}

	// And through the command, whose exit code tells.
	if err := os.RemoveAll(opt.Output); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	run(t, exitInterrupted, ctx, "pack", bundle, "--model", opt.Model, "-o", opt.Output)
	assertEmpty(t, dir)
}

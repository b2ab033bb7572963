package runtime

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"

	"quill/recipes"
	"quill/recipes/safetensors"
)

// loader fills the weights buffers of all ranks.
type loader struct {
	dev      Device
	ckpt     *safetensors.Checkpoint
	progress func(done, total int64)

	mu          sync.Mutex
	done, total int64
}

// loadWeights fills every slot of the weights map on every rank, several at a
// time.
func loadWeights(ctx context.Context, dev Device, weights []recipes.Weight, ckpt *safetensors.Checkpoint, progress func(done, total int64)) error {
	l := &loader{dev: dev, ckpt: ckpt, progress: progress}
	weights = distinct(weights)
	for i := range weights {
		l.total += weights[i].Bytes() * int64(dev.Ranks())
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range weights {
		group.Go(func() error { return l.load(ctx, &weights[i]) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("load weights: %w", err)
	}
	return nil
}

// distinct leaves out slots that share their bytes with an earlier one, which
// then means the same: two goroutines must not write them.
func distinct(weights []recipes.Weight) []recipes.Weight {
	var out []recipes.Weight
	seen := make(map[int64]bool)
	for _, w := range weights {
		if w.Bytes() > 0 && !seen[w.Offset] {
			seen[w.Offset] = true
			out = append(out, w)
		}
	}
	return out
}

func (l *loader) load(ctx context.Context, w *recipes.Weight) error {
	var t *safetensors.Tensor
	if w.Tensor != "" {
		found, ok := l.ckpt.Tensor(w.Tensor)
		if !ok {
			return fmt.Errorf("the checkpoint has no tensor %s", w.Tensor)
		}
		t = &found
	}
	for rank := range l.dev.Ranks() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.fill(w, t, rank); err != nil {
			return err
		}
		l.report(w.Bytes())
	}
	return nil
}

// fill writes one slot of one rank, in place where the host can.
func (l *loader) fill(w *recipes.Weight, t *safetensors.Tensor, rank int) error {
	if mem := l.dev.Bytes(rank, recipes.Weights); mem != nil {
		return recipes.FillWeight(mem[w.Offset:w.Offset+w.Bytes()], w, t, rank, l.dev.Ranks())
	}
	staged := make([]byte, w.Bytes())
	if err := recipes.FillWeight(staged, w, t, rank, l.dev.Ranks()); err != nil {
		return err
	}
	return l.dev.Write(rank, recipes.Weights, w.Offset, staged)
}

func (l *loader) report(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done += n
	if l.progress != nil {
		l.progress(l.done, l.total)
	}
}

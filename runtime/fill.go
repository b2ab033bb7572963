package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"quill/recipes"
	"quill/recipes/safetensors"
)

// LoadChunk is how many bytes of a slot are made at a time. They are copied once
// more while they are in a processor's cache.
const LoadChunk = 512 << 10

// filler fills slots, several at a time, each through a small buffer. Pages of
// the checkpoint that were read are let go, so that loading takes little more
// memory than what it fills.
type filler struct {
	ckpt   *safetensors.Checkpoint
	tp     int
	pieces []recipes.Piece
	meter  *meter
	// put takes the bytes that begin at byte at of a piece.
	put func(p *recipes.Piece, at int64, data []byte) error

	next atomic.Int64 // of pieces
}

func (f *filler) run(ctx context.Context) error {
	for i := range f.pieces {
		f.meter.total += f.pieces[i].Weight.Bytes()
	}
	group, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), len(f.pieces)) {
		group.Go(func() error {
			buf := make([]byte, LoadChunk)
			for {
				i := int(f.next.Add(1)) - 1
				if i >= len(f.pieces) {
					return nil
				}
				if err := f.fill(ctx, &f.pieces[i], buf); err != nil {
					return err
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("load weights: %w", err)
	}
	return nil
}

func (f *filler) fill(ctx context.Context, p *recipes.Piece, buf []byte) error {
	r, err := p.Open(f.ckpt, f.tp)
	if err != nil {
		return err
	}
	for at := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Read(buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f.put(p, at, buf[:n]); err != nil {
			return err
		}
		advise(r.Source(), drop)
		at += int64(n)
		f.meter.add(int64(n))
	}
}

// fillRanks makes the weights of ranks from first up to end, of tp. put takes bytes for an
// offset of a rank's weights buffer.
func fillRanks(ctx context.Context, ckpt *safetensors.Checkpoint, set *recipes.Set, tp, first, end int, put func(rank int, offset int64, data []byte) error, progress func(done, total int64)) error {
	f := filler{ckpt: ckpt, tp: tp, meter: &meter{report: progress}, put: func(p *recipes.Piece, at int64, data []byte) error {
		return put(p.Rank, p.Weight.Offset+at, data)
	}}
	for _, w := range recipes.SlotsByOffset(set.Weights) {
		for rank := first; rank < end; rank++ {
			f.pieces = append(f.pieces, recipes.Piece{Weight: w, Rank: rank})
		}
	}
	return f.run(ctx)
}

// LoadRank makes the weights of one rank from the checkpoint in a directory, which it
// checks as Open does. put takes bytes for an offset of the weights buffer, at most
// LoadChunk of them, and may be called by several goroutines at a time. Progress is
// that of Options.
func LoadRank(ctx context.Context, b *recipes.Bundle, set *recipes.Set, model string, rank int, put func(offset int64, data []byte) error, progress func(done, total int64)) (err error) {
	ckpt, _, err := openCheckpoint(b, model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ckpt.Close()) }()
	return fillRanks(ctx, ckpt, set, b.Manifest.Deployment.TensorParallel, rank, rank+1, func(_ int, offset int64, data []byte) error {
		return put(offset, data)
	}, progress)
}

// meter adds up what several goroutines do.
type meter struct {
	report func(done, total int64) // may be nil; calls do not overlap
	total  int64                   // set before the first add

	mu   sync.Mutex
	done int64
}

func (m *meter) add(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += n
	if m.report != nil {
		m.report(m.done, m.total)
	}
}

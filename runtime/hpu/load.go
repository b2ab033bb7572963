//go:build linux

package hpu

import (
	"context"
	"errors"
	"sync"

	"quill/recipes"
	"quill/runtime"
	"quill/runtime/hpu/launch"
)

// uploads are how many pieces of weights are on their way to a card.
const uploads = 4

// uploader copies weights to a card through pinned memory, several pieces at a time.
type uploader struct {
	card *card
	free chan *upload
	mu   sync.Mutex // of the stream
}

// upload is pinned memory and the copy that reads it.
type upload struct {
	mem     []byte
	copied  *launch.Event
	pending bool
}

// loadWeights fills the weights buffer of a rank from the checkpoint.
func (c *card) loadWeights(ctx context.Context, b *recipes.Bundle, set *recipes.Set, model string, rank int, report func(done, total int64)) (err error) {
	u := &uploader{card: c, free: make(chan *upload, uploads)}
	var all []*upload
	defer func() {
		for _, x := range all {
			err = errors.Join(err, x.copied.Destroy(), c.dev.HostFree(x.mem))
		}
	}()
	for range uploads {
		x := &upload{}
		c.where.allocations.Add(1)
		if x.mem, err = c.dev.HostMalloc(runtime.LoadChunk); err != nil {
			return err
		}
		if x.copied, err = c.dev.NewEvent(); err != nil {
			return errors.Join(err, c.dev.HostFree(x.mem))
		}
		all = append(all, x)
		u.free <- x
	}
	err = runtime.LoadRank(ctx, b, set, model, rank, u.put, report)
	return errors.Join(err, c.stream.Synchronize())
}

// put copies bytes to an offset of the weights.
func (u *uploader) put(offset int64, data []byte) error {
	addr, err := u.card.at(recipes.Weights, offset, int64(len(data)))
	if err != nil {
		return err
	}
	x := <-u.free
	defer func() { u.free <- x }()
	if x.pending {
		if err := x.copied.Synchronize(); err != nil {
			return err
		}
	}
	n := copy(x.mem, data)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.card.stream.CopyToDevice(addr, x.mem[:n]); err != nil {
		return err
	}
	x.pending = true
	return u.card.stream.Record(x.copied)
}

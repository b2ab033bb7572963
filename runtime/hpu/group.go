//go:build linux

package hpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"quill/recipes"
)

const (
	defaultPatience = 5 * time.Minute
	// abortLimit is how long ranks may take to leave the communicator before they are
	// killed: an orderly end can hang for minutes after a collective has failed.
	abortLimit = 10 * time.Second
	// stateLimit is how long a rank may take to say what it is at.
	stateLimit = 2 * time.Second
	// failLimit is how long the others may take to end a step that one rank failed.
	failLimit = time.Second
)

// Group is the ranks of a deployment as a runtime.Device, a process each. Its
// methods may be called from several goroutines; they wait for each other.
type Group struct {
	opt Options
	b   *recipes.Bundle
	set *recipes.Set
	man recipes.Hash // of the bundle's manifest

	mu      sync.Mutex
	shared  *shared
	members []*member
	replies chan reply
	replays []*replay
	timer   *time.Timer
	// patience is how long ranks may wait for a card that is not free.
	patience time.Duration
	lost     error // why the ranks are gone
	closed   bool
}

// New starts the ranks of a bundle and waits until each has its card. The error
// says which rank failed at what. It is what runtime.Options.NewDevice wants.
func New(ctx context.Context, o Options, b *recipes.Bundle, set *recipes.Set) (*Group, error) {
	n := b.Manifest.Deployment.TensorParallel
	if o.Modules != nil && len(o.Modules) != n {
		return nil, fmt.Errorf("hpu: %d modules for %d ranks", len(o.Modules), n)
	}
	for rank, module := range o.Modules {
		if first := slices.Index(o.Modules, module); first < rank {
			return nil, fmt.Errorf("hpu: module %d is for rank %d and for rank %d: a card has one rank", module, first, rank)
		}
	}
	if b.Native == nil {
		return nil, fmt.Errorf("hpu: %w", errNative) // before a process is started
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	man, err := hashManifest(b)
	if err != nil {
		return nil, err
	}
	g := &Group{opt: o, b: b, set: set, man: man, timer: time.NewTimer(time.Hour)}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shared, err = newShared(n); err != nil {
		return nil, fmt.Errorf("hpu: %w", err)
	}
	if err := g.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("hpu: %w", err), g.shared.close())
	}
	return g, nil
}

// hashManifest identifies a bundle: its manifest has the hash of all its parts.
func hashManifest(b *recipes.Bundle) (recipes.Hash, error) {
	data, err := json.Marshal(&b.Manifest)
	if err != nil {
		return recipes.Hash{}, fmt.Errorf("hpu: manifest: %w", err)
	}
	return recipes.Sum(data), nil
}

// Ranks is the number of ranks.
func (g *Group) Ranks() int { return g.b.Manifest.Deployment.TensorParallel }

// Made is how many recipes all ranks have loaded, and how often they have allocated
// memory of their cards or for them, since they were started.
func (g *Group) Made() (programs, allocations int64) {
	for rank := range g.Ranks() {
		p := g.shared.place(rank)
		programs += p.programs.Load()
		allocations += p.allocations.Load()
	}
	return programs, allocations
}

// Close releases all cards and ends the ranks.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	var err error
	if g.lost == nil {
		err = g.stop()
	}
	g.closed = true
	return errors.Join(err, g.shared.close())
}

// Write copies data to an offset of one rank's buffer.
func (g *Group) Write(rank int, b recipes.Buffer, offset int64, data []byte) error {
	return g.move("write", askWrite, rank, b, offset, data)
}

// Read fills data from an offset of one rank's buffer.
func (g *Group) Read(rank int, b recipes.Buffer, offset int64, data []byte) error {
	return g.move("read", askRead, rank, b, offset, data)
}

func (g *Group) move(what string, k kind, rank int, b recipes.Buffer, offset int64, data []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if rank < 0 || rank >= g.Ranks() {
		return fmt.Errorf("%s: rank %d of %d", what, rank, g.Ranks())
	}
	if size := g.set.Info.Bytes[b]; offset < 0 || offset > size || int64(len(data)) > size-offset {
		return fmt.Errorf("%d bytes at byte %d of buffer %s of rank %d, which has %d", len(data), offset, b, rank, size)
	}
	for len(data) > 0 {
		part := data[:min(len(data), maxChunk)]
		r := request{what: what, kind: k, limit: g.opt.Patience, fixed: true}
		if g.lost == nil && !g.closed {
			r.to = g.members[rank : rank+1]
		}
		r.body = func(int) ([]byte, error) {
			head, err := json.Marshal(rangeRequest{b, offset, int64(len(part))})
			if k == askWrite {
				head = append(append(head, '\n'), part...)
			}
			return head, err
		}
		r.reply = func(_ int, body []byte) error {
			if k == askRead && copy(part, body) < len(part) {
				return fmt.Errorf("%d of %d bytes came", len(body), len(part))
			}
			return nil
		}
		if err := g.do(context.Background(), &r); err != nil {
			return err
		}
		offset += int64(len(part))
		data = data[len(part):]
	}
	return nil
}

// Clear zeroes a buffer on all ranks.
func (g *Group) Clear(b recipes.Buffer) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.do(context.Background(), &request{
		what: "clear " + string(b), kind: askClear, limit: g.opt.Patience, fixed: true,
		body: func(int) ([]byte, error) { return []byte(b), nil },
	})
}

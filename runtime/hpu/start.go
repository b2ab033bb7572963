//go:build linux

package hpu

import (
	"context"
	"encoding/json"
	"fmt"

	"quill/runtime"
)

// start starts all ranks, gives each its card, and joins them. If one fails none is
// left.
func (g *Group) start(ctx context.Context) error {
	err := g.join(ctx)
	if err != nil && g.lost == nil {
		_ = g.stop() // less than err
		g.lost = err
	}
	return err
}

// stop lets all ranks release their cards and end.
func (g *Group) stop() error {
	err := g.do(context.Background(), &request{what: "close", kind: askClose, limit: g.opt.Patience, fixed: true, last: true})
	g.end(abortLimit)
	return err
}

func (g *Group) join(ctx context.Context) error {
	g.lost = nil
	g.members = nil
	n := g.Ranks()
	g.shared.fresh(n)
	g.replies = make(chan reply, 4*n)
	for rank := range n {
		m, err := g.spawn(rank)
		if err != nil {
			g.lose("start", fmt.Errorf("rank %d: %w", rank, err))
			return g.lost
		}
		g.members = append(g.members, m)
	}
	err := g.do(ctx, &request{what: "open", kind: askOpen, limit: g.opt.Patience, starts: true, body: g.openBody})
	if err != nil || n == 1 {
		return err
	}
	// All cards are taken before a rank makes an identity, and it is made before one
	// joins: so no rank waits for one that never comes.
	var id []byte
	unique := request{what: "make a communicator", kind: askUnique, limit: g.opt.Patience, starts: true, to: g.members[:1]}
	unique.reply = func(_ int, body []byte) error { id = body; return nil }
	if err := g.do(ctx, &unique); err != nil {
		return err
	}
	return g.do(ctx, &request{what: "join the communicator", kind: askJoin, limit: g.opt.Patience, starts: true, body: func(int) ([]byte, error) { return id, nil }})
}

func (g *Group) openBody(rank int) ([]byte, error) {
	module := uint32(rank)
	if g.opt.Modules != nil {
		module = g.opt.Modules[rank]
	}
	return json.Marshal(openRequest{
		Rank: rank, Ranks: g.Ranks(), Bundle: g.opt.Bundle, Manifest: g.man, Model: g.opt.Model, Precision: g.set.Info.Precision,
		Library: g.opt.Library, Module: module, Deadline: abortLimit, Patience: g.patience,
	})
}

// Restart starts the ranks anew, after they were lost, with all plans and weights
// as before. Everything else that the cards held is gone.
func (g *Group) Restart(ctx context.Context, progress func(done, total int64)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("restart: group of ranks is %w", runtime.ErrClosed)
	}
	if g.lost == nil {
		_ = g.stop() // what was wrong is over
	}
	// The system may still be taking the cards from the ranks that ended. Ranks have to
	// say why they got none before they are given up.
	g.patience = g.opt.Patience / 2
	err := g.start(ctx)
	if err == nil {
		if err = g.load(ctx, progress); err != nil && g.lost == nil {
			_ = g.stop() // less than err
			g.lost = err // the cards lack plans or weights
		}
	}
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	return nil
}

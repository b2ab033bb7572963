//go:build linux

package hpu

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"quill/recipes"
	"quill/runtime"
)

// replay is a plan that the ranks have.
type replay struct {
	group        *Group
	plan         int
	request      request
	stage, fetch []transfer
}

// Bind makes a plan ready to run. The ranks learn of it in LoadWeights.
func (g *Group) Bind(p *recipes.Plan, _ func(recipes.Hash) *recipes.Recipe) (runtime.Replay, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.set.Plans {
		if &g.set.Plans[i] == p {
			return g.replay(i), nil
		}
	}
	return nil, errors.New("hpu: the plan is not one of the bundle")
}

func (g *Group) replay(i int) *replay {
	r := &replay{group: g, plan: i}
	body := binary.LittleEndian.AppendUint32(nil, uint32(i))
	r.request = request{
		what: "run", kind: askRun, limit: g.opt.Deadline, fixed: true,
		body: func(int) ([]byte, error) { return body, nil },
	}
	g.replays = append(g.replays, r)
	return r
}

// LoadWeights makes all plans ready on the ranks and lets each load its weights
// from the checkpoint.
func (g *Group) LoadWeights(ctx context.Context, report func(done, total int64)) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load(ctx, report)
}

func (g *Group) load(ctx context.Context, report func(done, total int64)) error {
	for _, r := range g.replays {
		body, err := json.Marshal(bindRequest{r.plan, r.stage, r.fetch})
		if err != nil {
			return err
		}
		err = g.do(ctx, &request{what: fmt.Sprintf("bind plan %v", g.set.Plans[r.plan].Bucket), kind: askBind, limit: g.opt.Patience, starts: true, body: func(int) ([]byte, error) { return body, nil }})
		if err != nil {
			return err
		}
	}
	seen := make([]progress, g.Ranks())
	return g.do(ctx, &request{what: "load weights", kind: askLoad, limit: g.opt.Patience, starts: true, progress: func(rank int, p progress) {
		if report == nil {
			return
		}
		seen[rank] = p
		done, total := int64(0), int64(0)
		for _, s := range seen {
			done += s.Done
			total += max(s.Total, p.Total) // ranks have equally much
		}
		report(done, total)
	}})
}

// Stage is shared memory that every rank copies to its arena.
func (r *replay) Stage(offset, n int64) ([]byte, error) { return r.take(&r.stage, offset, n) }

// Fetch is shared memory that rank 0 copies from its arena.
func (r *replay) Fetch(offset, n int64) ([]byte, error) { return r.take(&r.fetch, offset, n) }

func (r *replay) take(list *[]transfer, offset, n int64) ([]byte, error) {
	r.group.mu.Lock()
	defer r.group.mu.Unlock()
	if size := r.group.set.Info.Bytes[recipes.Arena]; offset < 0 || offset > size || n < 0 || n > size-offset {
		return nil, fmt.Errorf("%d bytes at byte %d of the arena, which has %d", n, offset, size)
	}
	mem, at, err := r.group.shared.take(n)
	if err != nil {
		return nil, err
	}
	*list = append(*list, transfer{offset, at, n})
	return mem, nil
}

// Run executes the plan on all ranks. It cannot be cancelled on the way: that would
// leave ranks in a collective.
func (r *replay) Run(ctx context.Context) error {
	r.group.mu.Lock()
	defer r.group.mu.Unlock()
	return r.group.do(ctx, &r.request)
}

//go:build linux

package hpu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"sync/atomic"
	"time"

	"quill/recipes"
	"quill/recipes/dl"
	"quill/runtime/hpu/launch"
)

// Serve is the process of a rank. It talks to the group over descriptor 3, shares the
// memory of descriptor 4, and returns when the group closes it or is gone. Errors of
// requests go to the group; Serve returns those that it cannot tell.
func Serve(ctx context.Context) error {
	c, err := newConn(os.NewFile(3, "group"))
	if err != nil {
		return err
	}
	defer c.Close()
	mem, err := openShared(os.NewFile(4, "shared memory"))
	if err != nil {
		return err
	}
	// The memory stays mapped until the process ends, as does the goroutine that uses it.
	// What a step calls is best left on one thread.
	goruntime.LockOSThread()
	r := &rank{conn: c, shared: mem, asked: make(chan packet)}
	go r.listen()
	return r.serve(ctx)
}

// rank is the state of the process of a rank.
type rank struct {
	conn   *conn
	shared *shared
	asked  chan packet // requests but abort and state

	req    openRequest
	opened atomic.Pointer[openRequest] // req, once there is one, for who listens
	joined atomic.Pointer[launch.Comm] // so the card's communicator
	bundle *recipes.Bundle
	set    *recipes.Set
	card   card
	plans  map[int]*bound
}

type packet struct {
	kind kind
	body []byte
	err  error
}

// listen passes requests on, one at a time, and answers itself what must be answered
// while one is executed.
func (r *rank) listen() {
	for {
		k, body, err := r.conn.receive()
		switch {
		case err == nil && k == askAbort:
			r.abort()
		case err == nil && k == askState:
			r.state()
		default:
			// The body stays until the next request, which comes after the reply: what
			// comes before has no body.
			r.asked <- packet{k, body, err}
			if err != nil {
				return
			}
		}
	}
}

// abort leaves the communicator and ends the process. An orderly end can hang for
// minutes after a collective has failed, and holds the card; the system takes it back.
func (r *rank) abort() {
	if comm := r.joined.Load(); comm != nil {
		time.AfterFunc(r.opened.Load().Deadline, func() { os.Exit(exitAborted) })
		_ = comm.Abort() // nobody is left to be told
	}
	os.Exit(exitAborted)
}

// exitAborted is the exit code of a rank that was told to give up.
const exitAborted = 3

// state answers with what the rank is at.
func (r *rank) state() {
	var rank int // the group knows it
	if req := r.opened.Load(); req != nil {
		rank = req.Rank
	}
	p := r.shared.place(rank)
	_ = r.conn.sendState(State{
		Rank: rank, Runs: p.runs.Load(), Index: int(p.plan.Load()), Enqueued: int(p.step.Load()),
		Done: r.card.done(), Waits: p.waits.Load() != 0, Moved: r.card.moved.Load(),
	})
}

// serve executes requests until the group closes or is gone.
func (r *rank) serve(ctx context.Context) error {
	r.plans = make(map[int]*bound)
	for {
		p := <-r.asked
		if p.err != nil {
			// The group is gone: nobody needs the card.
			return r.release()
		}
		if p.kind == askClose {
			err := r.release()
			return errors.Join(r.answer(nil, err), err)
		}
		reply, err := r.execute(ctx, p.kind, p.body)
		if p.kind == askRun && err == nil {
			err = r.conn.send(sayDone) // nothing is allocated
		} else {
			err = r.answer(reply, err)
		}
		if err != nil {
			return errors.Join(err, r.release())
		}
	}
}

// answer tells the group how a request ended.
func (r *rank) answer(reply []byte, err error) error {
	if err == nil {
		return r.conn.send(sayDone, reply)
	}
	return r.conn.sendJSON(sayFailed, failure{err.Error(), lost(err)})
}

// lost says that the card can do nothing more after an error.
func lost(err error) bool {
	for _, s := range []dl.Status{dl.DeviceReset, dl.Terminated, dl.AssertAsync} {
		if errors.Is(err, s) {
			return true
		}
	}
	return false
}

func (r *rank) execute(ctx context.Context, k kind, body []byte) ([]byte, error) {
	switch k {
	case askOpen:
		return r.open(body)
	case askUnique:
		return r.card.rt.UniqueID()
	case askJoin:
		comm, err := r.card.rt.InitRank(r.req.Ranks, body, r.req.Rank)
		if err == nil {
			r.card.comm = comm
			r.joined.Store(comm)
		}
		return nil, err
	case askBind:
		return nil, r.bind(body)
	case askLoad:
		return nil, r.load(ctx)
	case askRun:
		var b *bound
		if len(body) == planBytes {
			b = r.plans[int(binary.LittleEndian.Uint32(body))]
		}
		if b == nil {
			return nil, errors.New("the plan is not bound")
		}
		return nil, r.card.run(b)
	case askClear:
		if err := r.card.clear(recipes.Buffer(body)); err != nil {
			return nil, err
		}
		return nil, r.card.stream.Synchronize()
	case askWrite, askRead:
		return r.move(k, body)
	}
	return nil, fmt.Errorf("unknown request %d: group and rank are of different versions", k)
}

// open takes the card, loads all recipes and allocates all memory.
func (r *rank) open(body []byte) ([]byte, error) {
	var err error
	if r.req, err = parse[openRequest](body); err != nil {
		return nil, err
	}
	r.opened.Store(&r.req)
	if r.bundle, err = recipes.ReadBundle(r.req.Bundle); err != nil {
		return nil, err
	}
	man, err := hashManifest(r.bundle)
	if err != nil {
		return nil, err
	}
	if man != r.req.Manifest {
		return nil, fmt.Errorf("bundle %s was replaced while it was opened", r.req.Bundle)
	}
	for i := range r.bundle.Sets {
		if r.bundle.Sets[i].Info.Precision == r.req.Precision {
			r.set = &r.bundle.Sets[i]
		}
	}
	if r.set == nil {
		return nil, fmt.Errorf("no precision %q in bundle %s", r.req.Precision, r.req.Bundle)
	}
	r.card.ranks, r.card.where = r.req.Ranks, r.shared.place(r.req.Rank)
	if err := r.card.acquire(r.req.Library, r.req.Module, r.req.Patience); err != nil {
		return nil, err
	}
	if err := r.loadRecipes(); err != nil {
		return nil, err
	}
	if err := r.card.allocate(r.set.Info.Bytes); err != nil {
		return nil, r.memoryError(err)
	}
	return nil, nil
}

// memoryError adds what the card has to an error of an allocation.
func (r *rank) memoryError(err error) error {
	free, total, e := r.card.dev.Memory()
	if e != nil {
		return err
	}
	return fmt.Errorf("%w; %d of %d bytes of the card are free", err, free, total)
}

// loadRecipes loads the native recipes that the set needs.
func (r *rank) loadRecipes() error {
	if r.bundle.Native == nil {
		return errNative
	}
	have, err := r.card.rt.Version()
	if err != nil {
		return err
	}
	if want := r.bundle.Native.Driver; have != want {
		return fmt.Errorf("the native recipes of %s were compiled by software %s, this is %s: compile them again with quill compile --native", r.req.Bundle, want, have)
	}
	r.card.programs = make(map[recipes.Hash]*program)
	for i := range r.set.Plans {
		for j := range r.set.Plans[i].Steps {
			l := r.set.Plans[i].Steps[j].Launch
			if l == nil || r.card.programs[l.Recipe] != nil {
				continue
			}
			if err := r.loadRecipe(l); err != nil {
				return fmt.Errorf("plan %v: launch %q: recipe %s: %w", r.set.Plans[i].Bucket, l.Label, l.Recipe, err)
			}
		}
	}
	return nil
}

func (r *rank) loadRecipe(l *recipes.Launch) error {
	native, err := r.bundle.Native.Recipe(l.Recipe)
	if err != nil {
		return err
	}
	return r.card.load(l.Recipe, r.bundle.Recipes[l.Recipe], native)
}

// bind makes a plan ready.
func (r *rank) bind(body []byte) error {
	req, err := parse[bindRequest](body)
	if err != nil {
		return err
	}
	if req.Plan < 0 || req.Plan >= len(r.set.Plans) {
		return fmt.Errorf("plan %d of %d", req.Plan, len(r.set.Plans))
	}
	b, err := r.card.bind(req.Plan, &r.set.Plans[req.Plan], r.bundle.Recipes)
	if err != nil {
		return err
	}
	if b.stage, err = r.moves(req.Stage); err != nil {
		return err
	}
	if r.req.Rank == 0 {
		if b.fetch, err = r.moves(req.Fetch); err != nil {
			return err
		}
	}
	r.plans[req.Plan] = b
	return nil
}

// moves resolves transfers, and makes their memory known to the card.
func (r *rank) moves(list []transfer) ([]move, error) {
	var all []move
	for _, t := range list {
		mem, err := r.shared.bytes(t.Shared, t.Bytes)
		if err != nil {
			return nil, err
		}
		addr, err := r.card.at(recipes.Arena, t.Arena, t.Bytes)
		if err != nil {
			return nil, err
		}
		if len(mem) == 0 {
			continue
		}
		r.card.where.allocations.Add(1)
		if err := r.card.dev.HostMap(mem); err != nil {
			return nil, err
		}
		r.card.undo = append(r.card.undo, func() error { return r.card.dev.HostUnmap(mem) })
		all = append(all, move{mem, addr})
	}
	return all, nil
}

// load loads the weights and reports progress.
func (r *rank) load(ctx context.Context) error {
	var told time.Time
	return r.card.loadWeights(ctx, r.bundle, r.set, r.req.Model, r.req.Rank, func(done, total int64) {
		if time.Since(told) > time.Second/5 || done == total {
			told = time.Now()
			_ = r.conn.sendJSON(sayProgress, progress{done, total}) // the reply will fail too
		}
	})
}

// move copies a range of a buffer from or to the request.
func (r *rank) move(k kind, body []byte) ([]byte, error) {
	head, data, _ := bytes.Cut(body, []byte{'\n'})
	req, err := parse[rangeRequest](head)
	if err != nil {
		return nil, err
	}
	addr, err := r.card.at(req.Buffer, req.Offset, req.Bytes)
	if err != nil || req.Bytes == 0 {
		return nil, err
	}
	if req.Bytes > maxChunk || k == askWrite && req.Bytes != int64(len(data)) {
		return nil, fmt.Errorf("%d bytes, have %d", req.Bytes, len(data))
	}
	r.card.where.allocations.Add(1)
	mem, err := r.card.dev.HostMalloc(uint64(req.Bytes))
	if err != nil {
		return nil, err
	}
	if k == askWrite {
		copy(mem, data)
		err = r.card.stream.CopyToDevice(addr, mem)
	} else {
		err = r.card.stream.CopyToHost(mem, addr)
	}
	if err == nil {
		err = r.card.stream.Synchronize()
	}
	var reply []byte
	if k == askRead {
		reply = bytes.Clone(mem)
	}
	return reply, errors.Join(err, r.card.dev.HostFree(mem))
}

func (r *rank) release() error {
	r.joined.Store(nil)
	return r.card.release()
}

//go:build linux

package hpu

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"quill/recipes"
	"quill/runtime"
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

// member is the process of a rank.
type member struct {
	rank  int
	cmd   *exec.Cmd
	conn  *conn
	done  bool          // it has replied to the present request
	ended chan struct{} // closed when the process is gone
	err   error         // how it ended, from then on
}

// reply is a packet from a rank, or the end of what it has to say.
type reply struct {
	rank int
	kind kind
	body []byte
	err  error
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

// spawn starts the process of a rank.
func (g *Group) spawn(rank int) (*member, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer far.Close()
	cmd := g.opt.Command()
	cmd.ExtraFiles = []*os.File{far, g.shared.file}
	cmd.Stderr = g.opt.Log
	// Where the group dies without a word the rank must not keep its card.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		near.Close()
		return nil, err
	}
	m := &member{rank: rank, cmd: cmd, conn: near, ended: make(chan struct{})}
	go func() {
		m.err = cmd.Wait()
		close(m.ended)
	}()
	go m.listen(g.replies)
	return m, nil
}

// listen passes on what a rank says, until it says no more.
func (m *member) listen(to chan<- reply) {
	for {
		k, body, err := m.conn.receive()
		if err != nil {
			m.pass(to, reply{rank: m.rank, err: errGone})
			return
		}
		if len(body) > 0 {
			body = bytes.Clone(body)
		}
		m.pass(to, reply{rank: m.rank, kind: k, body: body})
	}
}

// pass passes a reply on, unless the rank is gone and nobody takes it.
func (m *member) pass(to chan<- reply, r reply) {
	select {
	case to <- r:
	case <-m.ended:
		select {
		case to <- r:
		default:
		}
	}
}

var errGone = errors.New("the process of the rank is gone")

// request is what some ranks are asked at once, and what becomes of it.
type request struct {
	what  string // for errors
	kind  kind
	limit time.Duration // for the replies, or between reports of progress
	to    []*member     // nil is all
	fixed bool          // it cannot be cancelled on the way
	last  bool          // ranks end when they have replied
	// starts says that the cards hold nothing yet that could be lost. Where a rank cannot do
	// it that is the error, and no loss, whether the others are done by then or not.
	starts bool

	body     func(rank int) ([]byte, error)    // nil is nothing
	reply    func(rank int, body []byte) error // what a rank replied; may be nil
	progress func(rank int, p progress)        // may be nil
}

// do sends a request and waits until all ranks have replied. A rank that cannot do
// it makes an error, and leaves the others little time; a rank that is gone or does
// not reply in time is the end of all. The error names one rank, at which it began: that
// others did not finish then follows from it. g.mu is held.
func (g *Group) do(ctx context.Context, r *request) error {
	if err := g.alive(r.what); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	to := r.to
	if to == nil {
		to = g.members
	}
	for _, m := range to {
		var body []byte
		if r.body != nil {
			var err error
			if body, err = r.body(m.rank); err != nil {
				return fmt.Errorf("%s: rank %d: %w", r.what, m.rank, err)
			}
		}
		m.done = false
		if err := m.conn.send(r.kind, body); err != nil {
			return g.lose(r.what, fmt.Errorf("rank %d: %w", m.rank, m.why(err)))
		}
	}
	return g.wait(ctx, r, len(to))
}

// alive is an error if there are no ranks.
func (g *Group) alive(what string) error {
	if g.closed {
		return fmt.Errorf("%s: group of ranks is %w", what, runtime.ErrClosed)
	}
	if g.lost != nil {
		return fmt.Errorf("%s: %w", what, g.lost)
	}
	return nil
}

// wait waits for the replies of a request.
func (g *Group) wait(ctx context.Context, r *request, left int) error {
	var cancelled <-chan struct{}
	if !r.fixed {
		cancelled = ctx.Done()
	}
	var failed error
	limit := r.limit
	g.timer.Reset(limit)
	defer g.timer.Stop()
	for left > 0 {
		select {
		case rep := <-g.replies:
			m := g.members[rep.rank]
			switch {
			case rep.err != nil && r.last && m.done:
				continue
			case rep.err != nil:
				return g.lose(r.what, after(fmt.Errorf("rank %d: %w", rep.rank, m.why(rep.err)), failed))
			case rep.kind == sayState:
				continue // too late for who asked
			case m.done || rep.kind < sayDone || rep.kind > sayProgress:
				return g.lose(r.what, fmt.Errorf("rank %d sent packet %d, for which nobody asked: group and rank are of different versions", rep.rank, rep.kind))
			case rep.kind == sayProgress:
				if p, err := parse[progress](rep.body); err == nil && r.progress != nil {
					r.progress(rep.rank, p)
				}
				if failed == nil { // or the others would go on for nothing
					g.timer.Reset(limit)
				}
				continue
			case rep.kind == sayFailed:
				f, err := parse[failure](rep.body)
				err = errors.Join(err, fmt.Errorf("rank %d: %s", rep.rank, f.Text))
				if f.Lost {
					return g.lose(r.what, after(err, failed))
				}
				if failed == nil {
					// The others may wait for this one for ever.
					failed, limit = err, min(limit, failLimit)
					g.timer.Reset(limit)
				}
			case rep.kind == sayDone && r.reply != nil:
				if err := r.reply(rep.rank, rep.body); err != nil && failed == nil {
					failed = fmt.Errorf("rank %d: %w", rep.rank, err)
				}
			}
			m.done = true
			left--
		case <-g.timer.C:
			switch {
			case failed == nil:
				return g.lose(r.what, fmt.Errorf("%s did not answer within %v", g.silent(), limit))
			case r.starts:
				g.abandon()
				g.lost = fmt.Errorf("%s: %w", r.what, failed)
				return g.lost
			}
			return g.lose(r.what, failed)
		case <-cancelled:
			return g.lose(r.what, ctx.Err())
		}
	}
	if failed != nil {
		return fmt.Errorf("%s: %w", r.what, failed)
	}
	return nil
}

// after adds what a rank said before: work of several ranks may fail on the others before
// the one at which it began is known to be gone.
func after(err, before error) error {
	if before == nil {
		return err
	}
	return fmt.Errorf("%w, after %w", err, before)
}

// silent names the ranks that have not replied to the present request.
func (g *Group) silent() string {
	var ranks []string
	for _, m := range g.members {
		if !m.done {
			ranks = append(ranks, strconv.Itoa(m.rank))
		}
	}
	text := fmt.Sprintf("%d of %d ranks", len(ranks), len(g.members))
	if len(ranks) < len(g.members) {
		text += fmt.Sprintf(" (%s)", strings.Join(ranks, ", "))
	}
	return text
}

// why is what is known of a rank that does not talk any more.
func (m *member) why(err error) error {
	select {
	case <-m.ended:
	case <-time.After(stateLimit):
		return err
	}
	if m.err == nil {
		return fmt.Errorf("%w: it ended without an error", err)
	}
	return fmt.Errorf("%w: %w", err, m.err)
}

// lose ends all ranks and keeps why. It returns that as a LostError.
func (g *Group) lose(what string, cause error) error {
	e := &LostError{What: what, Cause: cause, Ranks: g.states()}
	g.lost = e
	g.abandon()
	return e
}

// abandon ends all ranks, whatever they are at.
func (g *Group) abandon() {
	for _, m := range g.members {
		_ = m.conn.send(askAbort) // it may be gone
	}
	g.end(abortLimit)
}

// states asks what each rank is at. Ranks that do not answer are known by what
// they left in shared memory.
func (g *Group) states() []State {
	all := make([]State, len(g.members))
	asked := 0
	for i, m := range g.members {
		all[i] = g.placeOf(m.rank)
		if m.conn.send(askState) == nil {
			asked++
		}
	}
	limit := time.After(stateLimit)
	for asked > 0 {
		select {
		case rep := <-g.replies:
			if rep.err != nil {
				asked--
			}
			if rep.kind != sayState {
				continue // of the request that is lost
			}
			asked--
			if s, err := parse[State](rep.body); err == nil {
				s.Rank = rep.rank // it may not know yet
				g.nameState(&s)
				all[rep.rank] = s
			}
		case <-limit:
			return all
		}
	}
	return all
}

// end waits until all processes are gone, and kills them after a limit.
func (g *Group) end(limit time.Duration) {
	after := time.After(limit)
	for _, m := range g.members {
		select {
		case <-m.ended:
		case <-after:
			after = time.After(0)
			_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL) // it may be gone
			<-m.ended
		}
		m.conn.Close()
	}
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

// replay is a plan that the ranks have.
type replay struct {
	group        *Group
	plan         int
	request      request
	stage, fetch []transfer
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

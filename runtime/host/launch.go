package host

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"quill/recipes"
)

// Launch is a program bound to addresses, ready to run many times. Run
// allocates nothing unless it fails.
type Launch struct {
	program *Program
	// bases are, by rank, the memory of each section and, last, the workspace.
	bases [][][]byte
	// weights are, by rank, where each operand in the weights lies.
	weights [][]*byte
}

// fault is a unit that failed.
type fault struct {
	rank, unit int
	err        error
}

// Bind resolves the addresses of one launch: one binding per section.
func (d *Device) Bind(p *Program, b []recipes.Binding) (*Launch, error) {
	r := p.recipe
	if p.device != d {
		return nil, fmt.Errorf("recipe %s: bound on another device than it was loaded on", r.Name)
	}
	if len(b) != len(r.Sections) {
		return nil, fmt.Errorf("recipe %s: %d bindings, want one for each of %d sections", r.Name, len(b), len(r.Sections))
	}
	for i := range b {
		s := &r.Sections[i]
		fail := func(what string, got, want any) error {
			return fmt.Errorf("recipe %s: binding %d of section %s: %s %v, want %v", r.Name, i, s.Name, what, got, want)
		}
		if b[i].Buffer != s.Buffer {
			return nil, fail("buffer", b[i].Buffer, s.Buffer)
		}
		size := d.sizes[s.Buffer]
		if at := b[i].Offset; at < 0 || s.Size > size || at > size-s.Size {
			return nil, fail("range", fmt.Sprintf("%d bytes at %d", s.Size, at), fmt.Sprintf("inside the %d bytes of %s", size, s.Buffer))
		}
		if a := p.aligned[i]; a > 1 && b[i].Offset%a != 0 {
			return nil, fail("offset", b[i].Offset, fmt.Sprintf("a multiple of %d", a))
		}
	}
	if err := p.checkShared(b); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, ErrClosed
	}
	d.allocations.Add(1)
	l := &Launch{program: p, bases: make([][][]byte, len(d.ranks)), weights: make([][]*byte, len(d.ranks))}
	for k := range d.ranks {
		bases := make([][]byte, len(b)+1)
		for i := range b {
			if m := d.ranks[k].buffers[b[i].Buffer]; m != nil {
				at, n := b[i].Offset, r.Sections[i].Size
				bases[i] = m[at : at+n]
			}
		}
		weights, err := d.weightsTable(p, b, &d.ranks[k])
		if err != nil {
			return nil, fmt.Errorf("%w of rank %d", err, k)
		}
		l.bases[k], l.weights[k] = bases, weights
	}
	return l, nil
}

// weightsTable finds the operands in the weights. Many launches have the same
// table, those of one layer at different buckets: they share it.
func (d *Device) weightsTable(p *Program, b []recipes.Binding, k *rank) ([]*byte, error) {
	if len(p.weights) == 0 {
		return nil, nil
	}
	table := make([]*byte, len(p.weights))
	for i, t := range p.weights {
		s := p.spots[t]
		m, _ := k.span(b[s.space].Offset+s.at, s.n)
		if m == nil && s.n > 0 {
			return nil, fmt.Errorf("recipe %s: binding %d of section %s: no memory for %q, %d bytes at %d of the weights",
				p.recipe.Name, s.space, p.recipe.Sections[s.space].Name, p.recipe.Tensors[t].Name, s.n, b[s.space].Offset+s.at)
		}
		table[i] = unsafe.SliceData(m)
	}
	key := string(unsafe.Slice((*byte)(unsafe.Pointer(&table[0])), len(table)*sizeOf[*byte]()))
	if known, ok := d.tables[key]; ok {
		return known, nil
	}
	d.tables[key] = table
	return table, nil
}

// checkShared repeats the check for overwritten memory if sections that are
// written share memory through their bindings.
func (p *Program) checkShared(b []recipes.Binding) error {
	shared := false
	for i := range b {
		for j := range b[:i] {
			shared = shared || (p.written[i] || p.written[j]) && b[i].Buffer == b[j].Buffer &&
				overlap(b[i].Offset, p.recipe.Sections[i].Size, b[j].Offset, p.recipe.Sections[j].Size)
		}
	}
	if !shared {
		return nil
	}
	index := make(map[recipes.Buffer]int)
	spots := make([]spot, len(p.spots))
	for t, s := range p.spots {
		if s.space != workspaceSpace {
			buffer := b[s.space].Buffer
			if _, ok := index[buffer]; !ok {
				index[buffer] = len(index)
			}
			s.at += b[s.space].Offset
			s.space = index[buffer]
		}
		spots[t] = s
	}
	if h := p.hazard(spots); h != nil {
		return h.err(p)
	}
	if err := p.safe(spots); err != nil {
		return fmt.Errorf("recipe %s: sections share memory that its units, which are fused nodes, do not use in the order of the nodes: %w; bind them apart, or load it with Options.Unfused", p.recipe.Name, err)
	}
	return nil
}

// Run executes the launch on all ranks. After an error the memory it writes is
// undefined; with several failing ranks the error is that of the first.
func (l *Launch) Run(ctx context.Context) error {
	d := l.program.device
	if err := d.begin(ctx); err != nil {
		return err
	}
	defer d.mu.Unlock()
	for _, t := range d.crew.threads {
		t.fault = fault{}
	}
	d.launch = l
	if d.trace != nil {
		d.trace.launches++
	}
	d.crew.run(d.work)
	d.launch = nil
	return l.fault()
}

// fault is the error of the first failing unit of the first failing rank.
func (l *Launch) fault() error {
	var first *fault
	p := l.program
	for _, t := range p.device.crew.threads {
		f := &t.fault
		if f.err != nil && (first == nil || f.rank < first.rank || f.rank == first.rank && f.unit < first.unit) {
			first = f
		}
	}
	if first == nil {
		return nil
	}
	node := p.units[first.unit].node
	var e *indexError
	if errors.As(first.err, &e) {
		node = e.node
	}
	return fmt.Errorf("%s, rank %d: %w", where(p.recipe, node), first.rank, first.err)
}

// runRank executes thread t's part of the launch on one rank; false if the
// launch failed.
func (l *Launch) runRank(r int, t *thread, team *barrier) bool {
	p := l.program
	d := p.device
	bases := l.bases[r]
	if t.id == 0 {
		bases[len(bases)-1] = d.ranks[r].workspace // may have grown since the last run
	}
	if !team.wait() {
		return false
	}
	t.mem.launch, t.mem.rank, t.mem.device = l, r, d
	at, err := l.runUnits(t, team)
	if err != nil {
		t.fault = fault{r, at, err}
		team.failed.Store(true)
	}
	return err == nil && at == len(p.units)
}

// runUnits executes thread t's share of every unit, and returns how many it has
// come through: not all if another thread failed. A panic in a kernel is a fault
// of the unit, not of the process.
func (l *Launch) runUnits(t *thread, team *barrier) (at int, err error) {
	p := l.program
	m := &t.mem
	var trace *Trace
	if t == p.device.crew.threads[0] {
		trace = p.device.trace
	}
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	var begun time.Duration
	parallel := false // the stage before
	for ; at < len(p.units); at++ {
		u := &p.units[at]
		ready := false
		for s := range u.stages {
			st := &u.stages[s]
			n := min(int(team.size), st.threads)
			if (parallel || n > 1) && !team.wait() {
				return at, nil
			}
			if trace != nil && s == 0 {
				begun = trace.mark()
			}
			parallel = n > 1
			if t.id >= n {
				continue
			}
			if !ready {
				m.set(u, t.id)
				ready = true
			}
			if err := st.run(m, t.id*st.units/n, (t.id+1)*st.units/n); err != nil {
				return at, err
			}
		}
		if trace != nil {
			trace.add(m, u, begun)
		}
	}
	if trace != nil {
		trace.mark()
	}
	return at, nil
}

// set resolves the operands of a unit.
func (m *mem) set(u *unit, thread int) {
	m.unit = u
	m.in, m.out = m.slots[:len(u.in)], m.slots[len(u.in):len(u.in)+len(u.out)]
	for j := range u.later {
		m.in[j] = m.of(&u.in[j])
	}
	for j := range u.out {
		m.out[j] = m.of(&u.out[j])
	}
	m.scratch = m.of(&u.scratch)
	own := u.own
	own.at += int64(thread) * own.n
	m.own = m.of(&own)
}

// operand resolves an operand that set left to the kernel.
func (m *mem) operand(j int) []byte { return m.of(&m.unit.in[j]) }

func (m *mem) of(s *slot) []byte {
	switch s.base {
	case absentBase:
		return nil
	case weightsBase:
		return unsafe.Slice(m.launch.weights[m.rank][s.at], s.n)
	}
	end := s.at + s.n
	return m.launch.bases[m.rank][s.base][s.at:end:end]
}

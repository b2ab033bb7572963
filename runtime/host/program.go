package host

import (
	"context"
	"fmt"
	"slices"

	"quill/recipes"
)

// Program is a loaded recipe: every node resolved to a kernel, every tensor to
// a place in a section or in the workspace.
type Program struct {
	device    *Device
	recipe    *recipes.Recipe
	steps     []step
	workspace int64
	operands  int // most operands of one node

	spots   []spot
	views   []bool // by node: its result is a view
	inPlace []int  // by node: operands its result may overwrite
	aligned []int64
	written []bool // by section
}

// step is one kernel with its operands' places.
type step struct {
	node    int
	run     kernel
	in, out []slot
	scratch slot
}

// slot is an operand's place: a range of one of a launch's bases. Base −1 is
// an absent operand.
type slot struct {
	base  int
	at, n int64
}

// Launch is a program bound to addresses, ready to run many times. Run
// allocates nothing unless it fails.
type Launch struct {
	program *Program
	// bases are, by rank, the memory of each section and, last, the workspace.
	bases [][][]byte
	errs  []error
}

// Workspace is the number of bytes a rank's workspace needs.
func (p *Program) Workspace() int64 { return p.workspace }

// Load resolves a recipe: it checks every node against what its GUID takes,
// turns views into aliases, places the workspace and makes room for it on
// every rank. The recipe must not change afterwards.
func (d *Device) Load(r *recipes.Recipe) (*Program, error) { return d.load(r, false) }

// load with private set gives every tensor memory of its own, for tests.
func (d *Device) load(r *recipes.Recipe, private bool) (*Program, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := checkPlaces(r); err != nil {
		return nil, err
	}
	if err := checkWriters(r); err != nil {
		return nil, err
	}
	p := &Program{
		device:  d,
		recipe:  r,
		views:   make([]bool, len(r.Nodes)),
		inPlace: make([]int, len(r.Nodes)),
		aligned: make([]int64, len(r.Sections)),
		written: make([]bool, len(r.Sections)),
	}
	for i := range r.Tensors {
		if t := &r.Tensors[i]; t.Section >= 0 {
			p.aligned[t.Section] = max(p.aligned[t.Section], int64(t.DType.Size()))
		}
	}
	kernels, scratch, candidates, err := p.build()
	if err != nil {
		return nil, err
	}
	aliases, err := p.settle(candidates, private)
	if err != nil {
		return nil, err
	}
	places, err := p.layout(aliases, scratch, private)
	if err != nil {
		return nil, err
	}
	for i := range r.Nodes {
		if !p.views[i] {
			p.addStep(i, kernels[i], places[i])
		}
	}
	if err := d.reserve(p); err != nil {
		return nil, err
	}
	return p, nil
}

// build makes the kernel of every node and learns how much scratch memory it
// needs and whether it can be a view.
func (p *Program) build() (kernels []kernel, scratch []int, candidates []candidate, err error) {
	r := p.recipe
	kernels, scratch = make([]kernel, len(r.Nodes)), make([]int, len(r.Nodes))
	candidates = make([]candidate, len(r.Nodes))
	for i := range r.Nodes {
		n, row, err := resolve(r, i)
		if err != nil {
			return nil, nil, nil, err
		}
		if kernels[i], err = row.build(n); err != nil {
			return nil, nil, nil, err
		}
		scratch[i] = n.scratch
		p.inPlace[i] = row.inPlace
		p.operands = max(p.operands, len(n.in)+len(n.out))
		for _, t := range r.Nodes[i].Out {
			if s := r.Tensors[t].Section; s >= 0 {
				p.written[s] = true
			}
		}
		if row.view != nil {
			at, ok := row.view(n)
			candidates[i] = candidate{ok, int64(at) * int64(n.in[0].dt.Size())}
		}
	}
	return kernels, scratch, candidates, nil
}

// layout places the workspace and returns the place of each node's scratch
// memory.
func (p *Program) layout(aliases []alias, scratch []int, private bool) ([]*interval, error) {
	limit := p.device.limit
	items, owners, err := p.intervals(aliases, scratch, limit)
	if err != nil {
		return nil, err
	}
	if private {
		for _, it := range items {
			it.first, it.last = 0, len(scratch)
		}
	}
	p.workspace = place(items)
	if p.workspace > limit {
		return nil, fmt.Errorf("recipe %s: workspace of %d bytes, limit %d", p.recipe.Name, p.workspace, limit)
	}
	for t := range p.spots {
		if s := &p.spots[t]; s.space == workspaceSpace {
			owner, at := root(aliases, t)
			if owners[owner] != nil {
				s.at = owners[owner].at + at
			}
		}
	}
	return items[:len(scratch)], nil
}

// intervals lists what needs workspace memory: first the scratch of each node,
// then the tensors that own memory, which are returned by tensor as well. A
// tensor lives as long as any view of it.
func (p *Program) intervals(aliases []alias, scratch []int, limit int64) (items, owners []*interval, err error) {
	for i, n := range scratch {
		items = append(items, &interval{first: i, last: i, bytes: int64(n)})
	}
	owners = make([]*interval, len(aliases))
	use := func(t, node int) {
		if t < 0 || p.recipe.Tensors[t].Section != recipes.Workspace {
			return
		}
		t, _ = root(aliases, t)
		x := &p.recipe.Tensors[t]
		if x.Section != recipes.Workspace {
			return
		}
		if owners[t] == nil {
			owners[t] = &interval{first: node, bytes: x.Bytes()}
			items = append(items, owners[t])
		}
		owners[t].last = node
	}
	for i := range p.recipe.Nodes {
		for _, t := range p.recipe.Nodes[i].In {
			use(t, i)
		}
		for _, t := range p.recipe.Nodes[i].Out {
			use(t, i)
		}
	}
	for i, it := range items {
		if it.bytes > limit {
			what := "a tensor"
			if i < len(scratch) {
				what = "scratch of " + where(p.recipe, i)
			}
			return nil, nil, fmt.Errorf("recipe %s: %s takes %d bytes of workspace, limit %d", p.recipe.Name, what, it.bytes, limit)
		}
	}
	return items, owners, nil
}

func (p *Program) addStep(i int, k kernel, scratch *interval) {
	node := &p.recipe.Nodes[i]
	workspace := len(p.recipe.Sections)
	slots := func(tensors []int) []slot {
		s := make([]slot, len(tensors))
		for j, t := range tensors {
			if t < 0 {
				s[j].base = -1
				continue
			}
			spot := p.spots[t]
			s[j] = slot{spot.space, spot.at, spot.n}
			if spot.space == workspaceSpace {
				s[j].base = workspace
			}
		}
		return s
	}
	p.steps = append(p.steps, step{
		node: i, run: k, in: slots(node.In), out: slots(node.Out),
		scratch: slot{workspace, scratch.at, scratch.bytes},
	})
}

// resolve describes node i to kernel constructors and finds its row.
func resolve(r *recipes.Recipe, i int) (*node, *row, error) {
	src := &r.Nodes[i]
	n := &node{where: where(r, i), params: src.Params}
	row, dt, err := lookup(src.GUID)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", n.where, err)
	}
	n.dt = dt
	n.in, n.out = operands(r, "in", src.In), operands(r, "out", src.Out)
	if err := row.count(n); err != nil {
		return nil, nil, err
	}
	return n, row, row.params.check(n)
}

func operands(r *recipes.Recipe, kind string, tensors []int) []operand {
	ops := make([]operand, len(tensors))
	for i, t := range tensors {
		o := &ops[i]
		if t < 0 {
			o.label, o.absent = fmt.Sprintf("%s[%d]", kind, i), true
			continue
		}
		x := &r.Tensors[t]
		o.label, o.dt, o.elems = fmt.Sprintf("%s[%d] %q", kind, i, x.Name), x.DType, int(x.Elems())
		o.dims = make([]int, len(x.Dims))
		for j, d := range x.Dims {
			o.dims[j] = int(d)
		}
	}
	return ops
}

// where names a node in errors.
func where(r *recipes.Recipe, i int) string {
	n := &r.Nodes[i]
	s := fmt.Sprintf("recipe %s: node %d %q (%s", r.Name, i, n.Name, n.GUID)
	if n.Origin != "" {
		s += ", from " + n.Origin
	}
	return s + ")"
}

// checkPlaces reports tensors and sections that no kernel or launch can use.
// Check has bounded their sizes.
func checkPlaces(r *recipes.Recipe) error {
	for i := range r.Sections {
		if s := &r.Sections[i]; !slices.Contains(recipes.Buffers(), s.Buffer) {
			return fmt.Errorf("recipe %s: section %s is in unknown buffer %q", r.Name, s.Name, s.Buffer)
		}
	}
	for i := range r.Tensors {
		t := &r.Tensors[i]
		if len(t.Dims) > maxRank {
			return fmt.Errorf("recipe %s: tensor %s has rank %d, want at most %d", r.Name, t.Name, len(t.Dims), maxRank)
		}
		if size := int64(t.DType.Size()); t.Section >= 0 && t.Offset%size != 0 {
			return fmt.Errorf("recipe %s: tensor %s of %v is at byte %d, want a multiple of %d", r.Name, t.Name, t.DType, t.Offset, size)
		}
	}
	return nil
}

// checkWriters reports tensors that two nodes write and writes of weights.
func checkWriters(r *recipes.Recipe) error {
	writer := make([]int, len(r.Tensors)) // node index + 1
	for i := range r.Nodes {
		for _, out := range r.Nodes[i].Out {
			t := &r.Tensors[out]
			if w := writer[out]; w > 0 {
				return fmt.Errorf("%s: writes %q, which node %d %q writes", where(r, i), t.Name, w-1, r.Nodes[w-1].Name)
			}
			writer[out] = i + 1
			if t.Section >= 0 && r.Sections[t.Section].Buffer == recipes.Weights {
				return fmt.Errorf("%s: writes %q in section %s of the weights", where(r, i), t.Name, r.Sections[t.Section].Name)
			}
		}
	}
	return nil
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
	l := &Launch{program: p, bases: make([][][]byte, len(d.ranks)), errs: make([]error, len(d.ranks))}
	for k := range d.ranks {
		bases := make([][]byte, len(b)+1)
		for i := range b {
			at, n := b[i].Offset, r.Sections[i].Size
			bases[i] = d.ranks[k].buffers[b[i].Buffer][at : at+n]
		}
		l.bases[k] = bases
	}
	return l, nil
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
	if h := p.trace(spots); h != nil {
		return h.err(p)
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
	d.all(l)
	for _, err := range l.errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// runRank executes the launch on one rank. A panic in a kernel is a fault of
// the node, not of the process.
func (l *Launch) runRank(r int) (err error) {
	k, p := &l.program.device.ranks[r], l.program
	bases := l.bases[r]
	bases[len(bases)-1] = k.workspace // may have grown since the last run
	node := 0
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s, rank %d: panic: %v", where(p.recipe, node), r, v)
		}
	}()
	m := &k.mem
	for i := range p.steps {
		s := &p.steps[i]
		node = s.node
		m.in, m.out = m.slots[:len(s.in)], m.slots[len(s.in):len(s.in)+len(s.out)]
		for j := range s.in {
			m.in[j] = s.in[j].of(bases)
		}
		for j := range s.out {
			m.out[j] = s.out[j].of(bases)
		}
		m.scratch = s.scratch.of(bases)
		if err := s.run(m); err != nil {
			return fmt.Errorf("%s, rank %d: %w", where(p.recipe, node), r, err)
		}
	}
	return nil
}

func (s *slot) of(bases [][]byte) []byte {
	if s.base < 0 {
		return nil
	}
	end := s.at + s.n
	return bases[s.base][s.at:end:end]
}

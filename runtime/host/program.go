package host

import (
	"fmt"
	"slices"

	"quill/recipes"
)

// Program is a loaded recipe: every node is resolved to a unit that executes it,
// every tensor to a place in a section or in the workspace.
type Program struct {
	device    *Device
	recipe    *recipes.Recipe
	units     []unit
	workspace int64
	operands  int   // most operands of one unit
	values    int   // most values of one unit's rows
	weights   []int // operands in the weights: indices of tensors

	tapped  bool   // for LoadTapped
	unfused bool   // each unit is one node
	fused   []plan // else, to check that bindings keep them in order

	spots   []spot
	views   []bool // by node: its result is a view
	moves   []bool // by node: it only moves elements
	inPlace []int  // by node: operands its result may overwrite
	aligned []int64
	written []bool // by section
}

// unit is a node, or several that were fused, with its operands' places.
type unit struct {
	node    int // the last one
	stages  []stage
	in, out []slot
	scratch slot // shared by the threads
	own     slot // of the first thread; those of the others follow
	later   int  // operands in and after this one are resolved by the kernel
	info    UnitInfo
	experts func(m *mem) int // distinct experts that were read, for traces
}

// slot is an operand's place: a range of one of a launch's bases, or entry at
// of its weights. Base −1 is an absent operand.
type slot struct {
	base  int
	at, n int64
}

const (
	absentBase  = -1
	weightsBase = -2
)

// Load resolves a recipe: it checks every node against what its GUID takes,
// turns views into aliases, places the workspace and makes room for it on
// every rank. The recipe must not change afterwards.
func (d *Device) Load(r *recipes.Recipe) (*Program, error) { return d.load(r, false, false) }

// Workspace is how many bytes of memory of a rank the program takes beside its sections:
// tensors that no unit keeps to itself, and scratch memory of units.
func (p *Program) Workspace() int64 { return p.workspace }

// load with private set gives every tensor memory of its own; with tapped set
// every node is executed, on its own.
func (d *Device) load(r *recipes.Recipe, private, tapped bool) (*Program, error) {
	if err := r.Check(); err != nil {
		return nil, err
	}
	if err := checkPlaces(r); err != nil {
		return nil, err
	}
	if err := checkWriters(r); err != nil {
		return nil, err
	}
	r, err := writeOut(r)
	if err != nil {
		return nil, err
	}
	p := &Program{
		device:  d,
		recipe:  r,
		tapped:  tapped,
		views:   make([]bool, len(r.Nodes)),
		moves:   make([]bool, len(r.Nodes)),
		inPlace: make([]int, len(r.Nodes)),
		aligned: make([]int64, len(r.Sections)),
		written: make([]bool, len(r.Sections)),
	}
	for i := range r.Tensors {
		if t := &r.Tensors[i]; t.Section >= 0 {
			p.aligned[t.Section] = max(p.aligned[t.Section], int64(t.DType.Size()))
		}
	}
	nodes, candidates, err := p.build()
	if err != nil {
		return nil, err
	}
	aliases, err := p.chooseViews(candidates, private)
	if err != nil {
		return nil, err
	}
	plans, err := p.fuse(nodes)
	if err != nil {
		return nil, err
	}
	places, err := p.layout(aliases, plans, private)
	if err != nil {
		return nil, err
	}
	for i := range plans {
		p.addUnit(&plans[i], places[i])
	}
	if !p.unfused {
		p.fused = plans
	}
	if err := d.reserve(p); err != nil {
		return nil, err
	}
	return p, nil
}

// plan is a unit before its operands have a place.
type plan struct {
	nodes   []int // ascending; the last one says when it executes
	kernel  kernel
	in, out []int // tensors
	scratch int   // bytes shared by the threads
	own     int   // bytes of each thread
	values  int   // of its rows
	later   int
	info    UnitInfo
	experts func(m *mem) int
}

// at is when the unit executes.
func (u *plan) at() int { return u.nodes[len(u.nodes)-1] }

// bytes is the scratch memory of all threads.
func (u *plan) bytes(threads int) int64 {
	return align(int64(u.scratch)) + int64(threads)*align(int64(u.own))
}

// build resolves every node and learns whether it can be a view.
func (p *Program) build() (nodes []*node, candidates []candidate, err error) {
	r := p.recipe
	nodes = make([]*node, len(r.Nodes))
	candidates = make([]candidate, len(r.Nodes))
	for i := range r.Nodes {
		n, err := p.resolve(i)
		if err != nil {
			return nil, nil, err
		}
		if n.kernel, err = n.spec.build(n); err != nil {
			return nil, nil, err
		}
		nodes[i] = n
		p.moves[i] = n.move.kind != moveNot
		p.inPlace[i] = n.spec.inPlace
		for _, t := range r.Nodes[i].Out {
			if s := r.Tensors[t].Section; s >= 0 {
				p.written[s] = true
			}
		}
		at, ok := n.view(&r.Nodes[i])
		candidates[i] = candidate{ok, int64(at)}
	}
	return nodes, candidates, nil
}

// alone is the plan of one node.
func (p *Program) alone(n *node) plan {
	src := &p.recipe.Nodes[n.index]
	info := p.describe(n.guid(), []int{n.index})
	info.ExpertBytes, info.Flops, info.ExpertFlops = n.expertBytes, n.flops, n.expertFlops
	if n.weightBytes > 0 && p.inWeights(src.In[1]) {
		info.WeightBytes = n.weightBytes
	}
	return plan{
		nodes: []int{n.index}, kernel: n.kernel, in: src.In, out: src.Out,
		scratch: n.scratch, own: n.own, later: n.later, experts: n.experts,
		info: info,
	}
}

// inWeights reports whether a tensor is one of the weights.
func (p *Program) inWeights(t int) bool {
	s := p.recipe.Tensors[t].Section
	return s >= 0 && p.recipe.Sections[s].Buffer == recipes.Weights
}

// describe says for traces what some nodes are.
func (p *Program) describe(kind string, nodes []int) UnitInfo {
	last := &p.recipe.Nodes[nodes[len(nodes)-1]]
	info := UnitInfo{Kind: kind, Name: last.Name, Origin: last.Origin, Recipe: p.recipe.Name, Nodes: len(nodes)}
	return info
}

// layout places the workspace and returns the place of each unit's scratch
// memory.
func (p *Program) layout(aliases []alias, plans []plan, private bool) ([]*recipes.Interval, error) {
	limit := p.device.limit
	items, owners, err := p.intervals(aliases, plans, limit)
	if err != nil {
		return nil, err
	}
	if private {
		for _, it := range items {
			it.Offset = p.workspace
			p.workspace += recipes.Align(it.Bytes)
		}
	} else {
		p.workspace = recipes.PlaceIntervals(0, items)
	}
	if p.workspace > limit {
		return nil, fmt.Errorf("recipe %s: workspace of %d bytes, limit %d", p.recipe.Name, p.workspace, limit)
	}
	for t := range p.spots {
		if s := &p.spots[t]; s.space == workspaceSpace {
			owner, at := root(aliases, t)
			if owners[owner] != nil {
				s.at = owners[owner].Offset + at
			}
		}
	}
	return items[:len(plans)], nil
}

// intervals lists what needs workspace memory: first the scratch of each unit,
// then the tensors that own memory, which are returned by tensor as well. A
// tensor lives as long as any view of it; what stays inside a unit has none.
func (p *Program) intervals(aliases []alias, plans []plan, limit int64) (items, owners []*recipes.Interval, err error) {
	for i := range plans {
		u := &plans[i]
		items = append(items, &recipes.Interval{Life: recipes.Lifetime{First: u.at(), Last: u.at()}, Bytes: u.bytes(p.device.crew.size)})
	}
	owners = make([]*recipes.Interval, len(aliases))
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
			owners[t] = &recipes.Interval{Life: recipes.Lifetime{First: node, Last: node}, Bytes: x.Bytes()}
			items = append(items, owners[t])
		}
		life := &owners[t].Life
		life.First, life.Last = min(life.First, node), max(life.Last, node)
	}
	for i := range plans {
		for _, t := range plans[i].in {
			use(t, plans[i].at())
		}
		for _, t := range plans[i].out {
			use(t, plans[i].at())
		}
	}
	for i, it := range items {
		if it.Bytes > limit {
			what := "a tensor"
			if i < len(plans) {
				what = "scratch of " + where(p.recipe, plans[i].at())
			}
			return nil, nil, fmt.Errorf("recipe %s: %s takes %d bytes of workspace, limit %d", p.recipe.Name, what, it.Bytes, limit)
		}
	}
	return items, owners, nil
}

func (p *Program) addUnit(u *plan, scratch *recipes.Interval) {
	workspace := len(p.recipe.Sections)
	slots := func(tensors []int) []slot {
		s := make([]slot, len(tensors))
		for j, t := range tensors {
			s[j] = p.slot(t)
		}
		return s
	}
	own := align(int64(u.own))
	shared := slot{workspace, scratch.Offset, align(int64(u.scratch))}
	step := unit{
		node: u.at(), stages: u.kernel, in: slots(u.in), out: slots(u.out),
		scratch: shared, own: slot{workspace, shared.at + shared.n, own},
		later: u.later, info: u.info, experts: u.experts,
	}
	if step.later == 0 {
		step.later = len(step.in)
	}
	p.values = max(p.values, u.values)
	p.operands = max(p.operands, len(step.in)+len(step.out))
	p.units = append(p.units, step)
}

// slot is the place of a tensor.
func (p *Program) slot(t int) slot {
	if t < 0 {
		return slot{base: absentBase}
	}
	spot := p.spots[t]
	switch {
	case spot.space == workspaceSpace:
		return slot{len(p.recipe.Sections), spot.at, spot.n}
	case p.recipe.Sections[spot.space].Buffer == recipes.Weights:
		p.weights = append(p.weights, t)
		return slot{weightsBase, int64(len(p.weights) - 1), spot.n}
	}
	return slot{spot.space, spot.at, spot.n}
}

// resolve describes node i to kernel constructors and finds its spec.
func (p *Program) resolve(i int) (*node, error) {
	r := p.recipe
	src := &r.Nodes[i]
	n := &node{index: i, name: src.GUID, where: where(r, i), params: src.Params, kernels: p.device.kernels, threads: p.device.crew.size}
	spec, dt, err := lookup(src.GUID)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.where, err)
	}
	n.spec, n.dt = spec, dt
	n.in, n.out = operands(r, "in", src.In), operands(r, "out", src.Out)
	if err := spec.count(n); err != nil {
		return nil, err
	}
	return n, spec.params.check(n)
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
		o.dims = dimsOf(x)
	}
	return ops
}

func dimsOf(t *recipes.Tensor) []int {
	dims := make([]int, len(t.Dims))
	for i, d := range t.Dims {
		dims[i] = int(d)
	}
	return dims
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

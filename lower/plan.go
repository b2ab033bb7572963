package lower

import (
	"fmt"
	"slices"

	"quill/ir"
	"quill/lower/synapse"
	"quill/recipes"
)

// planner turns an outlined module of concrete sizes into a plan.
type planner struct {
	plan     recipes.Plan
	module   *ir.Module
	recipes  []*recipes.Recipe // of each launch
	segments []*synapse.Segment
	launches []int // step of each launch

	lay     *layout
	entry   *ir.Func
	values  map[*ir.Value]*recipes.Binding // arena and carry values of the entry
	blocks  map[*ir.Value]*interval        // of values that lie in one interval with others
	stripes map[*interval]*stripe          // of intervals that are in one
	// repeated are the calls of segments that bind stripes.
	repeated map[*ir.Func][]*ir.Op
	emitted  map[string]emission
}

// emission is a segment and what it became.
type emission struct {
	segment *synapse.Segment
	recipe  *recipes.Recipe
}

// inputsSection is the section of a recipe in which the host's inputs lie.
const inputsSection = "inputs"

func newPlan(m *ir.Module, b recipes.Bucket, lay *layout) (*planner, error) {
	p := &planner{
		plan: recipes.Plan{Bucket: b}, module: m, lay: lay, entry: m.Entry(),
		values: map[*ir.Value]*recipes.Binding{}, emitted: map[string]emission{},
	}
	if err := p.arena(); err != nil {
		return nil, err
	}
	reason := "" // of the break before
	for _, o := range p.entry.Ops {
		var err error
		switch o.Name() {
		case "call":
			err = p.launch(o, reason)
			reason = ""
		case "graph_break": // calls are launches of their own anyway
			reason = o.Attr("reason").Str
		default:
			err = p.collective(o)
			reason = ""
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Loc, err)
		}
	}
	return p, nil
}

// arena places inputs, outputs and everything that crosses launches.
func (p *planner) arena() error {
	var end int64
	for _, prm := range p.entry.Params {
		if prm.Kind != ir.Host && prm.Kind != ir.Carry {
			continue
		}
		n, err := typeBytes(prm.Value.Type)
		if err != nil {
			return err
		}
		if prm.Kind == ir.Carry {
			p.carry(prm.Value, n)
			continue
		}
		p.values[prm.Value] = &recipes.Binding{Buffer: recipes.Arena, Offset: end}
		p.plan.Inputs = append(p.plan.Inputs, hostIO(prm.Name, prm.Value.Type, end))
		end = recipes.Align(end + n)
	}
	ivs, err := p.intervals()
	if err != nil {
		return err
	}
	ofLayers, others := ivs.split(p.entry)
	end = ivs.placeIntervals(end, others, p.entry)
	if p.plan.ArenaBytes, err = p.placeLayers(&ivs, end, ofLayers); err != nil {
		return err
	}
	p.plan.LayerBytes = p.plan.ArenaBytes - end
	for v, iv := range ivs.of {
		p.values[v] = &recipes.Binding{Buffer: recipes.Arena, Offset: iv.Offset + ivs.at[v]}
	}
	p.blocks = ivs.blocks
	for i, r := range p.entry.Results {
		if r.Kind != ir.Host {
			continue
		}
		b := p.values[p.entry.Return[i]]
		if b == nil || b.Buffer != recipes.Arena {
			return fmt.Errorf("output %s is not computed by a launch of its own", r.Name)
		}
		p.plan.Outputs = append(p.plan.Outputs, hostIO(r.Name, r.Type, b.Offset))
	}
	return nil
}

func (p *planner) carry(v *ir.Value, bytes int64) {
	p.values[v] = &recipes.Binding{Buffer: recipes.Carry}
	p.plan.CarryBytes = max(p.plan.CarryBytes, recipes.Align(bytes))
}

func hostIO(name string, t ir.Type, offset int64) recipes.IO {
	io := recipes.IO{Name: name, DType: t.DType, Offset: offset}
	for _, d := range slices.Backward(t.Shape) {
		n, _ := d.Const()
		io.Dims = append(io.Dims, n)
	}
	return io
}

type liveness struct {
	list []*interval
	of   map[*ir.Value]*interval
	// blocks holds the interval of values that share one, at where in it they begin.
	blocks map[*ir.Value]*interval
	at     map[*ir.Value]int64
}

// share gives values that lie behind each other one interval: results that are parts
// of one value, values that an op reads as one, and those of several layers that it joins
// with what its own launch computes. Each must begin where the device can bind an address.
func (l *liveness) share(entry *ir.Func, uses *ir.Uses) error {
	for _, o := range calls(entry) {
		callee := o.Attr("callee").Func
		list, err := partsOf(callee)
		if err != nil {
			return err
		}
		for _, p := range list {
			at := map[*ir.Value]int64{}
			for i, offset := range p.offsets {
				at[o.Results[i]] = offset
			}
			l.block(p.bytes, at, true)
		}
		for _, r := range runsOf(callee) {
			args := make([]*ir.Value, len(r))
			for i, q := range r {
				args[i] = reducedFrom(uses, o.Args[slices.Index(callee.Params, q)])
			}
			if err := l.shareRun(args); err != nil {
				return err
			}
		}
		var joined []*ir.Value
		for _, v := range joinsLayers(o) {
			if v = reducedFrom(uses, v); l.blocks[v] == nil {
				joined = append(joined, v)
			}
		}
		if err := l.shareRun(joined); err != nil {
			return err
		}
	}
	return nil
}

// reducedFrom is what a value is where it is first written: the operand of an all-reduce
// that works in place, or itself.
func reducedFrom(uses *ir.Uses, v *ir.Value) *ir.Value {
	if v.Def != nil && v.Def.Name() == "all_reduce" && uses.Count(v.Def.Args[0]) == 1 {
		return v.Def.Args[0]
	}
	return v
}

// shareRun puts values behind each other if all are computed by launches and only cross
// between them.
func (l *liveness) shareRun(list []*ir.Value) error {
	at, end := map[*ir.Value]int64{}, int64(0)
	for _, v := range list {
		if v.Def == nil || v.Def.Name() != "call" || resultKind(v.Def, v) != ir.Temp {
			return nil
		}
		n, err := typeBytes(v.Type)
		if err != nil {
			return err
		}
		at[v] = end
		end += n
	}
	if len(at) == len(list) { // an argument that is there twice has one place
		l.block(end, at, false)
	}
	return nil
}

// block gives values one interval of some bytes, if none has one and all begin at
// an address. root says that they are parts of one value, which then lies there.
func (l *liveness) block(bytes int64, at map[*ir.Value]int64, root bool) {
	for v, offset := range at {
		if l.blocks[v] != nil || offset%recipes.Alignment != 0 {
			return
		}
	}
	iv := &interval{Interval: recipes.Interval{Life: recipes.Lifetime{First: -1}, Bytes: bytes}, root: root}
	for v, offset := range at {
		l.blocks[v], l.at[v] = iv, offset
	}
}

// intervals are the lives of values between launches. An all-reduce works in
// place when nothing else reads its operand.
func (p *planner) intervals() (liveness, error) {
	live := liveness{of: map[*ir.Value]*interval{}, blocks: map[*ir.Value]*interval{}, at: map[*ir.Value]int64{}}
	uses := ir.NewUses(p.entry)
	if err := live.share(p.entry, uses); err != nil {
		return live, err
	}
	if err := p.carried(); err != nil {
		return live, err
	}
	for i, o := range p.entry.Ops {
		for _, a := range o.Args {
			if iv := live.of[a]; iv != nil {
				iv.Life.Last = i
			}
		}
		for _, r := range o.Results {
			if p.values[r] != nil || resultKind(o, r) == ir.State {
				continue
			}
			if v := reducedFrom(uses, r); v != r && live.of[v] != nil {
				live.of[r], live.at[r] = live.of[v], live.at[v]
				if iv := live.blocks[v]; iv != nil {
					live.blocks[r] = iv
				}
				continue
			}
			if err := live.begin(r, i); err != nil {
				return live, err
			}
		}
	}
	for _, v := range slices.Concat(p.entry.Return, onceAStep(p.entry)) {
		if iv := live.of[v]; iv != nil {
			iv.Life.Last = len(p.entry.Ops)
		}
	}
	return live, nil
}

// onceAStep lists the values that are computed once for all layers: those that launches
// of several layers read, and those of launches that read nothing but the step's inputs.
// They keep their places until the step ends, so that what a step needs does not depend
// on how many layers read them.
func onceAStep(entry *ir.Func) (list []*ir.Value) {
	layers := map[*ir.Value]map[int]bool{}
	for _, o := range calls(entry) {
		callee := o.Attr("callee").Func
		inputs := true
		for i, a := range o.Args {
			inputs = inputs && (callee.Params[i].Kind == ir.Host || a.Param != nil && isConst(a.Param))
			if layers[a] == nil {
				layers[a] = map[int]bool{}
			}
			layers[a][o.Loc.Layer] = true
		}
		if inputs {
			list = append(list, o.Results...)
		}
	}
	for _, o := range calls(entry) {
		for _, r := range o.Results {
			if len(layers[r]) > 1 {
				list = append(list, r)
			}
		}
	}
	return list
}

// split separates the intervals that hold values of several layers at once, so that
// they grow with the number of layers, from all others:
//
//	values that an op joins, made in several layers
//	parts of one value, first read in launches of several layers
//	what is read of several states at once
func (l *liveness) split(entry *ir.Func) (ofLayers, others []*interval) {
	several := map[*interval]bool{}
	readIn := map[*interval]int{} // the layer that reads the first of a block's values
	read := map[*ir.Value]bool{}
	for _, o := range entry.Ops {
		for _, a := range o.Args {
			iv := l.blocks[a]
			if iv == nil || read[a] {
				continue
			}
			read[a] = true
			if first, ok := readIn[iv]; ok && first != o.Loc.Layer {
				several[iv] = true
			} else {
				readIn[iv] = o.Loc.Layer
			}
		}
		if o.Name() != "call" {
			continue
		}
		for _, v := range joinsLayers(o) {
			several[l.of[v]] = true
		}
		for _, r := range o.Results {
			if iv := l.of[r]; iv != nil && readsLayers(o, r) {
				several[iv] = true
			}
		}
	}
	for _, iv := range l.list {
		if several[iv] {
			ofLayers = append(ofLayers, iv)
		} else {
			others = append(others, iv)
		}
	}
	return ofLayers, others
}

// joinsLayers lists the values of earlier launches that an op of a launch joins along
// axis 0, where they are made in several layers.
func joinsLayers(o *ir.Op) (all []*ir.Value) {
	callee := o.Attr("callee").Func
	for _, inner := range callee.Ops {
		if inner.Name() != "concat" || inner.Int("axis") != 0 {
			continue
		}
		var list []*ir.Value
		layers := map[int]bool{}
		for _, a := range inner.Args {
			for a.Def != nil && a.Def.Name() == "reshape" {
				a = a.Def.Args[0]
			}
			if a.Param == nil || a.Param.Kind != ir.Temp {
				continue
			}
			if v := o.Args[slices.Index(callee.Params, a.Param)]; v.Def != nil {
				list = append(list, v)
				layers[madeIn(v)] = true
			}
		}
		if len(layers) > 1 {
			all = append(all, list...)
		}
	}
	return all
}

// madeIn is the layer of the op that makes a launch's or a collective's result: a launch
// may begin in one layer and end in the next.
func madeIn(v *ir.Value) int {
	layer := v.Def.Loc.Layer
	if v.Def.Name() == "call" {
		if o := v.Def.Attr("callee").Func.Return[v.Index].Def; o != nil {
			layer += max(o.Loc.Layer, 0)
		}
	}
	return layer
}

// readsLayers reports whether a launch's result is, or is a part of, what it reads of
// several states at once.
func readsLayers(o *ir.Op, r *ir.Value) bool {
	if o.Name() != "call" {
		return false
	}
	v := o.Attr("callee").Func.Return[r.Index]
	for v.Def != nil && (v.Def.Name() == "reshape" || v.Def.Name() == "slice") {
		v = v.Def.Args[0]
	}
	return v.Def != nil && v.Def.Name() == "conv_reads" && len(v.Def.Args)-v.Def.Def.FirstState() > 1
}

// begin begins the life of a value that op number i computes.
func (l *liveness) begin(v *ir.Value, i int) error {
	iv := l.blocks[v]
	if iv == nil {
		n, err := typeBytes(v.Type)
		if err != nil {
			return err
		}
		iv = &interval{Interval: recipes.Interval{Life: recipes.Lifetime{First: -1}, Bytes: n}}
	}
	if iv.Life.First < 0 {
		iv.Life.First = i
		l.list = append(l.list, iv)
	}
	iv.Life.Last = i
	l.of[v] = iv
	return nil
}

// carried places the result that the next plan finds on the device.
func (p *planner) carried() error {
	for i, v := range p.entry.Return {
		r := p.entry.Results[i]
		if r.Kind != ir.Carry {
			continue
		}
		if p.plan.CarryBytes > 0 || v.Param != nil || v.Def.Name() != "call" {
			return fmt.Errorf("carry %s: a plan leaves one carried value, computed by a launch", r.Name)
		}
		n, err := typeBytes(v.Type)
		if err != nil {
			return err
		}
		p.carry(v, n)
	}
	return nil
}

func resultKind(o *ir.Op, r *ir.Value) ir.Kind {
	if o.Name() == "call" {
		return o.Attr("callee").Func.Results[r.Index].Kind
	}
	return ir.Temp
}

// entryState is the entry's state that a value is a version of.
func entryState(v *ir.Value) *ir.Param {
	for v.Param == nil {
		callee := v.Def.Attr("callee").Func
		name := callee.Results[v.Index].Name
		v = v.Def.Args[slices.IndexFunc(callee.Params, func(q *ir.Param) bool { return q.Name == name })]
	}
	return v.Param
}

// launch emits the recipe of a call and its bindings.
func (p *planner) launch(o *ir.Op, reason string) error {
	callee := o.Attr("callee").Func
	for i, a := range o.Args {
		if callee.Params[i].Kind == ir.Weight && (a.Param == nil || a.Param.Kind != ir.Weight) {
			return fmt.Errorf("argument %d of @%s is no weight", i, callee.Name)
		}
	}
	s, err := p.sections(o)
	if err != nil {
		return err
	}
	seg := synapse.Segment{Name: callee.Name, Fn: callee, Inner: map[*ir.Value]synapse.Slot{}}
	for i, a := range o.Args {
		slot, err := p.slot(s, i, callee.Params[i], a)
		if err != nil {
			return fmt.Errorf("argument %d of @%s: %w", i, callee.Name, err)
		}
		seg.Params = append(seg.Params, slot)
	}
	if err := p.results(s, o, &seg); err != nil {
		return err
	}
	seg.Sections = s.sections
	e, err := p.emit(seg)
	if err != nil {
		return err
	}
	p.recipes, p.segments = append(p.recipes, e.recipe), append(p.segments, e.segment)
	p.launches = append(p.launches, len(p.plan.Steps))
	p.plan.Steps = append(p.plan.Steps, recipes.Step{Launch: &recipes.Launch{Bindings: s.bindings, Label: o.Loc.String(), Break: reason}})
	return nil
}

// results places what a launch returns. Results that are parts of one value live in
// its place.
func (p *planner) results(s *sectionList, o *ir.Op, seg *synapse.Segment) error {
	callee := seg.Fn
	list, err := partsOf(callee)
	if err != nil {
		return err
	}
	roots := map[int]*ir.Value{}
	for _, q := range list {
		for i := range q.offsets {
			roots[i] = q.root
		}
	}
	for i, r := range callee.Results {
		if r.Kind == ir.State {
			at := slices.IndexFunc(callee.Params, func(q *ir.Param) bool { return q.Name == r.Name })
			seg.Results = append(seg.Results, seg.Params[at])
			continue
		}
		v := o.Results[i]
		at, block := p.values[v], p.blocks[v]
		switch root := roots[i]; {
		case at == nil:
			return fmt.Errorf("result %d of @%s has no place", i, callee.Name)
		case root != nil && block != nil && block.root:
			seg.Results = append(seg.Results, s.block(block, at.Offset))
			seg.Inner[root] = s.block(block, block.Offset)
		default:
			seg.Results = append(seg.Results, p.value(s, fmt.Sprintf("out%d", i), block, *at))
		}
	}
	return nil
}

// emit lowers a segment, once for all launches that place it alike.
func (p *planner) emit(seg synapse.Segment) (emission, error) {
	key := fmt.Sprint(seg.Name, seg.Params, seg.Results, seg.Sections, len(seg.Inner))
	if e, ok := p.emitted[key]; ok {
		return e, nil
	}
	r, err := synapse.Emit(seg)
	if err != nil {
		return emission{}, fmt.Errorf("@%s: %w", seg.Name, err)
	}
	p.emitted[key] = emission{&seg, r}
	return p.emitted[key], nil
}

// sectionList collects the sections of one launch.
type sectionList struct {
	sections []recipes.Section
	bindings []recipes.Binding
	groups   []*group // of sections that lie in one

	stored  []*ir.Param          // weights and states of the launch, by parameter
	places  map[*ir.Param]*place // of these
	bases   map[*group]int64     // where what the launch uses of a run's group begins
	joined  []*ir.Param          // parameters that are read as one with others: values of earlier launches
	blocks  map[*interval]int
	stripes map[*stripe]int64 // where what the launch takes of a stripe begins
	striped map[*stripe]int   // sections of these
}

// sections places what a call needs.
func (p *planner) sections(o *ir.Op) (s *sectionList, err error) {
	s = &sectionList{
		stored: storedArgs(o), bases: map[*group]int64{}, blocks: map[*interval]int{},
		stripes: map[*stripe]int64{}, striped: map[*stripe]int{},
	}
	if p.repeated[o.Attr("callee").Func] != nil {
		positions(o, func(_ position, v *ir.Value) {
			if g := p.stripes[p.blocks[v]]; g != nil {
				base, ok := s.stripes[g]
				if at := p.values[v].Offset; !ok || at < base {
					s.stripes[g] = at
				}
			}
		})
	}
	for _, r := range runsOf(o.Attr("callee").Func) {
		if r[0].Kind == ir.Temp {
			s.joined = append(s.joined, r...)
		}
	}
	if s.places, err = p.lay.place(s.stored, callRuns(o)); err != nil {
		return nil, err
	}
	for _, at := range s.places {
		if base, ok := s.bases[at.group]; at.group.run && (!ok || at.offset < base) {
			s.bases[at.group] = at.offset
		}
	}
	return s, nil
}

func (s *sectionList) add(name string, b recipes.Binding, g *group) int {
	s.sections = append(s.sections, recipes.Section{Name: name, Buffer: b.Buffer})
	s.bindings = append(s.bindings, b)
	s.groups = append(s.groups, g)
	return len(s.sections) - 1
}

// value is the place of a value of arena or carry: in the section of a stripe that the
// launch binds, or in one of its own.
func (p *planner) value(s *sectionList, name string, block *interval, b recipes.Binding) synapse.Slot {
	g := p.stripes[block]
	base, ok := s.stripes[g]
	if !ok {
		return synapse.Slot{Section: s.add(name, b, nil)}
	}
	i, ok := s.striped[g]
	if !ok {
		i = s.add(fmt.Sprintf("layer%d", len(s.striped)), recipes.Binding{Buffer: recipes.Arena, Offset: base}, nil)
		s.striped[g] = i
	}
	return synapse.Slot{Section: i, Offset: b.Offset - base}
}

// block is a place in an interval of several values, which has one section.
func (s *sectionList) block(iv *interval, offset int64) synapse.Slot {
	i, ok := s.blocks[iv]
	if !ok {
		i = s.add(fmt.Sprintf("block%d", len(s.blocks)), recipes.Binding{Buffer: recipes.Arena, Offset: iv.Offset}, nil)
		s.blocks[iv] = i
	}
	return synapse.Slot{Section: i, Offset: offset - iv.Offset}
}

// grouped is the section of a group of weights or states.
func (s *sectionList) grouped(b recipes.Buffer, at *place) synapse.Slot {
	i := slices.Index(s.groups, at.group)
	if i < 0 {
		n := 0
		for _, sec := range s.sections {
			if sec.Buffer == b {
				n++
			}
		}
		name := string(b)
		if n > 0 {
			name = fmt.Sprintf("%s%d", b, n)
		}
		i = s.add(name, recipes.Binding{Buffer: b, Offset: at.group.offset + s.bases[at.group]}, at.group)
	}
	return synapse.Slot{Section: i, Offset: at.offset - s.bases[at.group]}
}

// inputs is the section of the host's inputs, which start the arena.
func (s *sectionList) inputs(offset int64) synapse.Slot {
	i := slices.IndexFunc(s.sections, func(sec recipes.Section) bool { return sec.Name == inputsSection })
	if i < 0 {
		i = s.add(inputsSection, recipes.Binding{Buffer: recipes.Arena}, nil)
	}
	return synapse.Slot{Section: i, Offset: offset}
}

// slot is the place of parameter i of a launch.
func (p *planner) slot(s *sectionList, i int, prm *ir.Param, a *ir.Value) (synapse.Slot, error) {
	switch prm.Kind {
	case ir.State, ir.Weight:
		q := s.stored[i]
		b, err := bufferOf(q)
		if err != nil {
			return synapse.Slot{}, err
		}
		return s.grouped(b, s.places[q]), nil
	case ir.Host:
		return s.inputs(p.values[a].Offset), nil
	}
	b := p.values[a]
	if b == nil {
		return synapse.Slot{}, fmt.Errorf("the value has no place")
	}
	if iv := p.blocks[a]; iv != nil && slices.Contains(s.joined, prm) {
		return s.block(iv, b.Offset), nil
	}
	return p.value(s, prm.Name, p.blocks[a], *b), nil
}

// collective appends a collective step.
func (p *planner) collective(o *ir.Op) error {
	kinds := map[string]recipes.CollectiveKind{"all_reduce": recipes.AllReduce, "all_gather": recipes.AllGather}
	kind, ok := kinds[o.Name()]
	if !ok {
		return fmt.Errorf("%s between segments", o.Name())
	}
	if kind == recipes.AllGather && o.Int("axis") != 0 {
		return fmt.Errorf("all_gather along axis %d; ranks can be joined along axis 0 only", o.Int("axis"))
	}
	in, out := p.values[o.Args[0]], p.values[o.Results[0]]
	if in == nil || out == nil || in.Buffer != recipes.Arena || out.Buffer != recipes.Arena {
		return fmt.Errorf("%s works on values that launches compute, in the arena", o.Name())
	}
	n, _ := o.Args[0].Type.Elems().Const()
	p.plan.Steps = append(p.plan.Steps, recipes.Step{Collective: &recipes.Collective{
		Kind: kind, DType: o.Args[0].Type.DType, Count: n, In: in.Offset, Out: out.Offset, Label: o.Loc.String(),
	}})
	return nil
}

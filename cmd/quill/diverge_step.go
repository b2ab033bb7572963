package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"quill/ir"
	"quill/ir/interp"
	"quill/ir/ops"
	"quill/lower"
	"quill/lower/synapse"
	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
	"quill/runtime"
	"quill/runtime/host"
)

// lockstep executes the steps of a session beside the reference interpreter:
//
//	a launch:  inputs from the device ──→ each op in the interpreter, on what the device
//	           has for its operands ──→ compared with what the device has for its results
//
// So errors do not add up, and an op that differs is the one at fault. The device
// executes a launch twice: node by node, with all tensors kept, and then as it
// serves, which must give the same bits.
type lockstep struct {
	bundle  *recipes.Bundle
	planned map[recipes.Bucket]*lower.Planned // what is recomputed
	ref     *safetensors.Checkpoint           // the weights as they should be
	atol    *float64                          // if not the defaults
	rtol    *float64
	main    dtype.Type // the set's precision

	weights  map[string][]*interp.Tensor // of each rank, by source and type
	compared map[string]bool             // weights, by source, type and place
	traced   map[*synapse.Segment]*synapse.Traced
	forms    map[[2]*recipes.Recipe]bool // whether two recipes have the same form

	steps, launches, nodes int
	largest                map[string]float64 // error by op, as a share of its bound
	ties                   []tie
	at                     string // what the present step feeds
	found                  *divergence
}

// divergence is the first place where device and interpreter differ.
type divergence struct {
	Kind     string `json:"kind"` // weight, node, segment, fusion, collective, refused or failed
	Step     int    `json:"step"` // executed plans, from 1
	Feeds    string `json:"feeds"`
	Bucket   string `json:"bucket"`
	PlanStep int    `json:"plan_step"`
	Launch   string `json:"launch"`
	Segment  string `json:"segment,omitempty"`
	Layer    int    `json:"layer"` // −1 for none
	Source   string `json:"source_op,omitempty"`
	Tensor   string `json:"tensor,omitempty"` // of the checkpoint
	Op       string `json:"ir_op,omitempty"`
	Value    string `json:"value,omitempty"` // what differs
	Node     int    `json:"node"`            // −1 for none
	Name     string `json:"node_name,omitempty"`
	GUID     string `json:"guid,omitempty"`
	// Nodes are all of the op, if it has several.
	Nodes string `json:"nodes,omitempty"`
	*difference
	Recipe  string `json:"recipe,omitempty"`  // how the recipe differs from the recomputed one
	Failure string `json:"failure,omitempty"` // of the device
}

// watched is a step of a plan with what is recomputed of it.
type watched struct {
	*lockstep
	runtime.Watched
	plan    *lower.Planned
	op      *ir.Op           // of the entry
	segment *synapse.Segment // of a launch
	tap     *host.Launch     // made when it is first used
}

// watch is what a session's Options.Watch calls.
func (l *lockstep) watch(w runtime.Watched) runtime.Launch { return l.step(w) }

// step finds what is recomputed of a step.
func (l *lockstep) step(w runtime.Watched) *watched {
	s := &watched{lockstep: l, Watched: w, plan: l.planned[w.Plan.Bucket]}
	step, launch := 0, 0
	for _, o := range s.plan.Module.Entry().Ops {
		if o.Def.Has(ops.Break) {
			continue
		}
		if step == w.Step {
			s.op = o
			if o.Name() == "call" {
				s.segment = s.plan.Segments[launch]
			}
			break
		}
		if o.Name() == "call" {
			launch++
		}
		step++
	}
	return s
}

// Run executes and compares the step.
func (s *watched) Run(ctx context.Context) error {
	if s.Step == 0 {
		s.lockstep.steps++
		feeds, err := s.feeds()
		if err != nil {
			return err
		}
		s.at = feeds
	}
	var err error
	if s.segment != nil {
		s.launches++
		err = s.launch(ctx)
	} else {
		err = s.collective(ctx)
	}
	if err == nil && s.found != nil {
		err = errDiverged
	}
	return err
}

// feeds says what the step feeds.
func (s *watched) feeds() (string, error) {
	for _, io := range s.Watched.Plan.Inputs {
		if io.Name != "positions" {
			continue
		}
		var first [4]byte
		if err := s.Device.Read(0, recipes.Arena, io.Offset, first[:]); err != nil {
			return "", err
		}
		return fmt.Sprintf("%s at position %d", s.Watched.Plan.Bucket.Phase, binary.LittleEndian.Uint32(first[:])), nil
	}
	return string(s.Watched.Plan.Bucket.Phase), nil
}

// collective compares what ranks exchange.
func (s *watched) collective(ctx context.Context) error {
	c := s.plan.Plan.Steps[s.Step].Collective
	x, y := s.op.Args[0], s.op.Results[0]
	in, err := s.read(x.Type, recipes.Arena, c.In)
	if err != nil {
		return err
	}
	values := map[*ir.Value][]*interp.Tensor{x: in}
	want, err := s.interpret(ctx, s.op, values)
	if err != nil {
		return err
	}
	if err := s.Watched.Run.Run(ctx); err != nil {
		return err
	}
	got, err := s.read(y.Type, recipes.Arena, c.Out)
	if err != nil {
		return err
	}
	d, err := s.compare(ctx, s.op, 0, got, want[0], values)
	if d != nil {
		s.report("collective", s.op, d)
	}
	return err
}

// launch compares the nodes of a launch.
func (s *watched) launch(ctx context.Context) error {
	values, err := s.inputs()
	if err != nil || s.found != nil {
		return err
	}
	saved, err := s.save()
	if err != nil {
		return err
	}
	if s.tap == nil {
		l := s.Watched.Plan.Steps[s.Step].Launch
		if s.tap, err = s.Device.Tap(s.recipe(), l.Bindings); err != nil {
			return err
		}
	}
	if err := s.tap.Run(ctx); err != nil {
		return s.failed(ctx, err)
	}
	if err := s.body(ctx, values); err != nil || s.found != nil {
		return err
	}
	results, err := s.results()
	if err != nil {
		return err
	}
	if err := s.restore(saved); err != nil {
		return err
	}
	if err := s.Watched.Run.Run(ctx); err != nil {
		return err
	}
	return s.fusion(results)
}

// recipe is what the bundle executes.
func (s *watched) recipe() *recipes.Recipe {
	return s.bundle.Recipes[s.Watched.Plan.Steps[s.Step].Launch.Recipe]
}

// place is where the recomputed launch has a slot.
func (s *watched) place(slot synapse.Slot) recipes.Binding {
	b := s.plan.Plan.Steps[s.Step].Launch.Bindings[slot.Section]
	b.Offset += slot.Offset
	return b
}

// inputs are the values of the segment's parameters: weights as they should be, all
// else as the device has it. A weight that the device has otherwise is found here.
func (s *watched) inputs() (map[*ir.Value][]*interp.Tensor, error) {
	values := map[*ir.Value][]*interp.Tensor{}
	for i, p := range s.segment.Fn.Params {
		at := s.place(s.segment.Params[i])
		if p.Kind != ir.Weight {
			x, err := s.read(p.Value.Type, at.Buffer, at.Offset)
			if err != nil {
				return nil, err
			}
			values[p.Value] = x
			continue
		}
		src := s.op.Args[i].Param
		key := fmt.Sprintf("%+v %s", src.Source, src.Value.Type)
		want, known := s.weights[key]
		if !known {
			var err error
			if want, err = s.weight(src); err != nil {
				return nil, err
			}
			s.weights[key] = want
		}
		values[p.Value] = want
		placed := fmt.Sprintf("%s at %d", key, at.Offset)
		if s.compared[placed] {
			continue
		}
		s.compared[placed] = true
		got, err := s.read(p.Value.Type, at.Buffer, at.Offset)
		if err != nil {
			return nil, err
		}
		if d, _ := compareRanks(got, want, nil, tolerance{}); d != nil {
			user, err := s.user(p.Value)
			if err != nil {
				return nil, err
			}
			r := s.report("weight", user, d)
			r.Tensor, r.Value = src.Source.Tensor, "%"+src.Name
			return nil, nil
		}
	}
	return values, nil
}

// user is the first op of the segment whose nodes take a value, as it is or in a
// view; nil if none does.
func (s *watched) user(v *ir.Value) (*ir.Op, error) {
	traced, err := s.trace()
	if err != nil {
		return nil, err
	}
	seen := map[*ir.Value]bool{v: true}
	for _, o := range s.segment.Fn.Ops {
		switch {
		case !slices.ContainsFunc(o.Args, func(a *ir.Value) bool { return seen[a] }):
		case traced.Makes(o):
			return o, nil
		default:
			for _, r := range o.Results {
				seen[r] = true
			}
		}
	}
	return nil, nil
}

// weight is what each rank should have of a weight.
func (s *watched) weight(p *ir.Param) ([]*interp.Tensor, error) {
	var whole *interp.Tensor
	if !p.Source.PerRank {
		t, ok := s.ref.Tensor(p.Source.Tensor)
		if !ok {
			return nil, fmt.Errorf("the reference checkpoint has no tensor %q", p.Source.Tensor)
		}
		var err error
		if whole, err = fromSafetensor(&t); err != nil {
			return nil, err
		}
	}
	return interp.Weight(s.plan.Module, p, nil, whole)
}

// read reads a value of all ranks.
func (s *watched) read(t ir.Type, b recipes.Buffer, offset int64) ([]*interp.Tensor, error) {
	shape := concrete(t)
	x := make([]*interp.Tensor, s.Device.Ranks())
	data := make([]byte, elemsOf(shape)*int64(t.DType.Size()))
	for rank := range x {
		if err := s.Device.Read(rank, b, offset, data); err != nil {
			return nil, err
		}
		x[rank] = tensorOf(t.DType, shape, data)
	}
	return x, nil
}

func concrete(t ir.Type) []int64 {
	shape := make([]int64, t.Rank())
	for i, d := range t.Shape {
		shape[i], _ = d.Const()
	}
	return shape
}

func elemsOf(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// sections are the ranges that the launch may write, over all ranks: all but
// weights.
func (s *watched) sections(visit func(rank int, b recipes.Binding, size int64) error) error {
	l := s.Watched.Plan.Steps[s.Step].Launch
	for i, b := range l.Bindings {
		if b.Buffer == recipes.Weights {
			continue
		}
		for rank := range s.Device.Ranks() {
			if err := visit(rank, b, s.recipe().Sections[i].Size); err != nil {
				return err
			}
		}
	}
	return nil
}

// save copies what the launch may write.
func (s *watched) save() (saved [][]byte, err error) {
	err = s.sections(func(rank int, b recipes.Binding, size int64) error {
		data := make([]byte, size)
		saved = append(saved, data)
		return s.Device.Read(rank, b.Buffer, b.Offset, data)
	})
	return saved, err
}

func (s *watched) restore(saved [][]byte) error {
	return s.sections(func(rank int, b recipes.Binding, _ int64) error {
		data := saved[0]
		saved = saved[1:]
		return s.Device.Write(rank, b.Buffer, b.Offset, data)
	})
}

// results reads what the launch leaves.
func (s *watched) results() ([][]*interp.Tensor, error) {
	var all [][]*interp.Tensor
	for i, r := range s.segment.Fn.Results {
		at := s.place(s.segment.Results[i])
		x, err := s.read(r.Type, at.Buffer, at.Offset)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// fusion compares what the launch leaves as it serves with what it left node by
// node.
func (s *watched) fusion(want [][]*interp.Tensor) error {
	got, err := s.results()
	if err != nil {
		return err
	}
	traced, err := s.trace()
	if err != nil {
		return err
	}
	for i := range want {
		if d, _ := compareRanks(got[i], want[i], nil, tolerance{}); d != nil {
			o := traced.Maker(s.segment.Fn.Return[i])
			s.report("fusion", o, d)
			s.node(slices.Index(s.segment.Fn.Ops, o))
			return nil
		}
	}
	return nil
}

// body compares the ops of the segment, one after the other.
func (s *watched) body(ctx context.Context, values map[*ir.Value][]*interp.Tensor) error {
	traced, err := s.trace()
	if err != nil {
		return err
	}
	pair := [2]*recipes.Recipe{s.recipe(), traced.Recipe}
	same, known := s.forms[pair]
	if !known {
		same = sameForm(pair[0], pair[1])
		s.forms[pair] = same
	}
	if !same {
		return s.whole(ctx, values)
	}
	fn := s.segment.Fn
	for i, o := range fn.Ops {
		if len(o.Results) == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		s.nodes += traced.Nodes[i+1] - traced.Nodes[i]
		if o.Name() == "topk" {
			s.tie(o, values[o.Args[0]])
		}
		want, err := s.interpret(ctx, o, values)
		if err != nil {
			return err
		}
		for r := range o.Results {
			if err := s.result(ctx, i, r, want[r], values, traced); err != nil || s.found != nil {
				return err
			}
		}
	}
	return nil
}

// result compares result r of op i with all that the device has for it. What it is
// for the ops behind it is what the device has, or else what it should be.
func (s *watched) result(ctx context.Context, i, r int, want []*interp.Tensor, values map[*ir.Value][]*interp.Tensor, traced *synapse.Traced) error {
	o := s.segment.Fn.Ops[i]
	v := o.Results[r]
	values[v] = want
	list, err := s.held(v, traced)
	if err != nil {
		return err
	}
	for _, got := range list {
		values[v] = got
		d, err := s.compare(ctx, o, r, got, want, values)
		if err != nil {
			return err
		}
		if d != nil {
			maker := traced.Maker(v)
			s.report("node", maker, d)
			s.node(slices.Index(s.segment.Fn.Ops, maker))
			return nil
		}
	}
	return nil
}

// held is what the device has for a value: in the place of the result that it is, and
// in the tensor that nodes make of it. Some values are nowhere of their own: a view of
// weights, which are compared with the checkpoint; a part of a value that is stored
// as a whole; and all but the last version of a state, since versions share a place
// (updates only move).
func (s *watched) held(v *ir.Value, traced *synapse.Traced) (list [][]*interp.Tensor, err error) {
	t, made := traced.Tensors[v]
	made = made && traced.Makes(v.Def) && !v.Def.Def.Has(ops.StateWrite)
	if i := slices.Index(s.segment.Fn.Return, v); i >= 0 {
		at := s.place(s.segment.Results[i])
		x, err := s.read(v.Type, at.Buffer, at.Offset)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
		made = made && traced.Recipe.Tensors[t].Section == recipes.Workspace
	}
	if !made {
		return list, nil
	}
	x := make([]*interp.Tensor, s.Device.Ranks())
	for rank := range x {
		data, err := s.tap.Tensor(rank, t)
		if err != nil {
			return nil, err
		}
		x[rank] = tensorOf(v.Type.DType, concrete(v.Type), data)
	}
	return append(list, x), nil
}

// whole compares the results of a segment whose recipe has another form than the
// recomputed one, so that their nodes cannot be paired.
func (s *watched) whole(ctx context.Context, values map[*ir.Value][]*interp.Tensor) error {
	args := make([]map[string]*interp.Tensor, s.Device.Ranks())
	for rank := range args {
		args[rank] = map[string]*interp.Tensor{}
		for _, p := range s.segment.Fn.Params {
			args[rank][p.Name] = values[p.Value][rank]
		}
	}
	want, err := interp.Run(ctx, s.plan.Module, s.segment.Fn, nil, args, interp.Options{Unchecked: true})
	if err != nil {
		return err
	}
	got, err := s.results()
	if err != nil {
		return err
	}
	for i, r := range s.segment.Fn.Results {
		parts := make([]*interp.Tensor, len(want))
		for rank := range parts {
			parts[rank] = want[rank][r.Name]
		}
		// Errors of many ops add up.
		tol := s.tolerance(r.Type.DType)
		if d, _ := compareRanks(got[i], parts, nil, tolerance{10 * tol.atol, 10 * tol.rtol}); d != nil {
			traced, err := s.trace()
			if err != nil {
				return err
			}
			s.report("segment", traced.Maker(s.segment.Fn.Return[i]), d)
			d := compareRecipes(s.recipe(), traced.Recipe)
			s.found.Node, s.found.Name, s.found.GUID, s.found.Recipe = d.Index, d.Name, d.GUID, d.What
			return nil
		}
	}
	return nil
}

// trace is the recomputed recipe and what of it belongs to what of the segment.
func (s *watched) trace() (*synapse.Traced, error) {
	if t := s.traced[s.segment]; t != nil {
		return t, nil
	}
	t, err := synapse.Trace(*s.segment)
	s.traced[s.segment] = t
	return t, err
}

// interpret computes one op in the interpreter, on all ranks.
func (s *watched) interpret(ctx context.Context, o *ir.Op, values map[*ir.Value][]*interp.Tensor) ([][]*interp.Tensor, error) {
	f := &ir.Func{Name: o.Name()}
	n := &ir.Op{Def: o.Def, Attrs: o.Attrs, Loc: o.Loc}
	args := make([]map[string]*interp.Tensor, s.Device.Ranks())
	for rank := range args {
		args[rank] = map[string]*interp.Tensor{}
	}
	for i, a := range o.Args {
		p := &ir.Param{Name: fmt.Sprintf("a%d", i), Kind: ir.Temp}
		p.Value = &ir.Value{Type: a.Type, Param: p}
		f.Params, n.Args = append(f.Params, p), append(n.Args, p.Value)
		for rank := range args {
			args[rank][p.Name] = values[a][rank]
		}
	}
	for i, r := range o.Results {
		v := &ir.Value{Type: r.Type, Def: n, Index: i}
		n.Results, f.Return = append(n.Results, v), append(f.Return, v)
		f.Results = append(f.Results, ir.Result{Name: fmt.Sprintf("r%d", i), Kind: ir.Temp, Type: r.Type})
	}
	f.Ops = []*ir.Op{n}
	out, err := interp.Run(ctx, s.plan.Module, f, nil, args, interp.Options{Unchecked: true})
	if err != nil {
		return nil, fmt.Errorf("%s: interpreting %s: %w", s.label(), s.absolute(o.Loc), err)
	}
	results := make([][]*interp.Tensor, len(o.Results))
	for i, r := range f.Results {
		for rank := range out {
			results[i] = append(results[i], out[rank][r.Name])
		}
	}
	return results, nil
}

// tolerance is what a result of the type may differ by.
func (l *lockstep) tolerance(t dtype.Type) tolerance {
	tol := defaultTolerance[t]
	if l.atol != nil {
		tol.atol = *l.atol
	}
	if l.rtol != nil {
		tol.rtol = *l.rtol
	}
	return tol
}

// compare compares result r of an op.
func (s *watched) compare(ctx context.Context, o *ir.Op, r int, got, want []*interp.Tensor, values map[*ir.Value][]*interp.Tensor) (*difference, error) {
	t := o.Results[r].Type.DType
	if !slices.Contains(rounded, o.Name()) {
		d, _ := compareRanks(got, want, nil, tolerance{})
		return d, nil
	}
	tol := s.tolerance(t)
	d, share := compareRanks(got, want, nil, tol)
	if d != nil && slices.Contains(sums, o.Name()) { // perhaps what was summed cancels out
		scale := map[*ir.Value][]*interp.Tensor{}
		for _, a := range o.Args {
			scale[a] = magnitudes(values[a])
		}
		of, err := s.interpret(ctx, o, scale)
		if err != nil {
			return nil, err
		}
		d, share = compareRanks(got, want, of[r], tol)
	}
	if d == nil {
		key := o.Name() + " " + t.String()
		s.largest[key] = max(s.largest[key], share)
	}
	return d, nil
}

// tie records near ties of a router.
func (s *watched) tie(o *ir.Op, x []*interp.Tensor) {
	loc := s.absolute(o.Loc)
	for _, t := range nearTies(o, x[0], s.tolerance(s.main)) {
		t.Step, t.Layer, t.Op = s.lockstep.steps, loc.Layer, loc.Op
		s.ties = append(s.ties, t)
	}
}

// label names the step of the plan.
func (s *watched) label() string {
	st := &s.Watched.Plan.Steps[s.Step]
	if st.Launch != nil {
		return st.Launch.Label
	}
	return fmt.Sprintf("%s %s", st.Collective.Kind, st.Collective.Label)
}

// absolute is a location of the segment counted from the model's first layer.
func (s *watched) absolute(l ir.Loc) ir.Loc {
	if base := s.op.Loc.Layer; s.segment != nil && l.Layer >= 0 && base >= 0 {
		l.Tensor = strings.Replace(l.Tensor, fmt.Sprintf(".layers.+%d.", l.Layer), fmt.Sprintf(".layers.%d.", l.Layer+base), 1)
		l.Layer += base
	}
	return l
}

// report records where the device diverges: at an op of the segment, or in one of
// its weights.
func (s *watched) report(kind string, o *ir.Op, d *difference) *divergence {
	r := &divergence{
		Kind: kind, Step: s.lockstep.steps, Feeds: s.at, Bucket: s.Watched.Plan.Bucket.String(), PlanStep: s.Step, Launch: s.label(),
		Layer: s.op.Loc.Layer, Node: -1, difference: d,
	}
	if s.segment != nil {
		r.Segment = s.segment.Name
	}
	if o != nil {
		loc := s.absolute(o.Loc)
		r.Layer, r.Source, r.Op, r.Tensor = loc.Layer, loc.Op, o.Name(), s.tensors(o, loc)
	}
	s.found = r
	return r
}

// tensors are the checkpoint tensors that an op takes, or else the one that it is
// about.
func (s *watched) tensors(o *ir.Op, loc ir.Loc) string {
	if s.segment == nil {
		return loc.Tensor
	}
	names := s.taken(o)
	if len(names) == 0 {
		return loc.Tensor
	}
	return strings.Join(names, ", ")
}

// taken lists the checkpoint tensors that an op takes, as they are, reshaped or joined.
func (s *watched) taken(o *ir.Op) (names []string) {
	for _, a := range o.Args {
		if a.Param == nil {
			if name := a.Def.Name(); name == "reshape" || name == "concat" {
				names = append(names, s.taken(a.Def)...)
			}
			continue
		}
		if i := slices.Index(s.segment.Fn.Params, a.Param); i >= 0 && a.Param.Kind == ir.Weight {
			if t := s.op.Args[i].Param.Source.Tensor; t != "" {
				names = append(names, t)
			}
		}
	}
	return names
}

// failed reports a launch that fails where its recipe is not the recomputed one.
func (s *watched) failed(ctx context.Context, failure error) error {
	traced, err := s.trace()
	if err != nil {
		return err
	}
	if ctx.Err() != nil || reflect.DeepEqual(s.recipe(), traced.Recipe) {
		return failure
	}
	d, o := compareRecipes(s.recipe(), traced.Recipe), (*ir.Op)(nil)
	if d.Index >= 0 {
		o = s.opOf(traced, d.Index)
	}
	r := s.report("failed", o, nil)
	r.Node, r.Name, r.GUID, r.Recipe, r.Failure = d.Index, d.Name, d.GUID, d.What, failure.Error()
	return nil
}

// opOf is the op of the segment that a node of the recomputed recipe belongs to.
func (s *watched) opOf(traced *synapse.Traced, node int) *ir.Op {
	for i, o := range s.segment.Fn.Ops {
		if traced.Nodes[i] <= node && node < traced.Nodes[i+1] {
			return o
		}
	}
	return nil
}

// node names the node of op i that differs from the recomputed one, or else the
// last of the op, which makes its result.
func (s *watched) node(i int) {
	traced, err := s.trace()
	if err != nil || i < 0 || !s.forms[[2]*recipes.Recipe{s.recipe(), traced.Recipe}] {
		return
	}
	from, to := traced.Nodes[i], traced.Nodes[i+1]
	if from == to {
		return
	}
	r, at := s.recipe(), to-1
	if j, ok := differingNode(r, traced.Recipe, from, to); ok {
		at = j
		s.found.Recipe = nodeText(r, traced.Recipe, j)
	}
	s.found.Node, s.found.Name, s.found.GUID = at, r.Nodes[at].Name, r.Nodes[at].GUID
	if to-from > 1 {
		s.found.Nodes = fmt.Sprintf("%s to %s", r.Nodes[from].Name, r.Nodes[to-1].Name)
	}
}

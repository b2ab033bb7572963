package lower

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"quill/ir"
	"quill/recipes"
	"quill/recipes/dtype"
)

// layout says where weights and states live in a rank's buffers. Both are laid
// out in groups: a group holds what the launch that first used it uses, in the
// order of use. Equal segments thus see their weights at equal offsets from
// the group's start, whatever the layer, and share one recipe. What an op reads as
// one (a run) lies together: weights of one layer in its group, all else in a group
// of its own.
type layout struct {
	weights map[string]*place // by weightKey
	states  map[string]*place
	runs    map[string][]*place // of weights, by runKey; places of a run's members
	users   map[string]string   // by weightKey: the launches that use the weight
	groups  map[recipes.Buffer][]*group
	list    []weightSlot
	// loose holds the constants of launches without weights.
	loose *group
	// consts are all constants, once the layout is final: a launch that has one in none
	// of its groups takes that of another.
	consts map[constKey]*place
}

// group is a range of a buffer.
type group struct {
	number int // among the groups of the buffer
	size   int64
	offset int64 // set by finish
	// run marks a group that is a run: launches may use a part of it, and bind where
	// that begins.
	run bool
	// consts are the constants kept in a group of weights: each group has its
	// own, so that no launch needs another group for one.
	consts map[constKey]*place
}

// place is an offset in a group.
type place struct {
	group  *group
	offset int64
}

// constKey identifies a constant within a group.
type constKey struct {
	dtype      dtype.Type
	fill, step uint64 // bits of the numbers: 0 and −0 are two constants
	shape      string
}

func constOf(p *ir.Param) constKey {
	return constKey{p.Value.Type.DType, math.Float64bits(p.Source.Fill), math.Float64bits(p.Source.Step), p.Value.Type.String()}
}

type weightSlot struct {
	recipes.Weight
	at *place
}

func newLayout() *layout {
	return &layout{
		weights: map[string]*place{}, states: map[string]*place{}, runs: map[string][]*place{}, users: map[string]string{},
		groups: map[recipes.Buffer][]*group{},
	}
}

// reserve places the weights and states of outlined modules, so that where they are
// does not depend on which bucket is lowered first. Runs of states come first, since
// a state has one place whoever uses it.
func (l *layout) reserve(mods []*ir.Module) error {
	for i, m := range mods {
		for j, o := range calls(m.Entry()) {
			for _, p := range storedArgs(o) {
				if p != nil && p.Kind == ir.Weight && !isConst(p) {
					l.users[weightKey(p)] += fmt.Sprint(" ", i, ".", j)
				}
			}
			for _, r := range callRuns(o) {
				if r[0].Kind != ir.State {
					continue
				}
				if err := l.stateRun(r); err != nil {
					return fmt.Errorf("%s: %w", o.Loc, err)
				}
			}
		}
	}
	for _, m := range mods {
		for _, o := range calls(m.Entry()) {
			if _, err := l.place(storedArgs(o), callRuns(o)); err != nil {
				return fmt.Errorf("%s: %w", o.Loc, err)
			}
		}
	}
	return nil
}

// calls are the ops of an entry that become launches.
func calls(entry *ir.Func) []*ir.Op {
	var list []*ir.Op
	for _, o := range entry.Ops {
		if o.Name() == "call" {
			list = append(list, o)
		}
	}
	return list
}

// storedArgs are the weights and states of the entry that a call uses, by parameter of
// the callee; nil for other parameters.
func storedArgs(o *ir.Op) []*ir.Param {
	callee := o.Attr("callee").Func
	out := make([]*ir.Param, len(o.Args))
	for i, a := range o.Args {
		switch callee.Params[i].Kind {
		case ir.State:
			out[i] = entryState(a)
		case ir.Weight:
			out[i] = a.Param
		}
	}
	return out
}

// callRuns are the runs of a call's callee that consist of weights or states, as
// parameters of the entry.
func callRuns(o *ir.Op) []run {
	callee, stored := o.Attr("callee").Func, storedArgs(o)
	var out []run
	for _, r := range runsOf(callee) {
		var outer run
		for _, p := range r {
			if q := stored[slices.Index(callee.Params, p)]; q != nil {
				outer = append(outer, q)
			}
		}
		if len(outer) == len(r) {
			out = append(out, outer)
		}
	}
	return out
}

// stateRun places states behind each other. They cannot be if one of them has a place
// already or if a state would begin where the device cannot bind an address.
func (l *layout) stateRun(r run) error {
	for _, p := range r {
		n, err := typeBytes(p.Value.Type)
		if err != nil {
			return err
		}
		if l.states[p.Name] != nil || n%recipes.Alignment != 0 {
			return nil
		}
	}
	b, err := bufferOf(r[0])
	if err != nil {
		return err
	}
	g := l.newGroup(b)
	g.run = true
	for _, p := range r {
		if _, err := l.add(p, g); err != nil {
			return err
		}
	}
	return nil
}

// weightRun places weights behind each other without a gap: in the launch's group
// if no launch uses a part of them only, else in a group of their own. Where some have a
// place already, or are constants, which have one in each group, they are copies.
func (l *layout) weightRun(r run, launch func() *group) ([]*place, error) {
	key := runKey(r)
	if at := l.runs[key]; at != nil || l.consts != nil {
		return at, nil
	}
	whole, together := true, true // no copies; used by the same launches
	var users string
	for _, p := range r {
		if isConst(p) {
			whole = false
			continue
		}
		whole = whole && l.weights[weightKey(p)] == nil
		together = together && (users == "" || users == l.users[weightKey(p)])
		users = l.users[weightKey(p)]
	}
	whole = whole && together
	var to *group
	if together {
		to = launch()
	} else {
		to = l.newGroup(recipes.Weights)
		to.run = true
	}
	end := to.size
	places := make([]*place, len(r))
	for i, p := range r {
		n, err := typeBytes(p.Value.Type)
		if err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
		places[i] = &place{to, end}
		end += n
		if whole {
			l.weights[weightKey(p)] = places[i]
		}
		w := weightOf(p)
		w.Part = i + 1
		l.list = append(l.list, weightSlot{w, places[i]})
	}
	to.size = recipes.Align(end)
	l.runs[key] = places
	return places, nil
}

func runKey(r run) string {
	key := ""
	for _, p := range r {
		if isConst(p) {
			key += fmt.Sprint(constOf(p), "\n")
		} else {
			key += weightKey(p) + "\n"
		}
	}
	return key
}

func (l *layout) newGroup(b recipes.Buffer) *group {
	g := &group{number: len(l.groups[b]), consts: map[constKey]*place{}}
	l.groups[b] = append(l.groups[b], g)
	return g
}

func (g *group) add(bytes int64) *place {
	p := &place{g, g.size}
	g.size = recipes.Align(g.size + bytes)
	return p
}

// typeBytes is the size of a concrete type in a rank's memory.
func typeBytes(t ir.Type) (int64, error) {
	n, ok := t.Elems().Const()
	if !ok {
		return 0, fmt.Errorf("size of %s is not concrete", t)
	}
	return n * int64(t.DType.Size()), nil
}

// bufferOf is the buffer of a weight or state: capture names states kv.… and conv.….
func bufferOf(p *ir.Param) (recipes.Buffer, error) {
	switch {
	case p.Kind != ir.State:
		return recipes.Weights, nil
	case strings.HasPrefix(p.Name, "kv."):
		return recipes.KV, nil
	case strings.HasPrefix(p.Name, "conv."):
		return recipes.Conv, nil
	}
	return "", fmt.Errorf("state %%%s belongs to no buffer: its name begins with neither \"kv.\" nor \"conv.\"", p.Name)
}

// place finds the places of the weights, constants and states of one launch. Those that
// have none yet get one: weights in the group of others that only this launch uses in any
// family, all else in a new group of their buffer; constants that are in no run get theirs
// in the newest group of weights that the launch uses. (What it shares with other launches
// was placed with the first of them, so its own group is the newest.)
func (l *layout) place(args []*ir.Param, runs []run) (map[*ir.Param]*place, error) {
	open := map[recipes.Buffer]*group{}
	to := func(b recipes.Buffer) *group {
		if open[b] == nil && b == recipes.Weights {
			open[b] = l.ownGroup(args)
		}
		if open[b] == nil {
			open[b] = l.newGroup(b)
		}
		return open[b]
	}
	places := map[*ir.Param]*place{}
	var newest *group // of weights
	for _, p := range args {
		if p == nil || places[p] != nil {
			continue
		}
		if err := l.placeRuns(p, runs, places, func() *group { return to(recipes.Weights) }); err != nil {
			return nil, err
		}
		if places[p] == nil && !isConst(p) {
			var err error
			if places[p], err = l.own(p, to); err != nil {
				return nil, err
			}
		}
		if p.Kind == ir.Weight && places[p] != nil && places[p].group.follows(newest) {
			newest = places[p].group
		}
	}
	return places, l.constants(args, places, newest)
}

// ownGroup is the newest group that holds weights of a launch which it shares with no
// other launch of its family; nil if there is none yet. Equal launches have equal ones.
func (l *layout) ownGroup(args []*ir.Param) *group {
	var own *group
	for _, p := range args {
		if p == nil || p.Kind != ir.Weight || isConst(p) {
			continue
		}
		at := l.weights[weightKey(p)]
		if at != nil && at.group.follows(own) && oncePerFamily(l.users[weightKey(p)]) {
			own = at.group
		}
	}
	return own
}

// oncePerFamily reports whether launches that use a weight are all of different modules.
func oncePerFamily(users string) bool {
	seen := map[string]bool{}
	for _, u := range strings.Fields(users) {
		module, _, _ := strings.Cut(u, ".")
		if seen[module] {
			return false
		}
		seen[module] = true
	}
	return true
}

// follows reports whether constants belong to g rather than to another group, if there
// is one: to the newer one, and to a run only if all groups are.
func (g *group) follows(h *group) bool {
	return h == nil || h.run && !g.run || h.run == g.run && g.number > h.number
}

// placeRuns places the runs of weights that a parameter begins or is in.
func (l *layout) placeRuns(p *ir.Param, runs []run, places map[*ir.Param]*place, launch func() *group) error {
	for _, r := range runs {
		if r[0].Kind != ir.Weight || !slices.Contains(r, p) {
			continue
		}
		at, err := l.weightRun(r, launch)
		if err != nil {
			return err
		}
		for i := range at {
			places[r[i]] = at[i]
		}
	}
	return nil
}

// constants places a launch's constants that have no place in a group.
func (l *layout) constants(args []*ir.Param, places map[*ir.Param]*place, g *group) error {
	for _, p := range args {
		if p == nil || places[p] != nil {
			continue
		}
		if g == nil && l.loose == nil && l.consts == nil {
			l.loose = l.newGroup(recipes.Weights)
		}
		if g == nil {
			g = l.loose
		}
		if g != nil {
			places[p] = g.consts[constOf(p)]
		}
		if places[p] == nil {
			places[p] = l.consts[constOf(p)]
		}
		if places[p] != nil {
			continue
		}
		var err error
		if places[p], err = l.add(p, g); err != nil {
			return fmt.Errorf("%%%s: %w", p.Name, err)
		}
	}
	return nil
}

func isConst(p *ir.Param) bool { return p.Kind == ir.Weight && p.Source.PerRank }

// own is the place of a state or checkpoint weight. If it has none it gets one, in the
// group that takes what is new in its buffer.
func (l *layout) own(p *ir.Param, to func(recipes.Buffer) *group) (*place, error) {
	at := l.states[p.Name]
	if p.Kind == ir.Weight {
		at = l.weights[weightKey(p)]
	}
	if at != nil {
		return at, nil
	}
	b, err := bufferOf(p)
	if err != nil {
		return nil, err
	}
	if at, err = l.add(p, to(b)); err != nil {
		return nil, fmt.Errorf("%%%s: %w", p.Name, err)
	}
	return at, nil
}

// weightKey identifies a slot of the weights: a tensor may be wanted in more
// than one view.
func weightKey(p *ir.Param) string {
	return fmt.Sprint(p.Source, p.Value.Type)
}

func (l *layout) add(p *ir.Param, g *group) (*place, error) {
	if l.consts != nil {
		return nil, fmt.Errorf("no family has it: passes of the bucket stage may add neither weights nor constants")
	}
	n, err := typeBytes(p.Value.Type)
	if err != nil {
		return nil, err
	}
	at := g.add(n)
	switch {
	case p.Kind == ir.State:
		l.states[p.Name] = at
		return at, nil
	case p.Source.PerRank:
		g.consts[constOf(p)] = at
	default:
		l.weights[weightKey(p)] = at
	}
	l.list = append(l.list, weightSlot{weightOf(p), at})
	return at, nil
}

// weightOf is the weights-map entry of a parameter.
func weightOf(p *ir.Param) recipes.Weight {
	t := p.Value.Type
	w := recipes.Weight{
		Tensor: p.Source.Tensor, Reshape: p.Source.Reshape, Rows: p.Source.Rows, Times: p.Source.Times, Plus: p.Source.Plus, Axis: t.Dist.Axis, Ways: max(t.Dist.Ways, 1),
		DType: t.DType, Fill: p.Source.Fill, Step: p.Source.Step,
	}
	if p.Source.PerRank {
		w.Axis, w.Ways = 0, 1 // every rank makes its own
	}
	for _, a := range p.Source.Perm {
		w.Perm = append(w.Perm, int(a))
	}
	for _, d := range t.Shape {
		n, _ := d.Const()
		w.Shape = append(w.Shape, n)
	}
	return w
}

// finish gives every group its offset and returns the buffers' sizes. The layout is
// final then: several buckets may be lowered at once.
func (l *layout) finish() map[recipes.Buffer]int64 {
	l.consts = map[constKey]*place{}
	for _, g := range l.groups[recipes.Weights] {
		for key, at := range g.consts {
			if l.consts[key] == nil {
				l.consts[key] = at
			}
		}
	}
	sizes := map[recipes.Buffer]int64{}
	for _, b := range []recipes.Buffer{recipes.Weights, recipes.KV, recipes.Conv} {
		for _, g := range l.groups[b] {
			g.offset = sizes[b]
			sizes[b] += g.size
		}
	}
	return sizes
}

// weightsMap is the list of slots, once groups have offsets.
func (l *layout) weightsMap() []recipes.Weight {
	out := make([]recipes.Weight, len(l.list))
	for i, s := range l.list {
		out[i] = s.Weight
		out[i].Offset = s.at.group.offset + s.at.offset
	}
	return out
}

package lower

import (
	"fmt"
	"math"
	"strings"

	"quill/ir"
	"quill/recipes"
	"quill/recipes/dtype"
)

// layout says where weights and states live in a rank's buffers. Both are laid
// out in groups: a group holds what the launch that first used it uses, in the
// order of use. Equal segments thus see their weights at equal offsets from
// the group's start, whatever the layer, and share one recipe.
type layout struct {
	weights map[string]*place // by weightKey
	states  map[string]*place
	groups  map[recipes.Buffer][]*group
	list    []weightSlot
	// loose holds the constants of launches without weights.
	loose *group
}

// group is a range of a buffer.
type group struct {
	number int // among the groups of the buffer
	size   int64
	offset int64 // set by finish
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
		weights: map[string]*place{}, states: map[string]*place{},
		groups: map[recipes.Buffer][]*group{},
	}
}

func (l *layout) newGroup(b recipes.Buffer) *group {
	g := &group{number: len(l.groups[b]), consts: map[constKey]*place{}}
	l.groups[b] = append(l.groups[b], g)
	return g
}

func (g *group) add(bytes int64) *place {
	p := &place{g, g.size}
	g.size = align(g.size + bytes)
	return p
}

// bytes is the size of a concrete type.
func typeBytes(t ir.Type) (int64, error) {
	n, ok := t.Elems().Const()
	if !ok {
		return 0, fmt.Errorf("size of %s is not concrete", t)
	}
	return n * int64(t.DType.Size()), nil
}

// stateBuffer is the buffer of a state: capture names states kv.… and conv.….
func stateBuffer(name string) (recipes.Buffer, error) {
	switch {
	case strings.HasPrefix(name, "kv."):
		return recipes.KV, nil
	case strings.HasPrefix(name, "conv."):
		return recipes.Conv, nil
	}
	return "", fmt.Errorf("state %%%s belongs to no buffer: its name begins with neither \"kv.\" nor \"conv.\"", name)
}

// call places the weights and states of one launch that have no place yet, in a
// new group of their buffer, and returns the group that holds the launch's
// constants: that new one or, when all is placed, the newest it uses. (What it
// shares with other launches was placed with the first of them, so its own
// group is the newest.)
func (l *layout) call(args []*ir.Param) (*group, error) {
	open := map[recipes.Buffer]*group{}
	var newest *group
	for _, p := range args {
		if isConst(p) {
			continue
		}
		b, err := bufferOf(p)
		if err != nil {
			return nil, err
		}
		at := l.find(p)
		if at == nil {
			if open[b] == nil {
				open[b] = l.newGroup(b)
			}
			if at, err = l.add(p, open[b]); err != nil {
				return nil, fmt.Errorf("%%%s: %w", p.Name, err)
			}
		}
		if b == recipes.Weights && (newest == nil || at.group.number > newest.number) {
			newest = at.group
		}
	}
	return l.constants(args, newest)
}

// constants places a launch's constants in its group of weights.
func (l *layout) constants(args []*ir.Param, g *group) (*group, error) {
	for _, p := range args {
		if !isConst(p) {
			continue
		}
		if g == nil {
			if l.loose == nil {
				l.loose = l.newGroup(recipes.Weights)
			}
			g = l.loose
		}
		if g.consts[constOf(p)] != nil {
			continue
		}
		if _, err := l.add(p, g); err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
	}
	return g, nil
}

func isConst(p *ir.Param) bool { return p.Kind == ir.Weight && p.Source.PerRank }

func bufferOf(p *ir.Param) (recipes.Buffer, error) {
	if p.Kind == ir.State {
		return stateBuffer(p.Name)
	}
	return recipes.Weights, nil
}

// find is the place of a state or checkpoint weight, nil when it has none.
func (l *layout) find(p *ir.Param) *place {
	if p.Kind == ir.State {
		return l.states[p.Name]
	}
	return l.weights[weightKey(p)]
}

// weightKey identifies a slot of the weights: a tensor may be wanted in more
// than one view.
func weightKey(p *ir.Param) string {
	return fmt.Sprint(p.Source.Tensor, p.Source.Reshape, p.Source.Perm, p.Value.Type)
}

func (l *layout) add(p *ir.Param, g *group) (*place, error) {
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
		Tensor: p.Source.Tensor, Reshape: p.Source.Reshape, Axis: t.Dist.Axis, Ways: max(t.Dist.Ways, 1),
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

// finish gives every group its offset and returns the buffers' sizes.
func (l *layout) finish() map[recipes.Buffer]int64 {
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

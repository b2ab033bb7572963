package lower

import (
	"fmt"
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
	weights map[string]*place // by checkpoint tensor
	states  map[string]*place
	groups  map[recipes.Buffer][]*group
	list    []weightSlot
	// loose holds the constants of launches without weights.
	loose *group
}

// group is a range of a buffer.
type group struct {
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
	fill, step float64
}

func constOf(p *ir.Param) constKey {
	return constKey{p.Value.Type.DType, p.Source.Fill, p.Source.Step}
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
	g := &group{consts: map[constKey]*place{}}
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
func stateBuffer(name string) recipes.Buffer {
	if strings.HasPrefix(name, "kv.") {
		return recipes.KV
	}
	return recipes.Conv
}

// call places the weights and states of one launch that have no place yet and
// returns the group that holds the launch's constants.
func (l *layout) call(args []*ir.Param) (*group, error) {
	open := map[recipes.Buffer]*group{}
	// A launch of which something is placed already adds to that group.
	for _, p := range args {
		if at := l.find(p); at != nil && open[bufferOf(p)] == nil {
			open[bufferOf(p)] = at.group
		}
	}
	for _, p := range args {
		b := bufferOf(p)
		if isConst(p) || l.find(p) != nil {
			continue
		}
		if open[b] == nil {
			open[b] = l.newGroup(b)
		}
		if err := l.add(p, open[b]); err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
	}
	return l.constants(args, open[recipes.Weights])
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
		if err := l.add(p, g); err != nil {
			return nil, fmt.Errorf("%%%s: %w", p.Name, err)
		}
	}
	return g, nil
}

func isConst(p *ir.Param) bool { return p.Kind == ir.Weight && p.Source.PerRank }

func bufferOf(p *ir.Param) recipes.Buffer {
	if p.Kind == ir.State {
		return stateBuffer(p.Name)
	}
	return recipes.Weights
}

// find is the place of a state or checkpoint weight, nil when it has none.
func (l *layout) find(p *ir.Param) *place {
	if p.Kind == ir.State {
		return l.states[p.Name]
	}
	return l.weights[p.Source.Tensor]
}

func (l *layout) add(p *ir.Param, g *group) error {
	n, err := typeBytes(p.Value.Type)
	if err != nil {
		return err
	}
	at := g.add(n)
	switch {
	case p.Kind == ir.State:
		l.states[p.Name] = at
		return nil
	case p.Source.PerRank:
		g.consts[constOf(p)] = at
	default:
		l.weights[p.Source.Tensor] = at
	}
	l.list = append(l.list, weightSlot{weightOf(p), at})
	return nil
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

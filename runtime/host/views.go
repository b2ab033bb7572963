package host

import (
	"fmt"

	"quill/recipes"
)

// A view is a node whose result is a range of its operand's memory: it is
// resolved when a recipe is loaded and costs nothing when it runs. Memory that
// is shared must not change while a tensor in it is still to be read; hazard
// finds where it would.

// spot is a range of memory: of a section, or of the workspace.
type spot struct {
	space int // section index, or workspaceSpace
	at, n int64
}

// workspaceSpace is the space of tensors without a section.
const workspaceSpace = -1

func overlap(a, an, b, bn int64) bool {
	return an > 0 && bn > 0 && a < b+bn && b < a+an
}

func (s spot) overlaps(t spot) bool {
	return s.space == t.space && overlap(s.at, s.n, t.at, t.n)
}

// alias is a tensor's place in another tensor.
type alias struct {
	base int   // tensor, or -1
	at   int64 // bytes
}

// root follows aliases to the tensor that owns the memory.
func root(aliases []alias, t int) (owner int, at int64) {
	for aliases[t].base >= 0 {
		at += aliases[t].at
		t = aliases[t].base
	}
	return t, at
}

// candidate says whether a node can be a view, and where in its operand.
type candidate struct {
	ok bool
	at int64 // bytes
}

// chooseViews decides which nodes are views. A view of a state that is read after
// the state's update, or by the update itself, becomes a copy; any other use
// of overwritten memory is an error of the recipe. With private set only
// results that have a place of their own can be views.
func (p *Program) chooseViews(candidates []candidate, private bool) ([]alias, error) {
	producer := make([]int, len(p.recipe.Tensors))
	for i := range p.recipe.Nodes {
		for _, out := range p.recipe.Nodes[i].Out {
			producer[out] = i
		}
	}
	for {
		aliases := p.resolveViews(candidates, private)
		h := p.hazard(p.spots)
		if h == nil {
			return aliases, nil
		}
		if aliases[h.tensor].base < 0 {
			return nil, h.err(p)
		}
		candidates[producer[h.tensor]].ok = false
	}
}

// resolveViews makes a view of every candidate that can be one and finds each
// tensor's place.
func (p *Program) resolveViews(candidates []candidate, private bool) []alias {
	tensors := p.recipe.Tensors
	aliases := make([]alias, len(tensors))
	p.spots = make([]spot, len(tensors))
	for t := range tensors {
		aliases[t].base = -1
		p.spots[t] = spot{tensors[t].Section, tensors[t].Offset, tensors[t].Bytes()}
	}
	for i, c := range candidates {
		p.views[i] = false
		if !c.ok {
			continue
		}
		in, out := p.recipe.Nodes[i].In[0], p.recipe.Nodes[i].Out[0]
		place := p.spots[in]
		place.at += c.at
		place.n = p.spots[out].n
		switch {
		case tensors[out].Section != recipes.Workspace:
			// A result with a place of its own is a view if it is there already.
			p.views[i] = place == p.spots[out]
		case !private:
			p.views[i] = true
			aliases[out] = alias{in, c.at}
			p.spots[out] = place
		}
	}
	return aliases
}

// hazard is a read of memory that was overwritten, or an overlap of one node's
// operands.
type hazard struct {
	node   int // that reads, or whose operands overlap
	tensor int
	writer int // node that overwrote tensor, -1 for an overlap
	other  int // tensor that took its memory
}

// hazard follows which tensors still hold their value while the nodes execute
// in order with tensors at the given spots, and returns the first hazard. Only
// sections are traced: what shares workspace memory is never written twice.
func (p *Program) hazard(spots []spot) *hazard {
	type loss struct{ writer, other int }
	lost := make([]loss, len(spots)) // writer is a node index + 1
	bySpace := make(map[int][]int)
	for t, s := range spots {
		if s.space != workspaceSpace {
			bySpace[s.space] = append(bySpace[s.space], t)
		}
	}
	for i := range p.recipe.Nodes {
		node := &p.recipe.Nodes[i]
		for _, in := range node.In {
			if in >= 0 && lost[in].writer > 0 {
				return &hazard{i, in, lost[in].writer - 1, lost[in].other}
			}
		}
		if p.views[i] {
			lost[node.Out[0]] = loss{}
			continue
		}
		for k, out := range node.Out {
			w := spots[out]
			if w.space == workspaceSpace {
				continue
			}
			for slot, in := range node.In {
				if in < 0 || !w.overlaps(spots[in]) {
					continue
				}
				if w != spots[in] || slot >= p.inPlace[i] {
					return &hazard{i, in, -1, out}
				}
			}
			for _, other := range node.Out[:k] {
				if w.overlaps(spots[other]) {
					return &hazard{i, other, -1, out}
				}
			}
			for _, t := range bySpace[w.space] {
				if w.overlaps(spots[t]) {
					lost[t] = loss{i + 1, out}
				}
			}
		}
		for _, out := range node.Out {
			lost[out] = loss{}
		}
	}
	return nil
}

// err describes a hazard.
func (h *hazard) err(p *Program) error {
	t, other := p.recipe.Tensors[h.tensor].Name, p.recipe.Tensors[h.other].Name
	if h.writer < 0 {
		return fmt.Errorf("%s: %q and %q overlap in memory", where(p.recipe, h.node), t, other)
	}
	return fmt.Errorf("%s: reads %q after node %d %q wrote %q in its memory",
		where(p.recipe, h.node), t, h.writer, p.recipe.Nodes[h.writer].Name, other)
}

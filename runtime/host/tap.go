package host

import (
	"fmt"

	"quill/recipes"
)

// LoadTapped is Load for debugging: every node is executed, each on its own, and
// every tensor keeps its value when the launch has run, so that [Launch.Tensor]
// can tell where a result goes wrong. It takes workspace for all of them.
func (d *Device) LoadTapped(r *recipes.Recipe) (*Program, error) { return d.load(r, true, true) }

// Tensor is one rank's memory of tensor t of a tapped recipe. What lies in a
// section is as the last node that wrote there left it. The memory is the
// device's, and the next launch may change it.
func (l *Launch) Tensor(rank, t int) ([]byte, error) {
	p := l.program
	if !p.tapped || rank < 0 || rank >= len(l.bases) || t < 0 || t >= len(p.spots) {
		return nil, fmt.Errorf("recipe %s: no tensor %d of rank %d to read: want a recipe loaded to be tapped, of %d tensors on %d ranks",
			p.recipe.Name, t, rank, len(p.spots), len(l.bases))
	}
	m := mem{launch: l, rank: rank}
	s := slot{p.spots[t].space, p.spots[t].at, p.spots[t].n}
	switch {
	case s.base == workspaceSpace:
		return p.device.ranks[rank].workspace[s.at : s.at+s.n], nil
	case p.recipe.Sections[s.base].Buffer == recipes.Weights:
		return nil, fmt.Errorf("recipe %s: tensor %q lies in the weights: read it with Device.Weights", p.recipe.Name, p.recipe.Tensors[t].Name)
	}
	return m.of(&s), nil
}

// Weights is the memory of n bytes of one rank's weights; ok is false if they are
// not all in one place. It must not be written.
func (d *Device) Weights(rank int, offset, n int64) (data []byte, ok bool) {
	if rank < 0 || rank >= len(d.ranks) || offset < 0 || n < 0 {
		return nil, false
	}
	data, span := d.ranks[rank].span(offset, n)
	return data, span != nil && (data != nil || n == 0)
}

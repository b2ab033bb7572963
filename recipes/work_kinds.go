package recipes

import (
	"fmt"
	"slices"
)

// LayerKind says what attention and what MLP a layer has.
type LayerKind string

// Kinds of layers: local attention sees a window, global attention all.
const (
	LocalDense  LayerKind = "local-dense"
	LocalMoE    LayerKind = "local-moe"
	GlobalDense LayerKind = "global-dense"
	GlobalMoE   LayerKind = "global-moe"
)

// Kinds that are in reports only.
const (
	OutsideLayers LayerKind = "outside"
	UnknownLayers LayerKind = "layers" // of a bundle that does not say
)

var layerKinds = []LayerKind{LocalDense, LocalMoE, GlobalDense, GlobalMoE}

// checkKinds reports the first fault of what a model says of its layers' kinds, which may
// be nothing.
func (m *Model) checkKinds() error {
	if len(m.LayerKinds) != 0 && len(m.LayerKinds) != m.Layers {
		return fmt.Errorf("layer_kinds has %d entries, want one for each of %d layers", len(m.LayerKinds), m.Layers)
	}
	for i, k := range m.LayerKinds {
		if !slices.Contains(layerKinds, k) {
			return fmt.Errorf("layer_kinds: layer %d is %q, want one of %v", i, k, layerKinds)
		}
	}
	return nil
}

// kind is that of a layer, which may be none (−1).
func (m *Model) kind(layer int) LayerKind {
	switch {
	case layer < 0:
		return OutsideLayers
	case layer < len(m.LayerKinds):
		return m.LayerKinds[layer]
	}
	return UnknownLayers
}

// KindWork is what a step executes for the layers of one kind. A node is of the layer that
// its origin names; what is computed once for several layers is of the first of them, or
// outside layers, as embedding and final norm are.
type KindWork struct {
	Kind         LayerKind `json:"kind"`
	Layers       int       `json:"layers"` // 0 outside
	Compute      int       `json:"compute_nodes"`
	Merged       int       `json:"merged_nodes"`
	LeastOfLayer int       `json:"compute_nodes_least"` // of one layer
	MostOfLayer  int       `json:"compute_nodes_most"`
	LeastChain   int       `json:"chain_least"` // of nodes of one layer alone
	MostChain    int       `json:"chain_most"`
}

// layerWork is what a step executes for one layer.
type layerWork struct{ compute, merged, chain int }

// kindTally adds up compute nodes by layer.
type kindTally struct {
	model  *Model
	layers map[int]*layerWork // by number, −1 outside
}

// add counts a compute node, with the chain that ends in it. It is merged nodes.
func (t *kindTally) add(d reach, merged int) {
	if t.layers == nil {
		t.layers = map[int]*layerWork{}
	}
	l := t.layers[d.layer]
	if l == nil {
		l = &layerWork{}
		t.layers[d.layer] = l
	}
	l.compute++
	l.merged += merged
	l.chain = max(l.chain, d.own)
}

// list are the kinds of layers that have nodes, and what is outside layers.
func (t *kindTally) list() []KindWork {
	var list []KindWork
	for _, kind := range append(slices.Clone(layerKinds), UnknownLayers, OutsideLayers) {
		k := KindWork{Kind: kind}
		first := true
		for layer, l := range t.layers {
			if t.model.kind(layer) != kind {
				continue
			}
			if layer >= 0 {
				k.Layers++
			}
			k.Compute, k.Merged = k.Compute+l.compute, k.Merged+l.merged
			if first {
				k.LeastOfLayer, k.LeastChain = l.compute, l.chain
			}
			first = false
			k.LeastOfLayer, k.MostOfLayer = min(k.LeastOfLayer, l.compute), max(k.MostOfLayer, l.compute)
			k.LeastChain, k.MostChain = min(k.LeastChain, l.chain), max(k.MostChain, l.chain)
		}
		if !first {
			list = append(list, k)
		}
	}
	return list
}

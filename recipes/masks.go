package recipes

import (
	"maps"
	"slices"
)

// LayerMasks are the additive masks of one layer's attention, in bytes: all that it
// reads, and those of the launch with most of them.
type LayerMasks struct {
	Layer int   `json:"layer"`
	Total int64 `json:"mask_bytes_total"`
	Peak  int64 `json:"mask_bytes_peak"`
}

// MaskRead is an additive mask that attention reads.
type MaskRead[K comparable] struct {
	Mask  K // what tells it from others
	Bytes int64
	Layer int // −1 if it is not known
	// Own masks are made by the launch that reads them: in another launch the same K is
	// another mask.
	Own bool
}

// MaskTally adds up the masks of a step, launch by launch. Its zero value is empty.
type MaskTally[K comparable] struct {
	step   maskSum[K]
	layers map[int]*maskSum[K]
}

// maskSum adds up the masks of a step or of a layer of it, in bytes.
type maskSum[K comparable] struct {
	total, peak int64
	seen        map[K]bool // by earlier launches
}

// Launch adds what a launch reads.
func (t *MaskTally[K]) Launch(reads []MaskRead[K]) {
	t.step.launch(reads)
	byLayer := map[int][]MaskRead[K]{}
	for _, r := range reads {
		if r.Layer >= 0 {
			byLayer[r.Layer] = append(byLayer[r.Layer], r)
		}
	}
	for layer, list := range byLayer {
		if t.layers == nil {
			t.layers = map[int]*maskSum[K]{}
		}
		if t.layers[layer] == nil {
			t.layers[layer] = &maskSum[K]{}
		}
		t.layers[layer].launch(list)
	}
}

// launch counts each mask once.
func (s *maskSum[K]) launch(reads []MaskRead[K]) {
	alive, counted := int64(0), map[K]bool{}
	for _, r := range reads {
		if counted[r.Mask] {
			continue
		}
		counted[r.Mask] = true
		alive += r.Bytes
		if r.Own || !s.seen[r.Mask] {
			s.total += r.Bytes
		}
		if !r.Own {
			if s.seen == nil {
				s.seen = map[K]bool{}
			}
			s.seen[r.Mask] = true
		}
	}
	s.peak = max(s.peak, alive)
}

// Forget says that what is read as a mask from now on is another one.
func (t *MaskTally[K]) Forget(mask K) {
	delete(t.step.seen, mask)
	for _, s := range t.layers {
		delete(s.seen, mask)
	}
}

// Bytes are those of all masks, each counted once, and of the launch with most of them.
func (t *MaskTally[K]) Bytes() (total, peak int64) { return t.step.total, t.step.peak }

// Layers are the layers with masks, in order; nil if there are none.
func (t *MaskTally[K]) Layers() []LayerMasks {
	var list []LayerMasks
	for _, layer := range slices.Sorted(maps.Keys(t.layers)) {
		s := t.layers[layer]
		list = append(list, LayerMasks{Layer: layer, Total: s.total, Peak: s.peak})
	}
	return list
}

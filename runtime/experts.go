package runtime

import (
	"cmp"
	"slices"
	"strings"

	"quill/recipes"
)

// firstExpert is the operand of a mixture of experts that its weights begin
// with.
const firstExpert = 3

// expertSlots are the slots of the weights map, by offset, that mixtures of
// experts read. A step needs a few experts of such a slot and all of any other.
func expertSlots(b *recipes.Bundle, set *recipes.Set) map[int64]bool {
	slots := recipes.SlotsByOffset(set.Weights)
	found := make(map[int64]bool)
	places := make(map[recipes.Hash][]place)
	for i := range set.Plans {
		for j := range set.Plans[i].Steps {
			l := set.Plans[i].Steps[j].Launch
			if l == nil {
				continue
			}
			if _, ok := places[l.Recipe]; !ok {
				places[l.Recipe] = expertPlaces(b.Recipes[l.Recipe])
			}
			for _, p := range places[l.Recipe] {
				at := l.Bindings[p.section].Offset + p.offset
				n, exact := slices.BinarySearchFunc(slots, at, func(w *recipes.Weight, at int64) int { return cmp.Compare(w.Offset, at) })
				if !exact {
					n--
				}
				if n >= 0 {
					found[slots[n].Offset] = true
				}
			}
		}
	}
	return found
}

// place is where a tensor begins in a section.
type place struct {
	section int
	offset  int64
}

// expertPlaces are the weights of experts in a recipe.
func expertPlaces(r *recipes.Recipe) []place {
	var found []place
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if !strings.HasPrefix(n.GUID, "moe_") || len(n.In) < firstExpert {
			continue
		}
		for _, in := range n.In[firstExpert:] {
			if in == recipes.Absent {
				continue
			}
			if t := &r.Tensors[in]; t.Section >= 0 && r.Sections[t.Section].Buffer == recipes.Weights {
				found = append(found, place{t.Section, t.Offset})
			}
		}
	}
	return found
}

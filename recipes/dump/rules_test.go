package dump

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// Rules of the target that no single node or tensor shows.

// access is a node that touches bytes of a section.
type access struct {
	node    int
	lo, hi  int64
	written bool
}

// unordered finds two nodes of which one writes what the other touches, and that neither
// operands nor edges order. The target's compiler does not see such an order in general.
func unordered(r *recipes.Recipe) string {
	by := make([][]access, len(r.Sections))
	before := make([][]uint64, len(r.Nodes)) // bits of the nodes that a node waits for
	writer := map[int]int{}
	words := (len(r.Nodes) + 63) / 64
	for i := range r.Nodes {
		n := &r.Nodes[i]
		before[i] = make([]uint64, words)
		wait := func(j int) {
			before[i][j/64] |= 1 << (j % 64)
			for w := range words {
				before[i][w] |= before[j][w]
			}
		}
		for _, t := range n.In {
			if t == recipes.Absent {
				continue
			}
			if j, ok := writer[t]; ok {
				wait(j)
			}
			if x := &r.Tensors[t]; x.Section != recipes.Workspace {
				by[x.Section] = append(by[x.Section], access{i, x.Offset, x.Offset + x.Bytes(), false})
			}
		}
		for _, j := range n.After {
			wait(j)
		}
		for _, t := range n.Out {
			writer[t] = i
			if x := &r.Tensors[t]; x.Section != recipes.Workspace {
				by[x.Section] = append(by[x.Section], access{i, x.Offset, x.Offset + x.Bytes(), true})
			}
		}
	}
	for s, list := range by {
		for _, w := range list {
			if !w.written {
				continue
			}
			for _, a := range list {
				if a.node == w.node || a.hi <= w.lo || w.hi <= a.lo {
					continue
				}
				first, second := min(a.node, w.node), max(a.node, w.node)
				if before[second][first/64]>>(first%64)&1 == 0 {
					return fmt.Sprintf("recipe %s: nodes %d and %d touch bytes of section %s, node %d writes them, and no edge orders them", r.Name, first, second, r.Sections[s].Name, w.node)
				}
			}
		}
	}
	return ""
}

// checkRules checks a recipe by rules that hold for every graph.
func checkRules(t *testing.T, r *recipes.Recipe) {
	t.Helper()
	for i := range r.Nodes {
		n := &r.Nodes[i]
		require.NotEmpty(t, n.Out, "recipe %s: node %s has no result", r.Name, n.Name)
		for _, x := range append(append([]int{}, n.In...), n.Out...) {
			if x != recipes.Absent && r.Tensors[x].Section != recipes.Workspace {
				require.Zero(t, r.Tensors[x].Offset%recipes.Alignment, "recipe %s: node %s: tensor %s is at byte %d", r.Name, n.Name, r.Tensors[x].Name, r.Tensors[x].Offset)
			}
		}
	}
	require.Empty(t, unordered(r))
}

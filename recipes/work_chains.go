package recipes

import (
	"slices"
	"strings"
)

// elementwise are the nodes that compute each element of their result from those at its
// place, up to the suffix of a type.
var elementwise = []string{
	"add_fwd", "sub_fwd", "mult_fwd", "div_fwd", "max_fwd", "min_fwd",
	"less_fwd", "less_equal_fwd", "equal_fwd", "and_fwd", "or_fwd", "not_fwd", "where_fwd",
	"neg_fwd", "exp_fwd", "log_fwd", "sigmoid_fwd", "silu_fwd", "softplus_fwd",
}

// Elementwise reports whether a node computes each element by itself, casts included.
func (n *Node) Elementwise() bool {
	if strings.HasPrefix(n.GUID, "cast_") {
		return true
	}
	i := strings.LastIndexByte(n.GUID, '_')
	return i > 0 && slices.Contains(elementwise, n.GUID[:i])
}

// joinsReaders says of each node whether it is in the chain of what reads it, by the rule
// of [Work.Merged].
func (r *Recipe) joinsReaders() []bool {
	after := make([][]int, len(r.Nodes)) // nodes that read a node's results, or wait for it
	writer := map[int]int{}              // of a tensor
	for i := range r.Nodes {
		n := &r.Nodes[i]
		for _, t := range n.In {
			if w, ok := writer[t]; ok {
				after[w] = append(after[w], i)
			}
		}
		for _, j := range n.After {
			after[j] = append(after[j], i)
		}
		for _, t := range n.Out {
			writer[t] = i
		}
	}
	joins := make([]bool, len(r.Nodes))
	chain := make([]int, len(r.Nodes)) // its last node
	for i := len(r.Nodes) - 1; i >= 0; i-- {
		n := &r.Nodes[i]
		chain[i] = i
		if !n.Elementwise() || len(after[i]) == 0 || slices.ContainsFunc(n.Out, func(t int) bool { return r.Tensors[t].Section != Workspace }) {
			continue
		}
		last := chain[after[i][0]]
		joins[i] = !slices.ContainsFunc(after[i], func(j int) bool { return !r.Nodes[j].Elementwise() || chain[j] != last })
		if joins[i] {
			chain[i] = last
		}
	}
	return joins
}

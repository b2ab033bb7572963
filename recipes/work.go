package recipes

import (
	"slices"
	"strings"
)

// Work is what a step of a plan executes.
type Work struct {
	Launches, AllReduces, AllGathers int
	// Nodes are all nodes; Compute are those that compute or copy, all but
	// reshape, slice and the like, which a graph compiler resolves to addresses.
	Nodes, Compute int
	// Chain is the longest chain of compute nodes of which each needs the result
	// of the one before: what a step takes at least where each node has a cost of
	// its own, however little it computes.
	Chain int
	// MaskBytes are those of the additive masks of attention that a step makes, and
	// MaskPeak those of the launch that has most of them.
	MaskBytes, MaskPeak int64
}

// maskOperand is the operand of an sdpa node that is its mask.
const maskOperand = 3

// addressed are nodes that only say where something is.
var addressed = []string{"reshape", "expand_dims", "squeeze", "identity", "reinterpret_cast", "split", "slice", "slice_axis"}

// Computes reports whether a node is a compute node.
func (n *Node) Computes() bool { return !slices.Contains(addressed, n.GUID) }

// Work adds up a plan. Values cross launches at the address where they are
// written; a state is read and written as a whole.
func (b *Bundle) Work(p *Plan) Work {
	w := worker{depth: map[Binding]int{}, masks: map[Binding]bool{}}
	for i := range p.Steps {
		if c := p.Steps[i].Collective; c != nil {
			if c.Kind == AllReduce {
				w.AllReduces++
			} else {
				w.AllGathers++
			}
			w.depth[Binding{Arena, c.Out}] = w.depth[Binding{Arena, c.In}]
			continue
		}
		w.launch(p.Steps[i].Launch, b.Recipes[p.Steps[i].Launch.Recipe])
	}
	return w.Work
}

type worker struct {
	Work
	depth map[Binding]int  // of what lies at an address
	masks map[Binding]bool // that are counted
}

func (w *worker) launch(l *Launch, r *Recipe) {
	w.Launches++
	depth := make([]int, len(r.Tensors)) // of workspace
	done := make([]int, len(r.Nodes))
	at := func(t int) Binding {
		s := r.Tensors[t].Section
		return Binding{l.Bindings[s].Buffer, l.Bindings[s].Offset + r.Tensors[t].Offset}
	}
	masks := map[int]bool{}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if strings.HasPrefix(n.GUID, "sdpa_") && len(n.In) > maskOperand && n.In[maskOperand] != Absent {
			masks[n.In[maskOperand]] = true
		}
		d := 0
		for _, t := range n.In {
			switch {
			case t == Absent:
			case r.Tensors[t].Section == Workspace:
				d = max(d, depth[t])
			default:
				d = max(d, w.depth[at(t)])
			}
		}
		for _, j := range n.After {
			d = max(d, done[j])
		}
		w.Nodes++
		if n.Computes() {
			w.Compute++
			d++
		}
		done[i] = d
		w.Chain = max(w.Chain, d)
		for _, t := range n.Out {
			if r.Tensors[t].Section == Workspace {
				depth[t] = d
			} else {
				w.depth[at(t)] = d
			}
		}
	}
	alive := int64(0)
	for t := range masks {
		bytes := r.Tensors[t].Bytes()
		alive += bytes
		if r.Tensors[t].Section != Workspace {
			if w.masks[at(t)] {
				continue // another launch has it too
			}
			w.masks[at(t)] = true
		}
		w.MaskBytes += bytes
	}
	w.MaskPeak = max(w.MaskPeak, alive)
}

package recipes

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Work is what a step of a plan executes.
type Work struct {
	Launches, AllReduces, AllGathers int
	// Moved counts the sections of launches that lie elsewhere than at the launch of the
	// same recipe before, when the plan has run before: what cards bind anew in a step.
	Moved int
	// Nodes are all nodes; Compute are those that compute or copy, all but
	// reshape, slice and the like, which a graph compiler resolves to addresses.
	Nodes, Compute int
	// Merged is Compute where each chain of element-wise nodes counts as one: what is left
	// of it at best when the target's compiler makes one kernel of such a chain. A node is
	// in the chain of what reads it if it is element-wise, all its results lie in the
	// workspace, and each node that reads one of them, or that must wait for it, is an
	// element-wise node of one and the same chain; at least one does. A view in between ends
	// a chain, as does the end of a launch. No path leaves a chain and comes back to it.
	Merged int
	// Chain is the longest chain of compute nodes of which each needs the result
	// of the one before: what a step takes at least where each node has a cost of
	// its own, however little it computes.
	Chain int
	// Kinds says how Compute, Merged and Chain are distributed over layers of each kind, and
	// what is outside layers, last. All of Compute and Merged is in one of them.
	Kinds []KindWork
	// Sources counts Compute by the model's op that nodes come from. What a pass joins
	// counts for the op that it keeps as the origin.
	Sources map[string]int
	// MaskBytes are those of the additive masks of attention that a step makes, and
	// MaskPeak those of the launch that has most of them.
	MaskBytes, MaskPeak int64
	// MaskLayers are the layers with masks: those that attention of the layer reads,
	// which it may share with other layers.
	MaskLayers []LayerMasks
	// Breaks counts why launches are not one with the one before, by reason: what
	// collective is between them, or what a graph break says, without numbers.
	Breaks map[string]int
}

// maskOperand is the operand of an sdpa node that is its mask.
const maskOperand = 3

// addressed are nodes that only say where something is.
var addressed = []string{"reshape", "expand_dims", "squeeze", "identity", "reinterpret_cast", "split", "slice", "slice_axis"}

// Computes reports whether a node is a compute node.
func (n *Node) Computes() bool { return !slices.Contains(addressed, n.GUID) }

// Work adds up a plan. Values cross launches where their bytes are written.
func (b *Bundle) Work(p *Plan) Work {
	w := worker{depth: map[Buffer]*depths{}, joins: map[Hash][]bool{}, kinds: kindTally{model: &b.Manifest.Model}}
	for _, buffer := range Buffers() {
		w.depth[buffer] = &depths{}
	}
	for i := range p.Steps {
		if c := p.Steps[i].Collective; c != nil {
			w.count(string(c.Kind))
			bytes := c.Count * int64(c.DType.Size())
			out := bytes
			if c.Kind == AllReduce {
				w.AllReduces++
			} else {
				w.AllGathers++
				out *= int64(b.Manifest.Deployment.TensorParallel)
			}
			w.depth[Arena].write(c.Out, out, w.depth[Arena].deepest(c.In, bytes))
			continue
		}
		l := p.Steps[i].Launch
		w.count(BreakReason(l.Break))
		w.launch(l, b.Recipes[l.Recipe])
	}
	w.Moved = p.moved()
	w.Kinds = w.kinds.list()
	w.MaskBytes, w.MaskPeak = w.masks.Bytes()
	w.MaskLayers = w.masks.Layers()
	return w.Work
}

// moved counts the sections of a step's launches that have moved since the launch of the
// same recipe before, which for the first is the last one of the step before.
func (p *Plan) moved() (n int) {
	bound := map[Hash][]Binding{}
	for i := range p.Steps {
		if l := p.Steps[i].Launch; l != nil {
			bound[l.Recipe] = l.Bindings
		}
	}
	for i := range p.Steps {
		l := p.Steps[i].Launch
		if l == nil {
			continue
		}
		for s, at := range l.Bindings {
			if at != bound[l.Recipe][s] {
				n++
			}
		}
		bound[l.Recipe] = l.Bindings
	}
	return n
}

var ofSeveral = regexp.MustCompile(` \d+ of \d+`)

// BreakReason is what a graph break says, without which of several it is.
func BreakReason(text string) string { return ofSeveral.ReplaceAllString(text, "") }

type worker struct {
	Work
	depth map[Buffer]*depths
	masks MaskTally[Binding]
	kinds kindTally
	joins map[Hash][]bool // of recipes: which nodes are in the chain of what reads them
}

// count counts a break, if it is one.
func (w *worker) count(reason string) {
	if reason == "" {
		return
	}
	if w.Breaks == nil {
		w.Breaks = map[string]int{}
	}
	w.Breaks[reason]++
}

// layerOf is the layer that a label or an origin begins with, −1 if it has none.
func layerOf(text string) int {
	n := -1
	if _, err := fmt.Sscanf(text, "layer %d", &n); err != nil {
		return -1
	}
	return n
}

// layerIn is the layer of a node of a launch, −1 if it has none: origins count from the
// launch's layer.
func layerIn(l *Launch, n *Node) int {
	base, by := layerOf(l.Label), layerOf(n.Origin)
	if base < 0 || by < 0 {
		return -1
	}
	return base + by
}

// sourceOf is the model's op in an origin, "" if there is none.
func sourceOf(origin string) string {
	words := strings.Fields(origin)
	if layerOf(origin) >= 0 {
		words = words[2:]
	}
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// reach says how long the chain is that ends somewhere, and how long the one is whose
// nodes are all of one layer.
type reach struct{ depth, layer, own int }

// depths says of the bytes of a buffer what chain ends in them.
type depths struct{ ranges[reach] }

// read is the longest chain that ends in some bytes, and the longest one of a layer.
func (d *depths) read(lo, bytes int64, layer int) reach {
	r := reach{layer: layer}
	for s := range d.over(lo, lo+bytes) {
		r.add(s.v)
	}
	return r
}

// deepest is the longest chain that ends in some bytes.
func (d *depths) deepest(lo, bytes int64) (r reach) {
	for s := range d.over(lo, lo+bytes) {
		if s.v.depth > r.depth {
			r = s.v
		}
	}
	return r
}

// add takes in a chain that r goes on from.
func (r *reach) add(s reach) {
	r.depth = max(r.depth, s.depth)
	if s.layer == r.layer {
		r.own = max(r.own, s.own)
	}
}

func (d *depths) write(lo, bytes int64, r reach) { d.put(lo, lo+bytes, r) }

func (w *worker) launch(l *Launch, r *Recipe) {
	w.Launches++
	if w.joins[l.Recipe] == nil {
		w.joins[l.Recipe] = r.joinsReaders()
	}
	temp := make([]reach, len(r.Tensors)) // of workspace
	done := make([]reach, len(r.Nodes))
	at := func(t int) Binding {
		s := r.Tensors[t].Section
		return Binding{l.Bindings[s].Buffer, l.Bindings[s].Offset + r.Tensors[t].Offset}
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		d := reach{layer: layerIn(l, n)}
		for _, t := range n.In {
			switch {
			case t == Absent:
			case r.Tensors[t].Section == Workspace:
				d.add(temp[t])
			default:
				d.add(w.depth[at(t).Buffer].read(at(t).Offset, r.Tensors[t].Bytes(), d.layer))
			}
		}
		for _, j := range n.After {
			d.add(done[j])
		}
		w.Nodes++
		if n.Computes() {
			d.depth++
			d.own++
			w.compute(n, d, w.joins[l.Recipe][i])
		}
		done[i] = d
		for _, t := range n.Out {
			if r.Tensors[t].Section == Workspace {
				temp[t] = d
				continue
			}
			w.depth[at(t).Buffer].write(at(t).Offset, r.Tensors[t].Bytes(), d)
			w.masks.Forget(at(t)) // what was there is another mask
		}
	}
	w.masks.Launch(maskReads(l, r, at))
}

// compute counts a compute node with which a chain ends. One that joins is in the chain
// of what reads it.
func (w *worker) compute(n *Node, d reach, joins bool) {
	w.Compute++
	merged := 1
	if joins {
		merged = 0
	}
	w.Merged += merged
	w.Chain = max(w.Chain, d.depth)
	w.kinds.add(d, merged)
	if w.Sources == nil {
		w.Sources = map[string]int{}
	}
	w.Sources[sourceOf(n.Origin)]++
}

// maskReads are the masks that attention of a launch reads. In the workspace they are
// told apart by their number.
func maskReads(l *Launch, r *Recipe, at func(int) Binding) []MaskRead[Binding] {
	var reads []MaskRead[Binding]
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if !strings.HasPrefix(n.GUID, "sdpa_") || len(n.In) <= maskOperand || n.In[maskOperand] == Absent {
			continue
		}
		t := n.In[maskOperand]
		read := MaskRead[Binding]{Mask: Binding{Offset: int64(t)}, Bytes: r.Tensors[t].Bytes(), Layer: layerIn(l, n), Own: r.Tensors[t].Section == Workspace}
		if !read.Own {
			read.Mask = at(t)
		}
		reads = append(reads, read)
	}
	return reads
}

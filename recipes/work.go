package recipes

import (
	"cmp"
	"fmt"
	"regexp"
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
	w := worker{depth: map[Buffer]*depths{}}
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
			w.depth[Arena].write(c.Out, out, w.depth[Arena].read(c.In, bytes))
			continue
		}
		l := p.Steps[i].Launch
		w.count(BreakReason(l.Break))
		w.launch(l, b.Recipes[l.Recipe])
	}
	w.MaskBytes, w.MaskPeak = w.masks.Bytes()
	w.MaskLayers = w.masks.Layers()
	return w.Work
}

var ofSeveral = regexp.MustCompile(` \d+ of \d+`)

// BreakReason is what a graph break says, without which of several it is.
func BreakReason(text string) string { return ofSeveral.ReplaceAllString(text, "") }

type worker struct {
	Work
	depth map[Buffer]*depths
	masks MaskTally[Binding]
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

// depths says of the bytes of a buffer how long the chain is that ends in them.
type depths struct{ list []depthSpan } // sorted, without overlap

type depthSpan struct {
	lo, hi int64
	depth  int
}

// from is the number of the first span that ends behind an offset.
func (d *depths) from(lo int64) int {
	i, _ := slices.BinarySearchFunc(d.list, lo, func(s depthSpan, lo int64) int { return cmp.Compare(s.hi, lo+1) })
	return i
}

func (d *depths) read(lo, bytes int64) int {
	deepest := 0
	for _, s := range d.list[d.from(lo):] {
		if s.lo >= lo+bytes {
			break
		}
		deepest = max(deepest, s.depth)
	}
	return deepest
}

func (d *depths) write(lo, bytes int64, depth int) {
	hi, at := lo+bytes, d.from(lo)
	end := at
	now := []depthSpan{{lo, hi, depth}}
	for ; end < len(d.list) && d.list[end].lo < hi; end++ {
		if s := d.list[end]; s.lo < lo {
			now = slices.Insert(now, 0, depthSpan{s.lo, lo, s.depth})
		}
		if s := d.list[end]; s.hi > hi {
			now = append(now, depthSpan{hi, s.hi, s.depth})
		}
	}
	d.list = slices.Replace(d.list, at, end, now...)
}

func (w *worker) launch(l *Launch, r *Recipe) {
	w.Launches++
	depth := make([]int, len(r.Tensors)) // of workspace
	done := make([]int, len(r.Nodes))
	at := func(t int) Binding {
		s := r.Tensors[t].Section
		return Binding{l.Bindings[s].Buffer, l.Bindings[s].Offset + r.Tensors[t].Offset}
	}
	for i := range r.Nodes {
		n, d := &r.Nodes[i], 0
		for _, t := range n.In {
			switch {
			case t == Absent:
			case r.Tensors[t].Section == Workspace:
				d = max(d, depth[t])
			default:
				d = max(d, w.depth[at(t).Buffer].read(at(t).Offset, r.Tensors[t].Bytes()))
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
				continue
			}
			w.depth[at(t).Buffer].write(at(t).Offset, r.Tensors[t].Bytes(), d)
			w.masks.Forget(at(t)) // what was there is another mask
		}
	}
	w.masks.Launch(maskReads(l, r, at))
}

// maskReads are the masks that attention of a launch reads. In the workspace they are
// told apart by their number.
func maskReads(l *Launch, r *Recipe, at func(int) Binding) []MaskRead[Binding] {
	var reads []MaskRead[Binding]
	base := layerOf(l.Label)
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if !strings.HasPrefix(n.GUID, "sdpa_") || len(n.In) <= maskOperand || n.In[maskOperand] == Absent {
			continue
		}
		t := n.In[maskOperand]
		read := MaskRead[Binding]{Mask: Binding{Offset: int64(t)}, Bytes: r.Tensors[t].Bytes(), Layer: -1, Own: r.Tensors[t].Section == Workspace}
		if !read.Own {
			read.Mask = at(t)
		}
		if by := layerOf(n.Origin); base >= 0 && by >= 0 { // origins count from the launch's layer
			read.Layer = base + by
		}
		reads = append(reads, read)
	}
	return reads
}

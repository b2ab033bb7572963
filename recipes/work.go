package recipes

import (
	"cmp"
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

// Work adds up a plan. Values cross launches where their bytes are written.
func (b *Bundle) Work(p *Plan) Work {
	w := worker{depth: map[Buffer]*depths{}, masks: map[Binding]bool{}}
	for _, buffer := range Buffers() {
		w.depth[buffer] = &depths{}
	}
	for i := range p.Steps {
		if c := p.Steps[i].Collective; c != nil {
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
		w.launch(p.Steps[i].Launch, b.Recipes[p.Steps[i].Launch.Recipe])
	}
	return w.Work
}

type worker struct {
	Work
	depth map[Buffer]*depths
	masks map[Binding]bool // that are counted
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
			} else {
				w.depth[at(t).Buffer].write(at(t).Offset, r.Tensors[t].Bytes(), d)
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

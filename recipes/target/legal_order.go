package target

import (
	"cmp"
	"fmt"
	"slices"

	"quill/recipes"
)

// checkOrder checks that nodes which touch bytes of one section, of which one writes,
// are ordered: a path of data and After edges leads from the one that comes first to the
// other. Each access is compared with the last write of its bytes and, if it writes, with
// the reads since; what was before is ordered with these.
func checkOrder(p *Profile, r *recipes.Recipe, entries []*Node) error {
	o := &orderCheck{p: p, r: r, entries: entries}
	if err := o.graph(); err != nil {
		return err
	}
	o.cut()
	for n := range r.Nodes {
		if err := o.node(n); err != nil {
			return err
		}
	}
	return nil
}

type orderCheck struct {
	p       *Profile
	r       *recipes.Recipe
	entries []*Node

	producer []int // of each tensor, −1 for none
	root     []int // of each tensor: that whose bytes it may be another view of, or itself
	depth    []int // of each node: the longest path to it
	seen     []int // by node: the last search that met it
	search   int
	stack    []int

	sections []*cutSection // nil where nothing writes
}

// cutSection is a section that is written, cut where its tensors begin and end.
type cutSection struct {
	at    []int64 // in order
	parts []partState
}

// partState says who touched the bytes of one part.
type partState struct {
	writer  int // the last one, −1 for none
	readers []int
}

func (o *orderCheck) check(n int) *nodeCheck {
	return &nodeCheck{p: o.p, r: o.r, n: &o.r.Nodes[n], entry: o.entries[n]}
}

// graph finds who writes each tensor, which must be one node and before all readers, how
// deep nodes lie, and what tensors of the workspace may be views: who reads these reads
// the section.
func (o *orderCheck) graph() error {
	r := o.r
	o.producer = slices.Repeat([]int{-1}, len(r.Tensors))
	for n := range r.Nodes {
		for i, t := range r.Nodes[n].Out {
			if by := o.producer[t]; by >= 0 {
				c := o.check(n)
				return c.illegal("producer", c.outName(i), "a tensor that no other node writes", "one of "+nodeName(&r.Nodes[by]))
			}
			o.producer[t] = n
		}
	}
	o.root = make([]int, len(r.Tensors))
	for t := range o.root {
		o.root[t] = t
	}
	o.depth, o.seen = make([]int, len(r.Nodes)), make([]int, len(r.Nodes))
	for n := range r.Nodes {
		for i, t := range r.Nodes[n].In {
			if t == recipes.Absent || o.producer[t] < n {
				continue
			}
			c := o.check(n)
			return c.illegal("read-early", c.inName(i), "a tensor that an earlier node writes, or none", "one of "+nodeName(&r.Nodes[o.producer[t]]))
		}
		o.before(n, func(m int) bool {
			o.depth[n] = max(o.depth[n], o.depth[m]+1)
			return true
		})
		if e, node := o.entries[n].Engine, &r.Nodes[n]; (e == Alias || e == Move) && len(node.In) == 1 && r.Tensors[node.Out[0]].Section == recipes.Workspace {
			o.root[node.Out[0]] = o.root[node.In[0]]
		}
	}
	return nil
}

// before calls f for each node that a node waits for, until f is false; it reports
// whether f never was.
func (o *orderCheck) before(n int, f func(int) bool) bool {
	node := &o.r.Nodes[n]
	for _, t := range node.In {
		if t != recipes.Absent && o.producer[t] >= 0 && !f(o.producer[t]) {
			return false
		}
	}
	for _, m := range node.After {
		if !f(m) {
			return false
		}
	}
	return true
}

// path reports whether node b waits for node a, by others or itself.
func (o *orderCheck) path(a, b int) bool {
	direct := !o.before(b, func(m int) bool { return m != a })
	if direct {
		return true
	}
	o.search++
	found := false
	o.stack = append(o.stack[:0], b)
	for len(o.stack) > 0 && !found {
		n := o.stack[len(o.stack)-1]
		o.stack = o.stack[:len(o.stack)-1]
		o.before(n, func(m int) bool {
			found = m == a
			// Whoever waits for a lies deeper.
			if !found && o.seen[m] != o.search && o.depth[m] > o.depth[a] {
				o.seen[m] = o.search
				o.stack = append(o.stack, m)
			}
			return !found
		})
	}
	return found
}

// cut prepares the sections that nodes write.
func (o *orderCheck) cut() {
	o.sections = make([]*cutSection, len(o.r.Sections))
	for n := range o.r.Nodes {
		for _, t := range o.r.Nodes[n].Out {
			if s := o.r.Tensors[t].Section; s != recipes.Workspace && o.sections[s] == nil {
				o.sections[s] = &cutSection{}
			}
		}
	}
	for i := range o.r.Tensors {
		if t := &o.r.Tensors[i]; t.Section != recipes.Workspace && o.sections[t.Section] != nil {
			s := o.sections[t.Section]
			s.at = append(s.at, t.Offset, t.Offset+t.Bytes())
		}
	}
	for _, s := range o.sections {
		if s == nil {
			continue
		}
		slices.Sort(s.at)
		s.at = slices.Compact(s.at)
		s.parts = make([]partState, len(s.at))
		for i := range s.parts {
			s.parts[i].writer = -1
		}
	}
}

// touched are the parts of a section that a tensor covers, and where they begin; nil if
// nothing writes there.
func (o *orderCheck) touched(t *recipes.Tensor) (parts []partState, at []int64) {
	if t.Section == recipes.Workspace || o.sections[t.Section] == nil || t.Bytes() == 0 {
		return nil, nil
	}
	s := o.sections[t.Section]
	lo, _ := slices.BinarySearchFunc(s.at, t.Offset, cmp.Compare[int64])
	hi, _ := slices.BinarySearchFunc(s.at, t.Offset+t.Bytes(), cmp.Compare[int64])
	return s.parts[lo:hi], s.at[lo : hi+1]
}

// node checks the accesses of a node, reads first.
func (o *orderCheck) node(n int) error {
	node := &o.r.Nodes[n]
	for i, t := range node.In {
		if t == recipes.Absent {
			continue
		}
		parts, at := o.touched(&o.r.Tensors[o.root[t]])
		last := -1
		for k := range parts {
			p := &parts[k]
			if w := p.writer; w >= 0 && w != last {
				if !o.path(w, n) {
					return o.unordered(n, o.check(n).inName(i), o.root[t], at[k], "writes", w)
				}
				last = w
			}
			if m := len(p.readers); m == 0 || p.readers[m-1] != n {
				p.readers = append(p.readers, n)
			}
		}
	}
	for i := range node.Out {
		if err := o.write(n, i); err != nil {
			return err
		}
	}
	return nil
}

// write checks a result against its node's operands and against other nodes.
func (o *orderCheck) write(n, i int) error {
	node := &o.r.Nodes[n]
	parts, at := o.touched(&o.r.Tensors[node.Out[i]])
	lastWriter, lastReader := -1, -1
	for k := range parts {
		p := &parts[k]
		switch {
		case p.writer == n:
			c := o.check(n)
			return c.illegal("in-place", c.outName(i), "bytes that no other result has", fmt.Sprintf("byte %d of section %s twice", at[k], o.sectionName(node.Out[i])))
		case p.writer >= 0 && p.writer != lastWriter:
			if lastWriter = p.writer; !o.path(p.writer, n) {
				return o.unordered(n, o.check(n).outName(i), node.Out[i], at[k], "writes", p.writer)
			}
		}
		for _, m := range p.readers {
			switch {
			case m == n:
				if err := o.inPlace(n, i); err != nil {
					return err
				}
			case m != lastReader:
				if lastReader = m; !o.path(m, n) {
					return o.unordered(n, o.check(n).outName(i), node.Out[i], at[k], "reads", m)
				}
			}
		}
		p.writer, p.readers = n, p.readers[:0]
	}
	return nil
}

// inPlace checks a result that overlaps operands of its node: it must be the one that the
// node updates, and no other operand may be there.
func (o *orderCheck) inPlace(n, i int) error {
	c := o.check(n)
	y := c.out(i)
	for k := range c.n.In {
		x := c.in(k)
		if x == nil || x.Section != y.Section || x.Offset >= y.Offset+y.Bytes() || y.Offset >= x.Offset+x.Bytes() {
			continue
		}
		updates := c.entry.InPlace != "" && c.entry.In[operandEntry(c.entry.In, k, len(c.n.In))].Name == c.entry.InPlace
		if !updates {
			return c.illegal("in-place", c.outName(i), fmt.Sprintf("no bytes of %s, which the node does not update", c.inName(k)), o.placeText(y))
		}
		if x.Offset != y.Offset || x.DType != y.DType || !slices.Equal(x.Dims, y.Dims) {
			return c.illegal("in-place", c.outName(i), fmt.Sprintf("the place of %s: %s", c.inName(k), o.placeText(x)), o.placeText(y))
		}
	}
	return nil
}

func (o *orderCheck) placeText(t *recipes.Tensor) string {
	return fmt.Sprintf("%s %s at byte %d of section %s", t.DType, dimsText(t.Dims), t.Offset, o.r.Sections[t.Section].Name)
}

func (o *orderCheck) sectionName(t int) string { return o.r.Sections[o.r.Tensors[t].Section].Name }

// unordered reports that a node touches what another one does, without a path between.
func (o *orderCheck) unordered(n int, operand string, t int, at int64, does string, m int) error {
	other := nodeName(&o.r.Nodes[m])
	err := o.check(n).illegal("order", operand, fmt.Sprintf("a path from %s, which %s byte %d of section %s", other, does, at, o.sectionName(t)), "none").(*IllegalError)
	err.Help = fmt.Sprintf("list node %d in After of node %d", m, n)
	return err
}

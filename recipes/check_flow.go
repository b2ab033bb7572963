package recipes

import (
	"fmt"
	"slices"
	"strings"

	"quill/recipes/dtype"
)

// flow checks that what the launches of a set read is what was put there, of the same
// element type and dims:
//
//	arena    what the host, a launch before or a collective of the plan put there; bytes
//	         to which nothing was put are undefined
//	weights  slots of the weights map
//	states   and what plans leave for each other: one element type at each place,
//	         whatever the plan
//
// A recipe does not depend on who launches it, so what it reads and writes is found once.
type flow struct {
	check   *setCheck
	recipes map[Hash]*touched
	weights ranges[placed]
	states  map[Buffer]*ranges[placed]
}

// placed is a tensor in a buffer.
type placed struct {
	lo, hi int64 // of all of it
	dtype  dtype.Type
	dims   []int64 // fastest first, nil where they are not known
	what   func() string
}

// touched are the bytes of its sections that a recipe reads before it writes them, and
// those that it writes.
type touched struct{ reads, writes []touch }

type touch struct {
	section int
	lo, hi  int64 // from the section's start
	dtype   dtype.Type
	dims    [][]int64 // of all tensors that are there, since some are views
	tensor  string
}

func (c *setCheck) flow() error {
	f := flow{check: c, recipes: map[Hash]*touched{}, states: map[Buffer]*ranges[placed]{}}
	for _, b := range Buffers() {
		f.states[b] = &ranges[placed]{}
	}
	for i := range c.set.Weights {
		w := &c.set.Weights[i]
		dims := slices.Clone(w.Shape)
		slices.Reverse(dims)
		hi := w.Offset + w.Bytes()
		f.weights.put(w.Offset, hi, placed{w.Offset, hi, w.DType, dims, func() string { return "weight " + w.what() }})
	}
	for i := range c.set.Plans {
		p := &c.set.Plans[i]
		if err := f.plan(p); err != nil {
			return fmt.Errorf("plan %v: %w", p.Bucket, err)
		}
	}
	return nil
}

func (f *flow) plan(p *Plan) error {
	var arena ranges[placed]
	for i := range p.Inputs {
		io := &p.Inputs[i]
		hi := io.Offset + io.Bytes()
		arena.put(io.Offset, hi, placed{io.Offset, hi, io.DType, io.Dims, func() string { return "input " + io.Name }})
	}
	for i := range p.Steps {
		var err error
		if l := p.Steps[i].Launch; l != nil {
			err = f.launch(l, &arena)
		} else {
			err = f.collective(p.Steps[i].Collective, &arena)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	for i := range p.Outputs {
		io := &p.Outputs[i]
		t := touch{lo: io.Offset, hi: io.Offset + io.Bytes(), dtype: io.DType, dims: [][]int64{io.Dims}, tensor: io.Name}
		if err := t.found(&arena, 0, Arena); err != nil {
			return fmt.Errorf("output: %w", err)
		}
	}
	return nil
}

func (f *flow) launch(l *Launch, arena *ranges[placed]) error {
	r := f.check.bundle.Recipes[l.Recipe]
	t := f.recipes[l.Recipe]
	if t == nil {
		t = r.touched()
		f.recipes[l.Recipe] = t
	}
	fail := func(err error) error { return fmt.Errorf("launch %q of recipe %s: %w", l.Label, r.Name, err) }
	for i := range t.reads {
		a := &t.reads[i]
		b := l.Bindings[a.section]
		var err error
		switch b.Buffer {
		case Arena:
			err = a.found(arena, b.Offset, Arena)
		case Weights:
			err = a.found(&f.weights, b.Offset, Weights)
		default:
			err = f.state(a, b, l)
		}
		if err != nil {
			return fail(err)
		}
	}
	for i := range t.writes {
		a := &t.writes[i]
		b := l.Bindings[a.section]
		switch b.Buffer {
		case Arena:
			arena.put(b.Offset+a.lo, b.Offset+a.hi, a.placed(b.Offset, l.Label))
		case Weights:
			return fail(fmt.Errorf("tensor %s lies in weights, and is written", a.tensor))
		default:
			if err := f.state(a, b, l); err != nil {
				return fail(err)
			}
		}
	}
	return nil
}

func (t *touch) placed(base int64, by string) placed {
	p := placed{base + t.lo, base + t.hi, t.dtype, nil, func() string { return fmt.Sprintf("tensor %s of %q", t.tensor, by) }}
	if len(t.dims) == 1 {
		p.dims = t.dims[0]
	}
	return p
}

// state checks the element type at a place of a state, and remembers it.
func (f *flow) state(t *touch, b Binding, l *Launch) error {
	at := f.states[b.Buffer]
	lo, hi := b.Offset+t.lo, b.Offset+t.hi
	if err := t.sameType(at, lo, hi, b.Buffer); err != nil {
		return err
	}
	if _, gap := at.gap(lo, hi); gap {
		at.put(lo, hi, t.placed(b.Offset, l.Label))
	}
	return nil
}

func (t *touch) sameType(in *ranges[placed], lo, hi int64, buffer Buffer) error {
	for s := range in.over(lo, hi) {
		if s.v.dtype != t.dtype {
			return fmt.Errorf("tensor %s is %v; at byte %d of %s, in it, begins %s, which is %v", t.tensor, t.dtype, s.v.lo, buffer, s.v.what(), s.v.dtype)
		}
	}
	return nil
}

// found checks that what is read was put there.
func (t *touch) found(in *ranges[placed], base int64, buffer Buffer) error {
	lo, hi := base+t.lo, base+t.hi
	if err := t.sameType(in, lo, hi, buffer); err != nil {
		return err
	}
	if at, gap := in.gap(lo, hi); gap {
		return fmt.Errorf("tensor %s has bytes %d to %d of %s; nothing was put at byte %d", t.tensor, lo, hi, buffer, at)
	}
	for s := range in.over(lo, hi) {
		whole := s.lo == lo && s.hi == hi && s.v.lo == lo && s.v.hi == hi
		if !whole || s.v.dims == nil || len(t.dims) == 0 {
			continue
		}
		if !slices.ContainsFunc(t.dims, func(d []int64) bool { return slices.Equal(d, s.v.dims) }) {
			return fmt.Errorf("tensor %s has dims %s; %s, which is there, has %s", t.tensor, dimsText(t.dims...), s.v.what(), dimsText(s.v.dims))
		}
	}
	return nil
}

// dimsText is dims as errors show them: {16, 4}.
func dimsText(list ...[]int64) string {
	texts := make([]string, len(list))
	for i, d := range list {
		texts[i] = "{" + strings.Trim(shapeText(d), "[]") + "}"
	}
	return strings.Join(texts, " or ")
}

// touched finds what a recipe reads and writes of its sections. Reads are in the order
// of the nodes, and so are writes, of which a later one may lie on an earlier one.
func (r *Recipe) touched() *touched {
	out := &touched{}
	written := make([]ranges[bool], len(r.Sections))
	views := map[place][][]int64{}
	for i := range r.Tensors {
		if t := &r.Tensors[i]; t.Section != Workspace {
			at := place{t.Section, t.Offset, t.Offset + t.Bytes()}
			views[at] = append(views[at], t.Dims)
		}
	}
	seen := map[place]bool{}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		for _, in := range n.In {
			if in != Absent {
				r.read(&r.Tensors[in], written, views, seen, out)
			}
		}
		for _, o := range n.Out {
			t := &r.Tensors[o]
			if t.Section == Workspace {
				continue
			}
			at := place{t.Section, t.Offset, t.Offset + t.Bytes()}
			written[t.Section].put(at.lo, at.hi, true)
			out.writes = append(out.writes, touch{at.section, at.lo, at.hi, t.DType, views[at], t.Name})
		}
	}
	return out
}

// place is a range of bytes of a section.
type place struct {
	section int
	lo, hi  int64
}

// read adds what a node reads that no node of the recipe has written.
func (r *Recipe) read(t *Tensor, written []ranges[bool], views map[place][][]int64, seen map[place]bool, out *touched) {
	if t.Section == Workspace {
		return
	}
	whole := place{t.Section, t.Offset, t.Offset + t.Bytes()}
	if seen[whole] {
		return
	}
	seen[whole] = true
	rest := whole.lo
	add := func(lo, hi int64) {
		if lo < hi {
			a := touch{t.Section, lo, hi, t.DType, nil, t.Name}
			if lo == whole.lo && hi == whole.hi {
				a.dims = views[whole]
			}
			out.reads = append(out.reads, a)
		}
	}
	for s := range written[t.Section].over(whole.lo, whole.hi) {
		add(rest, s.lo)
		rest = max(rest, s.hi)
	}
	add(rest, whole.hi)
}

func (f *flow) collective(c *Collective, arena *ranges[placed]) error {
	in := c.Count * int64(c.DType.Size())
	t := touch{lo: c.In, hi: c.In + in, dtype: c.DType, tensor: "in"}
	if err := t.found(arena, 0, Arena); err != nil {
		return fmt.Errorf("%s %q: %w", c.Kind, c.Label, err)
	}
	out := in
	if c.Kind == AllGather {
		out *= int64(f.check.bundle.Manifest.Deployment.TensorParallel)
	}
	if c.Kind == AllGather || c.Out != c.In { // a sum in place stays what it was
		arena.put(c.Out, c.Out+out, placed{c.Out, c.Out + out, c.DType, nil, func() string { return string(c.Kind) + " " + c.Label }})
	}
	return nil
}

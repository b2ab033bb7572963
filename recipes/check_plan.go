package recipes

import (
	"errors"
	"fmt"
	"slices"
)

func (b Bucket) check() error {
	ok := b.Seqs >= 0 && b.Seqs <= maxTokens && b.Query >= 0 && b.Query <= maxTokens && b.Blocks >= 0 && b.Blocks <= maxRefs
	switch b.Phase {
	case Prefill:
		ok = ok && b.Query > 0
	case Decode:
		ok = ok && b.Seqs > 0 && b.Blocks > 0
	case Logits:
		ok = ok && b.Seqs > 0
	default:
		ok = false
	}
	if !ok {
		return fmt.Errorf("bucket %+v cannot be", b)
	}
	return nil
}

func (c *setCheck) plan(p *Plan) error {
	if err := p.Bucket.check(); err != nil {
		return err
	}
	if m := &c.bundle.Manifest; !m.Costs.Hold(p.Bucket, m.Deployment.BlockSize) {
		return errors.New("its cost is more than 62 bits count")
	}
	if arena := c.set.Info.Bytes[Arena]; p.ArenaBytes < 0 || p.ArenaBytes > arena {
		return fmt.Errorf("needs %d bytes of an arena of %d", p.ArenaBytes, arena)
	}
	if p.LayerBytes < 0 || p.LayerBytes > p.ArenaBytes {
		return fmt.Errorf("has %d bytes for values of several layers in its arena of %d", p.LayerBytes, p.ArenaBytes)
	}
	if n := c.set.Info.WorkspaceBytes; p.WorkspaceBytes < 0 || p.WorkspaceBytes > n {
		return fmt.Errorf("needs %d bytes of a workspace of %d", p.WorkspaceBytes, n)
	}
	if err := checkIO(p); err != nil {
		return err
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		var err error
		switch {
		case (s.Launch == nil) == (s.Collective == nil):
			err = errors.New("want either a launch or a collective")
		case s.Launch != nil:
			err = c.launch(s.Launch)
		default:
			err = s.Collective.check(p.ArenaBytes, c.bundle.Manifest.Deployment.TensorParallel)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

// checkIO checks that inputs and outputs lie in the plan's part of the arena
// and that no two inputs share bytes.
func checkIO(p *Plan) error {
	var in []span
	names := make(map[string]bool)
	for i, io := range slices.Concat(p.Inputs, p.Outputs) {
		if io.DType.Size() == 0 {
			return fmt.Errorf("%q has no element type", io.Name)
		}
		if _, ok := elems(io.Dims); !ok {
			return fmt.Errorf("%q has dims %v", io.Name, io.Dims)
		}
		if !within(io.Offset, io.Bytes(), p.ArenaBytes) {
			return fmt.Errorf("%q has %d bytes at byte %d of the plan's arena of %d", io.Name, io.Bytes(), io.Offset, p.ArenaBytes)
		}
		if i >= len(p.Inputs) {
			continue
		}
		if names[io.Name] {
			return fmt.Errorf("input %q is there twice", io.Name)
		}
		names[io.Name] = true
		in = append(in, span{io.Offset, io.Offset + io.Bytes(), i})
	}
	if a, b, ok := overlap(in); ok {
		return fmt.Errorf("inputs %q and %q share bytes", p.Inputs[a].Name, p.Inputs[b].Name)
	}
	return nil
}

func (c *setCheck) launch(l *Launch) error {
	r := c.bundle.Recipes[l.Recipe]
	if r == nil {
		return fmt.Errorf("launch %q: the bundle has no recipe %v", l.Label, l.Recipe)
	}
	if len(l.Bindings) != len(r.Sections) {
		return fmt.Errorf("launch %q: %d bindings for the %d sections of recipe %s", l.Label, len(l.Bindings), len(r.Sections), r.Name)
	}
	for i, b := range l.Bindings {
		s := &r.Sections[i]
		size, ok := c.set.Info.Bytes[b.Buffer]
		switch {
		case b.Buffer != s.Buffer:
			return fmt.Errorf("launch %q: section %s of recipe %s lies in %s, the binding says %s", l.Label, s.Name, r.Name, s.Buffer, b.Buffer)
		case !ok:
			return fmt.Errorf("launch %q: section %s of recipe %s lies in %q, which has no size in the manifest", l.Label, s.Name, r.Name, b.Buffer)
		case !within(b.Offset, s.Size, size):
			return fmt.Errorf("launch %q: section %s of recipe %s has %d bytes at byte %d of %s with %d", l.Label, s.Name, r.Name, s.Size, b.Offset, b.Buffer, size)
		}
	}
	return nil
}

// check checks a collective's ranges. Out is either In (in place) or apart from
// it: between the two the result would depend on the order of the copies.
func (c *Collective) check(arena int64, ranks int) error {
	size := int64(c.DType.Size())
	if size == 0 || c.Count < 0 || c.Count > maxBytes/size {
		return fmt.Errorf("%s %q moves %d elements of %v", c.Kind, c.Label, c.Count, c.DType)
	}
	in := c.Count * size
	out, inPlace := in, c.In == c.Out
	switch c.Kind {
	case AllReduce:
	case AllGather:
		out, inPlace = in*int64(ranks), ranks == 1 && inPlace
	default:
		return fmt.Errorf("unknown collective %q", c.Kind)
	}
	if !within(c.In, in, arena) || !within(c.Out, out, arena) {
		return fmt.Errorf("%s %q moves %d bytes at %d to %d bytes at %d of the plan's arena of %d", c.Kind, c.Label, in, c.In, out, c.Out, arena)
	}
	if !inPlace && in > 0 && c.In < c.Out+out && c.Out < c.In+in {
		return fmt.Errorf("%s %q: its input at %d and its output at %d overlap", c.Kind, c.Label, c.In, c.Out)
	}
	return nil
}

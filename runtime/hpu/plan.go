//go:build linux

package hpu

import (
	"errors"
	"fmt"

	"quill/recipes"
	"quill/recipes/dtype"
)

// markEvery is how many steps of a run lie between two marks of its card.
const markEvery = 8

// bound is a plan that is ready to run.
type bound struct {
	number int
	steps  []step
	stage  []move
	fetch  []move
}

// step is a launch or a collective.
type step struct {
	program *program
	bases   []uint64

	kind      recipes.CollectiveKind
	dtype     dtype.Type
	count     uint64
	send, out uint64
}

// move is a copy between shared memory and the card.
type move struct {
	host []byte
	addr uint64
}

// bind resolves the addresses of a plan.
func (c *card) bind(number int, p *recipes.Plan, all map[recipes.Hash]*recipes.Recipe) (*bound, error) {
	b := &bound{number: number, steps: make([]step, len(p.Steps))}
	for i := range p.Steps {
		var err error
		if l := p.Steps[i].Launch; l != nil {
			b.steps[i], err = c.bindLaunch(l, all[l.Recipe])
		} else {
			b.steps[i], err = c.bindCollective(p.Steps[i].Collective)
		}
		if err != nil {
			return nil, fmt.Errorf("step %d (%s): %w", i, p.Steps[i].What(), err)
		}
	}
	for len(c.marks) < len(p.Steps)/markEvery {
		c.where.allocations.Add(1)
		e, err := c.dev.NewEvent()
		if err != nil {
			return nil, err
		}
		c.undo = append(c.undo, e.Destroy)
		c.marks = append(c.marks, e)
	}
	return b, nil
}

func (c *card) bindLaunch(l *recipes.Launch, r *recipes.Recipe) (step, error) {
	s := step{program: c.programs[l.Recipe], bases: make([]uint64, len(l.Bindings))}
	if len(l.Bindings) != len(r.Sections) {
		return s, fmt.Errorf("recipe %s: %d bindings, want one for each of %d sections", r.Name, len(l.Bindings), len(r.Sections))
	}
	for i, at := range l.Bindings {
		want := &r.Sections[i]
		if at.Buffer != want.Buffer {
			return s, fmt.Errorf("recipe %s: section %s is bound to %s, want %s", r.Name, want.Name, at.Buffer, want.Buffer)
		}
		addr, err := c.at(at.Buffer, at.Offset, want.Size)
		if err != nil {
			return s, fmt.Errorf("recipe %s: section %s: %w", r.Name, want.Name, err)
		}
		s.bases[i] = addr
	}
	return s, nil
}

func (c *card) bindCollective(k *recipes.Collective) (step, error) {
	s := step{kind: k.Kind, dtype: k.DType, count: uint64(k.Count)}
	bytes := k.Count * int64(k.DType.Size())
	out := bytes
	switch k.Kind {
	case recipes.AllReduce:
	case recipes.AllGather:
		out *= int64(c.ranks)
	default:
		return s, errors.New("unknown kind of collective")
	}
	var err, err2 error
	s.send, err = c.at(recipes.Arena, k.In, bytes)
	s.out, err2 = c.at(recipes.Arena, k.Out, out)
	return s, errors.Join(err, err2)
}

// run executes a plan and waits for it.
func (c *card) run(b *bound) error {
	where := c.where
	where.runs.Add(1)
	where.plan.Store(int64(b.number))
	where.step.Store(0)
	c.recorded.Store(0)
	for i := range b.stage {
		if err := c.stream.CopyToDevice(b.stage[i].addr, b.stage[i].host); err != nil {
			return err
		}
	}
	for i := range b.steps {
		if err := c.step(&b.steps[i]); err != nil {
			return err
		}
		where.step.Store(int64(i + 1))
		if m := (i + 1) / markEvery; (i+1)%markEvery == 0 {
			if err := c.stream.Record(c.marks[m-1]); err != nil {
				return err
			}
			c.recorded.Store(int64(m))
		}
	}
	for i := range b.fetch {
		if err := c.stream.CopyToHost(b.fetch[i].host, b.fetch[i].addr); err != nil {
			return err
		}
	}
	where.waits.Store(1)
	err := c.stream.Synchronize()
	where.waits.Store(0)
	if err != nil && c.comm != nil {
		err = errors.Join(err, c.comm.AsyncError())
	}
	return err
}

func (c *card) step(s *step) error {
	bytes := s.count * uint64(s.dtype.Size())
	switch {
	case s.program != nil:
		return c.launch(s.program, s.bases)
	case c.comm == nil && s.send != s.out:
		return c.stream.CopyOnDevice(s.out, s.send, bytes)
	case c.comm == nil:
		return nil
	case s.kind == recipes.AllReduce:
		return c.comm.AllReduce(c.stream, s.send, s.out, s.count, s.dtype)
	default:
		return c.comm.AllGather(c.stream, s.send, s.out, s.count, s.dtype)
	}
}

// done is how many steps of the present run the card is known to have done. It may be
// called while run waits.
func (c *card) done() int {
	for m := int(c.recorded.Load()); m > 0; m-- {
		if ok, err := c.marks[m-1].Query(); ok && err == nil {
			return m * markEvery
		}
	}
	return 0
}

package runtime

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"quill/recipes"
	"quill/recipes/dtype"
)

// plan is one bucket's plan, bound and ready to run.
type plan struct {
	bucket recipes.Bucket
	steps  []step
	in     inputSet   // views of staging memory
	upload []transfer // the staging memory, a copy each
	output int64      // arena offset of the logits
	used   atomic.Int64

	launches, collectives int64
}

// step is a launch or a collective.
type step struct {
	launch     Launch
	collective *recipes.Collective
	what       string // for errors
}

// transfer is host memory that mirrors a range of the arena.
type transfer struct {
	offset int64
	data   []byte
}

// joinGap is how many bytes may lie between two inputs that one transfer
// carries: the arena's content is undefined before a plan, so overwriting what
// lies between is harmless, and a copy costs more than some bytes.
const joinGap = 256

// stage finds every input of a plan a place in staging memory.
func (p *plan) stage(src *recipes.Plan, l *layout) error {
	order := slices.Clone(src.Inputs)
	slices.SortFunc(order, func(a, b recipes.IO) int { return int(min(max(a.Offset-b.Offset, -1), 1)) })
	for i := 0; i < len(order); {
		start, end := order[i].Offset, order[i].Offset
		first := i
		for ; i < len(order) && (i == first || order[i].Offset-end <= joinGap); i++ {
			end = max(end, order[i].Offset+order[i].Bytes())
		}
		t := transfer{start, make([]byte, end-start)}
		for j := first; j < i; j++ {
			io := &order[j]
			if err := p.input(io, t.data[io.Offset-start:], l); err != nil {
				return err
			}
		}
		p.upload = append(p.upload, t)
	}
	return nil
}

// input checks one input and takes its memory from the front of mem.
func (p *plan) input(io *recipes.IO, mem []byte, l *layout) error {
	id, size, ok := inputOf(io.Name, p.bucket, l)
	switch {
	case !ok:
		return fmt.Errorf("this runtime knows no input %q for such a bucket: compiler and runtime are of different versions", io.Name)
	case io.DType != dtype.I32 || io.Elems() != int64(size):
		return fmt.Errorf("input %q is %v %v, this runtime makes %d i32: compiler and runtime are of different versions", io.Name, io.DType, io.Dims, size)
	}
	p.in[id] = ints(mem[:io.Bytes():io.Bytes()])
	return nil
}

// outputs checks what the runtime reads: the logits of a logits plan.
func (p *plan) outputs(src *recipes.Plan, vocab int) error {
	if p.bucket.Phase != recipes.Logits {
		return nil
	}
	want := []int64{int64(vocab), int64(p.bucket.Seqs)}
	for i := range src.Outputs {
		io := &src.Outputs[i]
		if io.Name != "logits" {
			continue
		}
		if io.DType != dtype.F32 || !slices.Equal(io.Dims, want) {
			return fmt.Errorf("output logits is %v %v, want f32 %v", io.DType, io.Dims, want)
		}
		p.output = io.Offset
		return nil
	}
	return fmt.Errorf("no output logits")
}

// binder loads each recipe once and binds the launches of plans.
type binder struct {
	dev      Device
	bundle   *recipes.Bundle
	layout   *layout
	programs map[recipes.Hash]Program
	watch    func(Watched) Launch // may be nil
}

// bind makes a plan ready to run.
func (b *binder) bind(src *recipes.Plan) (*plan, error) {
	p := &plan{bucket: src.Bucket}
	if err := p.stage(src, b.layout); err != nil {
		return nil, fmt.Errorf("plan %v: %w", src.Bucket, err)
	}
	if err := p.outputs(src, b.bundle.Manifest.Model.ValidVocab); err != nil {
		return nil, fmt.Errorf("plan %v: %w", src.Bucket, err)
	}
	for i := range src.Steps {
		st, err := b.step(&src.Steps[i])
		if err != nil {
			return nil, fmt.Errorf("plan %v: step %d: %w", src.Bucket, i, err)
		}
		if st.launch != nil {
			p.launches++
		} else {
			p.collectives++
		}
		if b.watch != nil {
			st.launch = b.watch(watched(b.dev, src, i, st))
		}
		p.steps = append(p.steps, st)
	}
	return p, nil
}

func (b *binder) step(src *recipes.Step) (step, error) {
	if c := src.Collective; c != nil {
		return step{collective: c, what: fmt.Sprintf("%s %q", c.Kind, c.Label)}, nil
	}
	l := src.Launch
	prog, err := b.program(l.Recipe)
	if err != nil {
		return step{}, fmt.Errorf("launch %q: load: %w", l.Label, err)
	}
	launch, err := prog.Bind(l.Bindings)
	if err != nil {
		return step{}, fmt.Errorf("launch %q: bind: %w", l.Label, err)
	}
	return step{launch: launch, what: fmt.Sprintf("launch %q", l.Label)}, nil
}

func (b *binder) program(h recipes.Hash) (Program, error) {
	if p := b.programs[h]; p != nil {
		return p, nil
	}
	p, err := b.dev.Load(b.bundle.Recipes[h])
	if err != nil {
		return nil, err
	}
	b.programs[h] = p
	return p, nil
}

// run writes the staged inputs to every rank and executes the steps.
func (p *plan) run(ctx context.Context, dev Device) error {
	for rank := range dev.Ranks() {
		for i := range p.upload {
			t := &p.upload[i]
			if err := dev.Write(rank, recipes.Arena, t.offset, t.data); err != nil {
				return fmt.Errorf("plan %v: inputs: %w", p.bucket, err)
			}
		}
	}
	for i := range p.steps {
		s := &p.steps[i]
		var err error
		if s.launch != nil {
			err = s.launch.Run(ctx)
		} else {
			err = dev.Collective(ctx, s.collective)
		}
		if err != nil {
			return fmt.Errorf("plan %v: step %d of %d (%s): %w", p.bucket, i, len(p.steps), s.what, err)
		}
	}
	p.used.Add(1)
	return nil
}

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
	replay Replay
	in     inputSet // views of memory that the replay stages
	logits []byte   // after a logits plan has run
	used   atomic.Int64

	launches, collectives int64
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
		mem, err := p.replay.Stage(start, end-start)
		if err != nil {
			return fmt.Errorf("inputs: %w", err)
		}
		for j := first; j < i; j++ {
			io := &order[j]
			if err := p.input(io, mem[io.Offset-start:], l); err != nil {
				return err
			}
		}
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
		var err error
		if p.logits, err = p.replay.Fetch(io.Offset, io.Bytes()); err != nil {
			return fmt.Errorf("output logits: %w", err)
		}
		return nil
	}
	return fmt.Errorf("no output logits")
}

// bindPlan makes a plan ready to run.
func bindPlan(dev Device, b *recipes.Bundle, src *recipes.Plan, l *layout) (*plan, error) {
	p := &plan{bucket: src.Bucket}
	for i := range src.Steps {
		if src.Steps[i].Launch != nil {
			p.launches++
		} else {
			p.collectives++
		}
	}
	var err error
	if p.replay, err = dev.Bind(src, func(h recipes.Hash) *recipes.Recipe { return b.Recipes[h] }); err != nil {
		return nil, err
	}
	if err := p.stage(src, l); err != nil {
		return nil, err
	}
	return p, p.outputs(src, b.Manifest.Model.ValidVocab)
}

// run executes the plan, whose inputs are filled.
func (p *plan) run(ctx context.Context) error {
	if err := p.replay.Run(ctx); err != nil {
		return fmt.Errorf("plan %v: %w", p.bucket, err)
	}
	p.used.Add(1)
	return nil
}

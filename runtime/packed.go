package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"quill/recipes"
	"quill/recipes/safetensors"
)

// NoWeights as Options.Weights leaves packed weights alone.
const NoWeights = "none"

// PackedPath is where the packed weights of a bundle's set are looked for and
// made if nothing else is said: beside the bundle, chat.bf16.weights for
// chat.quill.
func PackedPath(bundle, precision string) string {
	return strings.TrimSuffix(bundle, ".quill") + "." + precision + ".weights"
}

// opener finds the weights of a set.
type opener struct {
	bundle string // path
	b      *recipes.Bundle
	set    *recipes.Set
	opt    *Options
	notes  []string
	packed *recipes.Packed // nil if there are none that can be used
}

// open finds the weights and maps them. Nothing is read yet but headers.
func (o *opener) open() (_ *weights, err error) {
	w := &weights{set: o.set, tp: o.b.Manifest.Deployment.TensorParallel}
	defer func() {
		if o.packed != nil {
			err = errors.Join(err, o.packed.File.Close()) // a mapping outlives its file
		}
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if err := o.findPacked(); err != nil {
		return nil, err
	}
	if o.needCheckpoint() {
		if err := o.openCheckpoint(w); err != nil {
			return nil, err
		}
	}
	return w, o.arrange(w)
}

// findPacked looks for packed weights that were made for the bundle.
func (o *opener) findPacked() error {
	if o.opt.Weights == NoWeights {
		return nil
	}
	p, err := recipes.OpenPacked(o.packedPath())
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.opt.Weights == "":
		return nil
	case err != nil:
		return o.refuse(err)
	}
	o.packed = p
	if err := p.Header.CheckFor(o.b, o.set); err != nil {
		return o.refuse(fmt.Errorf("packed weights %s: %w", p.File.Name(), err))
	}
	return nil
}

func (o *opener) packedPath() string {
	if o.opt.Weights != "" {
		return o.opt.Weights
	}
	return PackedPath(o.bundle, o.set.Info.Precision)
}

// refuse leaves packed weights alone that cannot be used. That is an error only
// if the caller wanted these.
func (o *opener) refuse(cause error) error {
	again := fmt.Sprintf("quill pack %s --model %s --precision %s", o.bundle, o.opt.Model, o.set.Info.Precision)
	var closing error
	if o.packed != nil {
		if o.packed.Header.All {
			again += " --all"
		}
		closing = o.packed.File.Close()
		o.packed = nil
	}
	switch {
	case errors.Is(cause, fs.ErrNotExist):
		return fmt.Errorf("%w: make them with %s -o %s", cause, again, o.packedPath())
	case o.opt.Weights != "":
		return errors.Join(fmt.Errorf("%w: name others, make them with %s, or do without (%s)", cause, again, NoWeights), closing)
	}
	o.notes = append(o.notes, fmt.Sprintf("%v: they are not used; pack them again with %s", cause, again))
	return closing
}

// needCheckpoint is false only if all weights are packed and the checkpoint is
// not there: if it is, it must be the one that they were packed from.
func (o *opener) needCheckpoint() bool {
	return o.packed == nil || !o.packed.Header.All || !o.packed.Header.Checkpoint.Absent(o.opt.Model)
}

func (o *opener) openCheckpoint(w *weights) error {
	ckpt, notes, err := openCheckpoint(o.b, o.opt.Model)
	if err != nil {
		if len(o.notes) > 0 { // with these weights it may not have been needed
			err = fmt.Errorf("%w\n%s", err, strings.Join(o.notes, "\n"))
		}
		return err
	}
	w.ckpt = ckpt
	o.notes = append(o.notes, notes...)
	if o.packed == nil {
		return nil
	}
	if err := o.packed.Header.CheckFrom(o.set, ckpt); err != nil {
		return o.refuse(fmt.Errorf("packed weights %s: %w", o.packed.File.Name(), err))
	}
	return nil
}

// openCheckpoint opens a checkpoint and checks that it is one that the bundle
// was compiled for.
func openCheckpoint(b *recipes.Bundle, dir string) (*safetensors.Checkpoint, []string, error) {
	ckpt, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, nil, err
	}
	notes, err := recipes.CheckCheckpoint(b.Checkpoint, ckpt)
	if err != nil {
		return nil, nil, errors.Join(err, ckpt.Close())
	}
	return ckpt, notes, nil
}

// arrange decides where every slot lies and maps it there.
func (o *opener) arrange(w *weights) (err error) {
	if o.packed != nil {
		w.packing, w.start = o.packed.Header.Packing(), o.packed.Start
	} else {
		w.packing = recipes.NewPacking(o.set.Weights, w.tp, func(s *recipes.Weight) bool { return !recipes.IsDirect(s, w.ckpt, w.tp) })
	}
	w.measure(o.packed != nil)
	if o.opt.Admit != nil {
		if err := o.opt.Admit(w.memory); err != nil {
			return fmt.Errorf("allocate %d ranks: %w", w.tp, err)
		}
	}
	if o.packed != nil {
		w.image, err = mapPages(o.packed.File, w.start+w.packing.Bytes)
	} else {
		w.image, err = newPages(w.packing.Bytes)
	}
	if err != nil {
		return err
	}
	if err := w.lay(); err != nil {
		return err
	}
	w.divide(expertSlots(o.b, o.set))
	w.ahead = w.memory.exceeds(o.available())
	return nil
}

func (o *opener) available() int64 { return AvailableMemory() }

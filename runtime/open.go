package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"quill/recipes"
)

// Options say how to open a bundle.
type Options struct {
	// Model is the directory of the checkpoint: config.json and safetensors.
	Model string
	// Precision is the set to serve; "" is the bundle's first.
	Precision string
	// PrefillChunk is the largest number of tokens of a prefill step; 0 is the
	// deployment's max_batched_tokens, which also bounds it.
	PrefillChunk int
	// Weights is the file of packed weights to use on the CPU device, an error if
	// it does not fit bundle and checkpoint. "" is the file at PackedPath if it is
	// there and fits, NoWeights is none.
	Weights string
	// Check, if it is not nil, is given the bundle, which is of the model, before any weight
	// is loaded or memory taken. Its error ends Open.
	Check func(*recipes.Bundle) error
	// Admit, if it is not nil, is told what memory the CPU device will take
	// before any is taken. Its error ends Open.
	Admit func(Memory) error
	// Progress is called now and then while weights load, with bytes over all
	// ranks. Calls do not overlap and done never shrinks.
	Progress func(done, total int64)
	// Threads is the number of threads of the CPU device; 0 is one a processor.
	// More than one a rank are rounded down to a multiple of the ranks. No result
	// depends on it.
	Threads int
	// Unfused makes the CPU device execute every node on its own. Results are the
	// same, as docs/nodes.md says.
	Unfused bool
	// Watch, if it is not nil, is told of every step of every plan as the CPU device
	// binds it and returns what is to be executed instead, for debugging. It is not
	// called while steps execute.
	Watch func(Watched) Launch
	// NewDevice makes the device for a set of the bundle; nil is the CPU device.
	// All weights are copied to it, unless it is SelfLoading.
	NewDevice func(b *recipes.Bundle, set *recipes.Set) (Device, error)
}

// Open reads a bundle, checks that the checkpoint is one that it was compiled
// for, allocates all device memory, binds every launch and loads the weights.
// The caller must Close the session; until then the files of the checkpoint and
// of packed weights must not be changed, though they may be replaced.
func Open(ctx context.Context, bundle string, opt Options) (*Session, error) {
	b, err := recipes.ReadBundle(bundle)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	s, err := openBundle(ctx, bundle, b, opt)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", bundle, err)
	}
	return s, nil
}

func openBundle(ctx context.Context, path string, b *recipes.Bundle, opt Options) (*Session, error) {
	set, err := chooseSet(b, opt.Precision)
	if err != nil {
		return nil, err
	}
	if opt.PrefillChunk < 0 {
		return nil, fmt.Errorf("prefill chunk is %d, want 0 or more", opt.PrefillChunk)
	}
	if err := b.CheckModel(opt.Model); err != nil {
		return nil, err
	}
	if opt.Check != nil {
		if err := opt.Check(b); err != nil {
			return nil, err
		}
	}
	if opt.NewDevice != nil {
		return openDevice(ctx, b, set, opt)
	}
	return openHost(ctx, path, b, set, opt)
}

// openHost opens a session on the CPU device, with weights where they lie.
func openHost(ctx context.Context, path string, b *recipes.Bundle, set *recipes.Set, opt Options) (*Session, error) {
	o := opener{bundle: path, b: b, set: set, opt: &opt}
	w, err := o.open()
	if err != nil {
		return nil, err
	}
	dev, err := newHostDevice(w, &opt)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("allocate %d ranks: %w", w.tp, err), w.Close())
	}
	s := newSession(b, set, dev, opt)
	s.notes = o.notes
	// Weights come last: they take longest, and what else can be wrong is then
	// known.
	if err = s.bind(ctx, b, set); err == nil {
		err = w.load(ctx, o.available(), opt.Progress)
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return s.seal(), nil
}

// openDevice opens a session on a device with memory of its own.
func openDevice(ctx context.Context, b *recipes.Bundle, set *recipes.Set, opt Options) (_ *Session, err error) {
	ckpt, notes, err := openCheckpoint(b, opt.Model)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ckpt.Close()) }()
	dev, err := newDevice(b, set, opt)
	if err != nil {
		return nil, err
	}
	s := newSession(b, set, dev, opt)
	s.notes = notes
	if err = s.bind(ctx, b, set); err == nil {
		if self, ok := dev.(SelfLoading); ok {
			err = self.LoadWeights(ctx, opt.Progress)
		} else {
			err = fillRanks(ctx, ckpt, set, dev.Ranks(), 0, dev.Ranks(), func(rank int, offset int64, data []byte) error {
				return dev.Write(rank, recipes.Weights, offset, data)
			}, opt.Progress)
		}
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return s.seal(), nil
}

func chooseSet(b *recipes.Bundle, precision string) (*recipes.Set, error) {
	names := make([]string, len(b.Sets))
	for i := range b.Sets {
		names[i] = b.Sets[i].Info.Precision
		if precision == "" || names[i] == precision {
			return &b.Sets[i], nil
		}
	}
	return nil, fmt.Errorf("no precision %q in the bundle, it has %s: choose one of them, or compile it with %q",
		precision, strings.Join(names, ", "), precision)
}

func newDevice(b *recipes.Bundle, set *recipes.Set, opt Options) (Device, error) {
	dev, err := opt.NewDevice(b, set)
	if err != nil {
		return nil, err // which says what was wanted of the device
	}
	if ranks := b.Manifest.Deployment.TensorParallel; dev.Ranks() != ranks {
		return nil, errors.Join(fmt.Errorf("the device has %d ranks, the bundle was compiled for %d", dev.Ranks(), ranks), dev.Close())
	}
	return dev, nil
}

func newSession(b *recipes.Bundle, set *recipes.Set, dev Device, opt Options) *Session {
	d := &b.Manifest.Deployment
	s := &Session{
		dev:      dev,
		manifest: b.Manifest,
		info:     &set.Info,
		selector: b.Manifest.Selector(set.Info.Plans),
		layout:   layout{block: d.BlockSize, window: b.Manifest.Model.Window, zero: int32(d.ZeroBlock()), trash: int32(d.TrashBlock())},
		chunk:    d.MaxBatchedTokens,
		pool:     newPool(d.KVBlocks),
	}
	if opt.PrefillChunk > 0 {
		s.chunk = min(s.chunk, opt.PrefillChunk)
	}
	for _, p := range set.Info.Plans {
		if p.Phase == recipes.Logits {
			s.rows = max(s.rows, p.Seqs)
		}
	}
	s.row = make([]float32, s.vocab())
	return s
}

// bind binds each plan of the set once.
func (s *Session) bind(ctx context.Context, b *recipes.Bundle, set *recipes.Set) error {
	if s.rows == 0 {
		return fmt.Errorf("set %s has no logits bucket: compile the deployment again", set.Info.Precision)
	}
	for i := range set.Plans {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("bind plans: %w", err)
		}
		p, err := bindPlan(s.dev, b, &set.Plans[i], &s.layout)
		if err != nil {
			return fmt.Errorf("set %s: plan %v: %w", set.Info.Precision, set.Plans[i].Bucket, err)
		}
		s.plans = append(s.plans, p)
	}
	return nil
}

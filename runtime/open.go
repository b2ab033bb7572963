package runtime

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"quill/recipes"
	"quill/recipes/safetensors"
	"quill/runtime/host"
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
	// Progress is called now and then while weights load, with bytes over all
	// ranks. Calls do not overlap and done never shrinks.
	Progress func(done, total int64)
	// Threads is the number of threads of the CPU device; 0 is one a processor.
	// Unfused makes it execute every node on its own. Neither changes a result.
	Threads int
	Unfused bool
	// NewDevice makes the device; nil is NewHostDevice. Buffers begin zeroed.
	NewDevice func(ranks int, bytes map[recipes.Buffer]int64) (Device, error)
}

// Open reads a bundle, checks that the checkpoint is one that it was compiled
// for, allocates all device memory, binds every launch and loads the weights.
// The caller must Close the session.
func Open(ctx context.Context, bundle string, opt Options) (*Session, error) {
	b, err := recipes.ReadBundle(bundle)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	s, err := openBundle(ctx, b, opt)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", bundle, err)
	}
	return s, nil
}

func openBundle(ctx context.Context, b *recipes.Bundle, opt Options) (_ *Session, err error) {
	set, err := chooseSet(b, opt.Precision)
	if err != nil {
		return nil, err
	}
	if opt.PrefillChunk < 0 {
		return nil, fmt.Errorf("prefill chunk is %d, want 0 or more", opt.PrefillChunk)
	}
	if err := checkModel(b, opt.Model); err != nil {
		return nil, err
	}
	ckpt, err := safetensors.OpenDir(opt.Model)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ckpt.Close()) }()
	notes, err := recipes.CheckCheckpoint(b.Checkpoint, ckpt)
	if err != nil {
		return nil, err
	}
	dev, err := newDevice(b, set, opt)
	if err != nil {
		return nil, err
	}
	s := newSession(b, set, dev, opt)
	s.notes = notes
	if err := s.load(ctx, b, set, ckpt, opt.Progress); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return s, nil
}

// load does everything that needs the device. Weights come last: they take
// longest, and what else can be wrong is then known.
func (s *Session) load(ctx context.Context, b *recipes.Bundle, set *recipes.Set, ckpt *safetensors.Checkpoint, progress func(done, total int64)) error {
	if err := s.bind(ctx, b, set); err != nil {
		return err
	}
	return loadWeights(ctx, s.dev, set.Weights, ckpt, progress)
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

// checkModel compares the architecture of the model directory with the one
// that the bundle was compiled for.
func checkModel(b *recipes.Bundle, dir string) error {
	if dir == "" {
		return errors.New("no model directory: set Options.Model to the checkpoint's")
	}
	config, err := recipes.ReadSmall(filepath.Join(dir, "config.json"), recipes.MaxConfig)
	if err != nil {
		return fmt.Errorf("model directory: %w", err)
	}
	have, err := recipes.Fingerprint(config)
	if err != nil {
		return fmt.Errorf("model directory %s: %w", dir, err)
	}
	if want := b.Manifest.Model.Fingerprint; have != want {
		return fmt.Errorf("the config.json of %s has fingerprint %s, the bundle was compiled for %s: name the model that it was compiled for, or compile a bundle for this one",
			dir, have, want)
	}
	return nil
}

func newDevice(b *recipes.Bundle, set *recipes.Set, opt Options) (Device, error) {
	open, ranks := opt.NewDevice, b.Manifest.Deployment.TensorParallel
	if open == nil {
		open = func(ranks int, bytes map[recipes.Buffer]int64) (Device, error) {
			return NewHostDevice(host.Options{Ranks: ranks, Bytes: bytes, Threads: opt.Threads, Unfused: opt.Unfused})
		}
	}
	dev, err := open(ranks, set.Info.Bytes)
	if err != nil {
		return nil, fmt.Errorf("allocate %d ranks: %w", ranks, err)
	}
	if dev.Ranks() != ranks {
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
		layout:   layout{block: d.BlockSize, zero: int32(d.ZeroBlock()), trash: int32(d.TrashBlock())},
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
	s.raw = make([]byte, s.rows*s.rowBytes())
	s.row = make([]float32, s.vocab())
	return s
}

// bind loads each recipe of the set once and binds each launch once.
func (s *Session) bind(ctx context.Context, b *recipes.Bundle, set *recipes.Set) error {
	if s.rows == 0 {
		return fmt.Errorf("set %s has no logits bucket: compile the deployment again", set.Info.Precision)
	}
	binder := binder{dev: s.dev, bundle: b, programs: make(map[recipes.Hash]Program)}
	for i := range set.Plans {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("bind plans: %w", err)
		}
		p, err := binder.bind(&set.Plans[i])
		if err != nil {
			return fmt.Errorf("set %s: %w", set.Info.Precision, err)
		}
		s.plans = append(s.plans, p)
	}
	return nil
}

package runtime

import (
	"context"
	"errors"
	"fmt"

	"quill/recipes"
)

// PackOptions say how to pack weights.
type PackOptions struct {
	// Model is the directory of the checkpoint: config.json and safetensors.
	Model string
	// Precision is the set whose weights are packed; "" is the bundle's first.
	Precision string
	// Output is the file to write; "" is PackedPath, where Open looks.
	Output string
	// All packs every slot. Otherwise those are left out that the checkpoint has
	// as they are.
	All bool
	// Quill is the version of the program, to be recorded.
	Quill string
	// Progress is called now and then with bytes of the file. Calls do not
	// overlap.
	Progress func(done, total int64)
}

// PackedWeights is what a file of packed weights holds.
type PackedWeights struct {
	Path   string
	Header recipes.PackHeader
	// Left are weights that are not in the file, in bytes: the checkpoint has them
	// as they are. Only Pack knows.
	Left int64
}

// Pack writes the weights of one set of a bundle, as its ranks want them, into
// a file that Open maps instead of making them again each time. The file
// appears whole or not at all: on an error, or when ctx ends, whatever was there
// before is still there.
func Pack(ctx context.Context, bundle string, opt PackOptions) (*PackedWeights, error) {
	b, err := recipes.ReadBundle(bundle)
	if err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	p, err := pack(ctx, bundle, b, opt)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", bundle, err)
	}
	return p, nil
}

func pack(ctx context.Context, bundle string, b *recipes.Bundle, opt PackOptions) (_ *PackedWeights, err error) {
	set, err := chooseSet(b, opt.Precision)
	if err != nil {
		return nil, err
	}
	if err := b.CheckModel(opt.Model); err != nil {
		return nil, err
	}
	ckpt, _, err := openCheckpoint(b, opt.Model)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ckpt.Close()) }()
	p := &PackedWeights{Path: opt.Output}
	if p.Path == "" {
		p.Path = PackedPath(bundle, set.Info.Precision)
	}
	h, err := recipes.NewPackHeader(opt.Quill, b, set, ckpt, opt.All)
	if err != nil {
		return nil, err
	}
	m := meter{report: opt.Progress, total: h.Bytes}
	err = recipes.WritePacked(ctx, p.Path, recipes.PackJob{
		Header: h, Weights: set.Weights, Checkpoint: ckpt,
		Wrote: m.add,
		Drop:  func(data []byte) { advise(data, drop) },
	})
	p.Header = *h
	packing := h.Packing()
	for _, s := range recipes.SlotsByOffset(set.Weights) {
		if !packing.Holds(s) {
			p.Left += s.Bytes() * int64(s.Copies(h.TensorParallel))
		}
	}
	return p, err
}

// VerifyPacked reads all of a file of packed weights and checks that it is what
// was written. It needs neither bundle nor checkpoint.
func VerifyPacked(ctx context.Context, path string, progress func(done, total int64)) (*PackedWeights, error) {
	p, err := recipes.OpenPacked(path)
	if err != nil {
		return nil, err
	}
	m := meter{report: progress, total: p.Header.Bytes}
	err = p.Verify(ctx, m.add)
	return &PackedWeights{Path: path, Header: p.Header}, errors.Join(err, p.File.Close())
}

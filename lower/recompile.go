package lower

import (
	"context"
	"fmt"

	"quill/ir/inkling"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/dtype"
)

// Recompile compiles one set of a bundle again: its buckets, for the architecture that
// the bundle holds, with the passes and what they were told as the bundle says;
// opt.Passes may choose others. The bundle that it returns has that one set.
func Recompile(ctx context.Context, of *recipes.Bundle, set *recipes.Set, opt Options) (*recipes.Bundle, error) {
	var params passes.Params
	for _, text := range of.Manifest.Compiled.Params {
		if err := params.Set(text); err != nil {
			return nil, fmt.Errorf("what the bundle says of its passes: %w", err)
		}
	}
	if opt.Passes == nil {
		p, err := passes.Parse(of.Manifest.Compiled.Passes)
		if err == nil {
			err = p.CheckComplete(passes.Passes())
		}
		if err != nil {
			return nil, fmt.Errorf("the passes %q that the bundle was compiled with: %w: compile the deployment again, or name the passes", of.Manifest.Compiled.Passes, err)
		}
		opt.Passes = func(params passes.Params) *passes.Manager {
			return passes.NewManager(passes.Config{Pipeline: p, Params: params})
		}
	}
	d, cfg, err := deploymentOf(of, set)
	if err != nil {
		return nil, err
	}
	b := &recipes.Bundle{Manifest: of.Manifest, Architecture: of.Architecture, Checkpoint: checkpoint(cfg), Recipes: map[recipes.Hash]*recipes.Recipe{}}
	b.Manifest.Sets = nil
	c := compiler{
		cfg: cfg, dep: d, buckets: set.Info.Plans, bundle: b, passes: opt.Passes(params), progress: opt.Progress, planned: opt.Planned,
		step: Step{Total: len(set.Info.Plans)},
	}
	if err := c.set(ctx, set.Info.Precision); err != nil {
		return nil, fmt.Errorf("compiling %s again: %w", set.Info.Precision, err)
	}
	return b, nil
}

// deploymentOf is the deployment that a set was compiled for, and the model.
func deploymentOf(b *recipes.Bundle, set *recipes.Set) (*Deployment, *inkling.Config, error) {
	cfg, err := inkling.ParseConfig(b.Architecture)
	if err != nil {
		return nil, nil, fmt.Errorf("the architecture that the bundle holds: %w", err)
	}
	if _, ok := dtype.Parse(set.Info.Precision); !ok {
		return nil, nil, fmt.Errorf("precision %q of the bundle is none that the compiler knows: compile the deployment again", set.Info.Precision)
	}
	m := &b.Manifest.Deployment
	d := &Deployment{
		Target: b.Manifest.Target, TensorParallel: m.TensorParallel, MaxModelLen: m.MaxModelLen, MaxNumSeqs: m.MaxNumSeqs,
		BlockSize: m.BlockSize, KVBlocks: m.KVBlocks, MaxBatchedTokens: m.MaxBatchedTokens, Precision: set.Info.Precision, Embedding: m.Embedding,
	}
	if err := cfg.Check(d.options(set.Info.Precision)); err != nil {
		return nil, nil, fmt.Errorf("the architecture that the bundle holds: %w", err)
	}
	return d, cfg, nil
}

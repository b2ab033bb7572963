// Package lower compiles a deployment: it captures each phase family, runs the
// passes once with symbolic sizes, specialises the result for every bucket and
// turns segments into recipes and plans.
//
//	Deployment + Config ─→ families ─passes─→ segments ─per bucket─→ recipes, plans ─→ Bundle
package lower

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"quill/ir"
	"quill/ir/inkling"
	"quill/lower/synapse"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/target"
)

// Version is the compiler's version, written into bundles.
const Version = "0.1.0"

// Progress is told what is being compiled: buckets done of all, and the name
// of the current one.
type Progress func(done, total int, what string)

// Compile compiles a deployment into a bundle. notes are remarks for the user.
func Compile(ctx context.Context, d *Deployment, progress Progress) (b *recipes.Bundle, notes []string, err error) {
	return CompileWith(ctx, d, Options{Progress: progress, Passes: defaultManager})
}

func defaultManager(params passes.Params) *passes.Manager {
	return passes.NewManager(passes.Config{Pipeline: passes.Default(), Params: params})
}

// Options changes how a deployment is compiled.
type Options struct {
	Progress Progress
	// Passes makes what runs the passes, given the deployment's parameters. Its
	// pipeline must be complete. Modules are labelled by precision and family, in
	// the bucket stage by bucket too.
	Passes func(passes.Params) *passes.Manager
	// Planned, if it is not nil, is told of every plan, in the order of buckets,
	// once all of a precision are made.
	Planned func(precision string, p *Planned)
}

// Planned is a plan and what it was made of.
type Planned struct {
	Plan   *recipes.Plan
	Module *ir.Module // outlined, of concrete sizes
	// Segments are those of the plan's launches, in their order; launches of one
	// recipe share one.
	Segments []*synapse.Segment
}

// CompileWith is Compile with options.
func CompileWith(ctx context.Context, d *Deployment, opt Options) (b *recipes.Bundle, notes []string, err error) {
	src, cfg, err := d.config()
	if err != nil {
		return nil, nil, err
	}
	buckets, err := d.covering(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d.path, err)
	}
	params := d.params()
	manager := opt.Passes(params)
	arch, err := recipes.Architecture(src)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d.configPath(), err)
	}
	fp, err := recipes.Fingerprint(arch)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d.configPath(), err)
	}
	compiled, err := compiledBy(manager.Pipeline(), params)
	if err != nil {
		return nil, nil, err
	}
	b = &recipes.Bundle{
		Manifest: recipes.Manifest{
			Format: recipes.FormatVersion, Quill: Version, Target: d.Target, Deployment: d.manifest(), Costs: d.costs(cfg),
			Model: modelOf(cfg, fp), Compiled: compiled,
		},
		Architecture: arch,
		Checkpoint:   checkpoint(cfg),
		Recipes:      map[recipes.Hash]*recipes.Recipe{},
	}
	c := compiler{
		cfg: cfg, dep: d, buckets: buckets, bundle: b, passes: manager, progress: opt.Progress, planned: opt.Planned,
		total: len(buckets) * len(d.Precisions()),
	}
	for _, p := range d.Precisions() {
		if err := c.set(ctx, p); err != nil {
			return nil, nil, fmt.Errorf("%s: %s: %w", d.path, p, err)
		}
	}
	if err := c.fit(ctx); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d.path, err)
	}
	return b, cfg.Notes, nil
}

// window is how many tokens local layers see, 0 when there are none.
func window(c *inkling.Config) int {
	if slices.Contains(c.IsLocal, true) {
		return c.Window
	}
	return 0
}

// layerKinds says what each layer has.
func layerKinds(c *inkling.Config) []recipes.LayerKind {
	kinds := make([]recipes.LayerKind, c.Layers)
	for l := range kinds {
		switch local, dense := c.IsLocal[l], c.IsDense(l); {
		case local && dense:
			kinds[l] = recipes.LocalDense
		case local:
			kinds[l] = recipes.LocalMoE
		case dense:
			kinds[l] = recipes.GlobalDense
		default:
			kinds[l] = recipes.GlobalMoE
		}
	}
	return kinds
}

func (d *Deployment) configPath() string { return filepath.Join(d.ModelDir(), "config.json") }

// config reads the model's configuration and checks that the deployment fits.
func (d *Deployment) config() (src []byte, cfg *inkling.Config, err error) {
	src, err = recipes.ReadSmall(d.configPath(), recipes.MaxConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d.path, d.at("model", "%v", err))
	}
	cfg, err = inkling.ParseConfig(src)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d.configPath(), err)
	}
	if err := d.checkModel(cfg); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", d.path, err)
	}
	return src, cfg, nil
}

// Checkpoint lists the tensors that the model's checkpoint must hold, and those
// of parts that are not served.
func Checkpoint(d *Deployment) ([]recipes.CheckpointTensor, error) {
	_, cfg, err := d.config()
	if err != nil {
		return nil, err
	}
	return checkpoint(cfg), nil
}

func checkpoint(cfg *inkling.Config) []recipes.CheckpointTensor {
	ts := cfg.Tensors()
	out := make([]recipes.CheckpointTensor, len(ts))
	for i, t := range ts {
		out[i] = recipes.CheckpointTensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Part: t.Part}
	}
	return out
}

type compiler struct {
	cfg      *inkling.Config
	dep      *Deployment
	buckets  []recipes.Bucket
	bundle   *recipes.Bundle
	passes   *passes.Manager
	progress Progress
	planned  func(string, *Planned) // may be nil
	done     int
	total    int

	workspaces map[recipes.Hash]int64
}

// Families captures every family that the buckets need and runs the family stage
// of the default pipeline on it.
func Families(ctx context.Context, cfg *inkling.Config, o inkling.Options, buckets []recipes.Bucket) (map[inkling.Family]*ir.Module, error) {
	params := passes.Params{
		BlockSize: o.BlockSize, Blocks: o.Blocks, MaxModelLen: o.MaxModelLen, MaxNumSeqs: o.MaxNumSeqs, MaxBatchedTokens: o.MaxBatchedTokens,
	}
	c := compiler{cfg: cfg, buckets: buckets, passes: passes.NewManager(passes.Config{Pipeline: passes.Default(), Params: params})}
	return c.families(ctx, o, "")
}

// families makes the outlined modules of all families.
func (c *compiler) families(ctx context.Context, o inkling.Options, label string) (map[inkling.Family]*ir.Module, error) {
	mods := map[inkling.Family]*ir.Module{}
	for _, b := range c.buckets {
		fam := family(c.cfg, o, b)
		if mods[fam] != nil {
			continue
		}
		m, err := inkling.Capture(c.cfg, o, fam)
		if err != nil {
			return nil, err
		}
		if err := ir.Verify(m); err != nil {
			return nil, fmt.Errorf("captured %s: %w", fam, err)
		}
		if err := c.passes.RunStage(ctx, passes.Family, path.Join(label, string(fam)), m); err != nil {
			return nil, err
		}
		mods[fam] = m
	}
	return mods, nil
}

// plan specialises a family for a bucket, runs the bucket stage and plans it.
func (c *compiler) plan(ctx context.Context, m *ir.Module, label string, b recipes.Bucket, lay *layout) (*planner, error) {
	conc, err := ir.Specialise(m, sizes(b))
	if err != nil {
		return nil, err
	}
	if err := c.passes.RunStage(ctx, passes.Bucket, path.Join(label, path.Base(b.String())), conc); err != nil {
		return nil, err
	}
	return newPlan(conc, b, lay)
}

// family is the phase family that a bucket belongs to.
func family(cfg *inkling.Config, o inkling.Options, b recipes.Bucket) inkling.Family {
	switch b.Phase {
	case recipes.Prefill:
		return cfg.PrefillFamily(b.Blocks, o.BlockSize)
	case recipes.Decode:
		return cfg.DecodeFamily(b.Seqs, b.Blocks, o.BlockSize)
	}
	return inkling.Logits
}

// sizes are the values of a family's symbols in a bucket.
func sizes(b recipes.Bucket) map[string]int64 {
	switch b.Phase {
	case recipes.Prefill:
		if b.Blocks == 0 {
			return map[string]int64{"q": int64(b.Query)}
		}
		return map[string]int64{"q": int64(b.Query), "c": int64(b.Blocks)}
	case recipes.Decode:
		return map[string]int64{"s": int64(b.Seqs), "n": int64(b.Blocks)}
	}
	return map[string]int64{"r": int64(b.Seqs)}
}

// set compiles one precision.
func (c *compiler) set(ctx context.Context, precision string) error {
	o := c.dep.options(precision)
	mods, err := c.families(ctx, o, precision)
	if err != nil {
		return err
	}
	set := recipes.Set{Info: recipes.SetInfo{Precision: precision, Plans: c.buckets}}
	tgt, err := target.Load(target.Default)
	if err != nil {
		return err
	}
	lay := newLayout()
	var order []*ir.Module
	for _, fam := range c.cfg.Families(o) {
		if mods[fam] != nil {
			order = append(order, mods[fam])
		}
	}
	if err := lay.reserve(order); err != nil {
		return err
	}
	plans := make([]*planner, len(c.buckets))
	var arena, workspace, carry int64
	for i, b := range c.buckets {
		if err := ctx.Err(); err != nil {
			return err
		}
		fam := family(c.cfg, o, b)
		if plans[i], err = c.plan(ctx, mods[fam], path.Join(precision, string(fam)), b, lay); err != nil {
			return fmt.Errorf("bucket %s: %w", b, err)
		}
		plans[i].plan.Family = string(fam)
		if err := c.emit(plans[i], tgt); err != nil {
			return fmt.Errorf("bucket %s: %w", b, err)
		}
		arena, workspace = max(arena, plans[i].plan.ArenaBytes), max(workspace, plans[i].plan.WorkspaceBytes)
		carry = max(carry, plans[i].carryBytes)
		c.done++
		if c.progress != nil {
			c.progress(c.done, c.total, precision+" "+b.String())
		}
	}
	set.Info.Bytes = lay.finish()
	set.Info.Bytes[recipes.Arena], set.Info.Bytes[recipes.Carry], set.Info.WorkspaceBytes = arena, carry, workspace
	for _, p := range plans {
		set.Plans = append(set.Plans, p.finish())
		if err := tgt.CheckPlan(&p.plan, func(h recipes.Hash) *recipes.Recipe { return c.bundle.Recipes[h] }); err != nil {
			return fmt.Errorf("bucket %s: %w", p.plan.Bucket, err)
		}
	}
	if c.planned != nil {
		for i, p := range plans {
			c.planned(precision, &Planned{&set.Plans[i], p.module, p.segments})
		}
	}
	set.Weights = lay.weightsMap()
	c.bundle.Sets = append(c.bundle.Sets, set)
	c.bundle.Manifest.Sets = append(c.bundle.Manifest.Sets, set.Info)
	return nil
}

// emit stores a plan's recipes under their hashes. Each must be one that the target takes.
func (c *compiler) emit(p *planner, tgt *target.Profile) error {
	hashes := map[*recipes.Recipe]recipes.Hash{}
	for i, r := range p.recipes {
		h, ok := hashes[r]
		if !ok {
			h = r.Hash()
			hashes[r] = h
			if c.bundle.Recipes[h] == nil {
				if err := tgt.CheckRecipe(r); err != nil {
					return err
				}
				c.bundle.Recipes[h] = r
			}
		}
		p.plan.Steps[p.launches[i]].Launch.Recipe = h
		p.plan.WorkspaceBytes = max(p.plan.WorkspaceBytes, c.workspace(h, r))
	}
	return nil
}

// workspace is the size of a recipe's workspace, placed once.
func (c *compiler) workspace(h recipes.Hash, r *recipes.Recipe) int64 {
	n, ok := c.workspaces[h]
	if !ok {
		if c.workspaces == nil {
			c.workspaces = map[recipes.Hash]int64{}
		}
		n = r.PlaceWorkspace().Bytes
		c.workspaces[h] = n
	}
	return n
}

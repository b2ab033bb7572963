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
	"time"

	"quill/ir"
	"quill/ir/inkling"
	"quill/lower/synapse"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/store"
)

// Version is the compiler's version, written into bundles.
const Version = "0.1.0"

// Progress is told of every bucket that is done. Calls do not overlap.
type Progress func(Step)

// Step is how far compiling is.
type Step struct {
	Done, Total int           // buckets
	Kept        int           // of Done, what the store had
	Running     int           // buckets that are being compiled
	What        string        // the bucket that was done last, after its precision
	Took        time.Duration // by that one
	Slowest     string        // of all so far
	SlowestTook time.Duration
}

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
	// once all of a precision are made. All then are made anew.
	Planned func(precision string, p *Planned)
	// Jobs is how many buckets are compiled at once, 1 if it is 0. A manager that tells
	// what passes do, or limits them, is used for one at a time.
	Jobs int
	// Memory is how many bytes of memory compiling may hold at once, 0 if any number:
	// near it fewer buckets than Jobs are compiled at once. What cannot be held within
	// is a MemoryError. The process's memory counts, whoever uses it.
	Memory int64
	// KeepGoing goes on after a bucket that cannot be compiled, so that the error has all
	// of them. Otherwise those that are begun are finished, and the error is that of the
	// first.
	KeepGoing bool
	// Store keeps results for the next time; nil keeps nothing. Build then says which
	// compiler this is: what another one made is not taken. It is not used where a
	// manager tells what passes do, or limits them.
	Store *store.Store
	Build string
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
		jobs: opt.Jobs, memory: opt.Memory, keepGoing: opt.KeepGoing, store: opt.Store, build: opt.Build, step: Step{Total: len(buckets) * len(d.Precisions())},
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
	src, err = recipes.ReadConfig(d.ModelDir())
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
	cfg       *inkling.Config
	dep       *Deployment
	buckets   []recipes.Bucket
	bundle    *recipes.Bundle
	passes    *passes.Manager
	progress  Progress
	planned   func(string, *Planned) // may be nil
	jobs      int                    // buckets that are compiled at once, 1 if it is 0
	memory    int64                  // see Options
	keepGoing bool
	store     *store.Store // may be nil
	build     string       // see Options
	step      Step
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

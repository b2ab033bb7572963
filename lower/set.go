package lower

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"quill/ir"
	"quill/ir/inkling"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/store"
	"quill/recipes/target"
)

// setCompiler compiles one precision. Its buckets have the modules of families and the
// layout of weights and states in common, and nothing else: several are compiled at once,
// and what the store has of them is not compiled at all.
type setCompiler struct {
	*compiler
	precision string
	options   inkling.Options
	target    *target.Profile
	key       store.Key // of what all buckets have in common

	found  sync.Once
	ground ground
	fault  error // of the ground

	budget *budget

	mu         sync.Mutex
	workspaces map[recipes.Hash]int64 // of recipes that the target takes
	made       []*madePlan            // by bucket
}

// ground is what buckets stand on.
type ground struct {
	modules map[inkling.Family]*ir.Module // outlined
	layout  *layout                       // final
	frame   frame
}

// frame is the part of a set that no bucket changes.
type frame struct {
	Bytes   map[recipes.Buffer]int64 `json:"bytes"` // of weights and states
	Weights []recipes.Weight         `json:"weights"`
}

// madePlan is a bucket's plan.
type madePlan struct {
	plan    *recipes.Plan
	recipes map[recipes.Hash]*recipes.Recipe
	from    *planner // what it was made of, kept where somebody is told of it
}

// set compiles one precision.
func (c *compiler) set(ctx context.Context, precision string) error {
	tgt, err := target.Load(target.Default)
	if err != nil {
		return err
	}
	s := &setCompiler{
		compiler: c, precision: precision, options: c.dep.options(precision), target: tgt,
		budget:     newBudget(c.memory),
		workspaces: map[recipes.Hash]int64{}, made: make([]*madePlan, len(c.buckets)),
	}
	if _, plain := c.passes.Worker(); !plain || c.planned != nil {
		c.store = nil // passes are to be run, or are limited in what they do
	}
	if s.key, err = s.ingredients().key(); err != nil {
		return err
	}
	f, err := s.frame(ctx)
	if err != nil {
		return err
	}
	if err := s.all(ctx); err != nil {
		return err
	}
	set := recipes.Set{Info: recipes.SetInfo{Precision: precision, Plans: c.buckets, Bytes: maps.Clone(f.Bytes)}, Weights: f.Weights}
	for _, m := range s.made {
		p := m.plan
		set.Plans = append(set.Plans, *p)
		set.Info.Bytes[recipes.Arena] = max(set.Info.Bytes[recipes.Arena], p.ArenaBytes)
		set.Info.Bytes[recipes.Carry] = max(set.Info.Bytes[recipes.Carry], p.CarryBytes)
		set.Info.WorkspaceBytes = max(set.Info.WorkspaceBytes, p.WorkspaceBytes)
	}
	if c.planned != nil {
		for i, m := range s.made {
			c.planned(precision, &Planned{&set.Plans[i], m.from.module, m.from.segments})
		}
	}
	c.bundle.Sets = append(c.bundle.Sets, set)
	c.bundle.Manifest.Sets = append(c.bundle.Manifest.Sets, set.Info)
	return nil
}

// ingredients are what every result of a set depends on: the compiler and what it is told.
// A test changes each part of each field and looks at the key.
type ingredients struct {
	Compiler     string // version
	Build        string // see Options
	Encoding     int
	Target       *target.Profile
	Architecture []byte
	Deployment   recipes.Deployment
	Passes       passes.Pipeline
	Params       passes.Params
	Precision    string
	Families     []inkling.Family // the layout of weights depends on which there are
}

func (s *setCompiler) ingredients() *ingredients {
	return &ingredients{
		"quill " + Version, s.build, recipes.EncodingVersion, s.target, s.bundle.Architecture, s.dep.manifest(),
		s.passes.Pipeline(), s.dep.params(), s.precision, s.present(),
	}
}

// key is what results are kept by, but for what they are.
func (in *ingredients) key() (store.Key, error) {
	profile, err := in.Target.Format()
	if err != nil {
		return nil, err
	}
	deployment, err := json.Marshal(in.Deployment)
	if err != nil {
		return nil, err
	}
	var families []string
	for _, f := range in.Families {
		families = append(families, string(f))
	}
	return store.Key{
		{Name: "compiler", Text: in.Compiler},
		{Name: "build", Text: in.Build},
		{Name: "encoding", Text: fmt.Sprint(in.Encoding)},
		{Name: "target", Text: in.Target.Name + " " + recipes.Sum(profile).String()},
		{Name: "architecture", Text: string(in.Architecture)},
		{Name: "deployment", Text: string(deployment)},
		{Name: "passes", Text: in.Passes.String()},
		{Name: "params", Text: strings.Join(in.Params.Texts(), " ")},
		{Name: "precision", Text: in.Precision},
		{Name: "families", Text: strings.Join(families, " ")},
	}, nil
}

// present are the families of the buckets, in the order of capture.
func (s *setCompiler) present() []inkling.Family {
	have := map[inkling.Family]bool{}
	for _, b := range s.buckets {
		have[family(s.cfg, s.options, b)] = true
	}
	return slices.DeleteFunc(slices.Clone(s.cfg.Families(s.options)), func(f inkling.Family) bool { return !have[f] })
}

// stand makes the ground, when the first bucket needs it.
func (s *setCompiler) stand(ctx context.Context) (*ground, error) {
	s.found.Do(func() { s.fault = s.makeGround(ctx) })
	return &s.ground, s.fault
}

func (s *setCompiler) makeGround(ctx context.Context) (err error) {
	g := &s.ground
	if g.modules, err = s.families(ctx, s.options, s.precision); err != nil {
		return err
	}
	g.layout = newLayout()
	var order []*ir.Module
	for _, f := range s.present() {
		order = append(order, g.modules[f])
	}
	if err := g.layout.reserve(order); err != nil {
		return err
	}
	g.frame.Bytes = g.layout.finish()
	g.frame.Weights = g.layout.weightsMap()
	return nil
}

// frame is what the store has of the set, or what its ground gives.
func (s *setCompiler) frame(ctx context.Context) (*frame, error) {
	var f frame
	key := append(slices.Clone(s.key), store.Field{Name: "what", Text: "frame"})
	r, err := s.store.Do(ctx, key, func(ctx context.Context) (*store.Result, error) {
		g, err := s.stand(ctx)
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal(g.frame)
		return &store.Result{Data: data}, err
	})
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(r.Data, &f); err != nil {
		return nil, fmt.Errorf("the store's weights map: %w", err)
	}
	return &f, nil
}

// all compiles the buckets, several at once. The first error is that of the first bucket
// that has one, whatever ended first: those before it were begun before it.
func (s *setCompiler) all(ctx context.Context) error {
	var next atomic.Int64
	var failed atomic.Bool
	errs := make([]error, len(s.buckets))
	work := func(m *passes.Manager) {
		for ctx.Err() == nil && (s.keepGoing || !failed.Load()) {
			i := int(next.Add(1)) - 1
			if i >= len(s.buckets) {
				return
			}
			err := s.within(func() error { return s.one(ctx, m, i) })
			if err != nil {
				errs[i] = fmt.Errorf("bucket %s: %w", s.buckets[i], err)
				failed.Store(true)
			}
			if memory := (*MemoryError)(nil); errors.As(err, &memory) {
				return // the next one would fare no better
			}
		}
	}
	var group sync.WaitGroup
	for range min(s.jobs, len(s.buckets)) - 1 {
		m, ok := s.passes.Worker()
		if !ok {
			break
		}
		group.Go(func() { work(m) })
		defer s.passes.Join(m)
	}
	work(s.passes)
	group.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.keepGoing {
		return errors.Join(errs...)
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// within runs the work on one bucket when there is memory for it.
func (s *setCompiler) within(work func() error) error {
	from, err := s.budget.begin()
	if err != nil {
		return err
	}
	err = work()
	return errors.Join(err, s.budget.end(from))
}

// one compiles a bucket, if the store does not have it.
func (s *setCompiler) one(ctx context.Context, m *passes.Manager, i int) error {
	b, start := s.buckets[i], time.Now()
	s.mu.Lock()
	s.step.Running++
	s.mu.Unlock()
	var fresh *madePlan
	key := append(slices.Clone(s.key), store.Field{Name: "what", Text: "bucket " + b.String()})
	r, err := s.store.Do(ctx, key, func(ctx context.Context) (*store.Result, error) {
		var err error
		if fresh, err = s.make(ctx, m, b); err != nil {
			return nil, err
		}
		return fresh.result(), nil
	})
	made := fresh
	if err == nil && fresh == nil {
		made, err = takePlan(r)
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for h, r := range made.recipes {
		s.bundle.Recipes[h] = r
	}
	made.recipes = nil
	s.made[i] = made
	s.tell(s.precision+" "+b.String(), time.Since(start), fresh == nil)
	return nil
}

// tell tells of a bucket that is done.
func (s *setCompiler) tell(what string, took time.Duration, kept bool) {
	p := &s.step
	p.Done, p.Running, p.What, p.Took = p.Done+1, p.Running-1, what, took
	if kept {
		p.Kept++
	}
	if took > p.SlowestTook {
		p.Slowest, p.SlowestTook = what, took
	}
	if s.progress != nil {
		s.progress(*p)
	}
}

// result is a plan as the store keeps it.
func (m *madePlan) result() *store.Result {
	r := &store.Result{Data: m.plan.Encode(), Blobs: map[recipes.Hash][]byte{}}
	for h, x := range m.recipes {
		r.Blobs[h] = x.Encode()
	}
	return r
}

// takePlan is the plan that a store kept.
func takePlan(r *store.Result) (*madePlan, error) {
	m := &madePlan{recipes: map[recipes.Hash]*recipes.Recipe{}}
	var err error
	if m.plan, err = recipes.DecodePlan(r.Data, recipes.Sum(r.Data)); err != nil {
		return nil, fmt.Errorf("the store's plan %w", err)
	}
	for h, data := range r.Blobs {
		if m.recipes[h], err = recipes.DecodeRecipe(data, h); err != nil {
			return nil, fmt.Errorf("the store's recipe %v %w", h, err)
		}
	}
	return m, nil
}

// make specialises a family for a bucket, runs the bucket stage and plans it.
func (s *setCompiler) make(ctx context.Context, m *passes.Manager, b recipes.Bucket) (*madePlan, error) {
	g, err := s.stand(ctx)
	if err != nil {
		return nil, err
	}
	fam := family(s.cfg, s.options, b)
	module, err := ir.Specialise(g.modules[fam], sizes(b))
	if err != nil {
		return nil, err
	}
	if err := m.RunStage(ctx, passes.Bucket, path.Join(s.precision, string(fam), path.Base(b.String())), module); err != nil {
		return nil, err
	}
	out, err := s.lower(module, b, func() (*layout, error) { return g.layout, nil })
	if err != nil {
		return nil, reproducible(m.Reproducers(), module, b, err)
	}
	out.plan.Family = string(fam)
	return out, nil
}

// emit names a plan's recipes by their hashes. Each must be one that the target takes,
// and so must the plan.
func (s *setCompiler) emit(p *planner, out *madePlan) error {
	hashes := map[*recipes.Recipe]recipes.Hash{}
	for i, r := range p.recipes {
		h, ok := hashes[r]
		if !ok {
			h = r.Hash()
			hashes[r], out.recipes[h] = h, r
			n, err := s.workspace(h, r)
			if err != nil {
				return err
			}
			out.plan.WorkspaceBytes = max(out.plan.WorkspaceBytes, n)
		}
		p.plan.Steps[p.launches[i]].Launch.Recipe = h
	}
	return s.target.CheckPlan(out.plan, func(h recipes.Hash) *recipes.Recipe { return out.recipes[h] })
}

// workspace checks and places a recipe, once for all buckets that have it.
func (s *setCompiler) workspace(h recipes.Hash, r *recipes.Recipe) (int64, error) {
	s.mu.Lock()
	n, ok := s.workspaces[h]
	s.mu.Unlock()
	if ok {
		return n, nil
	}
	if err := s.target.CheckRecipe(r); err != nil {
		return 0, err
	}
	n = r.PlaceWorkspace().Bytes
	s.mu.Lock()
	s.workspaces[h] = n
	s.mu.Unlock()
	return n, nil
}

package lower

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"quill/ir/inkling"
	"quill/lower/buckets"
	"quill/recipes"
	"quill/recipes/safetensors"
	"quill/recipes/target"
)

// Forecast is what is known of a deployment before it is compiled or served. It needs the
// model's configuration, no weights. As JSON fields are only ever added.
type Forecast struct {
	Target     string             `json:"target"`
	Deployment recipes.Deployment `json:"deployment"`
	// Strategies are the deployment's own way to choose buckets, and others to compare.
	Strategies []StrategyForecast `json:"strategies"`
	// Full says that all buckets were compiled. If not, those were that no other one of
	// their family covers, and what memory is said of steps holds for them.
	Full bool `json:"full"`
	// Memory is that of a rank, by precision.
	Memory []MemoryForecast `json:"memory"`
	// LargestPool is the most kv_blocks with which the deployment fits, LongestRequest
	// the most max_model_len, in whole blocks or up to what bounds it; other keys as
	// they are. Of deployments with another request only the buckets are compiled that
	// need most.
	LargestPool    Largest `json:"largest_kv_blocks"`
	LongestRequest Largest `json:"longest_max_model_len"`
	// Problems say why the deployment cannot be compiled; without any it fits.
	Problems []string `json:"problems"`
	Notes    []string `json:"notes"` // of the model's configuration
}

// StrategyForecast is what a strategy makes of a deployment.
type StrategyForecast struct {
	Strategy string `json:"strategy"`
	// Error says why there are no buckets, for a strategy that is only compared.
	Error    string             `json:"error,omitempty"`
	Buckets  int                `json:"buckets"`
	Families []FamilyBuckets    `json:"families"`
	Coverage []buckets.Coverage `json:"coverage"`
	Padding  []buckets.Padding  `json:"padding"`
}

// FamilyBuckets is how many buckets a phase family has.
type FamilyBuckets struct {
	Family  string `json:"family"`
	Buckets int    `json:"buckets"`
}

// MemoryForecast is what one rank needs of its device, and the host beside it.
type MemoryForecast struct {
	Precision string `json:"precision"`
	// Lines add up to Bytes. OverBytes is how much that is above LimitBytes, 0 if it fits.
	Lines      []MemoryLine `json:"lines"`
	Bytes      int64        `json:"bytes"`
	LimitBytes int64        `json:"limit_bytes"`
	OverBytes  int64        `json:"over_bytes"`
	// Pool is how the lines kv and conv come about.
	Pool PoolForecast `json:"pool"`
	// Heaviest is the step that takes most of arena and workspace.
	Heaviest StepForecast `json:"heaviest_step"`
	// Compiled is how many buckets were compiled, Recipes how many distinct recipes they
	// have, Families the same by family.
	Compiled int              `json:"compiled"`
	Recipes  int              `json:"recipes"`
	Families []FamilyForecast `json:"families"`
	// ProgramBytes estimates the programs of Recipes, CollectiveBytes is the largest
	// operand of a collective. Neither is in Bytes: where a device keeps programs, and
	// what it buffers for a collective, only its software knows.
	ProgramBytes    int64        `json:"program_bytes"`
	CollectiveBytes int64        `json:"collective_bytes"`
	Host            HostForecast `json:"host"`
}

// MemoryLine is one use of device memory.
type MemoryLine struct {
	Name  string `json:"name"` // of a buffer, or workspace
	Bytes int64  `json:"bytes"`
	// Estimate marks what only the target's compiler knows, or is of a part of the buckets.
	Estimate bool `json:"estimate"`
}

// StepForecast is what a step takes.
type StepForecast struct {
	Bucket         recipes.Bucket `json:"bucket"`
	ArenaBytes     int64          `json:"arena_bytes"`
	WorkspaceBytes int64          `json:"workspace_bytes"`
}

// FamilyForecast is what the compiled buckets of a family have.
type FamilyForecast struct {
	Family   string `json:"family"`
	Buckets  int    `json:"buckets"`
	Compiled int    `json:"compiled"`
	Recipes  int    `json:"recipes"` // distinct
}

// HostForecast is memory of the host, in bytes over all ranks.
type HostForecast struct {
	// CheckpointBytes are those of the tensors that are served, as they are stored.
	CheckpointBytes int64 `json:"checkpoint_bytes"`
	// StagingBytes are inputs and outputs of the largest step, which cards read and write.
	StagingBytes int64 `json:"staging_bytes"`
	// BundleBytes are the plans and recipes that were compiled, as a bundle has them
	// before they are compressed.
	BundleBytes int64 `json:"bundle_bytes"`
	// On the CPU device: buffers without weights, weights that are copied at start,
	// and weights that stay mapped and need not fit. Packed weights are all mapped.
	BufferBytes int64 `json:"buffer_bytes"`
	CopiedBytes int64 `json:"copied_bytes"`
	MappedBytes int64 `json:"mapped_bytes"`
}

// ForecastOptions changes what a forecast looks at.
type ForecastOptions struct {
	// Full compiles all buckets.
	Full bool
	// Compare are strategies to show beside the deployment's; file is none of them.
	Compare  []string
	Progress Progress
}

// NewForecast computes a forecast. Errors are those of files and of keys that cannot be
// meant; a deployment that is refused for holes or for its size has a forecast that says so.
func NewForecast(ctx context.Context, d *Deployment, opt ForecastOptions) (*Forecast, error) {
	_, cfg, err := d.config()
	if err != nil {
		return nil, err
	}
	set, err := d.planBuckets(d.costs(cfg))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.path, err)
	}
	limit, err := d.deviceMemory()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.path, err)
	}
	f := &Forecast{
		Target: d.Target, Deployment: d.manifest(), Full: opt.Full,
		Problems: []string{}, Notes: append([]string{}, cfg.Notes...), // [] as JSON
	}
	f.Strategies = append(f.Strategies, d.strategy(cfg, set))
	for _, s := range opt.Compare {
		if s != d.Buckets.Strategy {
			f.Strategies = append(f.Strategies, d.compared(cfg, s))
		}
	}
	if err := set.Covered(); err != nil {
		f.Problems = append(f.Problems, err.Error())
	}
	s := &forecaster{cfg: cfg, limit: limit, full: opt.Full, progress: opt.Progress}
	list := set.Buckets
	if !opt.Full {
		list = s.deciding(d, list)
	}
	b, err := s.compile(ctx, d, list)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.path, err)
	}
	for i := range b.Sets {
		m, err := s.memory(d, b, &b.Sets[i], set.Buckets)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.path, err)
		}
		if m.OverBytes > 0 {
			f.Problems = append(f.Problems, fmt.Sprintf("%s: a rank needs %s of device memory, %s more than the %s there is",
				m.Precision, exactBytes(m.Bytes), exactBytes(m.OverBytes), exactBytes(m.LimitBytes)))
		}
		f.Memory = append(f.Memory, m)
	}
	if err := set.Covered(); err != nil {
		none := Largest{Next: "the buckets leave holes"}
		f.LargestPool, f.LongestRequest = none, none
		return f, nil
	}
	return f, s.limits(ctx, d, b, set.Buckets, f)
}

// strategy says what the buckets of a set do.
func (d *Deployment) strategy(cfg *inkling.Config, set *buckets.Set) StrategyForecast {
	r := StrategyForecast{Strategy: d.Buckets.Strategy, Buckets: len(set.Buckets), Coverage: set.Coverage, Padding: set.Padding}
	names, n := d.families(cfg, set.Buckets)
	for _, name := range names {
		r.Families = append(r.Families, FamilyBuckets{name, n[name]})
	}
	return r
}

// families counts buckets by family, in the order in which buckets have them.
func (d *Deployment) families(cfg *inkling.Config, all []recipes.Bucket) (names []string, n map[string]int) {
	n = map[string]int{}
	o := d.options(d.Precisions()[0])
	for _, b := range all {
		name := string(family(cfg, o, b))
		if n[name] == 0 {
			names = append(names, name)
		}
		n[name]++
	}
	return names, n
}

// compared is what another strategy would do, with the bounds that the file has.
func (d *Deployment) compared(cfg *inkling.Config, strategy string) StrategyForecast {
	e := *d
	e.Buckets = Buckets{Strategy: strategy, Most: d.Buckets.Most, Sharing: d.Buckets.Sharing}
	if strategy == buckets.Pad || strategy == buckets.Optimal {
		e.Buckets.Padding = d.Buckets.Padding
	}
	set, err := e.planBuckets(e.costs(cfg))
	if err != nil {
		return StrategyForecast{
			Strategy: strategy, Error: firstLine(err), Families: []FamilyBuckets{}, Coverage: []buckets.Coverage{}, Padding: []buckets.Padding{},
		}
	}
	return e.strategy(cfg, set)
}

// firstLine is an error without the source that it shows.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// forecaster compiles what a forecast is drawn from.
type forecaster struct {
	cfg      *inkling.Config
	limit    int64 // bytes of a rank
	full     bool
	progress Progress
	known    map[string][]int64 // what probes found, by what decides it
}

// deciding are the buckets that need most: others are no larger in any size.
func (s *forecaster) deciding(d *Deployment, all []recipes.Bucket) []recipes.Bucket {
	return uncovered(s.cfg, d.options(d.Precisions()[0]), all)
}

// compile compiles some buckets in all precisions.
func (s *forecaster) compile(ctx context.Context, d *Deployment, list []recipes.Bucket) (*recipes.Bundle, error) {
	c := compiler{
		cfg: s.cfg, dep: d, buckets: list, passes: defaultManager(d.params()), progress: s.progress, step: Step{Total: len(list) * len(d.Precisions())},
		jobs:   runtime.GOMAXPROCS(0),
		bundle: &recipes.Bundle{Manifest: recipes.Manifest{Deployment: d.manifest()}, Recipes: map[recipes.Hash]*recipes.Recipe{}},
	}
	for _, p := range d.Precisions() {
		if err := c.set(ctx, p); err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
	}
	return c.bundle, nil
}

// memory is that of a set of which some buckets were compiled.
func (s *forecaster) memory(d *Deployment, b *recipes.Bundle, set *recipes.Set, all []recipes.Bucket) (m MemoryForecast, err error) {
	g := newFootprint(&set.Info)
	m = MemoryForecast{Precision: set.Info.Precision, Bytes: g.bytes, LimitBytes: s.limit, OverBytes: max(0, g.bytes-s.limit), Compiled: len(set.Plans)}
	for _, l := range g.lines {
		part := !s.full && (l.name == string(recipes.Arena) || l.name == string(recipes.Carry))
		m.Lines = append(m.Lines, MemoryLine{l.name, l.bytes, part || l.name == WorkspaceLine})
	}
	rows, err := s.states(d, set.Info.Precision)
	if err != nil {
		return m, err
	}
	m.Pool = newPool(rows, d.KVBlocks)
	p := heaviest(set)
	m.Heaviest = StepForecast{p.Bucket, p.ArenaBytes, p.WorkspaceBytes}
	used := s.recipesOf(d, set, all, &m)
	tgt, err := target.Load(target.Default)
	if err != nil {
		return m, err
	}
	for h := range used {
		m.ProgramBytes += tgt.Program(b.Recipes[h]).Bytes
		m.Host.BundleBytes += int64(len(b.Recipes[h].Encode()))
	}
	s.host(d, set, &m.Host)
	for i := range set.Plans {
		m.CollectiveBytes = max(m.CollectiveBytes, largestCollective(&set.Plans[i], d.TensorParallel))
	}
	return m, nil
}

// recipesOf counts the distinct recipes of each family, and gives all.
func (s *forecaster) recipesOf(d *Deployment, set *recipes.Set, all []recipes.Bucket, m *MemoryForecast) map[recipes.Hash]bool {
	names, n := d.families(s.cfg, all)
	used := map[recipes.Hash]bool{}
	for _, name := range names {
		f := FamilyForecast{Family: name, Buckets: n[name]}
		mine := map[recipes.Hash]bool{}
		for i := range set.Plans {
			if set.Plans[i].Family != name {
				continue
			}
			f.Compiled++
			for _, step := range set.Plans[i].Steps {
				if step.Launch != nil {
					mine[step.Launch.Recipe], used[step.Launch.Recipe] = true, true
				}
			}
		}
		f.Recipes = len(mine)
		m.Families = append(m.Families, f)
	}
	m.Recipes = len(used)
	return used
}

// largestCollective is the most bytes that a collective of a plan leaves on a rank.
func largestCollective(p *recipes.Plan, ranks int) (most int64) {
	for _, s := range p.Steps {
		if c := s.Collective; c != nil {
			n := c.Count * int64(c.DType.Size())
			if c.Kind == recipes.AllGather {
				n *= int64(ranks)
			}
			most = max(most, n)
		}
	}
	return most
}

// host adds what the host needs; the recipes of the bundle are counted already.
func (s *forecaster) host(d *Deployment, set *recipes.Set, h *HostForecast) {
	tp := int64(d.TensorParallel)
	for i := range set.Plans {
		p := &set.Plans[i]
		h.BundleBytes += int64(len(p.Encode()))
		var n int64
		for _, io := range slices.Concat(p.Inputs, p.Outputs) {
			n += io.Bytes()
		}
		h.StagingBytes = max(h.StagingBytes, n*tp)
	}
	for b, n := range set.Info.Bytes {
		if b != recipes.Weights {
			h.BufferBytes += n * tp
		}
	}
	stored := map[string]safetensors.Tensor{} // without data
	for _, t := range checkpoint(s.cfg) {
		x := safetensors.Tensor{DType: t.DType, Shape: t.Shape}
		stored[t.Name] = x
		if from, ok := x.Type(); ok && (t.Part == "" || t.Part == recipes.TextPart) {
			n := int64(from.Size())
			for _, dim := range t.Shape {
				n *= dim
			}
			h.CheckpointBytes += n
		}
	}
	packing := recipes.NewPacking(set.Weights, d.TensorParallel, func(w *recipes.Weight) bool {
		t, ok := stored[w.Tensor]
		from, known := t.Type()
		return !ok || !known || !w.LiesIn(from, t.Shape, d.TensorParallel)
	})
	h.CopiedBytes = packing.Bytes
	for _, w := range recipes.SlotsByOffset(set.Weights) {
		if !packing.Holds(w) {
			h.MappedBytes += w.Bytes() * int64(w.Copies(d.TensorParallel))
		}
	}
}

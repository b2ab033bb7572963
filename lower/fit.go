package lower

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"quill/ir/inkling"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/target"
)

// Whether a deployment fits the memory of the target's device. Everything is allocated
// before serving, so what is needed is known: the buffers of a set and the largest
// workspace of its recipes, as the compiler estimates it.

// deviceMemory is how many bytes a rank may use.
func (d *Deployment) deviceMemory() (int64, error) {
	p, err := target.Load(target.Default)
	if err != nil {
		return 0, err
	}
	has := p.Limit("device_memory")
	if !d.has("device_memory") {
		return has, nil
	}
	n, err := passes.ParseBytes(d.DeviceMemory)
	if err != nil || n < 1 {
		return 0, d.at("device_memory", "%q is not a number of bytes from 1, with KiB, MiB or GiB behind it or nothing for bytes", d.DeviceMemory)
	}
	if n > has {
		return 0, d.at("device_memory", "%s is more than a %s has, %s; the key is for lowering it", d.DeviceMemory, d.Target, exactBytes(has))
	}
	return n, nil
}

// footprint is what one rank needs of its device.
type footprint struct {
	set   *recipes.SetInfo
	lines []footprintLine
	bytes int64
}

type footprintLine struct {
	name  string
	bytes int64
}

// WorkspaceLine is the line of a rank's memory that is no buffer.
const WorkspaceLine = "workspace"

func newFootprint(s *recipes.SetInfo) footprint {
	f := footprint{set: s}
	for _, b := range recipes.Buffers() {
		f.lines = append(f.lines, footprintLine{string(b), s.Bytes[b]})
	}
	f.lines = append(f.lines, footprintLine{WorkspaceLine, s.WorkspaceBytes})
	for _, l := range f.lines {
		f.bytes += l.bytes
	}
	return f
}

// pool is the part that grows with the number of blocks, step the part that only
// depends on how steps are cut.
func (f *footprint) pool() int64 { return f.set.Bytes[recipes.KV] + f.set.Bytes[recipes.Conv] }

func (f *footprint) step() int64 {
	return f.set.Bytes[recipes.Arena] + f.set.Bytes[recipes.Carry] + f.set.WorkspaceBytes
}

// largest is the footprint of the set that needs most.
func largest(b *recipes.Bundle) (f footprint, set *recipes.Set) {
	for i := range b.Sets {
		if g := newFootprint(&b.Sets[i].Info); set == nil || g.bytes > f.bytes {
			f, set = g, &b.Sets[i]
		}
	}
	return f, set
}

// fit reports that a rank needs more memory than its device has, with what it needs it
// for and the changes of the deployment that would do.
func (c *compiler) fit(ctx context.Context) error {
	limit, err := c.dep.deviceMemory()
	if err != nil {
		return err
	}
	f, set := largest(c.bundle)
	if f.bytes <= limit {
		return nil
	}
	fix, err := (&fitter{c: c, ctx: ctx, limit: limit, now: f}).suggest()
	if err != nil {
		return err
	}
	var t strings.Builder
	fmt.Fprintf(&t, "%s: a rank needs %s of device memory, %s more than the %s %s\n", f.set.Precision, exactBytes(f.bytes), exactBytes(f.bytes-limit),
		exactBytes(limit), c.limitText())
	for _, l := range f.lines {
		fmt.Fprintf(&t, "  %-9s %15d  %s\n", l.name, l.bytes, exactBytes(l.bytes))
	}
	fmt.Fprintf(&t, "The workspace is an estimate; programs of %d recipes and buffers of collectives come on top.\n", len(c.bundle.Recipes))
	c.describeStep(&t, set)
	t.WriteString(fix)
	return errors.New(strings.TrimRight(t.String(), "\n"))
}

func (c *compiler) limitText() string {
	if c.dep.DeviceMemory != "" {
		return "of device_memory"
	}
	return "that a " + c.dep.Target + " has (not all of which the vendor's software leaves; lower it with device_memory)"
}

// largestTensors is how many tensors an error shows.
const largestTensors = 5

// describeStep tells of the bucket that needs the most arena and workspace.
func (c *compiler) describeStep(t *strings.Builder, set *recipes.Set) {
	p := heaviest(set)
	m := c.bundle.Memory(p)
	fmt.Fprintf(t, "Of its steps %s takes most, %s of arena and %s of workspace. The largest tensors of the %s alive at its peak:\n",
		p.Bucket, exactBytes(p.ArenaBytes), exactBytes(p.WorkspaceBytes), exactBytes(m.Peak))
	for i := range m.Tensors[:min(largestTensors, len(m.Tensors))] {
		x := &m.Tensors[i]
		origin := ""
		if x.Origin != "" {
			origin = " of " + x.Origin
		}
		fmt.Fprintf(t, "  %s: %s %s %v, %s%s\n", exactBytes(x.Bytes), x.Name, x.DType, x.Dims, x.Where, origin)
	}
}

// heaviest is the plan that needs the most arena and workspace.
func heaviest(set *recipes.Set) *recipes.Plan {
	most := &set.Plans[0]
	for i := range set.Plans {
		if p := &set.Plans[i]; p.ArenaBytes+p.WorkspaceBytes > most.ArenaBytes+most.WorkspaceBytes {
			most = p
		}
	}
	return most
}

// exactBytes spells a number of bytes with a unit that leaves no more than a hundredth out.
func exactBytes(n int64) string {
	for i, unit := range []string{"GiB", "MiB", "KiB"} {
		one := int64(1) << (10 * (3 - i))
		switch {
		case n >= one && n%one == 0:
			return fmt.Sprintf("%d %s", n/one, unit)
		case n >= one:
			return fmt.Sprintf("%.2f %s", float64(n)/float64(one), unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// setting is a key of a deployment with another value.
type setting struct{ key, value string }

func (s setting) String() string { return s.key + ": " + s.value }

// fitter looks for changes of a deployment that make it fit. What it suggests it has
// compiled, the buckets that decide.
type fitter struct {
	c     *compiler
	ctx   context.Context
	limit int64
	now   footprint
}

// suggest says which changes would do: of single keys, the value of each that is nearest
// to the present one; if there are none, of several together.
func (f *fitter) suggest() (string, error) {
	var found []string
	for _, try := range []func() (setting, bool, error){
		f.blocks, f.chunk, f.seqs, f.budget, f.rows, f.experts, f.embedding, f.precision, f.ranks,
	} {
		s, ok, err := try()
		if err != nil {
			return "", err
		}
		if ok {
			found = append(found, "  "+s.String()+"\n")
		}
	}
	if len(found) > 0 {
		return "Each of these alone makes it fit:\n" + strings.Join(found, ""), nil
	}
	all, err := f.together()
	if err != nil || len(all) == 0 {
		return "No value of kv_blocks, max_batched_tokens, max_num_seqs, mask_budget, sub_block_rows and tensor_parallel makes it fit: the model needs more ranks than it can be split over, or more memory.\n", err
	}
	text := "No key alone makes it fit, these together do:\n"
	for _, s := range all {
		text += "  " + s.String() + "\n"
	}
	return text, nil
}

// compile compiles some buckets of another deployment, all if keep is nil. ok is false
// when there is no such deployment.
func (f *fitter) compile(d *Deployment, keep func(recipes.Bucket) bool) (b *recipes.Bundle, ok bool, err error) {
	if err := f.ctx.Err(); err != nil {
		return nil, false, err
	}
	m := d.manifest()
	all, err := d.covering(f.c.cfg)
	if err != nil || m.Check() != nil || d.checkModel(f.c.cfg) != nil {
		return nil, false, nil
	}
	if keep != nil {
		all = slices.DeleteFunc(all, func(b recipes.Bucket) bool { return !keep(b) })
	}
	params := d.params()
	c := compiler{
		cfg: f.c.cfg, dep: d, buckets: all, bundle: &recipes.Bundle{Recipes: map[recipes.Hash]*recipes.Recipe{}},
		passes: passes.NewManager(passes.Config{Pipeline: f.c.passes.Pipeline(), Params: params}), jobs: f.c.jobs,
	}
	for _, p := range d.Precisions() {
		if len(all) == 0 {
			return c.bundle, true, nil
		}
		if err := c.set(f.ctx, p); err != nil {
			return nil, false, f.ctx.Err()
		}
	}
	return c.bundle, true, nil
}

// fits compiles another deployment, as far as it decides: first what does not fit now,
// then all buckets that may need most.
func (f *fitter) fits(d *Deployment) (footprint, bool, error) {
	if f.stepHelps() {
		b, ok, err := f.compile(d, f.tooLarge())
		if err != nil || !ok {
			return footprint{}, false, err
		}
		if g, _ := largest(b); g.bytes > f.limit {
			return g, false, nil
		}
	}
	b, ok, err := f.compile(d, f.decisive(d))
	if err != nil || !ok {
		return footprint{}, false, err
	}
	g, _ := largest(b)
	return g, g.bytes <= f.limit, nil
}

// tooLarge are the buckets whose steps do not fit beside what else there is.
func (f *fitter) tooLarge() func(recipes.Bucket) bool {
	left := f.limit - (f.now.bytes - f.now.step())
	large := map[recipes.Bucket]bool{}
	for i := range f.c.bundle.Sets {
		for j := range f.c.bundle.Sets[i].Plans {
			if p := &f.c.bundle.Sets[i].Plans[j]; p.ArenaBytes+p.WorkspaceBytes > left {
				large[p.Bucket] = true
			}
		}
	}
	return func(b recipes.Bucket) bool { return large[b] }
}

// mostOfFamily is how many buckets of a family are decisive for being those that need
// most memory as the deployment is.
const mostOfFamily = 3

// decisive are the buckets of a deployment that may need most: those that no other one
// of their family covers, and those that need most as the deployment is. Others are
// smaller in one size and no larger in the other.
func (f *fitter) decisive(d *Deployment) func(recipes.Bucket) bool {
	keep := map[recipes.Bucket]bool{}
	for i := range f.c.bundle.Sets {
		families := map[string][]*recipes.Plan{}
		for j := range f.c.bundle.Sets[i].Plans {
			p := &f.c.bundle.Sets[i].Plans[j]
			families[p.Family] = append(families[p.Family], p)
		}
		for _, list := range families {
			for _, bytes := range []func(*recipes.Plan) int64{
				func(p *recipes.Plan) int64 { return p.ArenaBytes }, func(p *recipes.Plan) int64 { return p.WorkspaceBytes },
			} {
				slices.SortStableFunc(list, func(a, b *recipes.Plan) int { return cmp.Compare(bytes(b), bytes(a)) })
				for _, p := range list[:min(mostOfFamily, len(list))] {
					keep[p.Bucket] = true
				}
			}
		}
	}
	all, _ := d.covering(f.c.cfg) // compile reports its error
	for _, b := range uncovered(f.c.cfg, d.options(d.Precisions()[0]), all) {
		keep[b] = true
	}
	return func(b recipes.Bucket) bool { return keep[b] }
}

// uncovered are the buckets that no other one of their family covers.
func uncovered(cfg *inkling.Config, o inkling.Options, all []recipes.Bucket) (list []recipes.Bucket) {
	families := map[inkling.Family][]recipes.Bucket{}
	for _, b := range all {
		fam := family(cfg, o, b)
		families[fam] = append(families[fam], b)
	}
	for _, b := range all {
		if !slices.ContainsFunc(families[family(cfg, o, b)], func(c recipes.Bucket) bool { return c != b && c.Covers(b) }) {
			list = append(list, b)
		}
	}
	return list
}

// first is the first of some values with which the deployment fits.
func (f *fitter) first(key string, values []int, set func(d *Deployment, v int) string) (s setting, ok bool, err error) {
	for _, v := range values {
		d := *f.c.dep
		text := set(&d, v)
		if _, ok, err = f.fits(&d); err != nil || ok {
			return setting{key, text}, ok, err
		}
	}
	return s, false, nil
}

// stepHelps reports whether steps that take nothing would do.
func (f *fitter) stepHelps() bool { return f.now.bytes-f.now.step() < f.limit }

// halves are v/2, v/4 … down to a least value.
func halves(v, least int) (list []int) {
	for v /= 2; v >= least; v /= 2 {
		list = append(list, v)
	}
	return list
}

func (f *fitter) blocks() (setting, bool, error) { return f.pool(*f.c.dep, f.now) }

// pool is the largest pool, up to that of the deployment, with which a variant of it of
// some footprint fits.
func (f *fitter) pool(d Deployment, g footprint) (s setting, ok bool, err error) {
	m := d.manifest()
	each := g.pool() / int64(d.KVBlocks+2)
	if each == 0 {
		return s, false, nil
	}
	blocks := int64(d.KVBlocks) + (f.limit-g.bytes)/each
	for range 3 { // division rounds up what is negative, and states are aligned each
		d.KVBlocks = int(min(blocks, int64(f.c.dep.KVBlocks)))
		if d.KVBlocks < m.BlocksFor(d.MaxModelLen) {
			return s, false, nil
		}
		if _, ok, err = f.fits(&d); err != nil || ok {
			return setting{"kv_blocks", fmt.Sprint(d.KVBlocks)}, ok, err
		}
		blocks--
	}
	return s, false, nil
}

func (f *fitter) chunk() (setting, bool, error) {
	if !f.stepHelps() {
		return setting{}, false, nil
	}
	return f.first("max_batched_tokens", halves(f.c.dep.MaxBatchedTokens, min(f.c.dep.BlockSize, f.c.dep.MaxBatchedTokens)), func(d *Deployment, v int) string {
		d.MaxBatchedTokens = v
		return fmt.Sprint(v)
	})
}

func (f *fitter) seqs() (setting, bool, error) {
	pool := !f.c.dep.has("kv_blocks") // which then is what the sequences need
	if !f.stepHelps() && !pool {
		return setting{}, false, nil
	}
	return f.first("max_num_seqs", halves(f.c.dep.MaxNumSeqs, 1), func(d *Deployment, v int) string {
		d.MaxNumSeqs = v
		if pool {
			d.KVBlocks = v * max(1, ceilDiv(d.MaxModelLen, d.BlockSize))
		}
		return fmt.Sprint(v)
	})
}

// budgetsTried bounds how many values of keys are tried that decide how attention is cut.
const budgetsTried = 4

func (f *fitter) budget() (setting, bool, error) {
	_, set := largest(f.c.bundle)
	w := f.c.bundle.Work(heaviest(set))
	if !f.stepHelps() || w.MaskPeak == 0 {
		return setting{}, false, nil
	}
	list := halves(int(min(w.MaskPeak, int64(f.c.dep.params().MaskBudget))), 1)
	return f.first("mask_budget", list[:min(budgetsTried, len(list))], func(d *Deployment, v int) string {
		d.MaskBudget = fmt.Sprint(v)
		return d.MaskBudget
	})
}

func (f *fitter) rows() (setting, bool, error) {
	if !f.stepHelps() || f.c.dep.Attention == passes.Plain {
		return setting{}, false, nil
	}
	list := halves(min(f.c.dep.SubBlockRows, f.c.dep.MaxBatchedTokens), 1)
	return f.first("sub_block_rows", list[:min(budgetsTried, len(list))], func(d *Deployment, v int) string {
		d.SubBlockRows = v
		return fmt.Sprint(v)
	})
}

func (f *fitter) experts() (setting, bool, error) {
	if !f.stepHelps() || f.c.dep.MoE != passes.GatheredExperts {
		return setting{}, false, nil
	}
	return f.first("moe", []int{0}, func(d *Deployment, _ int) string {
		d.MoE = passes.FusedExperts
		return d.MoE
	})
}

func (f *fitter) embedding() (setting, bool, error) {
	rows := int64(f.c.cfg.Vocab) * int64(f.c.cfg.Hidden) * 4
	if f.c.dep.Embedding == sharded || f.c.dep.TensorParallel == 1 || f.now.bytes-rows > f.limit {
		return setting{}, false, nil
	}
	return f.first("embedding", []int{0}, func(d *Deployment, _ int) string {
		d.Embedding = sharded
		return d.Embedding
	})
}

func (f *fitter) precision() (setting, bool, error) {
	if f.c.dep.Precision == BF16 {
		return setting{}, false, nil
	}
	return f.first("precision", []int{0}, func(d *Deployment, _ int) string {
		d.Precision = BF16
		return d.Precision
	})
}

// doublings is how often the number of ranks is doubled.
const doublings = 6

// moreRanks are the numbers of ranks to try: those over which the weights can fit.
func (f *fitter) moreRanks() (list []int) {
	for i := range doublings {
		n := int64(2) << i
		if f.now.set.Bytes[recipes.Weights]/n < f.limit {
			list = append(list, f.c.dep.TensorParallel*int(n))
		}
	}
	return list
}

func (f *fitter) ranks() (setting, bool, error) {
	return f.first("tensor_parallel", f.moreRanks(), func(d *Deployment, v int) string {
		d.TensorParallel = v
		return fmt.Sprint(v)
	})
}

// together is a small pool and short chunks, with as few ranks as do.
func (f *fitter) together() ([]setting, error) {
	d := *f.c.dep
	m := d.manifest()
	d.KVBlocks = min(d.KVBlocks, m.BlocksFor(d.MaxModelLen))
	var all []setting
	if short := halves(d.MaxBatchedTokens, min(d.BlockSize, d.MaxBatchedTokens)); len(short) > 0 {
		e := d
		e.MaxBatchedTokens = short[len(short)-1]
		if _, ok, err := f.compile(&e, func(recipes.Bucket) bool { return false }); err != nil {
			return nil, err
		} else if ok {
			d = e
			all = append(all, setting{"max_batched_tokens", fmt.Sprint(d.MaxBatchedTokens)})
		}
	}
	for _, n := range append([]int{d.TensorParallel}, f.moreRanks()...) {
		d.TensorParallel = n
		g, ok, err := f.fits(&d)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if n != f.c.dep.TensorParallel {
			all = append(all, setting{"tensor_parallel", fmt.Sprint(n)})
		}
		blocks, ok, err := f.pool(d, g)
		if !ok {
			blocks = setting{"kv_blocks", fmt.Sprint(d.KVBlocks)}
		}
		return append(all, blocks), err
	}
	return nil, nil
}

package lower

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"quill/ir/inkling"
	"quill/lower/buckets"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/target"
)

// State says what a bundle is worth, from best to worst.
type State int

const (
	// Optimal is what this compiler would make, as far as can be told without compiling.
	Optimal State = iota
	// Rebuild runs, but this compiler would make another bundle.
	Rebuild
	// Unknown cannot be judged.
	Unknown
	// Unsupported does not run, or not what is asked of it.
	Unsupported
)

func (s State) String() string {
	return [...]string{"optimal", "runs, rebuild advised", "unknown", "unsupported"}[s]
}

// MarshalText spells the state as String does.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Sides that a bundle is compared with.
const (
	ThisQuill      = "this quill"
	ThisDeployment = "the deployment"
	ThisModel      = "the model"
	ThisBundle     = "the bundle itself" // which contradicts itself
)

// Finding is one thing in which a bundle is not what the other side wants.
type Finding struct {
	State   State  `json:"state"`
	What    string `json:"what"` // "quill", "deployment.kv_blocks"
	Bundle  string `json:"bundle"`
	Against string `json:"against"` // the other side
	Other   string `json:"other"`   // what it has
	Why     string `json:"why"`
}

// Judge compares a bundle that was read, and thus is whole, with what this compiler
// would make: for the model and the deployment that the bundle was compiled for and, if d
// is not nil, for d. The config.json of model is what counts for d then, "" is the model
// that d names. Weights are not looked at. That d does not compile is an error.
func Judge(b *recipes.Bundle, d *Deployment, model string) ([]Finding, error) {
	tgt, err := target.Load(target.Default)
	if err != nil {
		return nil, err
	}
	j := judge{b: b, m: &b.Manifest}
	j.version()
	if err := j.compiled(tgt); err != nil {
		return nil, err
	}
	j.params()
	j.architecture()
	for i := range b.Sets {
		j.sizes(&b.Sets[i])
	}
	j.legal(tgt)
	memory := tgt.Limit("device_memory")
	if d != nil {
		if memory, err = d.deviceMemory(); err != nil {
			return nil, err
		}
		if err := j.deployment(d, model); err != nil {
			return nil, err
		}
	}
	j.memory(memory, d)
	return j.found, nil
}

type judge struct {
	b     *recipes.Bundle
	m     *recipes.Manifest
	found []Finding
}

func (j *judge) add(s State, what, bundle, against, other, why string) {
	j.found = append(j.found, Finding{s, what, bundle, against, other, why})
}

// same adds a finding if the two sides differ.
func (j *judge) same(s State, what, bundle, against, other, why string) {
	if bundle != other {
		j.add(s, what, bundle, against, other, why)
	}
}

// version compares the compilers.
func (j *judge) version() {
	c, ok := compareVersions(j.m.Quill, Version)
	switch {
	case !ok:
		j.add(Unknown, "quill", j.m.Quill, ThisQuill, Version, "the bundle does not say a version that can be compared")
	case c > 0:
		j.add(Unknown, "quill", j.m.Quill, ThisQuill, Version, "a newer compiler made it, whose rules this one does not know: judge it with that one")
	case c < 0:
		j.add(Rebuild, "quill", j.m.Quill, ThisQuill, Version, "an older compiler made it")
	default:
		j.same(Rebuild, "compiled.build", j.m.Compiled.Build, ThisQuill, Build(), "another build of this version made it, which may compile otherwise")
	}
}

// compareVersions compares two versions of the form 1.2.3; ok is false if one has another.
func compareVersions(a, b string) (c int, ok bool) {
	var v [2][]int
	for i, text := range []string{a, b} {
		for _, part := range strings.Split(text, ".") {
			n, err := strconv.ParseUint(part, 10, 31)
			if err != nil {
				return 0, false
			}
			v[i] = append(v[i], int(n))
		}
	}
	return slices.Compare(v[0], v[1]), len(v[0]) == 3 && len(v[1]) == 3
}

// compiled compares target and passes with those of this compiler.
func (j *judge) compiled(tgt *target.Profile) error {
	c := &j.m.Compiled
	if device, _, _ := strings.Cut(tgt.Name, "-"); j.m.Target != device {
		j.add(Unsupported, "target", j.m.Target, ThisQuill, device, "there is no such target")
	}
	switch hash, err := tgt.Hash(); {
	case err != nil:
		return err
	case !slices.Contains(target.Names(), c.Profile):
		j.add(Unknown, "compiled.profile", c.Profile, ThisQuill, tgt.Name, "what this profile says of the target is not known here")
	case c.Profile != tgt.Name:
		j.add(Rebuild, "compiled.profile", c.Profile, ThisQuill, tgt.Name, "it was compiled for another version of the target's software")
	default:
		j.same(Rebuild, "compiled.profile_hash", c.ProfileHash.String(), ThisQuill, hash.String(), "the profile said other things of the target")
	}
	if _, err := passes.Parse(c.Passes); err != nil {
		j.add(Unknown, "compiled.passes", c.Passes, ThisQuill, passes.Default().String(), oneLine(err))
		return nil
	}
	j.same(Rebuild, "compiled.passes", c.Passes, ThisQuill, passes.Default().String(), "it was compiled with other passes")
	return nil
}

// params compares what passes were told with the limits that the runtime obeys: both
// are of one deployment.
func (j *judge) params() {
	var p passes.Params
	for _, text := range j.m.Compiled.Params {
		if err := p.Set(text); err != nil {
			j.add(Unknown, "compiled.params", text, ThisQuill, "", oneLine(err))
			return
		}
	}
	d := &j.m.Deployment
	var want passes.Params
	want.Target, want.BlockSize, want.Blocks, want.MaxModelLen = j.m.Target, d.BlockSize, d.KVBlocks, d.MaxModelLen
	want.MaxNumSeqs, want.MaxBatchedTokens = d.MaxNumSeqs, d.MaxBatchedTokens
	have := paramValues(p.Texts())
	for _, text := range want.Texts() {
		key, value, _ := strings.Cut(text, "=")
		j.same(Unsupported, "compiled.params."+key, orNone(have[key]), ThisBundle, value, "passes relied on another number than the runtime obeys")
	}
}

// orNone is a value that may not be there.
func orNone(value string) string { return cmp.Or(value, "none") }

// paramValues has parameters by key.
func paramValues(texts []string) map[string]string {
	values := map[string]string{}
	for _, text := range texts {
		key, value, _ := strings.Cut(text, "=")
		values[key] = value
	}
	return values
}

// architecture compares what the manifest says of the model with what follows from the
// architecture that the bundle holds.
func (j *judge) architecture() {
	d, cfg, err := deploymentOf(j.b, &j.b.Sets[0])
	if err != nil {
		j.add(Unknown, "model", "its config.json", ThisQuill, "", oneLine(err))
		return
	}
	want := modelOf(cfg, j.m.Model.Fingerprint)
	for _, f := range differing("model", j.m.Model, want) {
		state, why := Unsupported, "the runtime would take it for another model"
		if f.name == "model.layer_kinds" {
			state, why = Rebuild, "reports would name layers wrongly"
		}
		j.add(state, f.name, f.a, ThisBundle, f.b, why)
	}
	for _, f := range differing("costs", j.m.Costs, d.costs(cfg)) {
		j.add(Rebuild, f.name, f.a, ThisQuill, f.b, "the runtime would choose other buckets than are cheapest")
	}
	if have, want := j.b.Checkpoint, checkpoint(cfg); !reflect.DeepEqual(have, want) {
		j.add(Rebuild, "checkpoint.json", fmt.Sprintf("%d tensors", len(have)), ThisQuill, fmt.Sprintf("%d tensors", len(want)), "a checkpoint of this architecture has others")
	}
}

// difference is a field of two values.
type difference struct{ name, a, b string }

// differing lists the fields of two structures that are not the same, by their names in
// JSON.
func differing[T any](prefix string, a, b T) (list []difference) {
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		name, _, _ := strings.Cut(x.Type().Field(i).Tag.Get("json"), ",")
		if l, r := fmt.Sprint(x.Field(i)), fmt.Sprint(y.Field(i)); l != r {
			list = append(list, difference{prefix + "." + name, l, r})
		}
	}
	return list
}

// sizes compares the memory that a set declares with what its plans use.
func (j *judge) sizes(s *recipes.Set) {
	used := map[recipes.Buffer]int64{}
	var workspace int64
	for i := range s.Weights {
		w := &s.Weights[i]
		used[recipes.Weights] = max(used[recipes.Weights], w.Offset+w.Bytes())
	}
	for i := range s.Plans {
		p := &s.Plans[i]
		workspace = max(workspace, p.WorkspaceBytes)
		for k := range p.Steps {
			l := p.Steps[k].Launch
			if l == nil {
				continue
			}
			for n, at := range l.Bindings {
				used[at.Buffer] = max(used[at.Buffer], at.Offset+j.b.Recipes[l.Recipe].Sections[n].Size)
			}
		}
		used[recipes.Arena] = max(used[recipes.Arena], p.ArenaBytes)
	}
	const why = "its plans use another number of bytes a rank"
	name := "sets." + s.Info.Precision
	for _, b := range recipes.Buffers() {
		if have, want := s.Info.Bytes[b], recipes.Align(used[b]); have != want {
			j.add(Rebuild, name+".bytes."+string(b), strconv.FormatInt(have, 10), ThisBundle, strconv.FormatInt(want, 10), why)
		}
	}
	j.same(Rebuild, name+".workspace_bytes", strconv.FormatInt(s.Info.WorkspaceBytes, 10), ThisBundle, strconv.FormatInt(workspace, 10), why)
}

// legal looks for what the target, as this compiler knows it, does not take.
func (j *judge) legal(tgt *target.Profile) {
	const what, why = "recipes", "the target does not take it"
	hashes := slices.SortedFunc(maps.Keys(j.b.Recipes), func(a, b recipes.Hash) int { return slices.Compare(a[:], b[:]) })
	for _, h := range hashes {
		if err := tgt.CheckRecipe(j.b.Recipes[h]); err != nil {
			j.add(Unsupported, what, oneLine(err), ThisQuill, tgt.Name, why)
			return
		}
	}
	for i := range j.b.Sets {
		for k := range j.b.Sets[i].Plans {
			if err := tgt.CheckPlan(&j.b.Sets[i].Plans[k], func(h recipes.Hash) *recipes.Recipe { return j.b.Recipes[h] }); err != nil {
				j.add(Unsupported, "plans", oneLine(err), ThisQuill, tgt.Name, why)
				return
			}
		}
	}
}

// memory compares what a rank needs with what it may use.
func (j *judge) memory(limit int64, d *Deployment) {
	f, _ := largest(j.b)
	if f.bytes <= limit {
		return
	}
	against := ThisQuill
	if d != nil && d.DeviceMemory != "" {
		against = ThisDeployment
	}
	j.add(Unsupported, "device_memory", exactBytes(f.bytes), against, exactBytes(limit), "a rank needs more than it may use: rebuild with lower limits")
}

// deployment compares the bundle with what a deployment asks for.
func (j *judge) deployment(d *Deployment, model string) error {
	if model != "" {
		abs, err := filepath.Abs(model)
		if err != nil {
			return err
		}
		other := *d
		other.Model = abs
		d = &other
	}
	cfg, fp, err := j.modelFor(d)
	if err != nil {
		return err
	}
	if fp != j.m.Model.Fingerprint {
		j.add(Unsupported, "model.fingerprint", j.m.Model.Fingerprint, ThisDeployment, fp, "it is of another architecture than "+d.configPath())
	}
	j.same(Unsupported, "target", j.m.Target, ThisDeployment, d.Target, "it is for another target")
	j.limits(d.manifest())
	j.same(Rebuild, "deployment.embedding", j.m.Deployment.Embedding, ThisDeployment, d.Embedding, "the embedding takes other memory")
	j.told(d)
	return j.sets(d, cfg)
}

// modelFor is the model of a deployment and its fingerprint. Where there is none the
// deployment is taken to be for the bundle's.
func (j *judge) modelFor(d *Deployment) (cfg *inkling.Config, fingerprint string, err error) {
	if _, err := os.Stat(d.configPath()); errors.Is(err, fs.ErrNotExist) {
		j.add(Unknown, "model.fingerprint", j.m.Model.Fingerprint, ThisDeployment, "none", "there is no "+d.configPath()+": name the model's directory")
		if cfg, err = inkling.ParseConfig(j.b.Architecture); err != nil {
			return nil, "", fmt.Errorf("the architecture that the bundle holds: %w", err)
		}
		return cfg, j.m.Model.Fingerprint, d.checkModel(cfg)
	}
	src, cfg, err := d.config()
	if err != nil {
		return nil, "", err
	}
	if fingerprint, err = recipes.Fingerprint(src); err != nil {
		return nil, "", fmt.Errorf("%s: %w", d.configPath(), err)
	}
	return cfg, fingerprint, nil
}

// limits compares the numbers that the runtime obeys.
func (j *judge) limits(want recipes.Deployment) {
	have := j.m.Deployment
	for _, f := range []struct {
		key        string
		have, want int
		exact      bool
	}{
		{"tensor_parallel", have.TensorParallel, want.TensorParallel, true},
		{"block_size", have.BlockSize, want.BlockSize, true},
		{"max_model_len", have.MaxModelLen, want.MaxModelLen, false},
		{"max_num_seqs", have.MaxNumSeqs, want.MaxNumSeqs, false},
		{"kv_blocks", have.KVBlocks, want.KVBlocks, false},
		{"max_batched_tokens", have.MaxBatchedTokens, want.MaxBatchedTokens, false},
	} {
		state, why := Rebuild, "it takes more than the deployment needs"
		switch {
		case f.exact:
			state, why = Unsupported, "the deployment wants exactly this"
		case f.have < f.want:
			state, why = Unsupported, "the deployment needs more"
		}
		j.same(state, "deployment."+f.key, strconv.Itoa(f.have), ThisDeployment, strconv.Itoa(f.want), why)
	}
}

// told compares what passes were told beside the limits: the forms of attention and of
// experts, and bounds of their sizes.
func (j *judge) told(d *Deployment) {
	have, want := paramValues(j.m.Compiled.Params), paramValues(d.params().Texts())
	m := d.manifest()
	limits := passes.Params{
		Target: d.Target, BlockSize: m.BlockSize, Blocks: m.KVBlocks, MaxModelLen: m.MaxModelLen,
		MaxNumSeqs: m.MaxNumSeqs, MaxBatchedTokens: m.MaxBatchedTokens,
	}
	all := maps.Clone(have)
	maps.Copy(all, want)
	for key := range paramValues(limits.Texts()) {
		delete(all, key) // which were compared
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		j.same(Rebuild, "compiled.params."+key, orNone(have[key]), ThisDeployment, orNone(want[key]), "passes would be told otherwise")
	}
}

// sets compares precisions and buckets.
func (j *judge) sets(d *Deployment, cfg *inkling.Config) error {
	want, err := d.covering(cfg)
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, err)
	}
	for _, p := range d.Precisions() {
		i := slices.IndexFunc(j.b.Sets, func(s recipes.Set) bool { return s.Info.Precision == p })
		if i < 0 {
			j.add(Unsupported, "sets."+p, "none", ThisDeployment, p, "the deployment wants recipes of this precision")
			continue
		}
		j.buckets(&j.b.Sets[i].Info, want, d)
	}
	for i := range j.b.Sets {
		if p := j.b.Sets[i].Info.Precision; !slices.Contains(d.Precisions(), p) {
			j.add(Rebuild, "sets."+p, p, ThisDeployment, "none", "the deployment does not want recipes of this precision")
		}
	}
	return nil
}

// buckets compares the buckets of a set with those of a deployment.
func (j *judge) buckets(s *recipes.SetInfo, want []recipes.Bucket, d *Deployment) {
	missing, surplus := without(want, s.Plans), without(s.Plans, want)
	if len(missing)+len(surplus) == 0 {
		return
	}
	state, why := Rebuild, "every step of the deployment has a bucket, but not the one that it would have"
	if err := buckets.Covered(s.Plans, d.manifest(), d.Buckets.Sharing); err != nil {
		state, why = Unsupported, "steps of the deployment have no bucket: "+oneLine(err)
	}
	have := fmt.Sprintf("%d buckets", len(s.Plans))
	if len(surplus) > 0 {
		have += ", not wanted: " + someBuckets(surplus)
	}
	other := fmt.Sprintf("%d buckets", len(want))
	if len(missing) > 0 {
		other += ", missing: " + someBuckets(missing)
	}
	j.add(state, "sets."+s.Precision+".plans", have, ThisDeployment, other, why)
}

// without is what a list has and another has not.
func without(list, other []recipes.Bucket) (left []recipes.Bucket) {
	for _, b := range list {
		if !slices.Contains(other, b) {
			left = append(left, b)
		}
	}
	return left
}

// someBuckets names some of a list.
func someBuckets(list []recipes.Bucket) string {
	const most = 4
	var names []string
	for _, b := range list[:min(most, len(list))] {
		names = append(names, b.String())
	}
	text := strings.Join(names, ", ")
	if rest := len(list) - most; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return text
}

// oneLine is the text of an error on one line.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

package lower

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"quill/ir"
	"quill/ir/inkling"
	"quill/lower/buckets"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/dtype"
)

// Deployment is what one YAML file says.
type Deployment struct {
	// Model is the checkpoint's directory, relative to the file.
	Model  string `yaml:"model"`
	Target string `yaml:"target"`

	TensorParallel   int `yaml:"tensor_parallel"`
	MaxModelLen      int `yaml:"max_model_len"`      // tokens a request, prompt and answer
	MaxNumSeqs       int `yaml:"max_num_seqs"`       // sequences a decode step
	BlockSize        int `yaml:"block_size"`         // tokens a cache block
	KVBlocks         int `yaml:"kv_blocks"`          // blocks of the pool; default: enough for all sequences at full length
	MaxBatchedTokens int `yaml:"max_batched_tokens"` // tokens a prefill chunk

	Attention    string `yaml:"attention"`      // its form: plain, masked or banded
	Far          string `yaml:"far"`            // keys that a band leaves out: mask, exact or tiled
	MaskBudget   string `yaml:"mask_budget"`    // bytes of a layer's masks that are alive at once, as 512MiB
	SubBlockRows int    `yaml:"sub_block_rows"` // most rows of a sub-block of attention

	MoE               string `yaml:"moe"`                  // form of experts: auto, fused or gather
	MoEExpertsPerNode int    `yaml:"moe_experts_per_node"` // most experts of one fused node; default: all

	DeviceMemory string `yaml:"device_memory"` // bytes that a rank may use, as 94GiB; default: what the target has

	Precision string  `yaml:"precision"` // bf16, f32 or both
	Embedding string  `yaml:"embedding"` // replicated or sharded
	Buckets   Buckets `yaml:"buckets"`

	src  []byte
	path string
	// chunk is max_batched_tokens as the file has it, whatever the longest request.
	chunk int
}

// Buckets says which shapes are compiled; see buckets.Spec. Numbers are 0 where the
// file has none.
type Buckets struct {
	Strategy string  `yaml:"strategy"` // one of buckets.Strategies
	Path     string  `yaml:"path"`     // strategy file: the list, relative to the deployment
	Most     int     `yaml:"most"`     // buckets that are not exceeded
	Padding  float64 `yaml:"padding"`  // strategies pad, optimal: most that a size is padded by, from 1
	Trace    string  `yaml:"trace"`    // strategy optimal: steps to be cheapest on, relative to the deployment
	Sharing  int     `yaml:"sharing"`  // sequences that refer to a block, on average, at most
}

// auto is the form of experts that the target is best at. The only one there is has a
// node of experts, whose operands are laid out as weights are, so it is that one; a
// target without such a node would gather.
const auto = "auto"

// Precision sets of a bundle.
const (
	BF16 = "bf16"
	F32  = "f32"
	both = "both"
)

// sharded is the embedding of which each rank has some rows.
const sharded = "sharded"

// ReadDeployment reads and checks a deployment file. Errors show the line.
func ReadDeployment(path string) (*Deployment, error) {
	src, err := recipes.ReadSmall(path, maxDeployment)
	if filepath.Ext(path) == ".quill" && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: this is a bundle by its name; a deployment is wanted, the YAML file of which quill compile makes one", path)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the deployment: %w", err)
	}
	d, err := parseDeployment(path, src)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

func parseDeployment(path string, src []byte) (*Deployment, error) {
	d := &Deployment{
		Target: "gaudi2", TensorParallel: 1, MaxNumSeqs: 16, BlockSize: 128, MaxBatchedTokens: 2048,
		Attention: passes.Banded, Far: passes.FarMask, MaskBudget: "512MiB", SubBlockRows: 1024,
		MoE:       auto,
		Precision: BF16, Embedding: "replicated", Buckets: Buckets{Strategy: buckets.Exp},
		src: src, path: path,
	}
	if isConfig(src) {
		return nil, errors.New("this is the configuration of a checkpoint; a deployment is wanted, a YAML file with model: DIR that names the checkpoint's directory, and max_model_len: N")
	}
	if err := plain(src); err != nil {
		return nil, err
	}
	dec := yaml.NewDecoder(bytes.NewReader(src), yaml.Strict())
	if err := dec.Decode(d); errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty")
	} else if err != nil {
		return nil, yamlError(err)
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	return d, nil
}

// Bounds on a deployment file: the parser's time and memory grow faster than
// nested input.
const (
	maxDeployment = 64 << 10
	maxBrackets   = 100
)

// isConfig reports whether a file is a checkpoint's config.json.
func isConfig(src []byte) bool {
	var c struct {
		ModelType     *json.RawMessage `json:"model_type"`
		Architectures *json.RawMessage `json:"architectures"`
	}
	return json.Unmarshal(src, &c) == nil && (c.ModelType != nil || c.Architectures != nil)
}

// plain refuses what the decoder would take in silence: more than one document,
// merged keys, numbers that are not plain whole ones.
func plain(src []byte) error {
	if n := bytes.Count(src, []byte("[")) + bytes.Count(src, []byte("{")); n > maxBrackets {
		return fmt.Errorf("%d brackets, more than %d", n, maxBrackets)
	}
	file, err := parser.ParseBytes(src, 0)
	if err != nil {
		return errors.New(yaml.FormatError(err, false, true))
	}
	if len(file.Docs) > 1 && file.Docs[1].Body != nil {
		return tokenError(file.Docs[1].Body.GetToken(), "a second document; a deployment is one")
	}
	if len(file.Docs) == 0 {
		return nil
	}
	m, ok := file.Docs[0].Body.(*ast.MappingNode)
	if !ok {
		return nil // the decoder says what it is
	}
	for _, v := range m.Values {
		if v.Key.IsMergeKey() {
			return tokenError(v.Key.GetToken(), "keys cannot be merged in here")
		}
		if err := plainValue("", v, reflect.TypeFor[Deployment]()); err != nil {
			return err
		}
		key, t := v.Key.GetToken().Value, v.Value.GetToken()
		if b, ok := v.Value.(*ast.MappingNode); ok && key == "buckets" {
			for _, v := range b.Values {
				if err := plainValue("buckets.", v, reflect.TypeFor[Buckets]()); err != nil {
					return err
				}
			}
		}
		if key == "buckets" && v.Value.Type() == ast.StringType {
			return tokenError(t, fmt.Sprintf("buckets: %q is not a mapping of keys; write {strategy: exp}, or {strategy: file, path: LIST}", t.Value))
		}
	}
	return nil
}

// plainValue refuses a key that a mapping does not have, and for one that is a whole
// number what is not plainly one. prefix is what comes before the key.
func plainValue(prefix string, v *ast.MappingValueNode, mapping reflect.Type) error {
	if err := known(v, mapping); err != nil {
		return err
	}
	key, t := v.Key.GetToken().Value, v.Value.GetToken()
	if n, err := strconv.Atoi(t.Value); wholeNumbers(mapping)[key] && (err != nil || strconv.Itoa(n) != t.Value || v.Value.Type() != ast.IntegerType) {
		return tokenError(t, fmt.Sprintf("%s%s: %q is not a whole number", prefix, key, t.Value))
	}
	return nil
}

// wholeNumbers are the keys of a mapping whose value is one.
func wholeNumbers(t reflect.Type) map[string]bool {
	names := map[string]bool{}
	for i := range t.NumField() {
		if t.Field(i).Type.Kind() == reflect.Int {
			names[t.Field(i).Tag.Get("yaml")] = true
		}
	}
	return names
}

// yamlError words what the YAML package found, with the line and the source.
func yamlError(err error) error {
	if e, ok := errors.AsType[*yaml.UnknownFieldError](err); ok {
		return tokenError(e.Token, fmt.Sprintf("unknown key %q", e.Token.Value))
	}
	if e, ok := errors.AsType[*yaml.TypeError](err); ok && e.Token.Prev != nil && e.Token.Prev.Prev != nil {
		want := map[reflect.Kind]string{reflect.Int: "a whole number", reflect.Float64: "a number", reflect.String: "text", reflect.Struct: "a mapping of keys"}[e.DstType.Kind()]
		return tokenError(e.Token, fmt.Sprintf("%s: %q is not %s", e.Token.Prev.Prev.Value, e.Token.Value, want))
	}
	return errors.New(yaml.FormatError(err, false, true))
}

// known refuses a key that a mapping does not have. The decoder would too, but of
// several it names any.
func known(v *ast.MappingValueNode, mapping reflect.Type) error {
	t, names := v.Key.GetToken(), keys(mapping)
	if slices.Contains(names, t.Value) {
		return nil
	}
	near := ir.DidYouMean(t.Value, names)
	if near != "" {
		near = "; " + near
	}
	return tokenError(t, fmt.Sprintf("unknown key %q%s; keys are %s", t.Value, near, strings.Join(names, ", ")))
}

func tokenError(t *token.Token, msg string) error {
	_, source, _ := strings.Cut(yaml.FormatErrorWithToken("", t, false, true), "\n")
	return fmt.Errorf("line %d: %s\n%s", t.Position.Line, msg, source)
}

// keys are those of a mapping.
func keys(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if tag, ok := t.Field(i).Tag.Lookup("yaml"); ok {
			names = append(names, tag)
		}
	}
	return names
}

// node is a key's value in the file, nil when the file does not have it.
func (d *Deployment) node(key string) (yaml.Path, ast.Node) {
	p, err := yaml.PathString("$." + key)
	if err != nil {
		return yaml.Path{}, nil
	}
	file, err := parser.ParseBytes(d.src, 0)
	if err != nil {
		return yaml.Path{}, nil
	}
	n, err := p.FilterFile(file)
	if err != nil {
		return yaml.Path{}, nil
	}
	return *p, n
}

func (d *Deployment) has(key string) bool {
	_, n := d.node(key)
	return n != nil
}

// at is an error about one key's value, with its line where the file has it.
func (d *Deployment) at(key, format string, args ...any) error {
	return d.line(key, key+": "+fmt.Sprintf(format, args...))
}

// line is an error with the line of the key it is about.
func (d *Deployment) line(key, msg string) error {
	p, n := d.node(key)
	if n == nil {
		return fmt.Errorf("%s (the key is not in the file; this is its default)", msg)
	}
	msg = fmt.Sprintf("line %d: %s", n.GetToken().Position.Line, msg)
	text, err := p.AnnotateSource(d.src, false)
	if err != nil {
		return errors.New(msg)
	}
	return fmt.Errorf("%s\n%s", msg, strings.TrimRight(string(text), "\n"))
}

func (d *Deployment) check() error {
	if d.Model == "" {
		return errors.New("model: the checkpoint's directory is missing; write model: DIR (relative to this file)")
	}
	if !d.has("max_model_len") {
		return errors.New("max_model_len: missing; write the longest request to serve, in tokens")
	}
	for _, e := range []struct{ key, v, allowed string }{
		{"target", d.Target, "gaudi2"},
		{"attention", d.Attention, "plain, masked, banded"},
		{"far", d.Far, "mask, exact, tiled"},
		{"moe", d.MoE, "auto, fused, gather"},
		{"precision", d.Precision, "bf16, f32, both"},
		{"embedding", d.Embedding, "replicated, sharded"},
		{"buckets.strategy", d.Buckets.Strategy, buckets.Strategies},
	} {
		if !oneOf(e.v, e.allowed) {
			return d.at(e.key, "%q is not one of %s", e.v, e.allowed)
		}
	}
	if err := d.checkBuckets(); err != nil {
		return err
	}
	return d.checkNumbers()
}

// checkBuckets checks the keys of buckets by themselves and against the strategy.
func (d *Deployment) checkBuckets() error {
	b := &d.Buckets
	if b.Strategy == buckets.File && b.Path == "" {
		return d.at("buckets", "strategy file needs path: the file with the list")
	}
	for _, f := range []struct{ key, strategies, does string }{
		{"buckets.path", "file", "reads a list"},
		{"buckets.trace", "optimal", "reads a trace"},
		{"buckets.padding", "pad, optimal", "bounds padding"},
	} {
		if d.has(f.key) && !oneOf(b.Strategy, f.strategies) {
			return d.at(f.key, "only strategy %s %s", strings.ReplaceAll(f.strategies, ", ", " or "), f.does)
		}
	}
	for _, f := range []struct {
		key    string
		v, max int
	}{{"buckets.most", b.Most, buckets.MaxBuckets}, {"buckets.sharing", b.Sharing, buckets.MaxSharing}} {
		if d.has(f.key) && (f.v < 1 || f.v > f.max) {
			return d.at(f.key, "%d, want 1 to %d", f.v, f.max)
		}
	}
	if d.has("buckets.padding") && !(b.Padding >= 1 && b.Padding <= buckets.MaxPadding) {
		return d.at("buckets.padding", "%v, want a ratio of bucket to need from 1 to %d", b.Padding, buckets.MaxPadding)
	}
	return nil
}

func oneOf(v, allowed string) bool {
	for _, a := range strings.Split(allowed, ", ") {
		if v == a {
			return true
		}
	}
	return false
}

// maxSeqs bounds a decode step, far beyond any that makes sense: index values
// have one element a reference, sequence and head.
const maxSeqs = 4096

func (d *Deployment) checkNumbers() error {
	if !d.has("kv_blocks") && d.BlockSize > 0 {
		d.KVBlocks = max(1, d.MaxNumSeqs) * max(1, ceilDiv(d.MaxModelLen, d.BlockSize))
	}
	if d.MaxNumSeqs > maxSeqs {
		return d.line("max_num_seqs", fmt.Sprintf("max_num_seqs is %d, want 1 to %d", d.MaxNumSeqs, maxSeqs))
	}
	if n, err := passes.ParseBytes(d.MaskBudget); err != nil || n < 1 {
		return d.at("mask_budget", "%q is not a number of bytes from 1, with KiB, MiB or GiB behind it or nothing for bytes", d.MaskBudget)
	}
	if _, err := d.deviceMemory(); err != nil {
		return err
	}
	if d.SubBlockRows < 1 {
		return d.at("sub_block_rows", "%d, want a number from 1", d.SubBlockRows)
	}
	if d.has("far") && d.Attention != passes.Banded {
		return d.at("far", "attention: %s leaves no keys out of a band; leave the key out or say attention: %s", d.Attention, passes.Banded)
	}
	if d.has("moe_experts_per_node") {
		if d.MoEExpertsPerNode < 1 {
			return d.at("moe_experts_per_node", "%d, want a number from 1", d.MoEExpertsPerNode)
		}
		if d.MoE == passes.GatheredExperts {
			return d.at("moe_experts_per_node", "moe: gather uses no node of experts; leave the key out or say moe: fused")
		}
	}
	m := d.manifest()
	err := m.Check()
	if err == nil {
		d.chunk = d.MaxBatchedTokens
		d.MaxBatchedTokens = min(d.MaxBatchedTokens, d.MaxModelLen) // no chunk is longer than a request
		return nil
	}
	key, _, _ := strings.Cut(err.Error(), " ") // the message begins with it
	return d.line(key, err.Error())
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// ModelDir is the checkpoint's directory.
func (d *Deployment) ModelDir() string {
	return d.relative(d.Model)
}

// Precisions lists the recipe sets to compile.
func (d *Deployment) Precisions() []string {
	if d.Precision == both {
		return []string{BF16, F32}
	}
	return []string{d.Precision}
}

// options are the capture options of one precision.
func (d *Deployment) options(precision string) inkling.Options {
	t, _ := dtype.Parse(precision)
	return inkling.Options{
		TP: d.TensorParallel, BlockSize: d.BlockSize, Blocks: d.KVBlocks, MaxModelLen: d.MaxModelLen, MaxNumSeqs: d.MaxNumSeqs,
		MaxBatchedTokens: d.MaxBatchedTokens, Precision: t, ShardedEmbedding: d.Embedding == sharded,
	}
}

// params are what passes may rely on.
func (d *Deployment) params() passes.Params {
	budget, _ := passes.ParseBytes(d.MaskBudget) // was checked
	moe := d.MoE
	if moe == auto {
		moe = passes.FusedExperts
	}
	return passes.Params{
		Attention: d.Attention, Far: d.Far, MaskBudget: int(budget), SubBlockRows: d.SubBlockRows,
		MoE: moe, ExpertsPerNode: d.MoEExpertsPerNode,
		Target: d.Target, BlockSize: d.BlockSize, Blocks: d.KVBlocks, MaxModelLen: d.MaxModelLen, MaxNumSeqs: d.MaxNumSeqs,
		MaxBatchedTokens: d.MaxBatchedTokens,
	}
}

// checkModel reports what of a deployment does not fit the model.
func (d *Deployment) checkModel(c *inkling.Config) error {
	err := c.Check(d.options(d.Precisions()[0]))
	if err == nil {
		return nil
	}
	for _, key := range []string{"tensor_parallel", "max_model_len"} {
		if rest, ok := strings.CutPrefix(err.Error(), key+" "); ok {
			return d.at(key, "%s", rest)
		}
	}
	return err
}

// manifest is the part of the deployment that the runtime obeys.
func (d *Deployment) manifest() recipes.Deployment {
	return recipes.Deployment{
		TensorParallel: d.TensorParallel, MaxModelLen: d.MaxModelLen, MaxNumSeqs: d.MaxNumSeqs, BlockSize: d.BlockSize,
		KVBlocks: d.KVBlocks, MaxBatchedTokens: d.MaxBatchedTokens, Embedding: d.Embedding,
	}
}

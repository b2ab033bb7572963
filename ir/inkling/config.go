// Package inkling reads Inkling checkpoints' configuration and builds the
// model's graph.
//
//	config.json ──ReadConfig──→ Config ──Tensors──→ what a checkpoint must hold
//	                               └─────Capture──→ plain graph of each phase family
//
// Key names and their meaning are those of the published checkpoints
// thinkingmachines/Inkling and thinkingmachines/Inkling-Small; formulas follow
// the published implementation (huggingface/transformers models/inkling).
package inkling

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// Config is the architecture of a checkpoint.
type Config struct {
	EOS    int // eos_token_id
	MaxLen int // model_max_length

	Hidden     int // hidden_size
	Layers     int // num_hidden_layers
	Vocab      int // vocab_size: rows of embed and unembed
	ValidVocab int // unpadded_vocab_size: ids that exist

	Global  Attention // layers that see everything
	Local   Attention // layers in local_layer_ids, which see Window tokens
	Window  int       // sliding_window_size
	IsLocal []bool    // per layer

	DRel   int     // d_rel, features per head of the relative bias
	NFloor int     // log_scaling_n_floor, 0 when the log-position factor is off
	Alpha  float64 // log_scaling_alpha
	Eps    float64 // rms_norm_eps
	MuP    float64 // logits_mup_width_multiplier

	DenseLayers int // dense_mlp_idx: the first layers have a dense MLP
	DenseWidth  int // dense_intermediate_size
	ExpertWidth int // intermediate_size
	Experts     int // n_routed_experts
	TopK        int // num_experts_per_tok
	Shared      int // n_shared_experts
	RouteScale  float64

	Vision *Vision
	Audio  *Audio
	MTP    *MTP

	// Notes are remarks on keys that have no effect on quill.
	Notes []string
}

// Attention is the shape of one kind of attention layer.
type Attention struct {
	Heads, KVHeads, HeadDim int
	// Extent is the number of distances that have a relative bias.
	Extent int
}

// Vision is the image tower's configuration (known, not compiled).
type Vision struct{ Hidden, PatchSize, TemporalPatch, Channels, Layers int }

// Audio is the audio tower's configuration (known, not compiled).
type Audio struct{ Hidden, Mels, MelVocab int }

// MTP is the multi-token prediction heads' configuration (known, not compiled).
type MTP struct {
	Depths  int
	IsLocal []bool
}

// Attention is the attention shape of a layer.
func (c *Config) Attention(layer int) Attention {
	if c.IsLocal[layer] {
		return c.Local
	}
	return c.Global
}

// IsDense reports whether a layer's MLP is dense.
func (c *Config) IsDense(layer int) bool { return layer < c.DenseLayers }

// ReadConfig reads a config.json. The error lists every unsupported, missing
// or impossible value with its key.
func ReadConfig(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the model's configuration: %w", err)
	}
	c, err := ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads the content of a config.json.
func ParseConfig(data []byte) (*Config, error) {
	top, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	r := &reader{obj: top}
	c := &Config{}
	if got := r.str("model_type"); got != "" && got != "inkling_mm_model" {
		r.failf("model_type", "is %q; quill compiles inkling_mm_model only", got)
	}
	c.EOS = r.num("eos_token_id", 0)
	text := r.object("text_config")
	if text == nil {
		if len(r.problems) == 0 {
			r.failf("text_config", "is missing")
		}
		return nil, r.err()
	}
	c.text(text)
	c.towers(r)
	r.problems = append(r.problems, text.problems...)
	if err := r.err(); err != nil {
		return nil, err
	}
	if c.EOS >= c.ValidVocab {
		return nil, fmt.Errorf("eos_token_id: %d is not below unpadded_vocab_size %d", c.EOS, c.ValidVocab)
	}
	c.Notes = text.unread()
	return c, nil
}

// text reads text_config.
func (c *Config) text(r *reader) {
	r.optional("torch_dtype", "dtype", "model_type")
	if r.has("torch_dtype") {
		r.want("torch_dtype", `"bfloat16"`)
	}
	c.MaxLen = r.num("model_max_length", 1)
	c.Hidden = r.num("hidden_size", 1)
	c.Layers = r.num("num_hidden_layers", 1)
	c.Vocab = r.num("vocab_size", 1)
	c.ValidVocab = r.num("unpadded_vocab_size", 1)
	c.Window = r.num("sliding_window_size", 1)
	c.Global = Attention{r.num("num_attention_heads", 1), r.num("num_key_value_heads", 1), r.num("head_dim", 1), r.num("rel_extent", 1)}
	c.Local = Attention{r.num("swa_num_attention_heads", 1), r.num("swa_num_key_value_heads", 1), r.num("swa_head_dim", 1), c.Window}
	c.DRel = r.num("d_rel", 1)
	if !r.null("log_scaling_n_floor") {
		c.NFloor = r.num("log_scaling_n_floor", 0)
	}
	c.Alpha = r.real("log_scaling_alpha", c.NFloor == 0)
	c.Eps = r.real("rms_norm_eps", false)
	c.MuP = r.real("logits_mup_width_multiplier", false)
	c.DenseLayers = r.num("dense_mlp_idx", 0)
	c.DenseWidth = r.num("dense_intermediate_size", 1)
	for key, only := range supported {
		r.want(key, only)
	}
	if c.Layers > maxLayers {
		r.failf("num_hidden_layers", "is %d, want at most %d", c.Layers, maxLayers)
	}
	local := r.list("local_layer_ids")
	if len(r.problems) > 0 {
		return
	}
	c.IsLocal = layerSet(r, "local_layer_ids", local, c.Layers)
	c.moe(r)
	c.sanity(r)
}

// supported lists keys of which quill knows exactly one value.
var supported = map[string]string{
	"q_bias": "false", "o_bias": "false",
	"use_embed_norm": "true", "use_sconv": "true", "sconv_kernel_size": "4",
	"final_logit_softcapping": "null",
	"shared_expert_sink":      "true", "use_gate_bias": "true", "gate_activation": `"sigmoid"`, "norm_after_topk": "true", "use_global_scale": "true",
}

// moe reads the keys of the mixture of experts, which an all-dense model may
// leave out.
func (c *Config) moe(r *reader) {
	if c.DenseLayers > c.Layers {
		r.failf("dense_mlp_idx", "is %d, more than the %d layers", c.DenseLayers, c.Layers)
		return
	}
	if c.DenseLayers == c.Layers {
		r.optional("n_routed_experts", "num_experts_per_tok", "n_shared_experts", "intermediate_size", "route_scale")
		return
	}
	c.Experts = r.num("n_routed_experts", 1)
	c.TopK = r.num("num_experts_per_tok", 1)
	c.Shared = r.num("n_shared_experts", 0)
	c.ExpertWidth = r.num("intermediate_size", 1)
	c.RouteScale = r.real("route_scale", false)
	if c.Experts > maxExperts || c.Shared > maxExperts {
		r.failf("n_routed_experts", "is %d beside %d shared ones, want at most %d", c.Experts, c.Shared, maxExperts)
	}
	if c.TopK > c.Experts {
		r.failf("num_experts_per_tok", "is %d, more than the %d routed experts", c.TopK, c.Experts)
	}
}

func (c *Config) sanity(r *reader) {
	if c.ValidVocab > c.Vocab {
		r.failf("unpadded_vocab_size", "is %d, more than vocab_size %d", c.ValidVocab, c.Vocab)
	}
	for _, a := range []struct {
		prefix string
		a      Attention
	}{{"", c.Global}, {"swa_", c.Local}} {
		if a.a.Heads%max(a.a.KVHeads, 1) != 0 {
			r.failf(a.prefix+"num_key_value_heads", "is %d, which does not divide the %d query heads", a.a.KVHeads, a.a.Heads)
		}
	}
	for _, p := range []struct {
		key string
		v   float64
	}{{"rms_norm_eps", c.Eps}, {"logits_mup_width_multiplier", c.MuP}} {
		if p.v <= 0 {
			r.failf(p.key, "is %v, want a positive number", p.v)
		}
	}
	if c.Alpha < 0 {
		r.failf("log_scaling_alpha", "is %v, want a number ≥ 0", c.Alpha)
	}
}

func layerSet(r *reader, key string, ids []int, layers int) []bool {
	set := make([]bool, layers)
	for _, id := range ids {
		switch {
		case id < 0 || id >= layers:
			r.failf(key, "names layer %d of %d", id, layers)
		case set[id]:
			r.failf(key, "names layer %d twice", id)
		default:
			set[id] = true
		}
	}
	return set
}

// towers reads the parts that quill knows but does not compile. A part whose
// configuration has no width is absent.
func (c *Config) towers(r *reader) {
	if v := r.object("vision_config"); v != nil && !v.null("decoder_dmodel") {
		c.Vision = &Vision{v.num("decoder_dmodel", 1), v.num("patch_size", 1), v.num("temporal_patch_size", 1), v.num("n_channels", 1), v.num("n_layers", 1)}
		r.problems = append(r.problems, v.problems...)
	}
	if a := r.object("audio_config"); a != nil && !a.null("decoder_dmodel") {
		c.Audio = &Audio{a.num("decoder_dmodel", 1), a.num("n_mel_bins", 1), a.num("mel_vocab_size", 1)}
		r.problems = append(r.problems, a.problems...)
	}
	if m := r.object("mtp_config"); m != nil {
		if n := m.num("num_nextn_predict_layers", 0); n > 0 {
			c.MTP = &MTP{n, layerSet(m, "local_layer_ids", m.list("local_layer_ids"), n)}
		}
		r.problems = append(r.problems, m.problems...)
	}
}

// reader takes typed values out of a JSON object and collects problems.
type reader struct {
	prefix   string
	obj      map[string]json.RawMessage
	seen     map[string]bool
	problems []string
}

func (r *reader) failf(key, format string, args ...any) {
	r.problems = append(r.problems, r.prefix+key+" "+fmt.Sprintf(format, args...))
}

func (r *reader) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	slices.Sort(r.problems)
	return errors.New(strings.Join(slices.Compact(r.problems), "\n  "))
}

// maxLayers and maxExperts bound the unrolled graph and its expert tensors.
const (
	maxLayers  = 512
	maxExperts = 4096
)

// maxSize bounds every integer of a config: products of a few stay in 64 bits.
const maxSize = 1 << 30

func (r *reader) take(key string) (json.RawMessage, bool) {
	r.optional(key)
	v, ok := r.obj[key]
	return v, ok
}

func (r *reader) has(key string) bool { _, ok := r.obj[key]; return ok }

func (r *reader) optional(keys ...string) {
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	for _, k := range keys {
		r.seen[k] = true
	}
}

func (r *reader) null(key string) bool {
	v, ok := r.take(key)
	return !ok || string(v) == "null"
}

// num reads an integer of at least lo.
func (r *reader) num(key string, lo int) int {
	v, ok := r.take(key)
	if !ok {
		r.failf(key, "is missing")
		return lo
	}
	var n json.Number
	if err := json.Unmarshal(v, &n); err != nil || len(v) == 0 || v[0] == '"' {
		r.failf(key, "is %s, want an integer", v)
		return lo
	}
	i, err := n.Int64()
	if err != nil || i < int64(lo) || i > maxSize {
		r.failf(key, "is %s, want an integer from %d to %d", v, lo, maxSize)
		return lo
	}
	return int(i)
}

func (r *reader) real(key string, optional bool) float64 {
	v, ok := r.take(key)
	if !ok || optional && string(v) == "null" {
		if !optional {
			r.failf(key, "is missing")
		}
		return 0
	}
	var f float64
	if err := json.Unmarshal(v, &f); err != nil || string(v) == "null" || math.IsInf(f, 0) || f != 0 && math.Abs(f) < 1e-30 || math.Abs(f) > 1e30 {
		r.failf(key, "is %s, want a number", v)
	}
	return f
}

func (r *reader) str(key string) string {
	v, ok := r.take(key)
	var s string
	if !ok || json.Unmarshal(v, &s) != nil {
		r.failf(key, "is missing or not a string")
	}
	return s
}

// want checks a key of which only one value is supported. A missing key is an
// error too: its default is the publisher's to choose.
func (r *reader) want(key, only string) {
	v, ok := r.take(key)
	switch {
	case !ok && only == "null":
	case !ok:
		r.failf(key, "is missing; quill supports %s only", only)
	case !sameJSON(string(v), only):
		r.failf(key, "is %s; quill supports %s only", v, only)
	}
}

// sameJSON compares scalars; 4 and 4.0 are the same.
func sameJSON(a, b string) bool {
	if a == b {
		return true
	}
	var x, y float64
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && a != "null" && b != "null" && x == y
}

func (r *reader) list(key string) []int {
	v, ok := r.take(key)
	var ns []int
	if !ok || json.Unmarshal(v, &ns) != nil || string(v) == "null" {
		r.failf(key, "is missing or not a list of integers")
	}
	return ns
}

// object reads a nested object, nil when it is absent or null.
func (r *reader) object(key string) *reader {
	v, ok := r.take(key)
	if !ok || string(v) == "null" {
		return nil
	}
	obj, err := parseObject(v)
	if err != nil {
		r.failf(key, "is not an object: %v", err)
		return nil
	}
	return &reader{prefix: r.prefix + key + ".", obj: obj}
}

// unread notes the keys that were not read.
func (r *reader) unread() []string {
	var notes []string
	for k := range r.obj {
		if !r.seen[k] {
			notes = append(notes, fmt.Sprintf("%s%s is not known and has no effect", r.prefix, k))
		}
	}
	slices.Sort(notes)
	return notes
}

// parseObject reads a JSON object whose keys are unique.
func parseObject(data []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	tok, err := dec.Token()
	if err != nil {
		return nil, jsonError(data, dec.InputOffset(), err)
	}
	if tok != json.Delim('{') {
		return nil, fmt.Errorf("want a JSON object, found %v", tok)
	}
	obj := map[string]json.RawMessage{}
	for dec.More() {
		k, err := dec.Token()
		if err != nil {
			return nil, jsonError(data, dec.InputOffset(), err)
		}
		key := k.(string) // a decoder yields only strings as keys
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, jsonError(data, dec.InputOffset(), fmt.Errorf("value of %s: %w", key, err))
		}
		if _, ok := obj[key]; ok {
			return nil, fmt.Errorf("key %s is given twice", key)
		}
		obj[key] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, jsonError(data, dec.InputOffset(), err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, jsonError(data, dec.InputOffset(), errors.New("text after the object"))
	}
	return obj, nil
}

// jsonError adds the line to a JSON error.
func jsonError(data []byte, offset int64, err error) error {
	if se, ok := errors.AsType[*json.SyntaxError](err); ok {
		offset = se.Offset
	}
	offset = min(offset, int64(len(data)))
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the text ends too early")
	}
	return fmt.Errorf("line %d: not valid JSON: %w", 1+bytes.Count(data[:offset], []byte("\n")), err)
}

package e2e

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/inkling"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
	"quill/runtime"
)

// tiny is the model that variants vary.
var tiny = map[string]any{
	"hidden_size": 32, "num_hidden_layers": 4, "vocab_size": 64, "unpadded_vocab_size": 61,
	"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
	"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 8,
	"sliding_window_size": 6, "d_rel": 4, "rel_extent": 11, "local_layer_ids": []int{0, 1, 3},
	"log_scaling_n_floor": 9, "logits_mup_width_multiplier": 2.0,
	"dense_mlp_idx": 1, "dense_intermediate_size": 24, "intermediate_size": 16,
	"n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2, "route_scale": 2.5,
}

// variants are configurations that are legal though no published model has
// them.
var variants = map[string]map[string]any{
	"as it is":             {},
	"layer 0 is global":    {"local_layer_ids": []int{1, 2, 3}},
	"all layers local":     {"local_layer_ids": []int{0, 1, 2, 3}},
	"all layers global":    {"local_layer_ids": []int{}},
	"one layer":            {"num_hidden_layers": 1, "local_layer_ids": []int{}},
	"no log position":      {"log_scaling_n_floor": nil},
	"log position from 1":  {"log_scaling_n_floor": 1, "log_scaling_alpha": 0.7},
	"no shared experts":    {"n_shared_experts": 0},
	"one shared expert":    {"n_shared_experts": 1},
	"three shared experts": {"n_shared_experts": 3},
	"one routed expert":    {"n_routed_experts": 1, "num_experts_per_tok": 1},
	"all experts chosen":   {"num_experts_per_tok": 6},
	"no dense layers":      {"dense_mlp_idx": 0},
	"all layers dense":     {"dense_mlp_idx": 4},
	"extent is the window": {"rel_extent": 6},
	"extent in the window": {"rel_extent": 2},
	"window of one":        {"sliding_window_size": 1},
	"no padded vocabulary": {"unpadded_vocab_size": 64},
	"head dims of 12":      {"head_dim": 12, "swa_head_dim": 12},
	"head dims of 5 and 8": {"head_dim": 5},
	"head counts differ":   {"swa_num_attention_heads": 2, "swa_num_key_value_heads": 2},
	"one key/value head":   {"num_key_value_heads": 1, "swa_num_key_value_heads": 1},
	"rel features of 3":    {"d_rel": 3},
	"muP of 12.7":          {"logits_mup_width_multiplier": 12.7},
	"large epsilon":        {"rms_norm_eps": 0.01},
}

// varietyBounds are how far the host may be from the interpreter, relative to
// the largest logit. In BF16 intermediate values near the middle of two round
// either way; where that turns a near tie of a router, a row and those that see
// it take another expert, so it is the median row that is held. In F32 it is
// every row.
var varietyBounds = map[string]float64{"f32": 1e-5, "bf16": 1.0 / 32}

// Host and interpreter agree on every legal configuration.
func TestUnusualConfigurations(t *testing.T) {
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range variants {
			if !yield(name) {
				return
			}
		}
	})
	for i, name := range names {
		changed := map[string]any{}
		for _, keys := range []map[string]any{tiny, variants[name]} {
			for k, v := range keys {
				changed[k] = v
			}
		}
		dir := randomCheckpoint(t, changed, uint64(i))
		for _, tp := range []int{1, 2} {
			for _, precision := range []string{"f32", "bf16"} {
				t.Run(fmt.Sprintf("%s/tp%d/%s", strings.ReplaceAll(name, "/", " "), tp, precision), func(t *testing.T) {
					t.Parallel()
					d := deployment{
						model: dir, tp: tp, block: 1 + (i+tp)%5, precision: precision, maxLen: 48, maxSeqs: 2, maxBatched: 16,
						sharded: i%2 == 0,
					}
					most := (d.maxLen + d.block - 1) / d.block
					d.buckets = fmt.Sprintf("prefill q=4,16 c=0,2,%d\ndecode b=2 n=4,%d\n", most, 2*most)
					got, want := d.both(t, uint64(i))
					off := farthestRow(got, want)
					if precision == "bf16" {
						off = medianRow(got, want)
					}
					record(t, "unusual configurations, "+precision+" (relative)", off/scale(want...), varietyBounds[precision])
				})
			}
		}
	}
}

// both feeds random tokens to the host and to the interpreter.
func (d deployment) both(t *testing.T, seed uint64) (host, interp [][]float32) {
	s := &served{}
	require.NoError(t, s.start(t.Context(), d))
	defer func() { require.NoError(t, s.Close()) }()
	rng := rand.New(rand.NewPCG(seed, 0))
	tokens := make([]int32, d.maxLen)
	for i := range tokens {
		tokens[i] = int32(rng.IntN(s.Info().Model.ValidVocab))
	}
	q, err := s.NewSequence(len(tokens))
	require.NoError(t, err)
	defer q.Close()
	chunks := []int{3, 16, 1, 12, 8} // the rest decodes
	for _, n := range chunks {
		require.NoError(t, s.PrefillAll(t.Context(), q, tokens[q.Len():q.Len()+n], func(_ int, logits []float32) error {
			host = append(host, slices.Clone(logits))
			return nil
		}))
	}
	for q.Len() < len(tokens) {
		rows, err := s.Decode(t.Context(), []*runtime.Sequence{q}, tokens[q.Len():q.Len()+1])
		require.NoError(t, err)
		host = append(host, rows...)
	}
	r := d.reference(t)
	return host, r.feed(r.newText(len(tokens)), tokens, chunks, 1, rng)
}

// randomCheckpoint writes a checkpoint with random weights of magnitudes that
// keep activations near 1.
func randomCheckpoint(t *testing.T, changed map[string]any, seed uint64) (dir string) {
	dir = checkpointLike(t, "nano-small", 3, changed, nil)
	cfg, err := inkling.ReadConfig(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(seed, 1))
	var tensors []safetensors.Tensor
	for _, x := range cfg.Tensors() {
		size, shift := magnitude(x)
		n := int64(1)
		for _, d := range x.Shape {
			n *= d
		}
		var data []byte
		for range n {
			v := float32(shift + size*rng.NormFloat64())
			if x.DType == "F32" {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
			} else {
				data = binary.LittleEndian.AppendUint16(data, dtype.ToBF16(v))
			}
		}
		tensors = append(tensors, safetensors.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: data})
	}
	require.NoError(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil))
	return dir
}

// magnitude is the deviation and the mean of a tensor's elements.
func magnitude(x inkling.Tensor) (size, shift float64) {
	switch {
	case strings.HasSuffix(x.Name, "norm.weight"), strings.HasSuffix(x.Name, "global_scale"):
		return 0.2, 1
	case strings.HasSuffix(x.Name, "embed.weight"), strings.HasSuffix(x.Name, "rel_logits_proj.proj"):
		return 1, 0
	case strings.HasSuffix(x.Name, "sconv.weight"), strings.HasSuffix(x.Name, "gate.bias"):
		return 0.3, 0
	}
	return 1 / math.Sqrt(float64(x.Shape[len(x.Shape)-1])), 0
}

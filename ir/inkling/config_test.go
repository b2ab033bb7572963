package inkling

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func load(t testing.TB, name string) *Config {
	t.Helper()
	c, err := ReadConfig(filepath.Join("../../testdata", name, "config.json"))
	require.NoError(t, err)
	return c
}

// count sums a list of tensors.
func count(ts []Tensor) (params, bytes int64) {
	for _, t := range ts {
		n := int64(1)
		for _, d := range t.Shape {
			n *= d
		}
		params += n
		size := int64(2)
		if t.DType == "F32" {
			size = 4
		}
		bytes += n * size
	}
	return params, bytes
}

// The counts are those of the published checkpoints' indexes.
func TestPublishedCounts(t *testing.T) {
	for _, c := range []struct {
		name         string
		text, all    int64
		tensors      int
		bytes        int64
		globalEvery6 bool
	}{
		{"configs/inkling-small", 263_655_199_274, 265_956_439_090, 1048, 531_912_898_740, true},
		{"configs/inkling", 947_025_564_226, 952_377_623_626, 1552, 1_904_755_280_148, true},
	} {
		cfg := load(t, c.name)
		require.Empty(t, cfg.Notes)
		all := cfg.Tensors()
		var text []Tensor
		names := map[string]bool{}
		for _, x := range all {
			require.False(t, names[x.Name], x.Name)
			names[x.Name] = true
			if x.Part == Text {
				text = append(text, x)
			}
		}
		n, _ := count(text)
		require.Equal(t, c.text, n, c.name)
		n, bytes := count(all)
		require.Equal(t, c.all, n, c.name)
		require.Equal(t, c.bytes, bytes)
		require.Len(t, all, c.tensors)
		for l, local := range cfg.IsLocal {
			require.Equal(t, (l+1)%6 != 0, local)
		}
	}
}

func edit(t *testing.T, from, to string) error {
	t.Helper()
	data, err := os.ReadFile("../../testdata/nano-small/config.json")
	require.NoError(t, err)
	require.Contains(t, string(data), from)
	_, err = ParseConfig([]byte(strings.ReplaceAll(string(data), from, to)))
	return err
}

func TestBadConfigs(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{`"q_bias": false`, `"q_bias": true`, "text_config.q_bias is true; quill supports false only"},
		{`"gate_activation": "sigmoid"`, `"gate_activation": "softmax"`, `text_config.gate_activation is "softmax"`},
		{`"final_logit_softcapping": null`, `"final_logit_softcapping": 30.0`, "text_config.final_logit_softcapping is 30.0; quill supports null only"},
		{`"sconv_kernel_size": 4`, `"sconv_kernel_size": 3`, "text_config.sconv_kernel_size is 3"},
		{`"use_embed_norm": true,`, ``, "text_config.use_embed_norm is missing"},
		{`"hidden_size": 64`, `"hidden_size": NaN`, "line 10: not valid JSON: value of text_config"},
		{`"hidden_size": 64`, `"hidden_size": -64`, "text_config.hidden_size is -64, want an integer from 1"},
		{`"hidden_size": 64`, `"hidden_size": "64"`, `text_config.hidden_size is "64", want an integer`},
		{`"hidden_size": 64`, `"hidden_size": 64.5`, "text_config.hidden_size is 64.5"},
		{`"hidden_size": 64`, `"hidden_size": 1e300`, "text_config.hidden_size is 1e300"},
		{`"hidden_size": 64,`, ``, "text_config.hidden_size is missing"},
		{`"hidden_size": 64,`, `"hidden_size": 64, "hidden_size": 65,`, "key hidden_size is given twice"},
		{`"rms_norm_eps": 1e-06`, `"rms_norm_eps": 0`, "text_config.rms_norm_eps is 0, want a positive number"},
		{`"rms_norm_eps": 1e-06`, `"rms_norm_eps": 1e400`, "text_config.rms_norm_eps is 1e400, want a number"},
		{`"num_key_value_heads": 8,
    "head_dim": 16,
    "swa`, `"num_key_value_heads": 3,
    "head_dim": 16,
    "swa`, "text_config.num_key_value_heads is 3, which does not divide the 8 query heads"},
		{`"num_experts_per_tok": 3`, `"num_experts_per_tok": 17`, "more than the 16 routed experts"},
		{`"dense_mlp_idx": 2`, `"dense_mlp_idx": 13`, "more than the 12 layers"},
		{`"unpadded_vocab_size": 500`, `"unpadded_vocab_size": 513`, "more than vocab_size 512"},
		{"      10\n", "      12\n", "names layer 12 of 12"},
		{"      10\n", "      9\n", "names layer 9 twice"},
		{`"model_type": "inkling_mm_model"`, `"model_type": "llama"`, `model_type is "llama"`},
		{`"eos_token_id": 6`, `"eos_token_id": 500`, "eos_token_id: 500 is not below"},
		{`"text_config"`, `"texts"`, "text_config is missing"},
	} {
		require.ErrorContains(t, edit(t, c.from, c.to), c.want, c.to)
	}
}

// Every value that the key's own rules allow is read.
func TestLegalVariety(t *testing.T) {
	for _, c := range [][2]string{
		{`"log_scaling_n_floor": 24`, `"log_scaling_n_floor": null`},
		{`"log_scaling_n_floor": 24`, `"log_scaling_n_floor": 0`},
		{`"final_logit_softcapping": null,`, ``},
		{`"sconv_kernel_size": 4`, `"sconv_kernel_size": 4.0`},
		{`"n_shared_experts": 2`, `"n_shared_experts": 0`},
		{`"n_shared_experts": 2`, `"n_shared_experts": 5`},
		{`"dense_mlp_idx": 2`, `"dense_mlp_idx": 0`},
		{`"dense_mlp_idx": 2`, `"dense_mlp_idx": 12`},
		{`"rel_extent": 32`, `"rel_extent": 16`},
		{`"unpadded_vocab_size": 500`, `"unpadded_vocab_size": 512`},
		{"      0,\n", ""}, // layer 0 global
	} {
		require.NoError(t, edit(t, c[0], c[1]), c[1])
	}
}

// All problems come in one error.
func TestConfigListsAllProblems(t *testing.T) {
	data, err := os.ReadFile("../../testdata/nano-small/config.json")
	require.NoError(t, err)
	s := strings.NewReplacer(`"q_bias": false`, `"q_bias": true`, `"hidden_size": 64`, `"hidden_size": -1`, `"d_rel": 4`, `"d_rel": "x"`).Replace(string(data))
	_, err = ParseConfig([]byte(s))
	for _, key := range []string{"q_bias", "hidden_size", "d_rel"} {
		require.ErrorContains(t, err, key)
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, n := range []string{"nano-small", "nano-big", "configs/inkling"} {
		data, err := os.ReadFile(filepath.Join("../../testdata", n, "config.json"))
		require.NoError(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"text_config":{"hidden_size":NaN}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := ParseConfig(data); err == nil && c.Layers < 200 {
			_, _ = count(c.Tensors())
		}
	})
}

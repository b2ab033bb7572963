package lower

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// Inkling on eight cards in bf16: its experts alone are more than their memory. A rank
// has, worked out by hand,
//
//	experts      64 layers · 258 · 3·6144·3072 · 2 B / 8        233,740,173,312
//	embedding    201,024 · 6144 · 2 B, and an eighth of that again
//	keys and values   2,562 blocks · 128 · (55·2 + 11·1) heads · 128 · 2 · 2 B
//	conv rows    2,562 · 3 · 2 B · (55·(2·256 + 2·6144) + 11·(2·128 + 2·6144))
//
// and over 32 ranks, a quarter of the weights but for the embedding.
func TestInklingDoesNotFitEightCards(t *testing.T) {
	t.Parallel()
	d, err := parseDeployment("/big.yaml", []byte("model: m\ntensor_parallel: 8\nmax_model_len: 1024\nmax_num_seqs: 1\nkv_blocks: 2560\nmax_batched_tokens: 128\n"))
	require.NoError(t, err)
	c := configCompiler(published(t, "inkling"), d)
	all, err := d.covering(c.cfg)
	require.NoError(t, err)
	c.buckets = all
	require.NoError(t, c.set(t.Context(), BF16))
	f, _ := largest(c.bundle)
	bytes := f.set.Bytes
	require.EqualValues(t, 2562*128*(55*2+11)*128*2*2, bytes[recipes.KV])
	require.EqualValues(t, 2562*3*2*(55*(2*256+2*6144)+11*(2*128+2*6144)), bytes[recipes.Conv])
	experts, embedding := int64(233_740_173_312), int64(201_024*6144*2)
	attention := int64(0)
	for l := range 66 {
		kv := int64(8)
		if (l+1)%6 != 0 {
			kv = 16
		}
		attention += 6144 * 2 * (2*64*128 + 2*kv*128 + 64*16) / 8
	}
	dense := int64(2*3*6144*24576*2) / 8
	router := int64(64 * 258 * 6144 * 2) // of each rank all
	byHand := experts + embedding + embedding/8 + attention + dense + router
	require.InEpsilon(t, byHand, bytes[recipes.Weights], 0.001)

	err = c.fit(t.Context())
	require.Error(t, err)
	t.Log(err)
	require.ErrorContains(t, err, fmt.Sprintf("bf16: a rank needs %s of device memory, %s more than the 96 GiB that a gaudi2 has", exactBytes(f.bytes), exactBytes(f.bytes-96<<30)))
	require.ErrorContains(t, err, "Each of these alone makes it fit:\n  tensor_parallel: 32")
	require.NotContains(t, err.Error(), "kv_blocks", "a smaller pool does not help")
	require.NotContains(t, err.Error(), "mask_budget")
}

// Inkling-Small on eight cards fits: 62.8 GiB of weights, 11.6 GiB of pool.
func TestInklingSmallFitsEightCards(t *testing.T) {
	t.Parallel()
	d, err := parseDeployment("/small.yaml", []byte("model: m\ntensor_parallel: 8\nmax_model_len: 1024\nmax_num_seqs: 1\nkv_blocks: 2560\nmax_batched_tokens: 128\n"))
	require.NoError(t, err)
	c := configCompiler(published(t, "inkling-small"), d)
	c.buckets, err = d.covering(c.cfg)
	require.NoError(t, err)
	require.NoError(t, c.set(t.Context(), BF16))
	require.NoError(t, c.fit(t.Context()))
	f, _ := largest(c.bundle)
	require.InDelta(t, 62.8+11.65, float64(f.bytes)/(1<<30), 0.2)
}

// fitDraw is a deployment whose memory is to be too small.
type fitDraw struct {
	*rand.Rand
	dir  string
	keys map[string]string
}

var fitKeys = []string{
	"model", "tensor_parallel", "max_model_len", "max_num_seqs", "block_size", "kv_blocks", "max_batched_tokens", "mask_budget",
	"sub_block_rows", "attention", "moe", "precision", "embedding", "device_memory", "buckets",
}

func (d *fitDraw) text() string {
	text := ""
	for _, k := range fitKeys {
		if v, ok := d.keys[k]; ok {
			text += k + ": " + v + "\n"
		}
	}
	return text
}

func (d *fitDraw) compile(t *testing.T) (*recipes.Bundle, error) {
	path := filepath.Join(d.dir, "d.yaml")
	require.NoError(t, os.WriteFile(path, []byte(d.text()), 0o644))
	dep, err := ReadDeployment(path)
	require.NoError(t, err, "%s", d.text())
	b, _, err := Compile(t.Context(), dep, nil)
	return b, err
}

// smallModel writes a configuration of few layers.
func smallModel(t *testing.T, dir string, layers int) {
	src, err := os.ReadFile("../testdata/nano-small/config.json")
	require.NoError(t, err)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(src, &doc))
	text := doc["text_config"].(map[string]any)
	text["num_hidden_layers"], text["dense_mlp_idx"], text["local_layer_ids"] = layers, 1, []int{0}
	src, err = json.Marshal(doc)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), src, 0o644))
}

func pickOf(r *rand.Rand, list ...string) string { return list[r.IntN(len(list))] }

var suggestion = regexp.MustCompile(`(?m)^  ([a-z_]+): (\S+)$`)

// draw draws a deployment and how much memory it has.
func (d *fitDraw) draw(t *testing.T) {
	d.keys = map[string]string{
		"model": ".", "tensor_parallel": pickOf(d.Rand, "1", "2", "4"), "max_model_len": pickOf(d.Rand, "33", "64"), "max_num_seqs": pickOf(d.Rand, "1", "3"),
		"block_size": "16", "max_batched_tokens": pickOf(d.Rand, "16", "64"), "attention": pickOf(d.Rand, "plain", "masked", "banded"),
		"moe": pickOf(d.Rand, "auto", "gather"), "precision": pickOf(d.Rand, "bf16", "f32", "both"), "embedding": pickOf(d.Rand, "replicated", "sharded"),
	}
	if d.IntN(2) == 0 {
		d.keys["kv_blocks"] = fmt.Sprint(4 + d.IntN(300))
	}
	b, err := d.compile(t)
	require.NoError(t, err, "%s", d.text())
	f, _ := largest(b)
	over := []int64{f.step(), f.pool(), f.bytes, f.step() / 4}[d.IntN(4)]
	d.keys["device_memory"] = fmt.Sprint(max(1, f.bytes-1-d.Int64N(over)))
}

// A suggestion, applied, fits; the lines add up; the numbers are those of the bundle.
func TestSuggestionsFit(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	check := func(d *fitDraw) {
		limit := d.keys["device_memory"]
		delete(d.keys, "device_memory")
		b, err := d.compile(t)
		require.NoError(t, err, "%s", d.text())
		f, set := largest(b)
		var n int64
		if _, err := fmt.Sscanf(limit, "-%d", &n); err == nil { // by how much it is over
			limit = fmt.Sprint(f.bytes - n)
		}
		d.keys["device_memory"] = limit
		_, err = fmt.Sscan(limit, &n)
		require.NoError(t, err)
		_, err = d.compile(t)
		require.Error(t, err, "%s", d.text())
		checkFitError(t, err.Error(), f, set, n)
		d.checkSuggestions(t, err.Error(), seen)
	}
	for _, seed := range []uint64{0, 2, 7, 9} { // which have all keys but those below
		d := fitDraw{Rand: rand.New(rand.NewPCG(seed, 7)), dir: t.TempDir()}
		smallModel(t, d.dir, 2)
		d.draw(t)
		check(&d)
	}
	for _, keys := range []map[string]string{
		{"attention": "masked", "device_memory": "-1000"}, // masks are most of a step
		{"device_memory": "1000"},                         // nothing helps
	} {
		d := fitDraw{dir: t.TempDir(), keys: map[string]string{
			"model": ".", "max_model_len": "192", "max_num_seqs": "1", "block_size": "64", "max_batched_tokens": "64", "precision": "f32",
		}}
		smallModel(t, d.dir, 2)
		for k, v := range keys {
			d.keys[k] = v
		}
		check(&d)
	}
	for _, key := range []string{
		"kv_blocks", "max_batched_tokens", "max_num_seqs", "sub_block_rows", "mask_budget", "moe", "embedding", "precision", "tensor_parallel",
		"together", "none",
	} {
		require.Positive(t, seen[key], "none of %v has %s", seen, key)
	}
}

// checkFitError checks what is said of a footprint.
func checkFitError(t *testing.T, msg string, f footprint, set *recipes.Set, limit int64) {
	t.Helper()
	require.Contains(t, msg, fmt.Sprintf("d.yaml: %s: a rank needs %s of device memory, %s more than the %s of device_memory\n",
		f.set.Precision, exactBytes(f.bytes), exactBytes(f.bytes-limit), exactBytes(limit)))
	var sum int64
	for _, line := range regexp.MustCompile(`(?m)^  (\w+) +(\d+)  `).FindAllStringSubmatch(msg, -1) {
		var n int64
		_, err := fmt.Sscan(line[2], &n)
		require.NoError(t, err)
		want := f.set.Bytes[recipes.Buffer(line[1])]
		if line[1] == "workspace" {
			want = f.set.WorkspaceBytes
		}
		require.Equal(t, want, n, line[1])
		sum += n
	}
	require.Equal(t, f.bytes, sum)
	p := heaviest(set)
	for i := range set.Plans {
		require.LessOrEqual(t, set.Plans[i].ArenaBytes+set.Plans[i].WorkspaceBytes, p.ArenaBytes+p.WorkspaceBytes)
	}
	require.Contains(t, msg, fmt.Sprintf("Of its steps %s takes most, %s of arena and %s of workspace", p.Bucket, exactBytes(p.ArenaBytes), exactBytes(p.WorkspaceBytes)))
	tensors := regexp.MustCompile(`(?m)^  [0-9.]+ (?:B|KiB|MiB): \w+ (?:bf16|f32|i32|i8) \[[0-9 ]*\], (?:arena|workspace) of .+$`).FindAllString(msg, -1)
	require.NotEmpty(t, tensors)
}

// checkSuggestions applies what an error suggests.
func (d *fitDraw) checkSuggestions(t *testing.T, msg string, seen map[string]int) {
	t.Helper()
	_, text, alone := strings.Cut(msg, "Each of these alone makes it fit:\n")
	_, joint, together := strings.Cut(msg, "No key alone makes it fit, these together do:\n")
	if !alone && !together {
		require.Contains(t, msg, "No value of kv_blocks, max_batched_tokens, ")
		seen["none"]++
		return
	}
	before := d.keys
	list := suggestion.FindAllStringSubmatch(text+joint, -1)
	require.NotEmpty(t, list)
	try := func(settings ...[]string) error {
		d.keys = map[string]string{}
		for k, v := range before {
			d.keys[k] = v
		}
		for _, s := range settings {
			require.True(t, slices.Contains(fitKeys, s[1]), s[1])
			require.NotEqual(t, before[s[1]], s[2], "%s is as it was", s[1])
			d.keys[s[1]] = s[2]
		}
		_, err := d.compile(t)
		d.keys = before
		return err
	}
	if together {
		seen["together"]++
		require.NoError(t, try(list...), "%v of %s", list, d.text())
		return
	}
	for _, s := range list {
		seen[s[1]]++
		require.NoError(t, try(s), "%v of %s", s, d.text())
		if s[1] == "kv_blocks" { // the largest: one more does not fit
			var n int
			_, err := fmt.Sscan(s[2], &n)
			require.NoError(t, err)
			if more := fmt.Sprint(n + 1); more != before["kv_blocks"] {
				require.Error(t, try([]string{"", "kv_blocks", more}), "%s of %s", more, d.text())
			}
		}
	}
}

// Cancelling ends the search for what would fit.
func TestFitIsCancelled(t *testing.T) {
	t.Parallel()
	d := fitDraw{dir: t.TempDir(), keys: map[string]string{"model": ".", "max_model_len": "16", "max_num_seqs": "1", "block_size": "16", "device_memory": "1000"}}
	smallModel(t, d.dir, 2)
	path := filepath.Join(d.dir, "d.yaml")
	require.NoError(t, os.WriteFile(path, []byte(d.text()), 0o644))
	dep, err := ReadDeployment(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err = CompileWith(ctx, dep, Options{Passes: defaultManager, Planned: func(string, *Planned) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
}

func TestExactBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.50 KiB", 512 << 20: "512 MiB", 96 << 30: "96 GiB", 96<<30 + 1<<29: "96.50 GiB",
	} {
		require.Equal(t, want, exactBytes(n))
	}
}

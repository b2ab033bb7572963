package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/ir/inkling"
	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

func readConfig(t testing.TB, name string) *inkling.Config {
	t.Helper()
	c, err := inkling.ReadConfig(filepath.Join("../../testdata", name, "config.json"))
	require.NoError(t, err)
	return c
}

// A value depends on its place only: any way to cut a tensor gives the same
// bytes.
func TestValuesDoNotDependOnChunks(t *testing.T) {
	t.Parallel()
	c := readConfig(t, "nano-small")
	v := newValues(c, 7)
	for _, tensor := range []safetensors.Tensor{
		{Name: "model.llm.layers.0.attn.wq_du.weight", DType: "BF16", Shape: []int64{67, 64}},
		{Name: "model.llm.layers.2.mlp.gate.bias", DType: "F32", Shape: []int64{int64(c.Experts)}},
		{Name: "model.llm.layers.2.mlp.gate.global_scale", DType: "F32", Shape: []int64{1}},
	} {
		bytesOf, err := tensor.Size()
		require.NoError(t, err)
		whole := make([]byte, bytesOf)
		v.fill(&tensor, 0, whole)
		rapid.Check(t, func(t *rapid.T) {
			got := make([]byte, bytesOf)
			for at := 0; at < len(got); {
				n := rapid.IntRange(1, len(got)-at).Draw(t, "n")
				v.fill(&tensor, int64(at), got[at:at+n])
				at += n
			}
			require.Equal(t, whole, got)
		})
	}
}

// Tensors, seeds and elements are independent of each other, and distributed as
// their law says.
func TestValuesFollowTheirLaw(t *testing.T) {
	t.Parallel()
	c := readConfig(t, "nano-small")
	name, shape := "model.llm.embed.weight", []int64{512, 64} // of variance 1
	sample := func(seed uint64, name string) []float64 {
		tensor := safetensors.Tensor{Name: name, DType: "BF16", Shape: shape, Data: make([]byte, 2*512*64)}
		newValues(c, seed).fill(&tensor, 0, tensor.Data)
		f, err := tensor.F32()
		require.NoError(t, err)
		x := make([]float64, len(f))
		for i, v := range f {
			x[i] = float64(v)
		}
		return x
	}
	x := sample(1, name)
	n := float64(len(x))
	var moments [5]float64
	for _, v := range x {
		for k := range moments {
			moments[k] += math.Pow(v, float64(k)) / n
		}
	}
	// Five standard errors of each.
	require.InDelta(t, 0, moments[1], 5/math.Sqrt(n))
	require.InDelta(t, 1, moments[2], 5*math.Sqrt(2/n))
	require.InDelta(t, 0, moments[3], 5*math.Sqrt(15/n))
	require.InDelta(t, 3, moments[4], 5*math.Sqrt(96/n))
	product := func(x, y []float64) (sum float64) {
		for i := range x {
			sum += x[i] * y[i%len(y)] / n
		}
		return sum
	}
	for lag := 1; lag <= 16; lag++ {
		require.InDelta(t, 0, product(x[lag:], x), 5/math.Sqrt(n), "lag %d", lag)
	}
	require.InDelta(t, 0, product(x, sample(2, name)), 5/math.Sqrt(n), "another seed")
	require.InDelta(t, 0, product(x, sample(1, "model.llm.x.embed.weight")), 5/math.Sqrt(n), "another tensor")
}

func TestLaws(t *testing.T) {
	t.Parallel()
	c := readConfig(t, "configs/rank-shard")
	stream := 1 / math.Sqrt(8) // four layers, two sums each
	for _, x := range []struct {
		name  string
		shape []int64
		want  law
	}{
		{"model.llm.embed.weight", []int64{25128, 4096}, law{0, 1}},
		{"model.llm.embed_norm.weight", []int64{4096}, law{1, 0.1}},
		{"model.llm.norm.weight", []int64{4096}, law{1, 0.1}},
		{"model.llm.unembed.weight", []int64{25128, 4096}, law{0, 16. / 64}},
		{"model.llm.layers.3.attn.wq_du.weight", []int64{4096, 4096}, law{0, 1. / 64}},
		{"model.llm.layers.3.attn.wo_ud.weight", []int64{4096, 4096}, law{0, 1. / 64 * stream}},
		{"model.llm.layers.3.attn.k_norm.weight", []int64{128}, law{1, 0.1}},
		{"model.llm.layers.3.attn.rel_logits_proj.proj", []int64{16, 1024}, law{0, 0.25}},
		{"model.llm.layers.3.attn.k_sconv.weight", []int64{1024, 1, 4}, law{0, 0.25}},
		{"model.llm.layers.3.attn_sconv.weight", []int64{4096, 1, 4}, law{0, 0.25}},
		{"model.llm.layers.3.mlp.gate.weight", []int64{258, 4096}, law{0, 1. / 64}},
		{"model.llm.layers.3.mlp.gate.bias", []int64{256}, law{0, 0.01}},
		{"model.llm.layers.3.mlp.gate.global_scale", []int64{1}, law{1, 0.1}},
		{"model.llm.layers.3.mlp.experts.w13_weight", []int64{256, 512, 4096}, law{0, 1. / 64}},
		{"model.llm.layers.3.mlp.experts.w2_weight", []int64{256, 4096, 256}, law{0, 1. / 16 * stream}},
		{"model.llm.layers.3.mlp.shared_experts.shared_w2_weight", []int64{2, 4096, 256}, law{0, 1. / 16 * stream}},
		{"model.llm.layers.0.mlp.w2_md.weight", []int64{4096, 16384}, law{0, 1. / 128 * stream}},
		{"model.llm.layers.0.mlp.global_scale", []int64{1}, law{1, 0.1}},
	} {
		got := lawOf(c, x.name, x.shape)
		require.InDelta(t, x.want.mean, got.mean, 0, x.name)
		require.InDelta(t, x.want.dev, got.dev, 1e-15, x.name)
	}
}

// Rounding the quantiles keeps them in order and symmetric.
func TestNormalQuantiles(t *testing.T) {
	t.Parallel()
	q := normalQuantiles()
	for i := range q {
		require.Equal(t, -q[i], q[len(q)-1-i])
		if i > 0 {
			require.Less(t, q[i-1], q[i])
		}
	}
	require.InDelta(t, 4.32, q[len(q)-1], 0.01)
	// Half of a normal distribution lies within 0.67449 deviations.
	require.InDelta(t, 0.67449, q[3*len(q)/4], 1e-4)
}

func TestLawAt(t *testing.T) {
	require.Equal(t, uint16(0x3f80), dtype.ToBF16(law{1, 0.1}.at(0)))
	require.InDelta(t, 0.9, law{1, 0.1}.at(-1), 1e-7)
}

// Cutting changes three values and not a byte of anything else.
func TestCutLayers(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../testdata/configs/inkling-small/config.json")
	require.NoError(t, err)
	c, err := inkling.ParseConfig(text)
	require.NoError(t, err)
	for _, x := range []struct {
		layers, dense int
		local         string
	}{
		{1, 1, "[0]"},
		{6, 2, "[0,1,2,3,4]"},
		{8, 2, "[0,1,2,3,4,6,7]"},
	} {
		cut, err := cutLayers(text, c, x.layers)
		require.NoError(t, err)
		got, err := inkling.ParseConfig(cut)
		require.NoError(t, err)
		require.Equal(t, x.layers, got.Layers)
		require.Equal(t, x.dense, got.DenseLayers)
		require.Equal(t, c.IsLocal[:x.layers], got.IsLocal)

		// Undo it.
		i, j := bytes.Index(text, []byte(`"local_layer_ids": [`)), bytes.Index(text, []byte(`],`+"\n"+`    "dense_mlp_idx"`))
		back := strings.Replace(string(cut), `"local_layer_ids": `+x.local, string(text[i:j+1]), 1)
		for key, values := range map[string][2]int{"num_hidden_layers": {x.layers, 42}, "dense_mlp_idx": {x.dense, 2}} {
			line := func(n int) string { return fmt.Sprintf("%q: %d,", key, n) }
			back = strings.Replace(back, line(values[0]), line(values[1]), 1)
		}
		require.Equal(t, string(text), back)
	}
}

func TestSetValue(t *testing.T) {
	t.Parallel()
	one := func([]byte) ([]byte, error) { return []byte("1"), nil }
	for _, x := range []struct{ in, want string }{
		{`{"k":2}`, `{"k":1}`},
		{` { "a" : {"k": 3} , "k" : [ {}, "k" ] , "z":0}`, ` { "a" : {"k": 3} , "k" : 1 , "z":0}`},
		{"{\"\\u006b\"\n:\t\"é\"}", "{\"\\u006b\"\n:\t1}"},
	} {
		got, err := setValue([]byte(x.in), "k", one)
		require.NoError(t, err)
		require.Equal(t, x.want, string(got))
	}
	for _, in := range []string{``, `{}`, `{"a":1}`, `{"k":`, `{"a":}`} {
		_, err := setValue([]byte(in), "k", one)
		require.Error(t, err, in)
	}
	fail := errors.New("no")
	_, err := setValue([]byte(`{"k":2}`), "k", func([]byte) ([]byte, error) { return nil, fail })
	require.ErrorIs(t, err, fail)
}

func TestPlanShards(t *testing.T) {
	t.Parallel()
	c := readConfig(t, "configs/inkling-small")
	const limit = 5 << 30
	shards, err := planShards(c, limit)
	require.NoError(t, err)
	files := weightMap(shards)
	seen := map[string]bool{}
	for i, s := range shards {
		require.NotEmpty(t, s.tensors)
		require.True(t, s.bytes <= limit || len(s.tensors) == 1, s.name)
		var sum int64
		for _, x := range s.tensors {
			n, err := x.Size()
			require.NoError(t, err)
			sum += n
			require.Equal(t, s.name, files[x.Name])
			require.False(t, seen[x.Name])
			seen[x.Name] = true
		}
		require.Equal(t, s.bytes, sum)
		if i > 0 {
			first, err := s.tensors[0].Size()
			require.NoError(t, err)
			require.Greater(t, shards[i-1].bytes+first, int64(limit), "the tensor would have fit the file before")
		}
	}
	want := 0
	for _, x := range c.Tensors() {
		if x.Part == inkling.Text {
			require.True(t, seen[x.Name], x.Name)
			want++
		}
	}
	require.Len(t, seen, want)
	// The text part of the published checkpoint.
	require.Equal(t, int64(2*263_655_199_274+2*40*257), totalBytes(shards))
}

func TestTooManyShards(t *testing.T) {
	c := readConfig(t, "nano-small")
	c.Layers = 20000
	c.IsLocal = make([]bool, c.Layers)
	_, err := planShards(c, 1)
	require.ErrorContains(t, err, "at most 99999 are possible")
}

func TestCheckSpace(t *testing.T) {
	dir := t.TempDir()
	if _, ok := freeSpace(dir); !ok {
		t.Skip("the system does not say how much space there is")
	}
	require.NoError(t, checkSpace(dir, 1, 0))
	require.NoError(t, checkSpace(dir, 1<<61, 1<<61))
	err := checkSpace(dir, 1<<61, 0)
	require.ErrorContains(t, err, "needs 2048.0 PiB, the file system of "+dir+" has ")
	require.ErrorContains(t, err, "--layers")
	_, err = openOutput(filepath.Join(dir, "new"), "nowhere", false, 1<<61)
	require.ErrorContains(t, err, "needs 2048.0 PiB")
	assertEmpty(t, dir)
}

// What does not fit leaves the checkpoint that is there.
func TestForceChecksSpaceFirst(t *testing.T) {
	dir := t.TempDir()
	if _, ok := freeSpace(dir); !ok {
		t.Skip("the system does not say how much space there is")
	}
	index := filepath.Join(dir, indexFile)
	require.NoError(t, os.WriteFile(index, []byte("{}"), 0o666))
	_, err := openOutput(dir, "nowhere", true, 1<<61)
	require.ErrorContains(t, err, "PiB")
	require.FileExists(t, index)
}

// An interrupt may come at any moment. It leaves nothing.
func TestInterruptedGenCheckpoint(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "ckpt")
	interrupted := 0
	for after := time.Duration(0); ; after = 2*after + time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		var stderr bytes.Buffer
		code := execute(ctx, []string{"gen-checkpoint", "../../testdata/nano-big", "--out", dir, "--shard-bytes", "300000"}, &stderr, &stderr)
		cancel()
		if code == exitOK {
			break
		}
		require.Equal(t, exitInterrupted, code, stderr.String())
		assertEmpty(t, parent)
		interrupted++
	}
	require.Positive(t, interrupted)
	ckpt, err := safetensors.OpenDir(dir)
	require.NoError(t, err)
	require.NoError(t, ckpt.Close())
}

// An error in the middle removes what was written, but not what was there.
func TestFailedGenCheckpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{}"), 0o666))
	// A directory where the last file goes.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "x"), 0o777))
	o := genOptions{config: "../../testdata/nano-dense", out: dir, shard: defaultShard, force: true}
	out, err := openOutput(dir, o.config, true, 0)
	require.NoError(t, err)
	shards, err := planShards(readConfig(t, "nano-dense"), 100000)
	require.NoError(t, err)
	shards[len(shards)-1].name = "x"
	err = o.write(t.Context(), out, []byte("{}"), readConfig(t, "nano-dense"), shards, &bytes.Buffer{})
	require.ErrorContains(t, err, "rename")
	require.NoError(t, out.discard())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "%v", entries)
}

func TestForceKeepsOtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{
		indexFile, "config.json", "model-00001-of-00009.safetensors", "mtp.safetensors", ".safetensors-00ff.tmp",
		"tokenizer.json", "README.md",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("old"), 0o666))
	}
	run(t, exitOK, t.Context(), "gen-checkpoint", "../../testdata/nano-dense", "--out", dir, "--force")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"README.md", "config.json", "model-00001-of-00001.safetensors", indexFile, "tokenizer.json"}, names)
	want, err := os.ReadFile("../../testdata/nano-dense/config.json")
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func BenchmarkValues(b *testing.B) {
	c := readConfig(b, "configs/rank-shard")
	v := newValues(c, 1)
	tensor := safetensors.Tensor{Name: "model.llm.layers.0.attn.wq_du.weight", DType: "BF16", Shape: []int64{4096, 4096}}
	chunk := make([]byte, 4<<20)
	b.SetBytes(int64(len(chunk)))
	for b.Loop() {
		v.fill(&tensor, 0, chunk)
	}
}

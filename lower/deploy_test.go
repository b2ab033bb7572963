package lower

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/passes"
)

const small = `model: ../nano-small
tensor_parallel: 2
max_model_len: 256
max_num_seqs: 4
block_size: 16
max_batched_tokens: 64
`

// deployment writes a deployment beside the nano checkpoints' copies' path.
func deployment(t testing.TB, text string) (*Deployment, error) {
	t.Helper()
	models, err := filepath.Abs("../testdata")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "deploy.yaml")
	text = strings.ReplaceAll(text, "../nano", models+"/nano")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return ReadDeployment(path)
}

func TestDefaults(t *testing.T) {
	d, err := deployment(t, "model: ../nano-small\nmax_model_len: 300\n")
	require.NoError(t, err)
	require.Equal(t, "gaudi2", d.Target)
	require.Equal(t, 1, d.TensorParallel)
	require.Equal(t, 128, d.BlockSize)
	require.Equal(t, 16*3, d.KVBlocks, "room for all sequences at full length")
	require.Equal(t, []string{BF16}, d.Precisions())
	require.True(t, filepath.IsAbs(d.ModelDir()))
}

func TestModelIsRelativeToTheFile(t *testing.T) {
	d, err := parseDeployment("/deploys/a.yaml", []byte("model: ../models/x\nmax_model_len: 8\nblock_size: 4\n"))
	require.NoError(t, err)
	require.Equal(t, "/models/x", d.ModelDir())
}

// The form of experts is the target's, unless the file names one.
func TestFormOfExperts(t *testing.T) {
	for text, want := range map[string]passes.Params{
		"":                        {MoE: passes.FusedExperts},
		"moe: auto":               {MoE: passes.FusedExperts},
		"moe_experts_per_node: 3": {MoE: passes.FusedExperts, ExpertsPerNode: 3},
		"moe: gather":             {MoE: passes.GatheredExperts},
	} {
		d, err := deployment(t, small+text+"\n")
		require.NoError(t, err)
		p := d.params()
		require.Equal(t, want, passes.Params{MoE: p.MoE, ExpertsPerNode: p.ExpertsPerNode}, text)
	}
}

func TestBadDeployments(t *testing.T) {
	for _, c := range []struct{ name, from, to, want string }{
		{"unknown key", "max_num_seqs: 4", "max_seqs: 4", `line 4: unknown key "max_seqs"; keys are model, target, tensor_parallel, max_model_len, max_num_seqs`},
		{"misspelt key", "block_size: 16", "blok_size: 16", `line 5: unknown key "blok_size"; did you mean block_size?; keys are model`},
		{"the first of unknown keys", "max_num_seqs: 4\nblock_size: 16", "b: 1\na: 2\nc: 3", `line 4: unknown key "b"`},
		{"unknown key of buckets", "block_size: 16", "buckets: {strategie: exp, b: 1}", `line 5: unknown key "strategie"; did you mean strategy?; keys are strategy, path, most, padding, trace, sharing`},
		{"buckets in a word", "block_size: 16", "buckets: exp", `line 5: buckets: "exp" is not a mapping of keys; write {strategy: exp}, or {strategy: file, path: LIST}`},
		{"a model's configuration", small, `{"model_type": "inkling_mm_model", "text_config": {}}`, "this is the configuration of a checkpoint; a deployment is wanted"},
		{"unknown key shows its line", "max_num_seqs: 4", "max_seqs: 4", ">  4 | max_seqs: 4"},
		{"duplicate key", "max_num_seqs: 4", "max_num_seqs: 4\nmax_num_seqs: 5", "already defined"},
		{"not a number", "block_size: 16", "block_size: many", `line 5: block_size: "many" is not a whole number`},
		{"block size 0", "block_size: 16", "block_size: 0", "line 5: block_size is 0, want 1 to"},
		{"negative", "max_model_len: 256", "max_model_len: -1", "line 3: max_model_len is -1, want 1 to"},
		{"zero length", "max_model_len: 256", "max_model_len: 0", "line 3: max_model_len is 0"},
		{"no length", "max_model_len: 256", "", "max_model_len: missing"},
		{"no model", "model: ../nano-small", "", "model: the checkpoint's directory is missing"},
		{"pool too small", "block_size: 16", "block_size: 16\nkv_blocks: 15", "line 3: max_model_len 256 needs 16 blocks, kv_blocks is 15: raise kv_blocks or lower max_model_len"},
		{"pool of 0", "block_size: 16", "block_size: 16\nkv_blocks: 0", "line 6: kv_blocks is 0, want 1 to"},
		{"pool too large", "block_size: 16", "block_size: 16\nkv_blocks: 1000000000", "line 6: kv_blocks is 1000000000, want 1 to"},
		{"too many sequences", "max_num_seqs: 4", "max_num_seqs: 1000000", "line 4: max_num_seqs is 1000000, want 1 to 4096"},
		{"a key in a comment is not there", "max_model_len: 256", "# max_model_len: 256", "max_model_len: missing"},
		{"target", "block_size: 16", "block_size: 16\ntarget: tpu", `line 6: target: "tpu" is not one of gaudi2`},
		{"precision", "block_size: 16", "block_size: 16\nprecision: fp8", `precision: "fp8" is not one of bf16, f32, both`},
		{"attention", "block_size: 16", "block_size: 16\nattention: fancy", `attention: "fancy" is not one of plain, masked, banded`},
		{"far", "block_size: 16", "block_size: 16\nfar: near", `far: "near" is not one of mask, exact, tiled`},
		{"far of no band", "block_size: 16", "block_size: 16\nattention: plain\nfar: exact", `line 7: far: attention: plain leaves no keys out of a band; leave the key out or say attention: banded`},
		{"mask budget", "block_size: 16", "block_size: 16\nmask_budget: 64KB", `mask_budget: "64KB" is not a number of bytes from 1, with KiB, MiB or GiB behind it or nothing for bytes`},
		{"no mask budget", "block_size: 16", "block_size: 16\nmask_budget: 0", `mask_budget: "0" is not a number of bytes from 1`},
		{"device memory", "block_size: 16", "block_size: 16\ndevice_memory: 94GB", `line 6: device_memory: "94GB" is not a number of bytes from 1, with KiB, MiB or GiB behind it or nothing for bytes`},
		{"no device memory", "block_size: 16", "block_size: 16\ndevice_memory: 0", `line 6: device_memory: "0" is not a number of bytes from 1`},
		{"empty device memory", "block_size: 16", "block_size: 16\ndevice_memory: ''", `line 6: device_memory: "" is not a number of bytes from 1`},
		{"more device memory than there is", "block_size: 16", "block_size: 16\ndevice_memory: 97GiB", `line 6: device_memory: 97GiB is more than a gaudi2 has, 96 GiB; the key is for lowering it`},
		{"no rows", "block_size: 16", "block_size: 16\nsub_block_rows: 0", `sub_block_rows: 0, want a number from 1`},
		{"moe", "block_size: 16", "block_size: 16\nmoe: dense", `line 6: moe: "dense" is not one of auto, fused, gather`},
		{"no experts a node", "block_size: 16", "block_size: 16\nmoe_experts_per_node: 0", `line 6: moe_experts_per_node: 0, want a number from 1`},
		{"experts of no node", "block_size: 16", "block_size: 16\nmoe: gather\nmoe_experts_per_node: 4", `line 7: moe_experts_per_node: moe: gather uses no node of experts`},
		{"embedding", "block_size: 16", "block_size: 16\nembedding: split", `embedding: "split"`},
		{"strategy", "block_size: 16", "block_size: 16\nbuckets: {strategy: lin}", `buckets.strategy: "lin"`},
		{"file without path", "block_size: 16", "block_size: 16\nbuckets: {strategy: file}", "strategy file needs path"},
		{"path without file", "block_size: 16", "block_size: 16\nbuckets: {path: x}", "buckets.path: only strategy file reads a list"},
		{"trace of exp", "block_size: 16", "block_size: 16\nbuckets: {trace: x}", "line 6: buckets.trace: only strategy optimal reads a trace"},
		{"padding of exp", "block_size: 16", "block_size: 16\nbuckets: {padding: 2}", "line 6: buckets.padding: only strategy pad or optimal bounds padding"},
		{"padding below 1", "block_size: 16", "block_size: 16\nbuckets: {strategy: pad, padding: 0.9}", "line 6: buckets.padding: 0.9, want a ratio of bucket to need from 1 to 65536"},
		{"padding 0", "block_size: 16", "block_size: 16\nbuckets: {strategy: pad, padding: 0}", "line 6: buckets.padding: 0, want"},
		{"padding that is no number", "block_size: 16", "block_size: 16\nbuckets: {strategy: pad, padding: .nan}", "line 6: buckets.padding: NaN, want"},
		{"padding in words", "block_size: 16", "block_size: 16\nbuckets: {strategy: pad, padding: much}", `padding: "much" is not a number`},
		{"no buckets", "block_size: 16", "block_size: 16\nbuckets: {most: 0}", "line 6: buckets.most: 0, want 1 to 65536"},
		{"buckets in octal", "block_size: 16", "block_size: 16\nbuckets: {most: 010}", `line 6: buckets.most: "010" is not a whole number`},
		{"negative sharing", "block_size: 16", "block_size: 16\nbuckets: {sharing: -1}", "line 6: buckets.sharing: -1, want 1 to 4096"},
		{"fraction", "block_size: 16", "block_size: 1.5", `line 5: block_size: "1.5" is not a whole number`},
		{"octal", "block_size: 16", "block_size: 010", `line 5: block_size: "010" is not a whole number`},
		{"quoted", "block_size: 16", `block_size: "16"`, `line 5: block_size: "16" is not a whole number`},
		{"beyond 64 bits", "block_size: 16", "block_size: 18446744073709551616", `is not a whole number`},
		{"two documents", "block_size: 16", "block_size: 16\n---\nblock_size: 8", "line 7: a second document"},
		{"merged", "block_size: 16", "block_size: 16\n<<: {kv_blocks: 3}", "line 6: keys cannot be merged"},
		{"brackets", "block_size: 16", "buckets: " + strings.Repeat("[", 5000), "5000 brackets, more than 100"},
		{"large", "block_size: 16", "# " + strings.Repeat("x", 1<<17), "more than the 65536"},
		{"empty", small, "# nothing", "the file is empty"},
		{"yaml", "block_size: 16", "block_size: [", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, small, c.from)
			_, err := deployment(t, strings.Replace(small, c.from, c.to, 1))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "deploy.yaml")
		})
	}
	_, err := ReadDeployment("/nowhere/x.yaml")
	require.ErrorContains(t, err, "/nowhere/x.yaml")
}

// What only the model can refuse shows the deployment's line too.
func TestDeploymentAgainstTheModel(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"tensor_parallel: 2", "tensor_parallel: 3", "line 2: tensor_parallel: 3 does not divide num_attention_heads 8"},
		{"max_model_len: 256", "max_model_len: 5000", "line 3: max_model_len: 5000 is more than the model's model_max_length 4096"},
		{"model: ../nano-small", "model: ../nano-none", "line 1: model: "},
	} {
		d, err := deployment(t, strings.Replace(small, c.from, c.to, 1))
		require.NoError(t, err)
		_, _, err = Compile(t.Context(), d, nil)
		require.ErrorContains(t, err, c.want)
	}
}

func FuzzDeployment(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("model: x\nmax_model_len: 1e9\nbuckets: {strategy: [}"))
	f.Fuzz(func(t *testing.T, src []byte) {
		d, err := parseDeployment("/d.yaml", src)
		if err == nil && (d.BlockSize < 1 || d.KVBlocks*d.BlockSize < d.MaxModelLen) {
			t.Fatalf("accepted %+v", d)
		}
	})
}

package lower

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/passes"
	"quill/recipes"
	"quill/recipes/target"
)

// Whatever a deployment says, the target takes what it compiles to: Compile checks each
// recipe and plan.
func TestRandomDeploymentsAreLegal(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 5))
	pick := func(values ...any) any { return values[rng.IntN(len(values))] }
	for range 10 {
		text := fmt.Sprintf("model: ../%v\nmax_model_len: %v\nmax_num_seqs: %v\nblock_size: %v\nmax_batched_tokens: %v\n",
			pick("nano-small", "nano-big", "nano-dense"), pick(40, 64, 96), pick(1, 3), pick(8, 16), pick(8, 32))
		text += fmt.Sprintf("tensor_parallel: %v\nprecision: %v\nembedding: %v\nsub_block_rows: %v\nmask_budget: %v\n",
			pick(1, 2, 4), pick("bf16", "f32"), pick("replicated", "sharded"), pick(4, 1024), pick("64KiB", "512MiB"))
		text += pick("attention: plain\n", "attention: masked\n", "far: mask\n", "far: exact\n", "far: tiled\n").(string)
		text += pick("", "moe: gather\n", "moe_experts_per_node: 3\n").(string)
		d, err := deployment(t, text)
		require.NoError(t, err, text)
		_, _, err = Compile(t.Context(), d, nil)
		require.NoError(t, err, text)
	}
}

// What the target does not take is an error of Compile that names bucket, recipe and
// what to do.
func TestTargetRefuses(t *testing.T) {
	t.Parallel()
	cfg := published(t, "inkling-small")
	d := dep(262144, 16, 128, 8192)
	d.KVBlocks = 2560
	c := compiler{
		cfg: cfg, dep: d, bundle: &recipes.Bundle{Recipes: map[recipes.Hash]*recipes.Recipe{}},
		passes:  passes.NewManager(passes.Config{Pipeline: passes.Default(), Params: d.params()}),
		buckets: []recipes.Bucket{{Phase: recipes.Decode, Seqs: 1, Blocks: 16}},
	}
	err := c.set(t.Context(), BF16)
	require.ErrorContains(t, err, "bucket decode/b=1,n=16: recipe ")
	require.ErrorContains(t, err, ": program: want at most 67108864 bytes, have an estimate of ")
	require.ErrorContains(t, err, "(10320 experts among them)")
	require.ErrorContains(t, err, "help: use more ranks (tensor_parallel)")
	require.Empty(t, c.bundle.Recipes)
}

// With all experts in one node, the default, the largest recipe of a published model has
// room to spare in the estimate of its program.
func TestExpertsOfPublishedModelsFit(t *testing.T) {
	t.Parallel()
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	b := compileDeep(t, 42, func(b recipes.Bucket) bool {
		return b.Query == 8192 && b.Blocks >= 1024 || b.Seqs == 16 && b.Blocks == 32768
	})
	require.GreaterOrEqual(t, len(b.Sets[0].Plans), 2)
	var most target.Program
	for _, r := range b.Recipes {
		if e := p.Program(r); e.Bytes > most.Bytes {
			most = e
		}
	}
	require.Equal(t, int64(258), most.Experts, "256 routed and 2 shared ones")
	require.Less(t, most.Bytes, p.Limit("program_data")/4)
	t.Logf("%+v", most)
}

// Recipes that update a state are refused without the After edges that emission gives
// them.
func TestUpdatesNeedTheirEdges(t *testing.T) {
	t.Parallel()
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	refused := 0
	for _, r := range compileSmall(t, "").Recipes {
		bare := *r
		bare.Nodes = slices.Clone(r.Nodes)
		edges := 0
		for i := range bare.Nodes {
			edges += len(bare.Nodes[i].After)
			bare.Nodes[i].After = nil
		}
		if err := p.CheckRecipe(&bare); edges > 0 && err != nil {
			require.True(t, strings.HasSuffix(err.Error(), "[order]"), "%v", err)
			refused++
		}
	}
	require.Greater(t, refused, 10)
}

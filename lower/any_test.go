package lower

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/inkling"
	"quill/passes"
	"quill/recipes"
)

// anyDeployment draws a deployment's file, most of them with sizes that few would write:
// requests of a token, chunks and requests shorter than a block, sizes that divide nothing.
func anyDeployment(r *rand.Rand) string {
	size := func(most int) int {
		switch r.IntN(12) {
		case 0:
			return 1 + r.IntN(2)
		case 1:
			return most * (1 + r.IntN(1000))
		case 2:
			return r.IntN(20) - r.IntN(3)
		}
		return 1 + r.IntN(most)
	}
	text := fmt.Sprintf("model: m\nmax_model_len: %d\n", size(300))
	some := func(odds int, format string, value any) {
		if r.IntN(odds) == 0 {
			text += fmt.Sprintf(format+"\n", value)
		}
	}
	word := func(words ...string) string { return words[r.IntN(len(words))] }
	some(2, "block_size: %v", size(40))
	some(1, "max_num_seqs: %v", size(9))
	some(2, "max_batched_tokens: %v", size(100))
	some(3, "kv_blocks: %v", size(60))
	some(3, "tensor_parallel: %v", []int{1, 2, 3, 4, 7, 8, 0}[r.IntN(7)])
	some(6, "precision: %v", word("bf16", "f32", "both"))
	some(6, "embedding: %v", word("replicated", "sharded"))
	some(6, "attention: %v", word("plain", "masked", "banded"))
	some(8, "far: %v", word("mask", "exact", "tiled"))
	some(6, "mask_budget: %vKiB", size(100))
	some(6, "sub_block_rows: %v", size(30))
	some(6, "moe: %v", word("auto", "fused", "gather"))
	some(8, "moe_experts_per_node: %v", size(9))
	some(12, "device_memory: %vMiB", size(100))
	buckets := "strategy: " + word("exp", "exp", "pad", "linear", "optimal", "exp-compat")
	if r.IntN(5) == 0 {
		buckets += fmt.Sprint(", most: ", size(200))
	}
	if r.IntN(6) == 0 {
		buckets += fmt.Sprint(", padding: ", word("1", "1.1", "2", "0.5"))
	}
	if r.IntN(5) == 0 {
		buckets += fmt.Sprint(", sharing: ", size(3))
	}
	some(2, "buckets: {%v}", buckets)
	return text
}

// deploymentKeys are the keys that an error may name.
func deploymentKeys() string {
	var names []string
	for _, t := range []reflect.Type{reflect.TypeFor[Deployment](), reflect.TypeFor[Buckets]()} {
		names = append(names, keys(t)...)
	}
	return strings.Join(names, "|")
}

// Ten thousand deployments, however odd, have buckets for all their steps, among which the
// runtime chooses one that covers, or an error that names a key of the file. QUILL_SOAK has
// them all and compiles more of them.
func TestAnyDeploymentPlansOrNamesAKey(t *testing.T) {
	t.Parallel()
	runs, compiles := 2500, 8
	if os.Getenv("QUILL_SOAK") != "" {
		runs, compiles = 10_000, 200
	}
	names := regexp.MustCompile(`^(line \d+: )?(buckets\.)?(` + deploymentKeys() + `)\b`)
	cfg := published(t, "../nano-small")
	r := rand.New(rand.NewPCG(17, 4))
	planned, compiled, short := 0, 0, 0
	for i := range runs {
		text := anyDeployment(r)
		d, err := parseDeployment("/d.yaml", []byte(text))
		if err == nil {
			err = d.checkModel(cfg)
		}
		var all []recipes.Bucket
		if err == nil {
			all, err = d.covering(cfg)
		}
		if err != nil {
			msg := strings.TrimPrefix(err.Error(), "/d.yaml: ")
			require.Regexp(t, names, msg, "run %d:\n%s", i, text)
			continue
		}
		planned++
		if d.MaxModelLen <= d.BlockSize {
			short++
		}
		checkChoices(t, r, d, d.costs(cfg), all, text)
		if compiled < compiles && len(all)*len(d.Precisions()) <= 12 {
			compiled++
			compileAny(t, cfg, d, all, text)
		}
	}
	t.Logf("%d of %d have buckets, %d of them requests of a block at most; %d were compiled", planned, runs, short, compiled)
	require.Greater(t, planned, runs/3)
	require.Greater(t, short, runs/20)
	require.Equal(t, compiles, compiled)
}

// checkChoices checks what the runtime chooses for some admissible steps, the largest ones
// among them.
func checkChoices(t *testing.T, r *rand.Rand, d *Deployment, k recipes.Costs, all []recipes.Bucket, text string) {
	t.Helper()
	m := d.manifest()
	sel := recipes.NewSelector(&k, d.BlockSize, all)
	most := d.MaxNumSeqs * m.BlocksFor(d.MaxModelLen)
	if s := d.Buckets.Sharing; s > 0 {
		most = min(most, s*d.KVBlocks)
	}
	needs := []recipes.Bucket{
		{Phase: recipes.Prefill, Query: 1, Blocks: m.BlocksFor(d.MaxModelLen - 1)},
		{Phase: recipes.Prefill, Query: d.MaxBatchedTokens, Blocks: m.BlocksFor(d.MaxModelLen - d.MaxBatchedTokens)},
		{Phase: recipes.Decode, Seqs: min(d.MaxNumSeqs, most), Blocks: most},
		{Phase: recipes.Logits, Seqs: 1},
	}
	for range 8 {
		q := 1 + r.IntN(d.MaxBatchedTokens)
		needs = append(needs, recipes.Bucket{Phase: recipes.Prefill, Query: q, Blocks: m.BlocksFor(r.IntN(d.MaxModelLen - q + 1))})
		s := 1 + r.IntN(min(d.MaxNumSeqs, most))
		needs = append(needs, recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: s + r.IntN(min(most, s*m.BlocksFor(d.MaxModelLen))-s+1)})
	}
	for _, need := range needs {
		i := sel.Select(need)
		require.True(t, i >= 0 && all[i].Covers(need), "%v: bucket %d\n%s", need, i, text)
	}
}

// compileAny compiles a deployment's buckets, as far as memory is not the matter.
func compileAny(t *testing.T, cfg *inkling.Config, d *Deployment, all []recipes.Bucket, text string) {
	t.Helper()
	c := compiler{
		cfg: cfg, dep: d, buckets: all, bundle: &recipes.Bundle{Recipes: map[recipes.Hash]*recipes.Recipe{}},
		passes: passes.NewManager(passes.Config{Pipeline: passes.Default(), Params: d.params()}),
	}
	for _, p := range d.Precisions() {
		if err := c.set(context.Background(), p); err != nil {
			require.Regexp(t, `more than mask_budget = \d+: raise it`, err.Error(), text) // a row of a mask may be larger
			return
		}
	}
	require.Len(t, c.bundle.Sets, len(d.Precisions()))
	for i := range c.bundle.Sets {
		require.True(t, slices.Equal(all, c.bundle.Sets[i].Info.Plans), text)
	}
}

package target_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower"
	"quill/recipes"
	"quill/recipes/target"
)

// compile makes a bundle of a deployment whose model is below testdata.
func compile(t *testing.T, text, buckets string) *recipes.Bundle {
	t.Helper()
	models, err := filepath.Abs("../../testdata")
	require.NoError(t, err)
	dir := t.TempDir()
	if buckets != "" {
		text += "buckets: {strategy: file, path: buckets.txt}\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, "buckets.txt"), []byte(buckets), 0o666))
	}
	path := filepath.Join(dir, "deploy.yaml")
	require.NoError(t, os.WriteFile(path, []byte("model: "+models+"/"+text), 0o666))
	d, err := lower.ReadDeployment(path)
	require.NoError(t, err)
	b, _, err := lower.Compile(t.Context(), d, nil)
	require.NoError(t, err)
	return b
}

// Every node of every recipe is one that the profile knows, with operands that it may
// have, and its parameters have bytes that decode to them, but for those listed.
func TestRecipesOfModels(t *testing.T) {
	p, err := target.Load(target.Default)
	require.NoError(t, err)
	const nano = "nano-small\ntensor_parallel: 2\nmax_model_len: 256\nmax_num_seqs: 4\nblock_size: 16\nmax_batched_tokens: 64\nprecision: both\n"
	const small = "configs/inkling-small\ntensor_parallel: 8\nmax_model_len: 4096\nmax_num_seqs: 2\nkv_blocks: 64\nmax_batched_tokens: 512\n"
	const buckets = "prefill q=512 c=0,8,32\ndecode b=1 n=2,32\ndecode b=2 n=2,64\n"
	unseen := map[string]bool{} // entries of the profile that no recipe has
	for i := range p.Nodes {
		unseen[p.Nodes[i].GUID] = true
	}
	experts := []string{"moe_bf16: ns_MoeKernel::ParamsV2"}
	for _, c := range []struct {
		name, text, buckets string
		missing             []string // the layouts that are missing, by GUID
		most                int      // GUIDs that must be seen at least
	}{
		{"nano", nano, "", []string{"moe_bf16: ns_MoeKernel::ParamsV2", "moe_f32: ns_MoeKernel::ParamsV2"}, 40},
		{"nano gathered", nano + "moe: gather\nattention: plain\n", "", nil, 40},
		{"nano exact", nano + "far: exact\n", "", []string{"moe_bf16: ns_MoeKernel::ParamsV2", "moe_f32: ns_MoeKernel::ParamsV2"}, 40},
		{"inkling-small", small, buckets, experts, 25},
		{"inkling-small gathered", small + "moe: gather\n", buckets, nil, 25},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := compile(t, c.text, c.buckets)
			seen, missing := map[string]bool{}, map[string]bool{}
			nodes := 0
			for h, r := range b.Recipes {
				again, err := recipes.DecodeRecipe(r.Encode(), h)
				require.NoError(t, err)
				require.Equal(t, r, again)
				for i := range r.Nodes {
					n := &r.Nodes[i]
					nodes++
					seen[n.GUID] = true
					if entry, _, err := p.Node(n.GUID); err == nil {
						delete(unseen, entry.GUID)
					}
					if m := encode(t, p, r, n); m != "" {
						missing[m] = true
					}
				}
			}
			t.Logf("%d recipes, %d nodes, %d GUIDs", len(b.Recipes), nodes, len(seen))
			require.GreaterOrEqual(t, len(seen), c.most)
			require.Equal(t, c.missing, slices.Sorted(maps.Keys(missing)))
		})
	}
	// Forms of ops that no model has after the passes.
	require.Equal(t, []string{"cast_i8_to", "identity", "neg_fwd", "softplus_fwd"}, slices.Sorted(maps.Keys(unseen)))
}

// encode checks one node, and says what layout is missing if one is.
func encode(t *testing.T, p *target.Profile, r *recipes.Recipe, n *recipes.Node) string {
	b, err := p.EncodeNode(r, n)
	if m, ok := errors.AsType[*target.MissingError](err); ok {
		return fmt.Sprintf("%s: %s", n.GUID, m.Struct)
	}
	require.NoError(t, err)
	if n.Params == nil {
		require.Nil(t, b)
		return ""
	}
	_, of, err := p.Node(n.GUID)
	require.NoError(t, err)
	v, err := p.Decode(n.Params.Struct, b, of)
	require.NoError(t, err)
	require.Equal(t, n.Params, v)
	return ""
}

package lower

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/inkling"
	"quill/passes"
	"quill/recipes"
)

// layersOf is nano-small with layers of one kind.
func layersOf(t *testing.T, layers int, local, dense bool) *inkling.Config {
	t.Helper()
	cfg, err := inkling.ReadConfig("../testdata/nano-small/config.json")
	require.NoError(t, err)
	cfg.Layers, cfg.IsLocal = layers, make([]bool, layers)
	for l := range cfg.IsLocal {
		cfg.IsLocal[l] = local
	}
	cfg.DenseLayers = 0
	if dense {
		cfg.DenseLayers = layers
	}
	return cfg
}

// configCompiler compiles a configuration that is in no file.
func configCompiler(cfg *inkling.Config, d *Deployment) *compiler {
	return &compiler{
		cfg: cfg, dep: d, bundle: &recipes.Bundle{Manifest: recipes.Manifest{Deployment: d.manifest()}, Recipes: map[recipes.Hash]*recipes.Recipe{}},
		passes: defaultManager(d.params()),
	}
}

// More layers of a kind need no more arena or workspace than one, whatever the form of
// attention and experts, less what plans declare for the convolutions of all layers. Where
// a launch computes queries, keys and values for sub-blocks, a layer that follows another
// has what it reads of it in the arena: the residual stream and a sum over the ranks.
func TestStepMemoryOfEveryForm(t *testing.T) {
	t.Parallel()
	keep := []string{
		"prefill/q=64,c=0", "prefill/q=64,c=1", "prefill/q=64,c=7", "prefill/q=16,c=10",
		"decode/b=1,n=1", "decode/b=4,n=4", "decode/b=4,n=40", "logits/r=4",
	}
	elem := map[string]int64{BF16: 2, F32: 4}
	for _, moe := range []string{passes.FusedExperts, passes.GatheredExperts} {
		for _, form := range [][2]string{{passes.Plain, passes.FarMask}, {passes.Masked, passes.FarMask}, {passes.Banded, passes.FarMask}, {passes.Banded, passes.FarExact}, {passes.Banded, passes.FarTiled}} {
			for _, kind := range []struct{ local, dense bool }{{true, false}, {false, false}, {true, true}, {false, true}} {
				if kind.dense && (moe == passes.GatheredExperts || form[0] == passes.Banded && form[1] != passes.FarMask) {
					continue // no experts, and attention is that of the other layers
				}
				d := dep(160, 4, 16, 64)
				d.MoE, d.Attention, d.Far, d.TensorParallel, d.SubBlockRows = moe, form[0], form[1], 2, 32
				all, err := d.covering(published(t, "inkling-small"))
				require.NoError(t, err)
				all = slices.DeleteFunc(all, func(b recipes.Bucket) bool { return !slices.Contains(keep, b.String()) })
				require.Len(t, all, len(keep))
				var of [3]*recipes.Bundle
				var cfg *inkling.Config
				for i := range of {
					cfg = layersOf(t, 1<<i, kind.local, kind.dense)
					c := configCompiler(cfg, d)
					c.buckets = all
					for _, p := range []string{BF16, F32} {
						require.NoError(t, c.set(t.Context(), p))
					}
					of[i] = c.bundle
				}
				for s := range of[0].Sets {
					for i := range all {
						one := &of[0].Sets[s].Plans[i]
						what := fmt.Sprintf("moe %s, attention %v, %+v, %s, %s", moe, form, kind, of[0].Sets[s].Info.Precision, one.Bucket)
						arena := one.ArenaBytes - one.LayerBytes
						if hasSubBlocks(one) {
							arena += int64(one.Bucket.Query*cfg.Hidden) * (elem[of[0].Sets[s].Info.Precision] + 4)
						}
						workspace := one.WorkspaceBytes - of[0].LayerWorkspace(one)
						for _, b := range of[1:] {
							p := &b.Sets[s].Plans[i]
							require.LessOrEqual(t, p.ArenaBytes-p.LayerBytes, arena, what)
							require.LessOrEqual(t, p.WorkspaceBytes-b.LayerWorkspace(p), workspace, what)
							if one.Bucket.Phase != recipes.Decode {
								require.Zero(t, p.LayerBytes+b.LayerWorkspace(p), what)
							}
							arena = p.ArenaBytes - p.LayerBytes // of two bounds four
						}
					}
				}
			}
		}
	}
}

// hasSubBlocks reports whether a plan has rows of attention cut.
func hasSubBlocks(p *recipes.Plan) bool {
	return slices.ContainsFunc(p.Steps, func(s recipes.Step) bool { return s.Launch != nil && strings.HasPrefix(s.Launch.Break, "sub-block") })
}

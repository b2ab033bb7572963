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

// Four layers of a kind need no more arena or workspace than two, whatever the form of
// attention and experts, less what plans declare for values of all layers and what is
// computed of the history of all layers' convolutions at once. (One layer alone has
// nothing that layers share and that therefore lies in the arena.)
func TestStepMemoryOfEveryForm(t *testing.T) {
	t.Parallel()
	keep := []string{
		"prefill/q=64,c=0", "prefill/q=64,c=1", "prefill/q=64,c=7", "prefill/q=16,c=10",
		"decode/b=1,n=1", "decode/b=4,n=4", "decode/b=4,n=40", "logits/r=4",
	}
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
				var of [2]*recipes.Bundle
				for i, layers := range []int{2, 4} {
					c := configCompiler(layersOf(t, layers, kind.local, kind.dense), d)
					c.buckets = all
					for _, p := range []string{BF16, F32} {
						require.NoError(t, c.set(t.Context(), p))
					}
					of[i] = c.bundle
				}
				for s := range of[0].Sets {
					for i := range all {
						two, four := &of[0].Sets[s].Plans[i], &of[1].Sets[s].Plans[i]
						what := fmt.Sprintf("moe %s, attention %v, %+v, %s, %s", moe, form, kind, of[0].Sets[s].Info.Precision, two.Bucket)
						require.LessOrEqual(t, four.ArenaBytes-four.LayerBytes, two.ArenaBytes-two.LayerBytes, what)
						require.LessOrEqual(t, layerWorkspace(of[1], four), layerWorkspace(of[0], two), what)
					}
				}
			}
		}
	}
}

// layerWorkspace is the workspace of a plan without the nodes that compute something of
// the convolutions of several layers, whose origins have no layer.
func layerWorkspace(b *recipes.Bundle, p *recipes.Plan) (most int64) {
	for i := range p.Steps {
		if l := p.Steps[i].Launch; l != nil {
			r := *b.Recipes[l.Recipe]
			r.Nodes = slices.DeleteFunc(slices.Clone(r.Nodes), func(n recipes.Node) bool {
				return strings.HasPrefix(n.Origin, "attn.") || strings.HasPrefix(n.Origin, "mlp.")
			})
			most = max(most, r.PlaceWorkspace().Bytes)
		}
	}
	return most
}

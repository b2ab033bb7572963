package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/passes"
	"quill/recipes"
	"quill/recipes/dtype"
)

// reductions counts the all-reduces of a captured graph.
func reductions(m *ir.Module) int {
	n := 0
	for _, op := range m.Entry().Ops {
		if op.Name() == "all_reduce" {
			n++
		}
	}
	return n
}

// plainReductions is what the model has in its plain form: one after attention
// and one after a dense MLP, or two, of routed and of shared experts.
func plainReductions(c *inkling.Config) int {
	n := 2 * c.Layers
	if c.Shared > 0 {
		n += c.Layers - c.DenseLayers
	}
	return n
}

// The published configurations are captured for eight ranks.
func TestPublishedModelsAreCaptured(t *testing.T) {
	t.Parallel()
	known := map[string]int{"inkling-small": 2*2 + 3*40}
	for _, name := range []string{"inkling-small", "inkling"} {
		c, err := inkling.ReadConfig(filepath.Join(modelDir("configs"), name, "config.json"))
		require.NoError(t, err)
		o := inkling.Options{
			TP: 8, BlockSize: 128, Blocks: 2560, MaxModelLen: 262144, MaxNumSeqs: 16, MaxBatchedTokens: 2048, Precision: dtype.BF16,
		}
		families := c.Families(o)
		require.Len(t, families, 6)
		for _, fam := range families {
			t.Run(name+"/"+string(fam), func(t *testing.T) {
				m, err := inkling.Capture(c, o, fam)
				require.NoError(t, err)
				require.NoError(t, ir.Verify(m))
				require.NotEmpty(t, m.String())
				if fam == inkling.Logits {
					require.Zero(t, reductions(m))
					return
				}
				require.Equal(t, plainReductions(c), reductions(m))
				if want, ok := known[name]; ok {
					require.Equal(t, want, reductions(m))
				}
				oneReductionAPart(t, c, m)
			})
		}
	}
}

// oneReductionAPart checks that a pass leaves one reduction after attention and
// one after the MLP of each layer: 84 of 124 in Inkling-Small.
func oneReductionAPart(t *testing.T, c *inkling.Config, m *ir.Module) {
	p, err := passes.Parse("collapse-reduces")
	require.NoError(t, err)
	require.NoError(t, passes.Run(t.Context(), m, p))
	var got, want []string
	for _, op := range m.Entry().Ops {
		if op.Name() == "all_reduce" {
			part, _, _ := strings.Cut(op.Loc.Op, ".")
			got = append(got, fmt.Sprintf("layer %d %s", op.Loc.Layer, part))
		}
	}
	for l := range c.Layers {
		want = append(want, fmt.Sprintf("layer %d attn", l), fmt.Sprintf("layer %d mlp", l))
	}
	require.Equal(t, want, got)
}

// A plan is launches with collectives between them, two a layer.
func TestPlansHaveTheirLaunches(t *testing.T) {
	t.Parallel()
	for _, m := range models {
		d := nano(m.name, 2, 16, "bf16")
		d.maxLen, d.maxSeqs = 64, 2
		c, err := inkling.ReadConfig(filepath.Join(d.model, "config.json"))
		require.NoError(t, err)
		b, err := d.compile(t.Context())
		require.NoError(t, err)
		for i := range b.Sets[0].Plans {
			p := &b.Sets[0].Plans[i]
			launches := len(launchesOf(p))
			collectives := len(p.Steps) - launches
			require.Equal(t, collectives+1, launches, "%s, %v", m.name, p.Bucket)
			if p.Bucket.Phase == recipes.Logits {
				require.Equal(t, 1, collectives)
				continue
			}
			require.Equal(t, 2*c.Layers, collectives, "%s, %v", m.name, p.Bucket)
		}
	}
}

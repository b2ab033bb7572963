package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/lower"
	"quill/recipes"
)

// recipeBound is how far a recipe's results may be from those of the segment
// that it was made of, relative to the largest result of the same name. In BF16
// a value near the middle of two may round to either, and what is computed of
// it differs in turn: in a segment by a unit of the last place of the largest,
// in a whole model, which is one segment on one rank, by some.
func (d deployment) recipeBound() float64 {
	switch {
	case d.precision == "f32":
		return 1e-5
	case d.tp == 1:
		return 1.0 / 32
	}
	return 1.0 / 128
}

// Every recipe, launched on the host device with random inputs, computes what
// the interpreter makes of its segment.
func TestRecipesMatchTheirSegments(t *testing.T) {
	for _, m := range models {
		for i, tp := range m.tps {
			for j, precision := range []string{"f32", "bf16"} {
				if !soak() && (tp > 4 || tp > 1 && i%2 != j) {
					continue
				}
				if tp == 1 && precision == "bf16" && m.name != "nano-dense" {
					continue // in a whole model some router has a near-tie, which rounding decides
				}
				d := nano(m.name, tp, 8, precision)
				d.maxLen = 128
				if !soak() {
					d.maxBatched = 12
					d.buckets = "prefill q=1,12 c=0,2,16\ndecode b=1 n=4,16\ndecode b=4 n=9,64\n"
				}
				t.Run(d.String(), func(t *testing.T) {
					t.Parallel()
					recipesMatch(t, d)
				})
			}
		}
	}
}

// The same of every form of attention and of experts.
func TestRecipesOfEveryFormMatchTheirSegments(t *testing.T) {
	type form struct{ more, options string }
	forms := slices.Clone(formsOfExperts)
	for _, more := range formsOfAttention {
		forms = append(forms, form{more, ""})
	}
	for i, model := range []string{"nano-small", "nano-big"} {
		for j, f := range forms {
			for k, precision := range []string{"f32", "bf16"} {
				if !soak() && (i+j+k)%4 > 0 {
					continue
				}
				d := withExperts(nano(model, 2, 8, precision), f.more, f.options)
				d.maxLen, d.maxSeqs, d.maxBatched = 128, 2, 24
				d.buckets = "prefill q=1,24 c=0,2,16\ndecode b=1 n=4,16\ndecode b=2 n=9,32\n"
				t.Run(d.String()+", "+strings.ReplaceAll(f.more+f.options, "\n", ", "), func(t *testing.T) {
					t.Parallel()
					recipesMatch(t, d)
				})
			}
		}
	}
}

func recipesMatch(t *testing.T, d deployment) {
	cfg, err := inkling.ReadConfig(filepath.Join(d.model, "config.json"))
	require.NoError(t, err)
	modules := map[recipes.Bucket]*ir.Module{}
	b, err := d.compileTold(t.Context(), func(_ string, p *lower.Planned) { modules[p.Plan.Bucket] = p.Module })
	require.NoError(t, err)
	set := &b.Sets[0]
	done := map[recipes.Hash]bool{}
	for i := range set.Plans {
		p := &set.Plans[i]
		m := modules[p.Bucket]
		launches := launchesOf(p)
		for _, op := range m.Entry().Ops {
			if op.Name() != "call" {
				continue
			}
			require.NotEmpty(t, launches, "plan %v has too few launches", p.Bucket)
			l := launches[0]
			launches = launches[1:]
			if done[l.Recipe] {
				continue
			}
			done[l.Recipe] = true
			e := experiment{t: t, mod: m, call: op, bucket: p.Bucket, recipe: b.Recipes[l.Recipe], opt: d.options(), cfg: cfg}
			off := e.run()
			record(t, "recipes, "+d.precision+" (relative)", off, d.recipeBound())
			if t.Failed() {
				t.Fatalf("%v, %s: off by %.3g", p.Bucket, op.Loc, off)
			}
		}
		require.Empty(t, launches, "plan %v has too many launches", p.Bucket)
	}
	require.Len(t, done, len(b.Recipes))
}

func launchesOf(p *recipes.Plan) []*recipes.Launch {
	var ls []*recipes.Launch
	for i := range p.Steps {
		if l := p.Steps[i].Launch; l != nil {
			ls = append(ls, l)
		}
	}
	return ls
}

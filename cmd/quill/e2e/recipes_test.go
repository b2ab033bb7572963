package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir"
	"quill/ir/inkling"
	"quill/ir/interp"
	"quill/lower"
	"quill/recipes"
)

// recipeBound is how far a recipe's results may be from those of the segment that it was
// made of, relative to the largest result of the same name, and residual streams within
// it. In BF16 a value near the middle of two may round to either, and what is computed of
// it differs in turn: in a segment by a unit of the last place of the largest, in a whole
// model, which is one segment on one rank, by two in each half of a layer.
func (d deployment) recipeBound() float64 {
	switch {
	case d.precision == "f32":
		return 1e-5
	case d.tp == 1:
		return 1.0 / 64
	}
	return 1.0 / 128
}

// Every recipe, launched on the host device with random inputs, computes what
// the interpreter makes of its segment. Where routers choose on the device as is right by a
// near tie, the interpreter goes on with that choice.
func TestRecipesMatchTheirSegments(t *testing.T) {
	chat := models[0]
	chat.name, chat.tps = "nano-chat", []int{1}
	for _, m := range append(slices.Clone(models), chat) {
		for i, tp := range m.tps {
			for j, precision := range []string{"f32", "bf16"} {
				if !soak() && (tp > 4 || tp > 1 && i%2 != j) {
					continue
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
				for _, tp := range []int{1, 2} {
					if !soak() && (i+j+k+4*tp)%8 > 0 {
						continue
					}
					d := withExperts(nano(model, tp, 8, precision), f.more, f.options)
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
}

// A device whose routers have other biases chooses other experts: where scores are nearly
// equal, results are right for that choice; where they are not, that is an error.
func TestChoicesThatAreNoNearTies(t *testing.T) {
	t.Parallel()
	d := nano("nano-small", 1, 8, "bf16")
	d.maxLen, d.maxSeqs, d.maxBatched = 32, 1, 24
	d.buckets = "prefill q=1,24 c=0,4\ndecode b=1 n=4\n"
	biased := func(by float32) (off float64, found *guide, err error) {
		experiments(t, d, func(e *experiment) {
			if e.bucket.Query != 24 || e.bucket.Blocks > 0 {
				return
			}
			e.spoil = func(outer *ir.Value, x *interp.Tensor) *interp.Tensor {
				if outer.Param == nil || !strings.HasSuffix(outer.Param.Source.Tensor, "mlp.gate.bias") {
					return x
				}
				y := interp.Zeros(x.DType, x.Shape...)
				for i := range y.F {
					y.F[i] = x.F[i] + by*float32(1-i%2*2)
				}
				return y
			}
			off, found, err = e.run()
		})
		return off, found, err
	}
	off, found, err := biased(0.004)
	require.NoError(t, err)
	require.NotEmpty(t, found.ties)
	require.LessOrEqual(t, off, d.recipeBound())
	t.Logf("%d of %d choices are near ties that the device decides otherwise, results off by %.3g", len(found.ties), found.rows, off)
	_, _, err = biased(0.1)
	require.ErrorContains(t, err, "no near tie")
	require.ErrorContains(t, err, "topk")
}

func recipesMatch(t *testing.T, d deployment) {
	choices, ties := 0, 0
	cfg := experiments(t, d, func(e *experiment) {
		off, by, err := e.run()
		require.NoError(t, err, "%v, %s", e.bucket, e.call.Loc)
		choices, ties = choices+by.rows, ties+len(by.ties)
		for _, tie := range by.ties {
			record(t, "near ties of routers, "+d.precision+" (of the score)", tie, e.bound)
		}
		for _, off := range by.streams {
			record(t, "recipes, residual streams, "+d.precision, off, e.bound)
		}
		record(t, "recipes, "+d.precision+" (relative)", off, e.bound)
		if t.Failed() {
			t.Fatalf("%v, %s: off by %.3g", e.bucket, e.call.Loc, off)
		}
	})
	require.Equal(t, cfg.DenseLayers < cfg.Layers, choices > 0, "choices of routers")
	t.Logf("%d of %d choices of routers are near ties that the device decides otherwise", ties, choices)
}

// experiments makes one of each recipe of a deployment.
func experiments(t *testing.T, d deployment, do func(e *experiment)) *inkling.Config {
	cfg, err := inkling.ReadConfig(filepath.Join(d.model, "config.json"))
	require.NoError(t, err)
	planned := map[recipes.Bucket]*lower.Planned{}
	b, err := d.compileTold(t.Context(), func(_ string, p *lower.Planned) { planned[p.Plan.Bucket] = p })
	require.NoError(t, err)
	set := &b.Sets[0]
	done := map[recipes.Hash]bool{}
	for i := range set.Plans {
		p := &set.Plans[i]
		m := planned[p.Bucket].Module
		launches, segments := launchesOf(p), planned[p.Bucket].Segments
		made := map[*ir.Op][]map[string]*interp.Tensor{}
		for _, op := range m.Entry().Ops {
			if op.Name() != "call" {
				continue
			}
			require.NotEmpty(t, launches, "plan %v has too few launches", p.Bucket)
			l, lowered := launches[0], segments[0]
			launches, segments = launches[1:], segments[1:]
			if done[l.Recipe] {
				continue
			}
			done[l.Recipe] = true
			do(&experiment{
				t: t, mod: m, call: op, bucket: p.Bucket, recipe: b.Recipes[l.Recipe], opt: d.options(), cfg: cfg, lowered: lowered, made: made, bound: d.recipeBound(),
			})
		}
		require.Empty(t, launches, "plan %v has too many launches", p.Bucket)
	}
	require.Len(t, done, len(b.Recipes))
	return cfg
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

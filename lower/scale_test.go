package lower

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/passes"
	"quill/recipes"
)

// compileDeep compiles buckets of Inkling-Small on eight ranks with another number of
// layers.
func compileDeep(t *testing.T, layers int, keep func(recipes.Bucket) bool) *recipes.Bundle {
	return compileDeepWith(t, layers, func(*Deployment) {}, keep)
}

// compileDeepAs does so with experts in a form.
func compileDeepAs(t *testing.T, layers int, moe string, keep func(recipes.Bucket) bool) *recipes.Bundle {
	t.Helper()
	return compileDeepWith(t, layers, func(d *Deployment) { d.MoE = moe }, keep)
}

// compileDeepWith changes the deployment before.
func compileDeepWith(t *testing.T, layers int, change func(*Deployment), keep func(recipes.Bucket) bool) *recipes.Bundle {
	t.Helper()
	cfg := published(t, "inkling-small")
	cfg.Layers = layers
	cfg.IsLocal = make([]bool, layers)
	for l := range cfg.IsLocal {
		cfg.IsLocal[l] = (l+1)%6 != 0
	}
	d := dep(262144, 16, 128, 8192)
	d.TensorParallel, d.KVBlocks = 8, 2560
	change(d)
	set, err := d.planBuckets(d.costs(cfg))
	require.NoError(t, err)
	if d.KVBlocks == 2560 {
		require.Len(t, set.Buckets, 266)
	}
	c := compiler{
		cfg: cfg, dep: d, bundle: &recipes.Bundle{
			Manifest: recipes.Manifest{Model: recipes.Model{Layers: layers, LayerKinds: layerKinds(cfg)}},
			Recipes:  map[recipes.Hash]*recipes.Recipe{},
		},
		passes: passes.NewManager(passes.Config{Pipeline: passes.Default(), Params: d.params()}),
	}
	for _, b := range set.Buckets {
		if keep(b) {
			c.buckets = append(c.buckets, b)
		}
	}
	require.NotEmpty(t, c.buckets)
	require.NoError(t, c.set(t.Context(), BF16))
	return c.bundle
}

// Decode of one stream of Inkling-Small has two reductions a layer, one launch more
// and few distinct segments; a step has one all-gather, that of its logits.
func TestDecodeOfOneStream(t *testing.T) {
	t.Parallel()
	b := compileDeep(t, 42, func(b recipes.Bucket) bool { return b.Phase != recipes.Prefill && b.Seqs == 1 })
	decodes, logits := 0, 0
	for i := range b.Sets[0].Plans {
		p := &b.Sets[0].Plans[i]
		w := b.Work(p)
		if p.Bucket.Phase == recipes.Logits {
			logits++
			require.Equal(t, []int{2, 0, 1}, []int{w.Launches, w.AllReduces, w.AllGathers})
			continue
		}
		decodes++
		require.Equal(t, 84, w.AllReduces, "%s", p.Bucket)
		require.Zero(t, w.AllGathers, "%s: that of the step is in the logits plan", p.Bucket)
		require.LessOrEqual(t, w.Launches, 90, "%s", p.Bucket)
		distinct := map[recipes.Hash]bool{}
		for _, s := range p.Steps {
			if s.Launch != nil {
				distinct[s.Launch.Recipe] = true
			}
		}
		require.LessOrEqual(t, len(distinct), 10, "%s", p.Bucket)
	}
	require.Positive(t, decodes)
	require.Equal(t, 1, logits)
}

// Decode of one stream of Inkling-Small has a bounded number of compute nodes, be experts
// fused or gathered; they add up over kinds of layers and over source ops.
func TestNodesOfDecode(t *testing.T) {
	t.Parallel()
	for moe, most := range map[string]struct{ compute, merged, ofLayer int }{
		passes.FusedExperts:    {1870, 1315, 38},
		passes.GatheredExperts: {2150, 1515, 45},
	} {
		b := compileDeepAs(t, 42, moe, func(b recipes.Bucket) bool { return b.Phase == recipes.Decode && b.Seqs == 1 })
		for i := range b.Sets[0].Plans {
			p := &b.Sets[0].Plans[i]
			w := b.Work(p)
			t.Logf("%s, %s: %d compute nodes, %d with chains merged, chain %d", moe, p.Bucket, w.Compute, w.Merged, w.Chain)
			require.LessOrEqual(t, w.Compute, most.compute, "%s, %s", moe, p.Bucket)
			require.LessOrEqual(t, w.Merged, most.merged, "%s, %s", moe, p.Bucket)
			require.LessOrEqual(t, w.Chain, 40*42, "%s, %s", moe, p.Bucket)
			var sum, merged, layers, sources int
			for _, k := range w.Kinds {
				sum, merged, layers = sum+k.Compute, merged+k.Merged, layers+k.Layers
				if k.Kind == recipes.LocalMoE {
					require.LessOrEqual(t, k.MostOfLayer, most.ofLayer, "%s, %s", moe, p.Bucket)
					require.LessOrEqual(t, k.MostChain, 32, "%s, %s", moe, p.Bucket)
				}
			}
			for _, n := range w.Sources {
				sources += n
			}
			require.Equal(t, []int{w.Compute, w.Merged, 42, w.Compute}, []int{sum, merged, layers, sources})
		}
	}
}

// Gathered experts take no more memory than fused ones: shared experts' matrices lie
// behind the routed ones, and nowhere else.
func TestGatheredExpertsLieOnce(t *testing.T) {
	t.Parallel()
	one := func(b recipes.Bucket) bool { return b.Phase != recipes.Logits && b.Seqs == 1 && b.Blocks == 16 }
	fused, gathered := compileDeepAs(t, 6, passes.FusedExperts, one), compileDeepAs(t, 6, passes.GatheredExperts, one)
	bytes := func(b *recipes.Bundle) float64 { return float64(b.Sets[0].Info.Bytes[recipes.Weights]) }
	require.InEpsilon(t, bytes(fused), bytes(gathered), 1e-4)
	for h, r := range gathered.Recipes {
		for _, n := range r.Nodes {
			if n.GUID != "concat" {
				continue
			}
			x := r.Tensors[n.In[0]]
			require.False(t, x.Section >= 0 && r.Sections[x.Section].Buffer == recipes.Weights && x.Bytes() > 1<<20, "%s copies a bank", h)
		}
	}
}

// What a step takes of memory beside weights and caches does not grow with the number
// of layers: neither masks that are alive at once, nor the rest of the arena, nor what
// the host writes and reads, nor what is carried. Only what plans declare for values
// of all layers does, in proportion: decoding has the short convolutions' there.
func TestStepMemoryOfAnyDepth(t *testing.T) {
	t.Parallel()
	buckets := []string{"prefill/q=2048,c=0", "prefill/q=4096,c=16", "prefill/q=128,c=4", "decode/b=1,n=16", "decode/b=16,n=32768", "logits/r=16"}
	type memory struct{ masks, others, inputs, outputs, carry int64 }
	depths := []int{12, 42, 84}
	var first map[recipes.Bucket]memory
	ofLayers := map[recipes.Bucket][]int64{} // by depth
	for _, layers := range depths {
		b := compileDeep(t, layers, func(b recipes.Bucket) bool { return slices.Contains(buckets, b.String()) })
		set := &b.Sets[0]
		require.Equal(t, len(buckets), len(set.Plans))
		got := map[recipes.Bucket]memory{}
		for i := range set.Plans {
			p := &set.Plans[i]
			w := b.Work(p)
			m := memory{masks: w.MaskPeak, others: p.ArenaBytes - p.LayerBytes - w.MaskPeak, carry: set.Info.Bytes[recipes.Carry]}
			for _, io := range p.Inputs {
				m.inputs += io.Bytes()
			}
			for _, io := range p.Outputs {
				m.outputs += io.Bytes()
			}
			got[p.Bucket] = m
			ofLayers[p.Bucket] = append(ofLayers[p.Bucket], p.LayerBytes)
			t.Logf("%d layers, %s: %+v, %d bytes for values of all layers, %d bytes of masks written", layers, p.Bucket, m, p.LayerBytes, w.MaskBytes)
		}
		if first == nil {
			first = got
		}
		require.Equal(t, first, got, "%d layers", layers)
	}
	for b, bytes := range ofLayers {
		if b.Phase != recipes.Decode {
			require.Equal(t, []int64{0, 0, 0}, bytes, "%s", b)
			continue
		}
		require.Positive(t, bytes[0], "%s", b)
		for i, layers := range depths { // where lives end before others begin, both take the same bytes
			share := float64(bytes[i]*int64(depths[0])) / float64(bytes[0]*int64(layers))
			require.True(t, share > 0.9 && share < 1.02, "%s of %d layers: %v", b, layers, bytes)
		}
	}
}

package lower

import (
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/passes"
	"quill/recipes"
	"quill/recipes/dtype"
)

// These hold what docs/measured.md says of the recipes of Inkling-Small on eight ranks.

// eachLaunch calls f for the launches of a plan, with their number.
func eachLaunch(b *recipes.Bundle, p *recipes.Plan, f func(i int, l *recipes.Launch, r *recipes.Recipe)) {
	n := 0
	for _, s := range p.Steps {
		if s.Launch != nil {
			f(n, s.Launch, b.Recipes[s.Launch.Recipe])
			n++
		}
	}
}

// inBuffer reports whether an operand lies in a buffer.
func inBuffer(r *recipes.Recipe, t int, buffer recipes.Buffer) bool {
	return t != recipes.Absent && r.Tensors[t].Section != recipes.Workspace && r.Sections[r.Tensors[t].Section].Buffer == buffer
}

// measured is a bundle with a bucket of each family and two of decode, by form of experts.
var measured = map[string]func(*testing.T) *recipes.Bundle{
	passes.FusedExperts: measuredOnce(passes.FusedExperts), passes.GatheredExperts: measuredOnce(passes.GatheredExperts),
}

func measuredOnce(moe string) func(*testing.T) *recipes.Bundle {
	names := []string{"prefill/q=512,c=0", "prefill/q=512,c=8", "prefill/q=512,c=63", "decode/b=1,n=16", "decode/b=1,n=2048", "decode/b=16,n=400", "logits/r=1", "logits/r=16"}
	var once sync.Once
	var b *recipes.Bundle
	return func(t *testing.T) *recipes.Bundle {
		once.Do(func() {
			of := compileDeepAs(t, 42, moe, func(b recipes.Bucket) bool { return slices.Contains(names, b.String()) })
			require.Equal(t, len(names), len(of.Sets[0].Plans))
			b = of
		})
		require.NotNil(t, b, "compiling failed in another test")
		return b
	}
}

// Activations are neither put together nor transposed where layers decode, and nothing
// is made there that does not depend on the step: what there is of either is done once
// for all layers, in the first launch or the last.
func TestLayersOfDecodeMoveNothing(t *testing.T) {
	t.Parallel()
	b := measured[passes.FusedExperts](t)
	for i := range b.Sets[0].Plans {
		p := &b.Sets[0].Plans[i]
		if p.Bucket.Phase != recipes.Decode {
			continue
		}
		last := b.Work(p).Launches - 1
		eachLaunch(b, p, func(i int, l *recipes.Launch, r *recipes.Recipe) {
			for _, n := range r.Nodes {
				guid, _, _ := strings.Cut(n.GUID, "_")
				if guid == "concat" || guid == "transpose" {
					require.Contains(t, []int{0, last}, i, "%s: launch %q has %s (%s)", p.Bucket, l.Label, n.GUID, n.Origin)
				}
				require.NotEqual(t, "constant", guid, "%s: launch %q (%s)", p.Bucket, l.Label, n.Origin)
			}
		})
	}
}

// Weights are operands of products as they are stored, rows of outputs by columns of
// inputs, in flat products: never one for each head. Gate and up of a dense layer are
// two matrices of one product.
func TestProjectionsAreFlatProducts(t *testing.T) {
	t.Parallel()
	b := measured[passes.FusedExperts](t)
	products := 0
	for _, r := range b.Recipes {
		for i := range r.Nodes {
			n := &r.Nodes[i]
			if !strings.HasSuffix(n.GUID, "gemm") {
				continue
			}
			require.Len(t, n.In, 2, "a bias is an addition of its own")
			require.False(t, inBuffer(r, n.In[0], recipes.Weights), n.Origin)
			if inBuffer(r, n.In[1], recipes.Weights) {
				products++
				matrices := int64(1)
				for _, d := range r.Tensors[n.In[1]].Dims[2:] {
					matrices *= d
				}
				require.True(t, n.GUID == "gemm" || matrices == 2, "%s of %d matrices: %s", n.GUID, matrices, n.Origin)
				transposed, _ := n.Params.Int("transpose_b")
				require.EqualValues(t, 1, transposed, n.Origin)
			}
		}
	}
	require.Positive(t, products)
}

// Sums over the ranks are those of f32 partial products that no rounding was before, in
// place, where the launch before ends.
func TestSumsOverRanksAreOfF32(t *testing.T) {
	t.Parallel()
	b := measured[passes.FusedExperts](t)
	for i := range b.Sets[0].Plans {
		p := &b.Sets[0].Plans[i]
		for j, s := range p.Steps {
			if c := s.Collective; c != nil && c.Kind == recipes.AllReduce {
				require.Equal(t, dtype.F32, c.DType, p.Bucket)
				require.NotNil(t, p.Steps[j-1].Launch, "%s: a collective that no launch is before", p.Bucket)
			}
		}
	}
}

// No element is of 64 bits, no constant is infinite or NaN, and all that a node writes
// in a state is in place.
func TestElementsAndConstants(t *testing.T) {
	t.Parallel()
	for _, moe := range []string{passes.FusedExperts, passes.GatheredExperts} {
		b := measured[moe](t)
		writes := 0
		for _, r := range b.Recipes {
			for _, x := range r.Tensors {
				require.NotEqual(t, dtype.I64, x.DType, "%s: %s", r.Name, x.Name)
			}
			for i := range r.Nodes {
				n := &r.Nodes[i]
				if v, ok := n.Params.FloatOf("value"); ok {
					require.False(t, math.IsInf(float64(v), 0) || math.IsNaN(float64(v)), "%s: %s", r.Name, n.Origin)
				}
				for j, o := range n.Out {
					if !inBuffer(r, o, recipes.KV) && !inBuffer(r, o, recipes.Conv) {
						continue
					}
					writes++
					x, y := r.Tensors[n.In[j]], r.Tensors[o]
					require.True(t, strings.HasPrefix(n.GUID, "index_copy_fwd"), "%s: %s writes a state", r.Name, n.GUID)
					require.Equal(t, []any{x.Section, x.Offset, x.Dims, x.DType}, []any{y.Section, y.Offset, y.Dims, y.DType}, "%s: %s", r.Name, n.Origin)
				}
			}
		}
		require.Positive(t, writes)
		for _, w := range b.Sets[0].Weights {
			require.False(t, math.IsInf(w.Fill, 0) || math.IsNaN(w.Fill))
		}
	}
}

// A gathered or grouped matrix of experts has one product that reads it.
func TestGatheredMatricesHaveOneProduct(t *testing.T) {
	t.Parallel()
	b := measured[passes.GatheredExperts](t)
	gathered := 0
	for _, r := range b.Recipes {
		readers := map[int]int{}
		from := map[int]int{} // what a tensor is a view of
		for i := range r.Nodes {
			n := &r.Nodes[i]
			for _, in := range n.In {
				if root, ok := from[in]; ok && n.Computes() {
					readers[root]++
				}
			}
			switch {
			case strings.HasPrefix(n.GUID, "gather_fwd") && inBuffer(r, n.In[0], recipes.Weights) && len(r.Tensors[n.In[0]].Dims) > 2:
				from[n.Out[0]] = n.Out[0]
			case !n.Computes():
				if root, ok := from[n.In[0]]; ok {
					from[n.Out[0]] = root
				}
			}
		}
		for root, n := range readers {
			gathered++
			require.Equal(t, 1, n, "%s: %s", r.Name, r.Tensors[root].Name)
		}
	}
	require.Positive(t, gathered)
}

// A decode step of Inkling-Small has ten distinct recipes at most, however many sequences
// and blocks there are, be experts fused or gathered.
func TestDecodeHasFewDistinctRecipes(t *testing.T) {
	t.Parallel()
	for _, moe := range []string{passes.FusedExperts, passes.GatheredExperts} {
		b := compileDeepAs(t, 42, moe, func(b recipes.Bucket) bool { return b.Phase == recipes.Decode })
		most, all := 0, map[recipes.Hash]bool{}
		for i := range b.Sets[0].Plans {
			p := &b.Sets[0].Plans[i]
			distinct := map[recipes.Hash]bool{}
			eachLaunch(b, p, func(_ int, l *recipes.Launch, _ *recipes.Recipe) { distinct[l.Recipe], all[l.Recipe] = true, true })
			require.LessOrEqual(t, len(distinct), 10, "%s, %s", moe, p.Bucket)
			most = max(most, len(distinct))
		}
		require.Len(t, b.Sets[0].Plans, 104)
		t.Logf("%s: %d buckets of up to %d distinct recipes, %d together", moe, len(b.Sets[0].Plans), most, len(all))
	}
}

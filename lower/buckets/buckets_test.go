package buckets

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// costs are about those of a rank of Inkling-Small.
var costs = recipes.Costs{Row: 1_500_000_000, Pad: 24_000_000_000, Block: 44_000_000, Key: 43_000}

// deployment has the sizes that matter here.
func deployment(length, seqs, block, blocks, chunk int) recipes.Deployment {
	return recipes.Deployment{TensorParallel: 1, MaxModelLen: length, MaxNumSeqs: seqs, BlockSize: block, KVBlocks: blocks, MaxBatchedTokens: chunk}
}

// small is the deployment of Inkling-Small that was published.
func small(chunk int) recipes.Deployment { return deployment(262144, 16, 128, 2560, chunk) }

func made(t testing.TB, s Spec, d recipes.Deployment) *Set {
	t.Helper()
	set, err := Make(s, d, costs)
	require.NoError(t, err)
	return set
}

func (s *Set) count(p recipes.Phase) int {
	n := 0
	for _, b := range s.Buckets {
		if b.Phase == p {
			n++
		}
	}
	return n
}

func (s *Set) mean(p recipes.Phase, size string) float64 {
	for i := range s.Padding {
		if s.Padding[i].Phase == p && s.Padding[i].Size == size {
			return s.Padding[i].Mean
		}
	}
	panic(size)
}

// The lists are those of vllm-gaudi 091bbad for 262,144 tokens, 16 sequences
// and blocks of 128.
func TestExpLists(t *testing.T) {
	require.Equal(t, []int{128, 256, 384, 512, 768, 1024, 1536, 2048, 2944, 4096, 5888, 8192}, curve(128, 128, 8192, log2Ceil(8192)))
	require.Equal(t, []int{128, 256, 384, 512, 768, 896, 1280, 1664, 2048}, curve(128, 128, 2048, log2Ceil(2048)))
	require.Equal(t, []int{0, 1, 2, 4, 8, 16, 32, 63, 126, 251, 499, 995, 1984}, curve(0, 1, 1984, log2Ceil(1984)+1))
	require.Equal(t, []int{1, 2, 4, 6, 10, 16}, curve(1, 2, 16, log2Ceil(16)+1))
	refs := func(bs []recipes.Bucket) []int {
		var vs []int
		for _, b := range bs {
			if b.Phase == recipes.Decode {
				vs = append(vs, b.Blocks)
			}
		}
		return rising(vs)
	}
	require.Equal(t, []int{
		1, 16, 32, 48, 64, 80, 128, 192, 272, 400, 608, 896, 1328, 1984, 2048, 2960, 4096, 4416, 6592, 8192, 9840, 12288, 14688, 20480, 21952, 32768,
	}, refs(made(t, Spec{Strategy: Exp}, small(8192)).Buckets))
	clamped := refs(made(t, Spec{Strategy: Exp, Sharing: 3}, small(8192)).Buckets)
	require.Equal(t, 7680, clamped[len(clamped)-1])
}

// Counts are those of vllm-gaudi where theirs are known, but for one bucket more
// of pad and linear: a history of 2,048 blocks, of which the last is not full.
// Theirs leave holes; the rest has none.
func TestPublishedCounts(t *testing.T) {
	for _, c := range []struct {
		strategy               string
		chunk, sharing         int
		prefill, decode, holes int
	}{
		{Exp, 2048, 0, 117, 104, 0},
		{Exp, 8192, 0, 156, 104, 0},
		{Exp, 8192, 3, 156, 82, 0},
		{ExpCompat, 2048, 0, 117, 104, 3312},
		{ExpCompat, 8192, 0, 156, 104, 48448},
		{Pad, 2048, 0, 1379 + 1, 114, 0},
		{Pad, 8192, 0, 751 + 1, 114, 0},
	} {
		set := made(t, Spec{Strategy: c.strategy, Sharing: c.sharing}, small(c.chunk))
		name := fmt.Sprint(c.strategy, c.chunk, c.sharing)
		require.Equal(t, c.prefill, set.count(recipes.Prefill), name)
		require.Equal(t, c.decode, set.count(recipes.Decode), name)
		require.EqualValues(t, c.holes, set.Coverage[0].Holes, name)
		require.Zero(t, set.Coverage[1].Holes+set.Coverage[2].Holes, name)
		require.Equal(t, c.holes == 0, set.Covered() == nil, name)
	}
}

// The edge of theirs is what a full bucket leaves room for.
func TestExpCompatHoles(t *testing.T) {
	for chunk, share := range map[int]string{2048: "0.08", 8192: "0.29"} {
		c := made(t, Spec{Strategy: ExpCompat}, small(chunk)).Coverage[0]
		require.Equal(t, share, fmt.Sprintf("%.2f", 100*c.Share))
	}
	err := made(t, Spec{Strategy: ExpCompat}, small(8192)).Covered()
	require.EqualError(t, err, `the buckets leave holes
  prefill: no bucket covers 48448 of 16527296 admissible shapes, 0.29 %:
    prefill/q=5889..8191,c=1985 (5889..8191 tokens after 253953..254080)
    prefill/q=5889..8063,c=1986 (5889..8063 tokens after 254081..254208)
    prefill/q=5889..7935,c=1987 (5889..7935 tokens after 254209..254336)
    prefill/q=5889..7807,c=1988 (5889..7807 tokens after 254337..254464)
    prefill/q=5889..7679,c=1989 (5889..7679 tokens after 254465..254592)
    prefill/q=5889..7551,c=1990 (5889..7551 tokens after 254593..254720)
    prefill/q=5889..7423,c=1991 (5889..7423 tokens after 254721..254848)
    prefill/q=5889..7295,c=1992 (5889..7295 tokens after 254849..254976)
    and 33608 more`)
}

// What the lists pad, and that optimal ones pad less with 400 buckets.
func TestPublishedPadding(t *testing.T) {
	for _, chunk := range []int{2048, 8192} {
		exp, best := made(t, Spec{Strategy: Exp}, small(chunk)), made(t, Spec{Strategy: Optimal}, small(chunk))
		require.LessOrEqual(t, len(best.Buckets), 400)
		require.NoError(t, best.Covered())
		for i := range exp.Padding {
			e, o := &exp.Padding[i], &best.Padding[i]
			t.Logf("%d %s %s: exp %.3f (worst %.2f, %v for %v), optimal %.3f (%.2f, %v for %v)",
				chunk, e.Phase, e.Size, e.Mean, e.Worst, e.Bucket, e.Need, o.Mean, o.Worst, o.Bucket, o.Need)
		}
		require.LessOrEqual(t, best.mean(recipes.Decode, "blocks"), 1.11)
		require.LessOrEqual(t, best.mean(recipes.Prefill, "area"), 1.32)
		require.InDelta(t, 1.22, exp.mean(recipes.Decode, "blocks"), 0.005)
		require.InDelta(t, 1.61, exp.mean(recipes.Prefill, "area"), 0.02)
	}
}

// A change of what is made for the published deployment shows up as a difference.
func TestGolden(t *testing.T) {
	var text strings.Builder
	for _, chunk := range []int{2048, 8192} {
		for _, s := range []Spec{{Strategy: Exp}, {Strategy: ExpCompat}, {Strategy: Pad}, {Strategy: Optimal, Padding: 1.5}} {
			set := made(t, s, small(chunk))
			fmt.Fprintf(&text, "%s, chunks of %d: %d buckets\n", s.Strategy, chunk, len(set.Buckets))
			for i, b := range set.Buckets {
				switch {
				case i == 0 || rows(b) != rows(set.Buckets[i-1]) || b.Phase != set.Buckets[i-1].Phase:
					fmt.Fprintf(&text, "\n  %v", b)
				case b.Phase != recipes.Logits:
					fmt.Fprintf(&text, " %d", b.Blocks)
				}
			}
			text.WriteString("\n\n")
		}
	}
	const file = "testdata/inkling-small.txt"
	if os.Getenv("QUILL_BLESS") != "" {
		require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o666))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), text.String(), "if that is wanted, QUILL_BLESS=1 go test writes %s", file)
}

func rows(b recipes.Bucket) int { return max(b.Query, b.Seqs) }

// anything draws a specification and a deployment, however odd.
func anything(r *rand.Rand) (Spec, recipes.Deployment) {
	size := func(most int) int {
		if r.IntN(4) == 0 {
			return 1 + r.IntN(3)
		}
		return 1 + r.IntN(most)
	}
	d := deployment(size(300), size(9), size(40), 1, size(200))
	if r.IntN(8) == 0 {
		d = deployment(size(1<<20), size(300), size(4096), 1, size(1<<15))
	}
	d.KVBlocks = ceilDiv(d.MaxModelLen, d.BlockSize) // the least that is admitted: one block, if requests are that short
	if r.IntN(2) == 0 {
		d.KVBlocks += r.IntN(1 + 2*d.KVBlocks)
	}
	s := Spec{Strategy: []string{Exp, Exp, Pad, Pad, Linear, Linear, Optimal}[r.IntN(7)]}
	if r.IntN(3) == 0 {
		s.Sharing = size(4)
	}
	if r.IntN(3) == 0 {
		s.Most = size(500)
	}
	if (s.Strategy == Pad || s.Strategy == Optimal) && r.IntN(2) == 0 {
		s.Padding = 1 + r.Float64()*3
	}
	return s, d
}

// Whatever the deployment, there are buckets for all of its steps, none that
// cannot be needed, or an error that names the key.
func TestAnyDeployment(t *testing.T) {
	runs := 10_000
	if testing.Short() {
		runs = 1000
	}
	r := rand.New(rand.NewPCG(1, 2))
	var refused int
	for i := range runs {
		s, d := anything(r)
		set, err := Make(s, d, costs)
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			require.True(t, ok && strings.HasPrefix(e.Key, "buckets"), "run %d: %+v %+v: %v", i, s, d, err)
			refused++
			continue
		}
		require.NoError(t, set.Covered(), "run %d: %+v %+v", i, s, d)
		l := newLimits(d, s.Sharing)
		require.LessOrEqual(t, len(set.Buckets), s.most())
		for _, b := range set.Buckets {
			require.NoError(t, l.possible(b), "run %d: %+v %+v: %v", i, s, d, b)
		}
		for j := range set.Padding {
			p := &set.Padding[j]
			require.True(t, p.Mean >= 1-1e-9 && p.Mean <= p.Worst+1e-9, "run %d: %+v %+v: %+v", i, s, d, p)
			if s.Strategy == Optimal && s.Padding > 0 && p.Size != "area" {
				require.LessOrEqual(t, p.Worst, s.Padding*(1+1e-9), "run %d: %+v %+v: %+v", i, s, d, p)
			}
		}
	}
	t.Logf("%d of %d were refused", refused, runs)
	require.Less(t, refused, runs/4)
}

// A list that exp-compat makes is one of exp's as large, for small deployments too.
func TestExpCompatIsOnlyTheEdge(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		_, d := anything(r)
		set, err := Make(Spec{Strategy: ExpCompat}, d, costs)
		require.NoError(t, err)
		want := made(t, Spec{Strategy: Exp}, d)
		decode := func(s *Set) []recipes.Bucket {
			return slices.DeleteFunc(slices.Clone(s.Buckets), func(b recipes.Bucket) bool { return b.Phase == recipes.Prefill })
		}
		require.Equal(t, decode(want), decode(set))
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		d    recipes.Deployment
		want string
	}{
		{Spec{Strategy: "lin"}, small(2048), `buckets.strategy: "lin" is not one of exp, exp-compat, pad, linear, file, optimal`},
		{Spec{Strategy: Linear}, small(2048), "buckets.most: strategy linear makes 33190 buckets or more, which is above the limit 2048, the default: raise it, or take strategy exp"},
		{Spec{Strategy: Linear, Most: 100}, deployment(1<<24, 1, 1, 1<<24, 128), "buckets.most: strategy linear makes 16777215 buckets or more, which is above the limit 100: raise it"},
		{Spec{Strategy: Exp, Most: 265}, small(8192), "buckets.most: strategy exp makes 266 buckets or more, which is above the limit 265"},
		{Spec{Strategy: Optimal, Padding: 1.01}, small(2048), "buckets.padding: bounding each size by 1.01 needs more than 512 values of one: raise it"},
		{Spec{Strategy: Optimal, Padding: 1.5, Most: 100}, small(2048), "buckets: strategy optimal needs"},
		{Spec{Strategy: Exp}, deployment(1<<24, 4096, 128, 1<<20, 2048), "buckets.sharing: 4096 sequences of up to 131072 blocks have 536870912 references, more than 67108864: lower max_num_seqs"},
		{Spec{Strategy: File}, small(2048), "buckets: strategy file needs path"},
	} {
		_, err := Make(c.spec, c.d, costs)
		require.ErrorContains(t, err, c.want)
	}
	huge := costs
	huge.Key = 1 << 48
	_, err := Make(Spec{Strategy: Exp}, small(2048), huge)
	require.ErrorContains(t, err, "max_batched_tokens: what prefill/q=")
}

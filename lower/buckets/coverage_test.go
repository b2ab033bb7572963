package buckets

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// shapes are all admissible ones, found from tokens: every chunk after every
// history, every number of references of sequences that have 1 to perSeq each.
func shapes(d recipes.Deployment, sharing int) []recipes.Bucket {
	seen := map[recipes.Bucket]bool{}
	var out []recipes.Bucket
	add := func(b recipes.Bucket) {
		if !seen[b] {
			seen[b] = true
			out = append(out, b)
		}
	}
	for history := 0; history < d.MaxModelLen; history++ {
		for q := 1; q <= d.MaxBatchedTokens && history+q <= d.MaxModelLen; q++ {
			add(recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: q, Blocks: d.BlocksFor(history)})
		}
	}
	rows := 0
	for s := 1; s <= d.MaxNumSeqs; s++ {
		for n := s; n <= s*d.BlocksFor(d.MaxModelLen); n++ {
			if sharing == 0 || n <= sharing*d.KVBlocks {
				add(recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: n})
				rows = s
			}
		}
	}
	for s := 1; s <= rows; s++ {
		add(recipes.Bucket{Phase: recipes.Logits, Seqs: s})
	}
	return out
}

// odd draws a small deployment and buckets of it, of which some are missing.
func odd(r *rand.Rand) (recipes.Deployment, int, []recipes.Bucket) {
	for {
		s, d := anything(r)
		if d.MaxModelLen > 300 {
			continue
		}
		set, err := Make(s, d, costs)
		if err != nil {
			continue
		}
		var bs []recipes.Bucket
		keep := r.Float64()
		for _, b := range set.Buckets {
			if r.Float64() < keep {
				bs = append(bs, b)
			}
		}
		return d, s.Sharing, bs
	}
}

// Holes are exactly what enumerating all shapes finds.
func TestCoverageIsEnumeration(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 150 {
		d, sharing, bs := odd(r)
		count, holes := map[recipes.Phase]int64{}, map[recipes.Phase]map[recipes.Bucket]bool{}
		for _, need := range shapes(d, sharing) {
			count[need.Phase]++
			if !covers(bs, need) {
				if holes[need.Phase] == nil {
					holes[need.Phase] = map[recipes.Bucket]bool{}
				}
				holes[need.Phase][need] = true
			}
		}
		for _, c := range coverage(newLimits(d, sharing), bs) {
			require.Equal(t, count[c.Phase], c.Shapes, "%+v %d %v", d, sharing, c.Phase)
			require.EqualValues(t, len(holes[c.Phase]), c.Holes, "%+v %d %v %v", d, sharing, c.Phase, bs)
			for _, h := range c.First {
				for need := h.From; ; need = next(need, h.To) {
					require.True(t, holes[c.Phase][need], "%+v %d %v: %v", d, sharing, h, need)
					delete(holes[c.Phase], need)
					if need == h.To {
						break
					}
				}
				if c.Phase == recipes.Prefill {
					require.Equal(t, h.From.Blocks, d.BlocksFor(h.Tokens[0]))
					require.Equal(t, h.From.Blocks, d.BlocksFor(h.Tokens[1]))
					require.LessOrEqual(t, h.Tokens[1]+h.From.Query, d.MaxModelLen)
				}
			}
			if len(c.First) < MaxHoles {
				require.Empty(t, holes[c.Phase], "all holes are listed if they are few")
			}
		}
	}
}

func covers(bs []recipes.Bucket, need recipes.Bucket) bool {
	for _, b := range bs {
		if b.Covers(need) {
			return true
		}
	}
	return false
}

// next is the shape behind one of a hole.
func next(b, to recipes.Bucket) recipes.Bucket {
	switch {
	case b.Query < to.Query:
		b.Query++
	case b.Blocks < to.Blocks:
		b.Blocks++
	default:
		b.Seqs++
	}
	return b
}

// Means and worst cases are those of all shapes one by one.
func TestPaddingIsEnumeration(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 150 {
		d, sharing, bs := odd(r)
		type sum struct {
			n           int64
			total, most float64
		}
		want := map[string]*sum{}
		add := func(p recipes.Phase, size string, bucket, need float64) {
			s := want[string(p)+size]
			if s == nil {
				s = &sum{}
				want[string(p)+size] = s
			}
			s.n, s.total, s.most = s.n+1, s.total+bucket/need, max(s.most, bucket/need)
		}
		sel := recipes.NewSelector(&costs, d.BlockSize, bs)
		for _, need := range shapes(d, sharing) {
			i := sel.Select(need)
			if i < 0 {
				continue
			}
			b := bs[i]
			switch need.Phase {
			case recipes.Prefill:
				q := max(need.Query, min(d.BlockSize, d.MaxBatchedTokens, d.MaxModelLen))
				add(need.Phase, "tokens", float64(b.Query), float64(q))
				add(need.Phase, "area", float64(b.Query*(b.Query+b.Blocks*d.BlockSize)), float64(q*(q+need.Blocks*d.BlockSize)))
			case recipes.Decode:
				add(need.Phase, "blocks", float64(b.Blocks), float64(need.Blocks))
				add(need.Phase, "sequences", float64(b.Seqs), float64(need.Seqs))
			case recipes.Logits:
				add(need.Phase, "rows", float64(b.Seqs), float64(need.Seqs))
			}
		}
		for _, p := range padding(newLimits(d, sharing), bs, sel) {
			w := want[string(p.Phase)+p.Size]
			if w == nil {
				w = &sum{}
			}
			require.Equal(t, w.n, p.Shapes, "%+v %d %s %s", d, sharing, p.Phase, p.Size)
			if w.n == 0 {
				continue
			}
			require.InEpsilon(t, w.total/float64(w.n), p.Mean, 1e-9, "%+v %d %s %s", d, sharing, p.Phase, p.Size)
			require.InEpsilon(t, w.most, p.Worst, 1e-12)
			require.Equal(t, p.Bucket, bs[sel.Select(p.Need)])
		}
	}
}

func TestInverse(t *testing.T) {
	for _, c := range [][2]int{{1, 0}, {1, 1}, {1, 31}, {1, 32}, {31, 31}, {32, 32}, {30, 40}, {5, 100000}, {99999, 100000}, {262144, 262145}} {
		want := 0.
		for n := c[1]; n >= c[0]; n-- {
			want += 1 / float64(n)
		}
		require.InDelta(t, want, inverse(c[0], c[1]), want*1e-13, "%v", c)
	}
}

// The proof of the published deployment looks at 16.5 million prefill shapes.
func BenchmarkMake(b *testing.B) {
	for _, s := range []string{Exp, Pad, Optimal} {
		b.Run(s, func(b *testing.B) {
			for b.Loop() {
				if _, err := Make(Spec{Strategy: s}, small(8192), costs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package buckets

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// subsets calls f with every ascending list of values that ends with the last.
func subsets(values []int, f func([]int)) {
	for set := range 1 << (len(values) - 1) {
		var list []int
		for i, v := range values {
			if i == len(values)-1 || set>>i&1 == 1 {
				list = append(list, v)
			}
		}
		f(list)
	}
}

// bounds reports whether a list serves all needs within a ratio.
func bounds(list []int, lo, granule int, ratio float64) bool {
	for need, k := lo, 0; need <= list[len(list)-1]; need++ {
		for list[k] < need {
			k++
		}
		if !within(list[k], max(need, granule), ratio) {
			return false
		}
	}
	return true
}

// No list of any values is shorter than the one that is found.
func TestFewestIsFewest(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 400 {
		lo := r.IntN(3)
		hi, granule, ratio := lo+r.IntN(13), r.IntN(5), 1+r.Float64()*2
		if r.IntN(4) == 0 {
			ratio = []float64{1, 1.25, 1.5, 2, 3}[r.IntN(5)]
		}
		var values []int
		for v := lo; v <= hi; v++ {
			values = append(values, v)
		}
		least := math.MaxInt
		subsets(values, func(list []int) {
			if bounds(list, lo, granule, ratio) {
				least = min(least, len(list))
			}
		})
		got, ok := fewest(lo, hi, granule, ratio, 100)
		require.True(t, ok)
		require.True(t, bounds(got, lo, granule, ratio), "%d..%d granule %d ratio %g: %v", lo, hi, granule, ratio, got)
		require.Len(t, got, least, "%d..%d granule %d ratio %g: %v", lo, hi, granule, ratio, got)
	}
	even, ok := fewest(1, 8192, 128, 2, 9)
	require.True(t, ok)
	require.Equal(t, []int{256, 512, 1024, 2048, 4096, 8192}, even, "multiples of a block where that is possible")
	_, ok = fewest(1, 1000, 1, 1, 999)
	require.False(t, ok)
	for _, hi := range []int{32768, 1 << 24} { // rounding does not matter either
		got, ok := fewest(1, hi, 1, 1.1, 500)
		require.True(t, ok)
		for i := 1; i < len(got); i++ {
			require.True(t, within(got[i], got[i-1]+1, 1.1))
			require.True(t, i == 1 || !within(got[i], got[i-1], 1.1), "%d serves no more", got[i])
		}
	}
}

// For each length no list of candidates is cheaper than the one that is found.
func TestSplitIsCheapest(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 300 {
		a := axis{first: 1, granule: 1 + r.IntN(3), alone: r.IntN(2) == 0, ratio: 1.5 + 4*r.Float64()}
		v := r.IntN(2)
		for range 1 + r.IntN(9) {
			v += 1 + r.IntN(3)
			a.values = append(a.values, v)
			a.squared = append(a.squared, r.Float64())
			a.linear = append(a.linear, 9*r.Float64())
			a.padding = append(a.padding, 30*r.Float64())
		}
		best := map[int]float64{}
		subsets(a.values, func(list []int) {
			if !bounds(list, 1, a.granule, a.ratio) || a.alone && list[0] != a.values[0] {
				return
			}
			if c, ok := best[len(list)]; !ok || a.cost(list) < c {
				best[len(list)] = a.cost(list)
			}
		})
		for k, list := range a.split(100) {
			want, ok := best[k]
			require.Equal(t, ok, list != nil, "%+v: %d values", a, k)
			if ok {
				require.Len(t, list, k)
				require.InEpsilon(t, want, a.cost(list), 1e-9, "%+v: %v", a, list)
			}
		}
	}
}

// The numbers of buckets and the costs that the search counts with are those of
// the buckets that are made then.
func TestSearchCountsWhatIsMade(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for range 300 {
		d := deployment(1+r.IntN(200), 1+r.IntN(8), 1+r.IntN(20), 0, 1+r.IntN(100))
		d.KVBlocks = ceilDiv(d.MaxModelLen, d.BlockSize)
		l := newLimits(d, r.IntN(3))
		few, ok := l.fewest(2)
		require.True(t, ok)
		o := optimizer{l: l, few: few, ratio: 2, most: 400}
		o.weighAll()
		o.sumWeights()
		pick := func(a *axis) []int {
			lists := a.split(1 + r.IntN(20))
			for {
				if list := lists[r.IntN(len(lists))]; list != nil {
					return list
				} else if lists[len(lists)-1] == nil {
					return a.values
				}
			}
		}
		o.weighQueries(o.contexts.values)
		o.weighContexts(o.queries.values)
		s := lists{pick(&o.queries), pick(&o.contexts), pick(&o.seqs), pick(&o.refs)}
		require.Len(t, s.buckets(l), o.prefillCount(s.queries, s.contexts)+o.decodeCount(s.seqs, s.refs), "%+v %+v", d, s)
		if len(s.queries) == 1 && len(s.contexts) == 1 {
			continue // both are cut off
		}
		area := 0.
		for i, row := range o.weights {
			for j, w := range row {
				q, c := s.queries[cell(s.queries, o.queries.values[i])], s.contexts[cell(s.contexts, o.contexts.values[j])]
				area += w * float64(q*(q+c*l.block))
			}
		}
		require.InEpsilon(t, area, o.prefillCost(s.queries, s.contexts), 1e-9)
	}
}

// With few values everything is a candidate, and the objective is the padding that
// is reported, as far as lists are not cut off.
func TestObjectiveIsThePadding(t *testing.T) {
	d := deployment(1<<20, 4, 128, 1<<13, 1024)
	set, err := Make(Spec{Strategy: Optimal, Most: 300}, d, costs)
	require.NoError(t, err)
	l := newLimits(d, 0)
	few, _ := l.fewest(paddingOptimal)
	o := optimizer{l: l, few: few, ratio: paddingOptimal, most: 300}
	o.weighAll()
	o.sumWeights()
	best := o.best()
	require.InEpsilon(t, o.prefillCost(best.queries, best.contexts), set.mean(recipes.Prefill, "area"), 0.01)
	require.InEpsilon(t, o.refs.cost(best.refs), set.mean(recipes.Decode, "blocks"), 0.03)
	require.InEpsilon(t, 2*o.seqs.cost(best.seqs), set.mean(recipes.Decode, "sequences"), 0.01)
}

func TestCandidates(t *testing.T) {
	for _, c := range []struct{ lo, hi, step int }{{1, 1, 1}, {0, 0, 1}, {0, 5, 1}, {128, 8192, 128}, {100, 1000, 100}, {7, 7, 7}, {128, 8191, 128}, {1, 1 << 26, 1}} {
		vs := candidates(c.lo, c.hi, c.step)
		require.Equal(t, []int{min(c.lo, c.hi), c.hi}, []int{vs[0], vs[len(vs)-1]})
		for i := 1; i < len(vs); i++ {
			require.Greater(t, vs[i], vs[i-1])
			require.True(t, i == len(vs)-1 || vs[i]%c.step == 0)
			require.LessOrEqual(t, vs[i], max(vs[i-1]+2*c.step, vs[i-1]+vs[i-1]/100))
		}
		require.Less(t, len(vs), 128*(1+bits.Len(uint(c.hi))))
	}
}

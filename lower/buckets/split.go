package buckets

import (
	"math"
	"slices"
)

// fewest are the fewest values up to hi so that each need from lo on has one that
// is at least it and at most ratio times it, needs below granule counting as
// granule. The last value has to be hi. What it serves ends where it would pad too
// much, and serving less never helps: so it is with the value before it.
func fewest(lo, hi, granule int, ratio float64, limit int) ([]int, bool) {
	var vs []int
	for v := hi; v >= lo; {
		vs = append(vs, v)
		if len(vs) > limit {
			return nil, false
		}
		least := int(math.Ceil(float64(v) / ratio * (1 - 1e-12)))
		for least > lo && within(v, least-1, ratio) {
			least--
		}
		for !within(v, max(least, granule), ratio) {
			least++
		}
		if least <= granule {
			break
		}
		v = least - 1
	}
	slices.Reverse(vs)
	round(vs, lo, granule, ratio)
	return vs, true
}

// round raises values of such a list, but for the last, to multiples of the granule,
// or else of its half and so on, where they then still serve the needs above the
// value before. The next value has fewer needs to serve then.
func round(vs []int, lo, granule int, ratio float64) {
	least := lo
	for i := range len(vs) - 1 {
		for unit := granule; unit > 1; unit /= 2 {
			v := min(int(ratio*float64(max(least, granule))), vs[i+1]-1) / unit * unit
			if v >= vs[i] && within(v, max(least, granule), ratio) {
				vs[i] = v
				break
			}
			if unit%2 == 1 {
				break
			}
		}
		least = vs[i] + 1
	}
}

// axis is one size of a family: which values a list may have, and what needs
// between two of them cost with the greater. Values are ascending, the last is
// the largest need.
type axis struct {
	values  []int
	granule int     // smaller needs count as it
	first   int     // the least need
	alone   bool    // the first value is in every list
	ratio   float64 // bound on padding
	// Needs above values[i-1], up to values[i], cost squared·v² + linear·v with v,
	// and padding if v is not values[i].
	squared, linear, padding []float64
}

// split finds for each k up to most the cheapest list of k values, none if that is
// impossible within the bound. It is exact: the cheapest k values up to a last one
// are the cheapest k − 1 up to another, and it.
func (a *axis) split(most int) [][]int {
	n := len(a.values)
	most = min(most, n)
	squared, linear, padding := sums(a.squared), sums(a.linear), sums(a.padding)
	from := make([]int, n) // the first value whose cell values[j] may serve
	for j, i := 0, 0; j < n; j++ {
		if a.alone && j == 1 {
			i = max(i, 1)
		}
		for i <= j && !within(a.values[j], max(a.least(i), a.granule), a.ratio) {
			i++
		}
		from[j] = i
	}
	best := make([]float64, n+1)
	for i := 1; i <= n; i++ {
		best[i] = math.Inf(1)
	}
	choice := make([][]int32, most)
	lists := make([][]int, most+1)
	for k := range most {
		next := make([]float64, n+1)
		next[0] = math.Inf(1)
		choice[k] = make([]int32, n)
		for j := range n {
			v, least, at := float64(a.values[j]), math.Inf(1), 0
			for i := from[j]; i <= j; i++ { // values[j] serves the cells from i on
				if c := best[i] - v*(v*squared[i]+linear[i]) - padding[i]; c < least {
					least, at = c, i
				}
			}
			next[j+1], choice[k][j] = least+v*(v*squared[j+1]+linear[j+1])+padding[j], int32(at)
		}
		best = next
		if !math.IsInf(best[n], 1) {
			lists[k+1] = a.list(choice[:k+1])
		}
	}
	return lists
}

// cost is that of a list, which ends with the largest value.
func (a *axis) cost(list []int) float64 {
	sum, k := 0., 0
	for i, end := range a.values {
		if end > list[k] {
			k++
		}
		v := float64(list[k])
		sum += v*v*a.squared[i] + v*a.linear[i]
		if list[k] != end {
			sum += a.padding[i]
		}
	}
	return sum
}

// least is the least need of a cell.
func (a *axis) least(i int) int {
	if i == 0 {
		return a.first
	}
	return a.values[i-1] + 1
}

func (a *axis) list(choice [][]int32) []int {
	vs := make([]int, len(choice))
	j := len(a.values) - 1
	for k := len(choice) - 1; k >= 0; k-- {
		vs[k] = a.values[j]
		j = int(choice[k][j]) - 1
	}
	return vs
}

// sums are those of the first 0, 1, … values.
func sums(vs []float64) []float64 {
	out := make([]float64, len(vs)+1)
	for i, v := range vs {
		out[i+1] = out[i] + v
	}
	return out
}

// candidates are all values from lo to hi, multiples of step and hi, as far as
// they are small; further up each is larger than the one before by a part in
// 128.
func candidates(lo, hi, step int) []int {
	var vs []int
	for v := lo; v < hi; {
		vs = append(vs, v)
		v = max(ceilDiv(v+1, step), v/step+v/step/128) * step
	}
	return append(vs, hi)
}

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// factors are what varies in a family of trials: the number of levels of each,
// and which levels cannot meet.
type factors struct {
	levels []int
	// forbidden says whether level a of factor i excludes level b of factor j,
	// i < j; nil forbids nothing. Every level must meet some level of every
	// other factor.
	forbidden func(i, a, j, b int) bool
}

// pair is level a of factor i together with level b of factor j, i < j.
type pair struct{ i, a, j, b int }

func (f *factors) allowed(p pair) bool {
	if p.i > p.j {
		p = pair{p.j, p.b, p.i, p.a}
	}
	return f.forbidden == nil || !f.forbidden(p.i, p.a, p.j, p.b)
}

// pairs lists all pairs that can meet.
func (f *factors) pairs() []pair {
	var ps []pair
	for j := range f.levels {
		for i := range j {
			for a := range f.levels[i] {
				for b := range f.levels[j] {
					if p := (pair{i, a, j, b}); f.allowed(p) {
						ps = append(ps, p)
					}
				}
			}
		}
	}
	return ps
}

// cover draws rows, a level for each factor, such that every allowed pair is in
// one. It is greedy: each row is the best of a few, each of which starts with
// an uncovered pair and takes factors in random order, always the level that
// covers most. That is near the fewest rows, which nobody needs exactly.
func (f *factors) cover(rng *rand.Rand) [][]int {
	const tries = 20
	open := map[pair]bool{}
	for _, p := range f.pairs() {
		open[p] = true
	}
	var rows [][]int
	for _, p := range f.pairs() {
		for open[p] {
			var best []int
			gain := -1
			for range tries {
				if row := f.row(p, open, rng); row != nil && f.gain(row, open) > gain {
					best, gain = row, f.gain(row, open)
				}
			}
			if best == nil {
				continue // every try ran into forbidden pairs: draw again
			}
			rows = append(rows, best)
			for _, q := range pairsOf(best) {
				delete(open, q)
			}
		}
	}
	return rows
}

// unset marks a factor of a row that has no level yet.
const unset = -1

// row draws a row with the given pair; nil if the levels that it took leave
// none for another factor.
func (f *factors) row(start pair, open map[pair]bool, rng *rand.Rand) []int {
	row := slices.Repeat([]int{unset}, len(f.levels))
	row[start.i], row[start.j] = start.a, start.b
	for _, i := range rng.Perm(len(row)) {
		if row[i] != unset {
			continue
		}
		best, gain := unset, -1
		for _, level := range rng.Perm(f.levels[i]) {
			row[i] = level
			if g := f.gain(row, open); f.possible(row) && g > gain {
				best, gain = level, g
			}
		}
		if best == unset {
			return nil
		}
		row[i] = best
	}
	return row
}

// gain is the number of uncovered pairs of a row.
func (f *factors) gain(row []int, open map[pair]bool) int {
	n := 0
	for _, p := range pairsOf(row) {
		if open[p] {
			n++
		}
	}
	return n
}

func (f *factors) possible(row []int) bool {
	return !slices.ContainsFunc(pairsOf(row), func(p pair) bool { return !f.allowed(p) })
}

// pairsOf lists the pairs of the levels that are set.
func pairsOf(row []int) []pair {
	var ps []pair
	for j, b := range row {
		for i, a := range row[:j] {
			if a != unset && b != unset {
				ps = append(ps, pair{i, a, j, b})
			}
		}
	}
	return ps
}

// Every pair that can meet is in a row, no other pair is, and there are not
// many more rows than the two largest factors need.
func TestCoverHasEveryPair(t *testing.T) {
	corner := func(i, a, j, b int) bool { return i == 0 && a == 1 && j == 1 && b == 2 }
	for _, f := range []factors{
		{levels: []int{2, 3}},
		{levels: []int{1, 1, 1}},
		{levels: []int{4, 4, 4, 4, 4}},
		{levels: []int{2, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
		{levels: []int{3, 4, 5, 4, 3, 2, 2}},
		{levels: []int{3, 4, 5, 4, 3, 2, 2}, forbidden: corner},
		{levels: []int{2, 3, 7}, forbidden: corner},
	} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprintf("%v/%d", f.levels, seed), func(t *testing.T) {
				rows := f.cover(rand.New(rand.NewPCG(seed, 0)))
				seen := map[pair]bool{}
				for _, row := range rows {
					require.True(t, f.possible(row), "row %v", row)
					for i, level := range row {
						require.True(t, level >= 0 && level < f.levels[i], "row %v", row)
					}
					for _, p := range pairsOf(row) {
						seen[p] = true
					}
				}
				for _, p := range f.pairs() {
					require.True(t, seen[p], "pair %v is in no row", p)
				}
				sorted := slices.Sorted(slices.Values(f.levels))
				least := sorted[len(sorted)-1] * sorted[len(sorted)-2]
				require.LessOrEqual(t, len(rows), 2*least+4)
			})
		}
	}
}

// Equal seeds draw equal rows.
func TestCoverIsReproducible(t *testing.T) {
	f := factors{levels: []int{3, 4, 5, 4, 3, 2, 2}}
	require.Equal(t, f.cover(rand.New(rand.NewPCG(7, 0))), f.cover(rand.New(rand.NewPCG(7, 0))))
}

package runtime

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The pool hands out what a sorted list of free blocks would.
func TestPoolAgainstSortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 200).Draw(t, "size")
		p := newPool(size)
		free := make([]int32, size)
		for i := range free {
			free[i] = int32(i)
		}
		var taken [][]int32
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.IntRange(0, len(free)).Draw(t, "n")
				got := p.take(n)
				require.Equal(t, free[:n], got)
				free = slices.Clone(free[n:])
				taken = append(taken, got)
			},
			"give": func(t *rapid.T) {
				if len(taken) == 0 {
					t.Skip("nothing taken")
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				if rapid.Bool().Draw(t, "held") {
					p.hold(taken[i])
					p.release()
				} else {
					p.give(taken[i])
				}
				free = append(free, taken[i]...)
				slices.Sort(free)
				taken = slices.Delete(taken, i, i+1)
			},
			"": func(t *rapid.T) { require.Equal(t, len(free), p.count) },
		})
	})
}

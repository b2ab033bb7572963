package host

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quill/recipes"
)

// The weights of experts that no token chooses are not touched: their pages may
// not even be read. With read-ahead as without, nothing is allocated.
func TestOtherExpertsAreNotRead(t *testing.T) {
	const hidden, width, experts, tokens, k = 96, 40, 12, 5, 3
	g := newGen(26)
	page := int64(os.Getpagesize())
	matrix := (2*2*hidden*width + page - 1) / page * page // room for one matrix of an expert
	weights, err := unix.Mmap(-1, 0, int(2*experts*matrix), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(weights)) }()

	m := newMaker(section(recipes.Weights, int64(len(weights))), section(recipes.Arena, 1<<14))
	in := []int{m.tensor(bf16, 1, 0, hidden, tokens), m.tensor(i32, 1, 4096, k, tokens), m.tensor(bf16, 1, 8192, k, tokens)}
	for e := range experts {
		in = append(in, m.tensor(bf16, 0, int64(e)*matrix, hidden, 2*width))
		g.values(bf16, false, hidden, 2*width).encode(weights[int64(e)*matrix:])
	}
	for e := range experts {
		in = append(in, m.tensor(bf16, 0, int64(experts+e)*matrix, width, hidden))
		g.values(bf16, false, width, hidden).encode(weights[int64(experts+e)*matrix:])
	}
	const y = 12288
	m.node("moe_bf16", moeP(0, experts-1), in, m.tensor(bf16, 1, y, hidden, tokens))
	protect := func(e, prot int) {
		for _, i := range []int{e, experts + e} {
			require.NoError(t, unix.Mprotect(weights[int64(i)*matrix:int64(i+1)*matrix], prot))
		}
	}
	x, factors := g.values(bf16, false, hidden, tokens), g.values(bf16, false, k, tokens)
	for range 10 {
		table := g.indices(experts+2, k, tokens)
		var first []byte
		for _, threads := range []int{1, 2, 3} {
			for _, ahead := range []bool{false, true} {
				d, err := New(Options{
					Ranks: 1, Bytes: map[recipes.Buffer]int64{recipes.Weights: int64(len(weights)), recipes.Arena: 1 << 14}, Threads: threads,
					Weights: func(int) []Span { return []Span{{Data: weights}} }, ReadAhead: ahead,
				})
				require.NoError(t, err)
				p, err := d.Load(&m.Recipe)
				require.NoError(t, err)
				l, err := d.Bind(p, bindings(&m.Recipe))
				require.NoError(t, err)
				arena := d.Bytes(0, recipes.Arena)
				x.encode(arena)
				table.encode(arena[4096:])
				factors.encode(arena[8192:])
				distinct := 0
				for e := range experts {
					if slices.Contains(table.x, float64(e)) {
						distinct++
					} else {
						protect(e, unix.PROT_NONE)
					}
				}
				trace := NewTrace(4)
				d.SetTrace(trace)
				require.NoError(t, l.Run(context.Background()))
				d.SetTrace(nil)
				require.EqualValues(t, distinct, trace.Events[0].Experts)
				require.Zero(t, testing.AllocsPerRun(5, func() { _ = l.Run(context.Background()) }))
				for e := range experts {
					protect(e, unix.PROT_READ|unix.PROT_WRITE)
				}
				out := arena[y : y+2*hidden*tokens]
				if first == nil {
					first = slices.Clone(out)
				}
				require.Equal(t, first, out)
				require.NoError(t, d.Close())
			}
		}
	}
}

package host

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// laws are the scalar kernels, which state the law of products.
type laws struct {
	kern.Kernels
	dt dtype.Type
}

func newLaws(t testing.TB, dt dtype.Type) laws {
	k, err := kern.Select("scalar")
	require.NoError(t, err)
	return laws{k, dt}
}

// dots and sums are x·wᵀ and x·w of values that are of the type.
func (l laws) dots(x, w []float32, m, n, k int) []float32 {
	y := make([]float32, m*n)
	if l.dt == bf16 {
		l.GemmBF16(y, n, halves(x), k, halves(w), k, m, n, k, nil)
	} else {
		l.GemmF32(y, n, x, k, w, k, m, n, k, nil)
	}
	return y
}

func (l laws) sums(x, w []float32, m, n, k int) []float32 {
	y := make([]float32, m*n)
	if l.dt == bf16 {
		l.MulBF16(y, n, halves(x), k, halves(w), n, m, n, k)
	} else {
		l.MulF32(y, n, x, k, w, n, m, n, k)
	}
	return y
}

// round rounds to the type.
func (l laws) round(x []float32) []float32 {
	for i := range x {
		if l.dt == bf16 {
			x[i] = dtype.RoundBF16(x[i])
		}
	}
	return x
}

func halves(x []float32) []uint16 {
	y := make([]uint16, len(x))
	for i := range x {
		y[i] = dtype.ToBF16(x[i])
	}
	return y
}

func (v *val) floats() []float32 {
	y := make([]float32, len(v.x))
	for i, x := range v.x {
		y[i] = float32(x)
	}
	return y
}

// holds checks an output's bits.
func holds(t *testing.T, out []byte, dt dtype.Type, want []float32) {
	t.Helper()
	v := newVal(dt, len(want))
	for i, x := range want {
		v.x[i] = float64(x)
	}
	m := alloc(int64(len(out)))
	v.encode(m)
	require.True(t, slices.Equal(m, out))
}

// Products that are cut into blocks and strips have the bits of the law.
func TestProductsFollowTheLaw(t *testing.T) {
	g := newGen(23)
	for _, dt := range floatTypes {
		l := newLaws(t, dt)
		for _, sh := range [][3]int{{1, 300, 2100}, {7, 50, 1030}, {130, 290, 70}, {250, 3, 65}, {2, 1, 5000}} {
			m, n, k := sh[0], sh[1], sh[2]
			a, b := g.values(dt, false, k, m), g.values(dt, false, k, n)
			dots := l.dots(a.floats(), b.floats(), m, n, k)
			sums := l.sums(a.floats(), flip(b).floats(), m, n, k)
			for _, out := range []dtype.Type{dt, f32} {
				t.Run(fmt.Sprintf("%v→%v/%v", dt, out, sh), func(t *testing.T) {
					c := testCase{guid: "gemm", params: gemmP(0, 1), in: []*val{a, b}, out: []*val{newVal(out, n, m)}}
					holds(t, c.run(t)[0], out, dots)
					c.params, c.in = gemmP(0, 0), []*val{a, flip(b)}
					holds(t, c.run(t)[0], out, sums)
				})
			}
		}
	}
}

// A mixture whose experts have more tokens and columns than a block has the
// bits of docs/nodes.md, at any number of threads.
func TestMoEFollowsTheLaw(t *testing.T) {
	const tokens, k, hidden, width, experts = 150, 2, 700, 310, 4
	g := newGen(24)
	for _, dt := range floatTypes {
		l := newLaws(t, dt)
		x, weights := g.values(dt, false, hidden, tokens), g.values(dt, false, k, tokens)
		table := newVal(i32, k, tokens)
		for tok := range tokens {
			// Most tokens choose expert 2, one of them twice; the others choose one
			// and none.
			table.x[tok*k], table.x[tok*k+1] = 2, 99
			switch {
			case tok == 3:
				table.x[tok*k+1] = 2
			case tok%8 == 0:
				table.x[tok*k], table.x[tok*k+1] = 3, float64(tok/8%2)
			}
		}
		c := testCase{guid: "moe_" + dt.String(), params: moeP(0, experts-1), in: []*val{x, table, weights}, out: []*val{newVal(dt, hidden, tokens)}}
		for range experts {
			c.in = append(c.in, g.values(dt, false, hidden, 2*width))
		}
		for range experts {
			c.in = append(c.in, g.values(dt, false, width, hidden))
		}
		want := make([]float32, hidden*tokens)
		xs, ws := x.floats(), weights.floats()
		for e := range experts {
			up, down := c.in[3+e].floats(), c.in[3+experts+e].floats()
			for tok := range tokens {
				for j := range k {
					if int(table.x[tok*k+j]) != e {
						continue
					}
					gu := l.round(l.dots(xs[tok*hidden:(tok+1)*hidden], up, 1, 2*width, hidden))
					act := gu[:width]
					l.SiLU(act, act)
					l.Mul(act, act, gu[width:])
					out := l.round(l.dots(l.round(act), down, 1, hidden, width))
					l.Axpy(want[tok*hidden:(tok+1)*hidden], ws[tok*k+j], out)
				}
			}
		}
		for _, threads := range []int{1, 2, 3, 5} {
			holds(t, c.divided(t, threads)[0], dt, want)
		}
	}
}

// However the work on the chosen experts is divided, each of their columns is
// computed once.
func TestExpertsAreDivided(t *testing.T) {
	g := newGen(25)
	for range 300 {
		m := &moe{width: g.IntN(200)}
		pairs, ends := make([]int32, 1+g.IntN(9)), []int64(nil)
		end := int64(0)
		for i := range pairs {
			pairs[i] = 1 + int32(g.IntN(100))
			end += m.strips() * work(pairs[i])
			ends = append(ends, end)
		}
		threads := 1 + g.IntN(7)
		begin := int64(0)
		for i, n := range pairs {
			at := 0
			for th := range threads {
				from, to := th*shares/threads, (th+1)*shares/threads
				require.Equal(t, at, m.column(begin, work(n), ends, from))
				at = m.column(begin, work(n), ends, to)
				require.True(t, at%strip == 0 || at == m.width)
			}
			require.Equal(t, m.width, at)
			begin = ends[i]
		}
	}
}

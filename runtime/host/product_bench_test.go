package host

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// Products are compared with what the machine can do, measured between the runs
// of a product: the time to read the weights from memory, or that of so many
// operations by the kernels' instructions, whichever is longer.

// job is what a run must do at least: bytes to read, operations on bf16 and on
// f32.
type job struct{ bytes, bf16, f32 int }

// roofs are seconds a byte and seconds an operation.
type roofs struct{ read, bf16, f32 float64 }

func (r roofs) seconds(j job) float64 {
	return max(float64(j.bytes)*r.read, float64(j.bf16)*r.bf16, float64(j.f32)*r.f32)
}

func measureRoofs(b *testing.B, threads int) roofs {
	read, err := kern.NewReader(threads).Bandwidth(context.Background())
	require.NoError(b, err)
	bf16, err := kern.Best().PeakBF16(context.Background(), threads)
	require.NoError(b, err)
	f32, err := kern.Best().PeakF32(context.Background(), threads)
	require.NoError(b, err)
	return roofs{1 / read, 1 / bf16, 1 / f32}
}

// roofed reports the median of the times at the roofs over those of runs
// between them.
func roofed(b *testing.B, threads int, run func() (job, time.Duration)) {
	ratios := make([]float64, max(5, min(b.N, 15)))
	before := measureRoofs(b, threads)
	for i := range ratios {
		j, t := run()
		after := measureRoofs(b, threads)
		ratios[i] = (before.seconds(j) + after.seconds(j)) / 2 / t.Seconds()
		before = after
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "of-roof")
	b.ReportMetric(0, "ns/op")
}

// benchWeights are bf16 numbers around 0 in memory of their own.
func benchWeights(n int64) []byte {
	m := alloc(n)
	r := rand.New(rand.NewPCG(1, 2))
	block := as[uint16](m[:min(n, 1<<22)])
	for i := range block {
		block[i] = uint16(0x3c00 + r.Uint32N(0x100) | r.Uint32N(2)<<15)
	}
	for at := int64(2 * len(block)); at < n; {
		at += int64(copy(m[at:], m[:at]))
	}
	return m
}

// bench makes a device for a recipe over the weights and returns its arena and
// how to run it.
func bench(b *testing.B, r *recipes.Recipe, weights []byte, threads int) (arena []byte, run func()) {
	bytes := map[recipes.Buffer]int64{recipes.Weights: int64(len(weights))}
	for _, s := range r.Sections {
		if s.Buffer != recipes.Weights {
			bytes[s.Buffer] = s.Size
		}
	}
	d, err := New(Options{Ranks: 1, Bytes: bytes, Threads: threads, Weights: func(int) []Span { return []Span{{Data: weights}} }})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, d.Close()) })
	p, err := d.Load(r)
	require.NoError(b, err)
	l, err := d.Bind(p, bindings(r))
	require.NoError(b, err)
	return d.Bytes(0, recipes.Arena), func() { require.NoError(b, l.Run(context.Background())) }
}

func BenchmarkProduct(b *testing.B) {
	const n, k, matrices = 4096, 4096, 32
	weights := benchWeights(2 * n * k * matrices)
	for _, out := range []dtype.Type{bf16, f32} {
		for _, rows := range []int{1, 4, 16, 64, 2048} {
			for threads := 1; threads <= 2; threads++ {
				b.Run(fmt.Sprintf("%v/rows=%d/threads=%d", out, rows, threads), func(b *testing.B) {
					nodes := matrices
					if rows > 64 {
						nodes = 2
					}
					y := align(int64(2 * k * rows))
					m := newMaker(section(recipes.Weights, int64(len(weights))), section(recipes.Arena, y+int64(4*n*rows*nodes)))
					x := m.tensor(bf16, 1, 0, k, rows)
					for i := range nodes {
						w := m.tensor(bf16, 0, int64(2*n*k*i), k, n)
						m.node("gemm", gemmP(0, 1), []int{x, w}, m.tensor(out, 1, y+int64(4*n*rows*i), n, rows))
					}
					arena, run := bench(b, &m.Recipe, weights, threads)
					copy(arena, weights[:2*k*rows])
					j := job{bytes: 2 * n * k * nodes, bf16: 2 * n * k * nodes * rows}
					roofed(b, threads, func() (job, time.Duration) { return j, timed(run) })
				})
			}
		}
	}
}

// Probabilities times values, summed in index order.
func BenchmarkProductInOrder(b *testing.B) {
	const n, k, heads = 128, 2048, 8
	for _, rows := range []int{4, 64, 2048} {
		for threads := 1; threads <= 2; threads++ {
			b.Run(fmt.Sprintf("rows=%d/threads=%d", rows, threads), func(b *testing.B) {
				a, v := align(int64(2*k*rows*heads)), align(int64(2*n*k*heads))
				m := newMaker(section(recipes.Arena, a+v+int64(2*n*rows*heads)))
				m.node("batch_gemm", gemmP(0, 0), []int{m.tensor(bf16, 0, 0, k, rows, heads), m.tensor(bf16, 0, a, n, k, heads)},
					m.tensor(bf16, 0, a+v, n, rows, heads))
				arena, run := bench(b, &m.Recipe, nil, threads)
				copy(arena, benchWeights(a+v))
				runs := 1 + 2048/rows
				roofed(b, threads, func() (job, time.Duration) {
					return job{f32: 2 * n * k * rows * heads * runs}, timed(func() {
						for range runs {
							run()
						}
					})
				})
			})
		}
	}
}

func BenchmarkMoE(b *testing.B) {
	const hidden, width, experts, choices = 4096, 256, 256, 6
	const expert = 2 * 3 * hidden * width
	weights := benchWeights(expert * experts)
	for _, tokens := range []int{1, 4, 16, 256, 2048} {
		for threads := 1; threads <= 2; threads++ {
			b.Run(fmt.Sprintf("tokens=%d/threads=%d", tokens, threads), func(b *testing.B) {
				at := int64(0)
				place := func(bytes int) int64 { at += align(int64(bytes)); return at - align(int64(bytes)) }
				x, table := place(2*hidden*tokens), place(4*choices*tokens)
				factors, y := place(2*choices*tokens), place(2*hidden*tokens)
				m := newMaker(section(recipes.Weights, int64(len(weights))), section(recipes.Arena, at))
				in := []int{m.tensor(bf16, 1, x, hidden, tokens), m.tensor(i32, 1, table, choices, tokens), m.tensor(bf16, 1, factors, choices, tokens)}
				for e := range experts {
					in = append(in, m.tensor(bf16, 0, int64(expert*e), hidden, 2*width))
				}
				for e := range experts {
					in = append(in, m.tensor(bf16, 0, int64(expert*e+expert/3*2), width, hidden))
				}
				m.node("moe_bf16", moeP(0, experts-1), in, m.tensor(bf16, 1, y, hidden, tokens))
				arena, run := bench(b, &m.Recipe, weights, threads)
				copy(arena[x:], weights[:2*hidden*tokens])
				copy(arena[factors:], weights[:2*choices*tokens])
				r := rand.New(rand.NewPCG(3, 4))
				// route chooses experts and returns how many.
				route := func() int {
					var chosen [experts]bool
					count := 0
					to := as[int32](arena[table:])
					for t := range tokens {
						for j, e := range r.Perm(experts)[:choices] {
							to[t*choices+j] = int32(e)
							if !chosen[e] {
								chosen[e] = true
								count++
							}
						}
					}
					return count
				}
				roofed(b, threads, func() (j job, t time.Duration) {
					for range max(1, 64/tokens) {
						j.bytes += expert * route()
						j.bf16 += choices * tokens * expert
						t += timed(run)
					}
					return j, t
				})
			})
		}
	}
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

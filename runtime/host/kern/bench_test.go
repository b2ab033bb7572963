package kern

import (
	"fmt"
	"testing"
)

// benchmark reports the ratio of a kernel to its roof.
func benchmark(b *testing.B, unit string, ratio func(runs int) float64) {
	b.ReportMetric(ratio(max(11, min(b.N, 101))), unit)
	b.ReportMetric(0, "ns/op")
}

func BenchmarkGemv(b *testing.B) {
	h, f := operands(readBytes/2), floats(readBytes/4)
	for _, s := range tiers()[1:] {
		for threads := 1; threads <= 2; threads++ {
			for _, k := range []int{256, 1024, 4096, 11008} {
				b.Run(fmt.Sprintf("bf16/%v/k=%d/threads=%d", s.Tier(), k, threads), func(b *testing.B) {
					benchmark(b, "of-read", func(runs int) float64 { return fewRatio(h, s.GemmBF16, 0, law, 1, k, threads, runs) })
				})
				b.Run(fmt.Sprintf("f32/%v/k=%d/threads=%d", s.Tier(), k, threads), func(b *testing.B) {
					benchmark(b, "of-read", func(runs int) float64 { return fewRatio(f, s.GemmF32, 0, law, 1, k, threads, runs) })
				})
			}
		}
	}
}

func BenchmarkGemm(b *testing.B) {
	const size = 4096 * (4096 + 2048)
	h, f := operands(size), floats(size)
	for _, s := range tiers()[1:] {
		for _, sh := range [][3]int{{960, 1024, 1024}, {2048, 4096, 4096}, {61, 1000, 999}, {16, 4096, 1024}, {512, 512, 128}} {
			m, n, k := sh[0], sh[1], sh[2]
			for threads := 1; threads <= 2; threads++ {
				name := fmt.Sprintf("%v/%dx%dx%d/threads=%d", s.Tier(), m, n, k, threads)
				b.Run("bf16/"+name, func(b *testing.B) {
					benchmark(b, "of-peak", func(runs int) float64 {
						return gemmRatio(h[n*k:], h[:n*k], s.GemmBF16, s.ScratchBF16(m, k), s.bf16().arith, m, n, k, threads, runs)
					})
				})
				b.Run("f32/"+name, func(b *testing.B) {
					benchmark(b, "of-peak", func(runs int) float64 {
						return gemmRatio(f[n*k:], f[:n*k], s.GemmF32, s.ScratchF32(m, k), s.f32().arith, m, n, k, threads, runs)
					})
				})
			}
		}
	}
}

func BenchmarkFew(b *testing.B) {
	w := operands(readBytes / 2)
	for _, s := range tiers()[1:] {
		for threads := 1; threads <= 2; threads++ {
			for _, k := range []int{256, 1024, 4096, 11008} {
				for _, m := range []int{2, 3, 4, 6, 8, 12, 16} {
					b.Run(fmt.Sprintf("bf16/%v/m=%d/k=%d/threads=%d", s.Tier(), m, k, threads), func(b *testing.B) {
						benchmark(b, "of-roof", func(runs int) float64 {
							return fewRatio(w, s.GemmBF16, s.ScratchBF16(m, k), s.bf16().arith, m, k, threads, runs)
						})
					})
				}
			}
		}
	}
}

func BenchmarkMul(b *testing.B) {
	h, f := operands(1<<22), floats(1<<22)
	for _, s := range tiers()[1:] {
		for _, sh := range [][3]int{{1, 128, 512}, {4, 64, 64}, {4, 128, 1024}, {16, 128, 4096}, {64, 128, 1024}, {7, 100, 333}, {512, 1024, 16}} {
			m, n, k := sh[0], sh[1], sh[2]
			name := fmt.Sprintf("%v/%dx%dx%d", s.Tier(), m, n, k)
			b.Run("bf16/"+name, func(b *testing.B) {
				benchmark(b, "of-peak", func(runs int) float64 { return mulRatio(h, s.MulBF16, s.f32().arith, m, n, k, runs) })
			})
			b.Run("f32/"+name, func(b *testing.B) {
				benchmark(b, "of-peak", func(runs int) float64 { return mulRatio(f, s.MulF32, s.f32().arith, m, n, k, runs) })
			})
		}
	}
}

package kern

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// Speeds are compared with roofs that are measured at the same time: each run
// of a kernel is between two runs of its roof, and the median of the ratios is
// the result. So it depends little on what else the machine does.

// paired is the median over runs of rate / mean of the roofs around it.
func paired(runs int, roof, rate func() float64) float64 {
	ratios := make([]float64, runs)
	before := roof()
	for i := range ratios {
		v := rate()
		after := roof()
		ratios[i] = 2 * v / (before + after)
		before = after
	}
	slices.Sort(ratios)
	return ratios[runs/2]
}

// operands are values that neither overflow nor are denormal.
func operands(n int) []uint16 {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]uint16, n)
	for i := range x {
		x[i] = uint16(0x3e00 + r.Uint32N(0x200) | r.Uint32N(2)<<15)
	}
	return x
}

func floats(n int) []float32 {
	x := make([]float32, n)
	Best().Widen(x, operands(n))
	return x
}

// streamed is the rate of reading weights from memory while m rows are
// multiplied by them, over the lower of two roofs: the rate of reading, and that
// at which the peak of operations needs weights. run multiplies rows n0 … n1−1
// of w in thread i.
func streamed[T uint16 | float32](w []T, a arith, m, k, threads, runs int, run func(i, n0, n1 int)) float64 {
	// A part of the weights at a time, so that the pairs are close together.
	const parts = 16
	part, at := len(w)/k/parts, 0
	next := func() int {
		at = (at + 1) % parts
		return at * part
	}
	rate := func() float64 {
		p0 := next()
		t := busy(threads, func(i int) {
			n0, n1 := split(part, threads, i)
			run(i, p0+n0, p0+n1)
		})
		return float64(len(asBytes(w[:part*k]))) / t.Seconds()
	}
	elements := float64(len(asBytes(w[:1]))) // bytes of one
	best := 0.0
	for _, read := range []func([]byte){readInLine, readInStreams} {
		r := paired(runs, func() float64 {
			p0 := next()
			reading := readRate(asBytes(w[p0*k:(p0+part)*k]), threads, read, busy)
			if m == 1 {
				return reading
			}
			return min(reading, peakRate(a, threads, busy)*elements/float64(2*m))
		}, rate)
		if best == 0 || r < best {
			best = r
		}
	}
	return best
}

// fewRatio is streamed of a GEMM with few rows.
func fewRatio[T uint16 | float32](w []T, run gemmFunc[T], scratch int, a arith, m, k, threads, runs int) float64 {
	n := len(w) / k
	x, y := slices.Clone(w[:m*k]), make([]float32, m*n)
	bufs := scratches(threads, scratch)
	return streamed(w, a, m, k, threads, runs, func(i, n0, n1 int) {
		run(y[n0:], n, x, k, w[n0*k:n1*k], k, m, n1-n0, k, bufs[i])
	})
}

type gemmFunc[T any] func(y []float32, ldy int, x []T, ldx int, w []T, ldw, m, n, k int, scratch []byte)

func scratches(threads, size int) [][]byte {
	bufs := make([][]byte, threads)
	for i := range bufs {
		bufs[i] = make([]byte, size)
	}
	return bufs
}

// mulRatio is the rate of operations of a product in the order of k over the
// peak. Rows of its operands are further apart than they are long.
func mulRatio[T uint16 | float32](h []T, run func(y []float32, ldy int, x []T, ldx int, w []T, ldw, m, n, k int),
	a arith, m, n, k, runs int,
) float64 {
	const gap = 64
	y := make([]float32, m*n)
	repeat := 1 + int(2e7)/(m*n*k)
	return paired(runs, func() float64 { return peakRate(a, 1, busy) }, func() float64 {
		t := busy(1, func(int) {
			for range repeat {
				run(y, n, h, k+gap, h, n+gap, m, n, k)
			}
		})
		return float64(2*m*n*k*repeat) / t.Seconds()
	})
}

// gemmRatio is the rate of operations over the peak of the same instructions.
func gemmRatio[T uint16 | float32](x, w []T, run gemmFunc[T], scratch int, a arith, m, n, k, threads, runs int) float64 {
	y := make([]float32, m*n)
	bufs := scratches(threads, scratch)
	// Some rows of w at a time, about as long as a run of the roof.
	part, at := n, 0
	for part > 2048 {
		part /= 2
	}
	repeat := 1 + int(3e8)/(m*part*k)
	return paired(runs, func() float64 { return peakRate(a, threads, busy) }, func() float64 {
		at = (at + part) % (n - part + 1)
		t := busy(threads, func(i int) {
			n0, n1 := split(part, threads, i)
			n0, n1 = at+n0, at+n1
			for range repeat {
				run(y[n0:], n, x, k, w[n0*k:n1*k], k, m, n1-n0, k, bufs[i])
			}
		})
		return float64(2*m*part*k*repeat) / t.Seconds()
	})
}

// ratios are a roof and the part of it that is reached, or is to be.
type ratio struct {
	name      string
	got, want float64
}

// measure compares the best kernels with their roofs: runs times each, on
// buffers of size bytes, far more than the caches have if it is to mean much.
func measure(size, runs int, report func(ratio)) {
	s := Best()
	f32, bf16 := s.f32(), s.bf16()
	w, f := operands(size/2), floats(size/4)
	for threads := 1; threads <= 2; threads++ {
		at := func(want, got float64, format string, args ...any) {
			report(ratio{fmt.Sprintf(format, args...) + fmt.Sprintf(", %d threads", threads), got, want})
		}
		for _, k := range []int{1024, 2048, 4096, 8192, 11008} {
			at(0.85, fewRatio(w, s.GemmBF16, 0, law, 1, k, threads, runs), "gemv bf16 k=%d", k)
		}
		for _, few := range fewTargets {
			for _, k := range []int{1024, 4096} {
				r := fewRatio(w, s.GemmBF16, s.ScratchBF16(few.m, k), bf16.arith, few.m, k, threads, runs)
				at(few.want, r, "gemm bf16 of memory m=%d k=%d", few.m, k)
			}
		}
		gemm := func(m, n, k int) float64 {
			return gemmRatio(w[n*k:n*k+m*k], w[:n*k], s.GemmBF16, s.ScratchBF16(m, k), bf16.arith, m, n, k, threads, runs)
		}
		for _, sh := range [][3]int{{960, 1024, 1024}, {2048, 4096, 4096}, {960, 1024, 256}, {960, 1024, 128}, {64, 1024, 128}} {
			at(0.75, gemm(sh[0], sh[1], sh[2]), "gemm bf16 %v", sh)
		}
		even := gemm(60, 1000, 992)
		at(0.85, gemm(61, 1000, 999)/even, "gemm bf16 61×1000×999 over 60×1000×992")
	}
	for _, sh := range [][3]int{{4, 64, 64}, {4, 128, 128}, {16, 128, 1024}, {64, 128, 4096}, {7, 100, 333}} {
		m, n, k := sh[0], sh[1], sh[2]
		want := 0.7
		if n%64 != 0 {
			want = 0.5 // of its last tile only a part is used
		}
		report(ratio{fmt.Sprintf("mul f32 %v", sh), mulRatio(f, s.MulF32, f32.arith, m, n, k, runs), want})
		report(ratio{fmt.Sprintf("mul bf16 %v", sh), mulRatio(w, s.MulBF16, f32.arith, m, n, k, runs), want})
	}
}

// fewTargets are what few rows are to reach. With about eight of them, weights
// arrive as fast as they can be multiplied, and both roofs press.
var fewTargets = []struct {
	m    int
	want float64
}{{2, 0.8}, {4, 0.7}, {8, 0.55}, {16, 0.6}}

// TestRatios asserts what the package is for. It depends on time, so it only runs
// if QUILL_ROOFS is set.
func TestRatios(t *testing.T) {
	if os.Getenv("QUILL_ROOFS") == "" {
		t.Skip("QUILL_ROOFS is not set")
	}
	measure(readBytes, 41, func(r ratio) {
		t.Logf("%-50s %.3f", r.name, r.got)
		if r.got < r.want {
			t.Errorf("%s: %.3f of the roof, want %.2f", r.name, r.got, r.want)
		}
	})
}

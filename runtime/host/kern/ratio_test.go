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

// gemvRatio is the rate of reading weights from memory over that of reading.
func gemvRatio[T uint16 | float32](w []T, run func(y []float32, x, w []T, ldw, n, k int), k, threads, runs int) float64 {
	n := len(w) / k
	x, y := slices.Clone(w[:k]), make([]float32, n)
	// A part of the weights at a time, so that the pairs are close together.
	part, at := n/16, 0
	next := func() (int, int) {
		at = (at + 1) % 16
		return at * part, (at + 1) * part
	}
	bytes := float64(part*k) * float64(len(asBytes(w))/len(w))
	rate := func() float64 {
		p0, _ := next()
		t := busy(threads, func(i int) {
			n0, n1 := Split(part, threads, i)
			n0, n1 = p0+n0, p0+n1
			run(y[n0:n1], x, w[n0*k:n1*k], k, n1-n0, k)
		})
		return bytes / t.Seconds()
	}
	best := 0.0
	for _, read := range []func([]byte){readInLine, readInStreams} {
		r := paired(runs, func() float64 {
			p0, p1 := next()
			return readRate(asBytes(w[p0*k:p1*k]), threads, read, busy)
		}, rate)
		if best == 0 || r < best {
			best = r
		}
	}
	return best
}

// gemmRatio is the rate of operations over the peak of the same instructions.
func gemmRatio[T uint16 | float32](x, w []T, run func(y []float32, ldy int, x []T, ldx int, w []T, ldw, m, n, k int, scratch []byte),
	scratch int, a arith, m, n, k, threads, runs int,
) float64 {
	y := make([]float32, m*n)
	bufs := make([][]byte, threads)
	for i := range bufs {
		bufs[i] = make([]byte, scratch)
	}
	// Some rows of w at a time, about as long as a run of the roof.
	part, at := n, 0
	for part > 2048 {
		part /= 2
	}
	repeat := 1 + int(3e8)/(m*part*k)
	return paired(runs, func() float64 { return peakRate(a, threads, busy) }, func() float64 {
		at = (at + part) % (n - part + 1)
		t := busy(threads, func(i int) {
			n0, n1 := Split(part, threads, i)
			n0, n1 = at+n0, at+n1
			for range repeat {
				run(y[n0:], n, x, k, w[n0*k:n1*k], k, m, n1-n0, k, bufs[i])
			}
		})
		return float64(2*m*part*k*repeat) / t.Seconds()
	})
}

// TestRatios asserts what the package is for. It is off by default: tests that
// depend on time have no place in a machine that others use.
func TestRatios(t *testing.T) {
	if os.Getenv("QUILL_ROOFS") == "" {
		t.Skip("set QUILL_ROOFS=1 to compare speeds with roofs")
	}
	s := Best()
	at := func(name string, got, want float64) {
		t.Helper()
		t.Logf("%-40s %.3f", name, got)
		if got < want {
			t.Errorf("%s: %.3f of the roof, want %.2f", name, got, want)
		}
	}
	w := operands(readBytes / 2)
	for threads := 1; threads <= 2; threads++ {
		for _, k := range []int{1024, 2048, 4096, 8192, 11008} {
			at(fmt.Sprintf("gemv bf16 k=%d threads=%d", k, threads), gemvRatio(w, s.GemvBF16, k, threads, 61), 0.85)
		}
		bf16 := s.bf16()
		ratio := func(m, n, k int) float64 {
			return gemmRatio(w[n*k:n*k+m*k], w[:n*k], s.GemmBF16, s.ScratchBF16(m, k), bf16.arith, m, n, k, threads, 41)
		}
		for _, sh := range [][3]int{{960, 1024, 1024}, {2048, 4096, 4096}} {
			at(fmt.Sprintf("gemm bf16 %v threads=%d", sh, threads), ratio(sh[0], sh[1], sh[2]), 0.75)
		}
		even := ratio(60, 1000, 992)
		at(fmt.Sprintf("61×1000×999 over 60×1000×992 threads=%d", threads), ratio(61, 1000, 999)/even, 0.85)
	}
}

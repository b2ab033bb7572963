package kern

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"
)

const (
	// readBytes is the size of the buffer that ReadBandwidth reads: far more
	// than the caches of a processor.
	readBytes = 256 << 20
	// peakRounds is what one call of a peak loop does; assembly cannot be
	// preempted.
	peakRounds = 2000
	// roofRuns is the number of runs of which a roof is the median.
	roofRuns = 9
)

// ReadBandwidth is the rate, in bytes per second, at which threads goroutines
// read a large buffer: the roof of a GEMV whose weights are in memory. It takes
// the better of two orders of reading.
func ReadBandwidth(ctx context.Context, threads int) (float64, error) {
	buf := make([]byte, readBytes)
	for i := range buf {
		buf[i] = byte(i) // pages that were never written may all be one page
	}
	var best float64
	for _, read := range []func([]byte){readInLine, readInStreams} {
		rate, err := median(ctx, func() float64 { return readRate(buf, threads, read, spread) })
		if err != nil {
			return 0, err
		}
		best = max(best, rate)
	}
	return best, nil
}

// PeakBF16 is the number of floating-point operations per second that threads
// goroutines do with the kernels' instructions for bf16 if they do nothing
// else; an FMA is two.
func (s Kernels) PeakBF16(ctx context.Context, threads int) (float64, error) {
	return s.peak(ctx, s.bf16().arith, threads)
}

// PeakF32 is PeakBF16 for f32.
func (s Kernels) PeakF32(ctx context.Context, threads int) (float64, error) {
	return s.peak(ctx, s.f32().arith, threads)
}

func (s Kernels) peak(ctx context.Context, a arith, threads int) (float64, error) {
	return median(ctx, func() float64 { return peakRate(a, threads, spread) })
}

// median is the median of several runs of f.
func median(ctx context.Context, f func() float64) (float64, error) {
	runs := make([]float64, roofRuns)
	for i := range runs {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		runs[i] = f()
	}
	slices.Sort(runs)
	return runs[len(runs)/2], nil
}

// clock runs f on threads goroutines and returns a time that took.
type clock func(threads int, f func(i int)) time.Duration

// spread runs f on threads goroutines and returns how long that took.
func spread(threads int, f func(i int)) time.Duration {
	var wg sync.WaitGroup
	start := time.Now()
	for i := 1; i < threads; i++ {
		wg.Go(func() { f(i) })
	}
	f(0)
	wg.Wait()
	return time.Since(start)
}

// readRate is the rate of reading buf once, each goroutine its part, as clock
// measures it.
func readRate(buf []byte, threads int, read func([]byte), clock clock) float64 {
	t := clock(threads, func(i int) {
		n0, n1 := Split(len(buf)/readBlock, threads, i)
		for b := n0; b < n1; b++ {
			read(buf[b*readBlock : (b+1)*readBlock])
		}
	})
	return float64(len(buf)/readBlock*readBlock) / t.Seconds()
}

// readBlock is what one call reads: eight streams as long as those of a GEMV.
const readBlock = 8 * streamBytes

// peakRate is the rate of a peak loop.
func peakRate(a arith, threads int, clock clock) float64 {
	const calls = 300
	t := clock(threads, func(int) {
		for range calls {
			peakLoop(a, peakRounds)
		}
	})
	return float64(calls*threads) * peakOps(a) * peakRounds / t.Seconds()
}

// goPeakOps are the operations of one round of goPeak.
const goPeakOps = 16

// goPeak is the peak loop of the scalar tier.
func goPeak(rounds int) {
	var s, x [goPeakOps / 2]float32
	for i := range x {
		x[i] = float32(rounds)
	}
	for range rounds {
		for i, v := range x {
			s[i] += float32(v * v)
		}
	}
	runtime.KeepAlive(s)
}

// goRead reads buf in Go.
func goRead(buf []byte) {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&buf[0])), len(buf)/8)
	var a, b, c, d uint64
	for len(words) >= 4 {
		a, b, c, d = a|words[0], b|words[1], c|words[2], d|words[3]
		words = words[4:]
	}
	runtime.KeepAlive(a | b | c | d)
}

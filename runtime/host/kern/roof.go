package kern

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// peakRounds is what one call of a peak loop does; assembly cannot be
	// preempted.
	peakRounds = 2000
	// roofRuns is the number of runs of which a roof is the median.
	roofRuns = 9
)

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

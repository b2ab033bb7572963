package main

import (
	"context"
	"time"

	"quill/runtime/host/kern"
)

// burstTime is how long a burst reads: long enough to see how fast the memory
// is at the moment, short beside a window.
const burstTime = 40 * time.Millisecond

// roofs are what the machine can do at most with the kernels and threads of a
// run, by the kernels' own loops.
type roofs struct {
	Read float64 `json:"read_bytes_per_second"`
	BF16 float64 `json:"bf16_flops_per_second"`
	F32  float64 `json:"f32_flops_per_second"`
}

// better takes the higher of each roof: whatever else ran only lowers them.
func (r roofs) better(o roofs) roofs {
	return roofs{max(r.Read, o.Read), max(r.BF16, o.BF16), max(r.F32, o.F32)}
}

// flops is the roof of products in a precision.
func (r roofs) flops(precision string) float64 {
	if precision == "f32" {
		return r.F32
	}
	return r.BF16
}

// roofMeter measures roofs. Its buffer stays in memory until it is let go.
type roofMeter struct {
	kernels   kern.Kernels
	threads   int
	precision string
	reader    *kern.Reader
}

func newRoofMeter(k kern.Kernels, threads int, precision string) *roofMeter {
	return &roofMeter{k, threads, precision, kern.NewReader(threads)}
}

// bytes is the memory that the meter has in use.
func (m *roofMeter) bytes() int64 { return m.reader.Bytes() }

// measure measures every roof and takes its time.
func (m *roofMeter) measure(ctx context.Context) (r roofs, err error) {
	if r.Read, err = m.reader.Bandwidth(ctx); err != nil {
		return r, err
	}
	if r.BF16, err = m.kernels.PeakBF16(ctx, m.threads); err != nil {
		return r, err
	}
	r.F32, err = m.kernels.PeakF32(ctx, m.threads)
	return r, err
}

// readNow is the read bandwidth of this moment.
func (m *roofMeter) readNow(ctx context.Context) (float64, error) {
	return m.reader.Burst(burstTime), ctx.Err()
}

// flopsNow is the peak of the run's precision of this moment. It takes some 20
// to 80 ms.
func (m *roofMeter) flopsNow(ctx context.Context) (float64, error) {
	if m.precision == "f32" {
		return m.kernels.PeakF32(ctx, m.threads)
	}
	return m.kernels.PeakBF16(ctx, m.threads)
}

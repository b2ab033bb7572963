package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"quill/runtime/host/kern"
)

// roofs are what the machine can do at most with the kernels and threads of a
// run, by the kernels' own loops.
type roofs struct {
	Read float64 `json:"read_bytes_per_second"`
	BF16 float64 `json:"bf16_flops_per_second"`
	F32  float64 `json:"f32_flops_per_second"`
}

func measureRoofs(ctx context.Context, k kern.Kernels, threads int) (r roofs, err error) {
	if r.Read, err = kern.ReadBandwidth(ctx, threads); err != nil {
		return r, err
	}
	if r.BF16, err = k.PeakBF16(ctx, threads); err != nil {
		return r, err
	}
	r.F32, err = k.PeakF32(ctx, threads)
	debug.FreeOSMemory() // what was read is larger than some models
	return r, err
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

// peakMemory is the most memory that the process had in use since it began or
// since resetPeak, 0 if the system does not say.
func peakMemory() int64 {
	var kib int64
	if _, err := fmt.Sscanf(procField("/proc/self/status", "VmHWM"), "%d kB", &kib); err != nil {
		return 0
	}
	return kib * 1024
}

// resetPeak begins a new peak, where the system can: the memory that measuring
// roofs takes is not the model's.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// cpuName is the processor as it calls itself, "" if the system does not say.
func cpuName() string { return procField("/proc/cpuinfo", "model name") }

// procField is the first value of a key in a file of lines "key: value".
func procField(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if k, v, ok := strings.Cut(in.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

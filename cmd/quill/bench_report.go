package main

import (
	"bytes"
	"fmt"
	"io"
	"time"

	"quill/ir/inkling"
	"quill/runtime"
	"quill/runtime/host/kern"
)

// benchReport is what a bench prints. Rates are of what the model needs at
// least, not of what the device did.
type benchReport struct {
	Bundle      string         `json:"bundle"`
	Precision   string         `json:"precision"`
	Ranks       int            `json:"ranks"`
	CPU         string         `json:"cpu"`
	Kernels     string         `json:"kernels"`
	Threads     int            `json:"threads"`
	LoadSeconds float64        `json:"load_seconds"`
	Memory      runtime.Memory `json:"memory"`            // as planned
	PeakBytes   int64          `json:"peak_memory_bytes"` // as used, 0 if the system does not say
	Counters    served         `json:"counters"`
	Roofs       roofs          `json:"roofs"`
	Prefill     phaseReport    `json:"prefill"`
	Decode      *phaseReport   `json:"decode"` // null without steps
}

// phaseReport is one phase.
type phaseReport struct {
	Calls  int `json:"calls"`  // prompts, or steps
	Tokens int `json:"tokens"` // of all calls
	// Context is how many tokens the last token of a prompt sees, itself
	// included; of decode steps the mean.
	Context         float64 `json:"context"`
	Seconds         float64 `json:"seconds"`
	TokensPerSecond float64 `json:"tokens_per_second"`
	P50             float64 `json:"p50_seconds"` // of a call
	P99             float64 `json:"p99_seconds"`

	Flops          float64 `json:"flops"` // of a call
	FlopsPerSecond float64 `json:"flops_per_second"`
	// FlopsOfRoof is the median of PairedFlops. Of decode steps, whose bursts read
	// memory, it is the share of the peak that the report's roofs have.
	FlopsOfRoof float64 `json:"flops_of_roof"`
	PairedFlops *spread `json:"paired_flops_of_roof,omitempty"` // of prompts only

	// Of decode steps only.
	Experts        float64 `json:"experts_a_layer,omitempty"`
	Bytes          float64 `json:"bytes,omitempty"` // of a call
	BytesPerSecond float64 `json:"bytes_per_second,omitempty"`
	BytesOfRoof    float64 `json:"bytes_of_roof,omitempty"` // the median of PairedBytes
	PairedBytes    *spread `json:"paired_bytes_of_roof,omitempty"`

	// Kinds are of the traced run.
	Kinds   []kindStat `json:"kinds"`
	Dropped int        `json:"dropped_events,omitempty"`
}

func (o *benchOptions) report(s *runtime.Session, c *inkling.Config, k kern.Kernels, m *measured) *benchReport {
	info := s.Info()
	r := &benchReport{
		Bundle: o.bundle, Precision: info.Precision, Ranks: info.Deployment.TensorParallel,
		CPU: cpuName(), Kernels: k.Tier().String(), Threads: s.Threads(),
		Memory: s.Memory(), Counters: servedBy(s), Roofs: m.roofs,
	}
	elem := int64(2)
	if info.Precision == "f32" {
		elem = 4
	}
	needs := newCost(c, elem)
	r.Prefill = o.prefillReport(needs, m)
	if o.decode > 0 {
		d := o.decodeReport(needs, m, m.roofs.flops(info.Precision))
		r.Decode = &d
	}
	return r
}

// newPhase fills in what does not depend on the model.
func newPhase(times []time.Duration, tokens int, trace *recording) phaseReport {
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	return phaseReport{
		Calls: len(times), Tokens: tokens, Seconds: sum.Seconds(), TokensPerSecond: ratio(float64(tokens), sum.Seconds()),
		P50: percentile(times, 50).Seconds(), P99: percentile(times, 99).Seconds(),
		Kinds: trace.kinds(), Dropped: trace.trace.Dropped,
	}
}

func (p *phaseReport) setFlops(flops float64) {
	p.Flops = flops
	p.FlopsPerSecond = ratio(flops*float64(p.Calls), p.Seconds)
}

func (o *benchOptions) prefillReport(needs *cost, m *measured) phaseReport {
	p := newPhase(m.prefill.times, o.batch*o.prefill, m.prefillTrace)
	p.Context = float64(o.prefill)
	flops := needs.prefillFlops(o.prefill)
	p.setFlops(flops)
	paired := newSpread(m.prefill.shares(func(int) float64 { return flops }))
	p.FlopsOfRoof, p.PairedFlops = paired.Median, &paired
	return p
}

func (o *benchOptions) decodeReport(needs *cost, m *measured, peak float64) phaseReport {
	p := newPhase(m.decode.times, o.batch*o.decode, m.decodeTrace)
	p.Experts = o.experts(needs, m)
	context := func(step int) int { return o.prefill + o.warmup + 1 + step }
	bytes := func(step int) float64 { return needs.decodeBytes(o.batch, context(step), p.Experts) }
	var flops float64
	for step := range o.decode {
		flops += needs.decodeFlops(o.batch, context(step)) / float64(o.decode)
		p.Bytes += bytes(step) / float64(o.decode)
		p.Context += float64(context(step)) / float64(o.decode)
	}
	p.setFlops(flops)
	p.FlopsOfRoof = ratio(p.FlopsPerSecond, peak)
	p.BytesPerSecond = ratio(p.Bytes*float64(p.Calls), p.Seconds)
	paired := newSpread(m.decode.shares(bytes))
	p.BytesOfRoof, p.PairedBytes = paired.Median, &paired
	return p
}

// experts is how many routed experts a layer reads in a step. One token chooses top-k
// different ones; what several choose, the trace tells, with the shared experts where
// they are in one bank with the routed ones.
func (o *benchOptions) experts(needs *cost, m *measured) float64 {
	switch {
	case needs.moeLayers() == 0:
		return 0
	case o.batch == 1:
		return float64(needs.config.TopK)
	}
	return m.decodeTrace.experts() - float64(max(0, o.bank-needs.config.Experts))
}

const giga = 1e9

// print writes the report for people.
func (r *benchReport) print(w io.Writer) error {
	var text bytes.Buffer
	t := table(&text)
	cpu := r.CPU
	if cpu == "" {
		cpu = "unknown"
	}
	fmt.Fprintf(t, "bundle\t%s, %s, %s\n", r.Bundle, r.Precision, count(r.Ranks, "rank"))
	fmt.Fprintf(t, "processor\t%s, %s kernels, %s\n", cpu, r.Kernels, count(r.Threads, "thread"))
	fmt.Fprintf(t, "roofs\tread %.1f GB/s, bf16 %.1f GFLOP/s, f32 %.1f GFLOP/s\n", r.Roofs.Read/giga, r.Roofs.BF16/giga, r.Roofs.F32/giga)
	fmt.Fprintf(t, "load\t%.2f s; %s of weights copied, %s mapped%s\n", r.LoadSeconds, size(r.Memory.Copied), size(r.Memory.Mapped), memoryText(r.PeakBytes))
	c := r.Counters
	fmt.Fprintf(t, "session\t%s, %d launches; after opening %d programs compiled, %d buckets missed, %d allocations\n",
		count(int(c.Steps), "step"), c.Launches, c.Compiles, c.BucketMisses, c.LateAllocations)
	_ = t.Flush() // a Buffer takes everything
	r.Prefill.print(&text, "prefill", r.Precision)
	if r.Decode != nil {
		r.Decode.print(&text, "decode", r.Precision)
	}
	_, err := w.Write(text.Bytes())
	return err
}

func memoryText(peak int64) string {
	if peak == 0 {
		return ""
	}
	return fmt.Sprintf("; at most %s of memory in use", size(peak))
}

// print writes a phase and the kinds of its nodes.
func (p *phaseReport) print(w io.Writer, phase, precision string) {
	each := float64(p.Tokens) / float64(max(p.Calls, 1))
	fmt.Fprintf(w, "\n%s: %.1f tok/s, %s of %.0f in %.3f s\n\n", phase, p.TokensPerSecond, p.calls(phase), each, p.Seconds)
	t := table(w)
	fmt.Fprintf(t, "  latency\tp50 %.2f ms, p99 %.2f ms\n", 1e3*p.P50, 1e3*p.P99)
	fmt.Fprintf(t, "  compute\t%.2f GFLOP/s, %.1f%% of the %s roof%s; %.3f GFLOP a call\n",
		p.FlopsPerSecond/giga, 100*p.FlopsOfRoof, precision, p.PairedFlops, p.Flops/giga)
	if p.Bytes > 0 {
		fmt.Fprintf(t, "  read\t%.2f GB/s, %.1f%% of the read roof%s; %.3f GB a step", p.BytesPerSecond/giga, 100*p.BytesOfRoof, p.PairedBytes, p.Bytes/giga)
		if p.Experts > 0 {
			fmt.Fprintf(t, " with %.1f experts a layer", p.Experts)
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
	fmt.Fprintln(w)
	fmt.Fprintln(t, "  SHARE\tTIME\tUNITS\tGB/s\tGFLOP/s\tKIND")
	for _, k := range p.Kinds {
		fmt.Fprintf(t, "  %5.1f%%\t%.3f ms\t%d\t%s\t%s\t%s\n", 100*k.Share, 1e3*k.Seconds, k.Units, rate(k.BytesPerSecond), rate(k.FlopsPerSecond), k.Kind)
	}
	_ = t.Flush()
	if p.Dropped > 0 {
		fmt.Fprintf(w, "  %d more units found no room in the trace\n", p.Dropped)
	}
}

// calls says how many calls of a phase there were, and of what.
func (p *phaseReport) calls(phase string) string {
	if phase == "prefill" {
		return count(p.Calls, "prompt")
	}
	return count(p.Calls, "step")
}

// rate spells a rate in units of 10⁹, nothing if there is none.
func rate(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v/giga)
}

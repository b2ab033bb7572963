package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/runtime/host"
)

// tracedEvent is an event as a viewer reads it, times in nanoseconds.
type tracedEvent struct {
	name, cat, phase string
	start, end       int64
	pid, tid         int
	args             map[string]any
}

// readChrome parses a trace and checks what every one must be: named tracks, and
// calls, launches and units that nest in this order.
func readChrome(t *testing.T, text []byte) []tracedEvent {
	t.Helper()
	var doc struct {
		TraceEvents []struct {
			Name string         `json:"name"`
			Cat  string         `json:"cat"`
			Ph   string         `json:"ph"`
			TS   float64        `json:"ts"`
			Dur  *float64       `json:"dur"`
			PID  int            `json:"pid"`
			TID  int            `json:"tid"`
			Args map[string]any `json:"args"`
		} `json:"traceEvents"`
	}
	require.NoError(t, json.Unmarshal(text, &doc))
	type track struct{ pid, tid int }
	processes, threads := map[int]bool{}, map[track]bool{}
	open := map[track][]tracedEvent{}
	level := map[string]int{"call": 0, "launch": 1, "unit": 2}
	var events []tracedEvent
	for _, x := range doc.TraceEvents {
		e := tracedEvent{name: x.Name, cat: x.Cat, phase: x.Ph, pid: x.PID, tid: x.TID, args: x.Args, start: int64(math.Round(1000 * x.TS))}
		at := track{x.PID, x.TID}
		switch {
		case e.name == "process_name" && e.phase == "M":
			processes[e.pid] = true
		case e.name == "thread_name" && e.phase == "M":
			threads[at] = true
		default:
			require.Equal(t, "X", e.phase)
			require.NotNil(t, x.Dur)
			e.end = e.start + int64(math.Round(1000**x.Dur))
			require.True(t, processes[e.pid] && threads[at], "%v has no name", at)
			require.NotEmpty(t, e.name)
			depth, ok := level[e.cat]
			require.True(t, ok, "category %q", e.cat)
			require.GreaterOrEqual(t, len(open[at]), depth, "%s %s has no parent", e.cat, e.name)
			open[at] = append(open[at][:depth], e)
			if depth > 0 {
				parent := open[at][depth-1]
				require.LessOrEqual(t, parent.start, e.start, e.name)
				require.GreaterOrEqual(t, parent.end, e.end, e.name)
			}
		}
		events = append(events, e)
	}
	return events
}

// twoRanks is a trace of one team that executes both ranks: two launches, of two
// units and of one.
func twoRanks() recording {
	gemm := &host.UnitInfo{Kind: "gemm", Name: "n1", Origin: "layer 0 attn.q_proj", Recipe: "r<0>", Nodes: 1, WeightBytes: 100, Flops: 50}
	moe := &host.UnitInfo{Kind: "moe", Name: "n2", Recipe: "r<0>", Nodes: 3, Span: true, ExpertBytes: 1000, ExpertFlops: 7}
	at := func(launch, rank int32, u *host.UnitInfo, start, end time.Duration, experts int32) host.Event {
		return host.Event{Launch: launch, Rank: rank, Unit: u, Start: start, End: end, Experts: experts}
	}
	return recording{
		what: "decode",
		trace: &host.Trace{Events: []host.Event{
			at(0, 0, gemm, 1000, 2000, 0), at(0, 0, moe, 2000, 2500, 3),
			at(0, 1, gemm, 2600, 3000, 0), at(0, 1, moe, 3000, 3500, 5),
			at(1, 0, gemm, 4000, 4001, 0), at(1, 1, gemm, 4002, 4003, 0),
		}},
		spans: []callSpan{{"step 0", 1100, 3600, 0, 4}, {"step 1", 3900, 5000, 4, 2}},
	}
}

func TestChromeTrace(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	require.NoError(t, writeChrome(&text, []recording{twoRanks(), twoRanks()}))
	events := readChrome(t, text.Bytes())
	var calls, launches, units int
	for _, e := range events {
		switch e.cat {
		case "call":
			calls++
		case "launch":
			require.Equal(t, "r<0>", e.name)
			launches++
		case "unit":
			units++
		}
	}
	require.Equal(t, []int{2 * 4, 2 * 4, 2 * 6}, []int{calls, launches, units})
	// The first process: its name, rank 0's, the call that begins with its first
	// unit, the launch, two units.
	require.Equal(t, []tracedEvent{
		{name: "process_name", phase: "M", pid: 1, args: map[string]any{"name": "decode"}},
		{name: "thread_name", phase: "M", pid: 1, args: map[string]any{"name": "rank 0"}},
		{name: "step 0", cat: "call", phase: "X", pid: 1, start: 1000, end: 3600},
		{name: "r<0>", cat: "launch", phase: "X", pid: 1, start: 1000, end: 2500},
		{
			name: "gemm", cat: "unit", phase: "X", pid: 1, start: 1000, end: 2000,
			args: map[string]any{"node": "n1", "origin": "layer 0 attn.q_proj", "nodes": 1., "weight_bytes": 100., "flops": 50.},
		},
		{
			name: "moe", cat: "unit", phase: "X", pid: 1, start: 2000, end: 2500,
			args: map[string]any{"node": "n2", "nodes": 3., "span": true, "weight_bytes": 3000., "flops": 7., "experts": 3.},
		},
	}, events[:6])
}

func TestChromeTraceOfNothing(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	require.NoError(t, writeChrome(&text, nil))
	require.Empty(t, readChrome(t, text.Bytes()))
	require.NoError(t, writeChrome(&text, []recording{{what: "prefill", trace: host.NewTrace(0), spans: []callSpan{{name: "x"}}}}))
}

// fullDisk takes so many bytes.
type fullDisk int

var errFull = errors.New("no space left")

func (d *fullDisk) Write(b []byte) (int, error) {
	if len(b) > int(*d) {
		return 0, errFull
	}
	*d -= fullDisk(len(b))
	return len(b), nil
}

func TestChromeTraceFails(t *testing.T) {
	t.Parallel()
	for _, room := range []fullDisk{0, 300} {
		require.ErrorIs(t, writeChrome(&room, []recording{twoRanks()}), errFull)
	}
	path := filepath.Join(t.TempDir(), "x")
	require.ErrorIs(t, writeFile(path, func(w io.Writer) error {
		_, err := w.Write([]byte("part"))
		return errors.Join(err, errFull)
	}), errFull)
	require.NoFileExists(t, path)
}

func TestKinds(t *testing.T) {
	t.Parallel()
	r := twoRanks()
	// 2500 + 1100 ns, of which 1402 in gemm and 1000 in moe.
	require.Equal(t, []kindStat{
		{"gemm", 4, 1402e-9, 1402. / 3600, 400 / 1402e-9, 200 / 1402e-9},
		{outside, 0, 1198e-9, 1198. / 3600, 0, 0},
		{"moe", 2, 1000e-9, 1000. / 3600, 8000 / 1000e-9, 14 / 1000e-9},
	}, roundKinds(r.kinds()))
	require.InDelta(t, 4, r.experts(), 0)
	require.Zero(t, (&recording{trace: host.NewTrace(1)}).experts())
}

// roundKinds removes what is left of sums in floating point.
func roundKinds(ks []kindStat) []kindStat {
	for i := range ks {
		k := &ks[i]
		k.Seconds = math.Round(1e9*k.Seconds) / 1e9
		k.Share = math.Round(3600*k.Share) / 3600
	}
	return ks
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var times []time.Duration
	require.Zero(t, percentile(times, 50))
	for i := 100; i > 0; i-- {
		times = append(times, time.Duration(i))
	}
	require.EqualValues(t, 50, percentile(times, 50))
	require.EqualValues(t, 99, percentile(times, 99))
	require.EqualValues(t, 100, percentile(times, 100))
	require.EqualValues(t, 1, percentile(times[99:], 50))
	require.EqualValues(t, 3, percentile([]time.Duration{1, 2, 3}, 99))
	require.EqualValues(t, 2, percentile([]time.Duration{3, 2, 1}, 50))
}

// The trace of a real run: everything happens on all layers, in its call.
func TestBenchTrace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	deployment := writeDeployment(t, "nano-small", "model: MODEL\nmax_model_len: 64\nmax_num_seqs: 2\nprecision: f32\n")
	bundle, trace, profile := filepath.Join(dir, "x.quill"), filepath.Join(dir, "trace.json"), filepath.Join(dir, "cpu.prof")
	run(t, exitOK, t.Context(), "compile", deployment, "-o", bundle)
	out := run(t, exitOK, t.Context(), "bench", bundle, "--model", "../../testdata/nano-small", "--prefill", "20", "--decode", "3",
		"--batch", "2", "--trace", trace, "--pprof", profile, "--json")
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	units := map[int]int{}
	calls := map[string]int{}
	for _, e := range readChrome(t, text) {
		switch e.cat {
		case "call":
			calls[e.name]++
		case "unit":
			units[e.pid]++
		}
	}
	require.Equal(t, map[string]int{"20 tokens": 1, "step 0": 1, "step 1": 1, "step 2": 1}, calls)
	var r benchReport
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	requirePositive(t, &r)
	for pid, kinds := range map[int][]kindStat{1: r.Prefill.Kinds, 2: r.Decode.Kinds} {
		var sum float64
		for i, k := range kinds {
			units[pid] -= k.Units
			sum += k.Share
			require.True(t, i == 0 || kinds[i-1].Seconds >= k.Seconds)
		}
		require.Zero(t, units[pid], "units in the trace and in the table")
		require.InDelta(t, 1, sum, 1e-9)
	}
	// Two tokens choose 3 to 6 of 16 experts; pads choose none.
	require.GreaterOrEqual(t, r.Decode.Experts, 3.)
	require.LessOrEqual(t, r.Decode.Experts, 6.)
	info, err := os.Stat(profile)
	require.NoError(t, err)
	require.Positive(t, info.Size())
}

// requirePositive checks that a run measured everything.
func requirePositive(t *testing.T, r *benchReport) {
	t.Helper()
	for what, v := range map[string]float64{
		"load": r.LoadSeconds, "read roof": r.Roofs.Read, "bf16 roof": r.Roofs.BF16, "f32 roof": r.Roofs.F32,
		"bytes": r.Decode.Bytes, "bytes/s": r.Decode.BytesPerSecond, "of the read roof": r.Decode.BytesOfRoof,
	} {
		require.Positive(t, v, what)
	}
	for _, p := range []*phaseReport{&r.Prefill, r.Decode} {
		require.Positive(t, min(p.Calls, p.Tokens))
		require.Positive(t, min(p.Context, p.Seconds, p.TokensPerSecond, p.P50, p.Flops, p.FlopsPerSecond, p.FlopsOfRoof))
		require.LessOrEqual(t, p.P50, p.P99)
	}
}

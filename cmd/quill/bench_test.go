package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime/host"
	"quill/runtime/host/kern"
)

func TestBenchFits(t *testing.T) {
	t.Parallel()
	d := recipes.Deployment{MaxModelLen: 100, MaxNumSeqs: 4, BlockSize: 16, KVBlocks: 12}
	for _, c := range []struct {
		o    benchOptions
		want string // "" if it fits
	}{
		{benchOptions{prefill: 100, batch: 1}, ""},
		{benchOptions{prefill: 100, batch: 1, warmup: 50}, ""},
		{benchOptions{prefill: 60, batch: 1, warmup: 2, decode: 30}, ""},
		{benchOptions{prefill: 48, batch: 4}, ""},
		{benchOptions{prefill: 101, batch: 1}, "a sequence of --prefill 101 has 101 tokens, max_model_len is 100"},
		{
			benchOptions{prefill: 61, batch: 1, warmup: 2, decode: 30},
			"a sequence of --prefill 61, --warmup 2, --decode 30 and 8 traced steps has 101 tokens, max_model_len is 100: choose less, or compile the deployment with a larger max_model_len",
		},
		{
			benchOptions{prefill: 98, batch: 1, decode: 2},
			"--prefill 98, --warmup 0, --decode 2 and 2 traced steps has 102 tokens",
		},
		{benchOptions{prefill: 1, batch: 5}, "--batch 5 is more than max_num_seqs 4: choose a smaller batch, or compile the deployment with a larger max_num_seqs"},
		{
			benchOptions{prefill: 49, batch: 4},
			"4 sequences of --prefill 49 need 16 cache blocks of 16 tokens, kv_blocks is 12: choose less, or compile the deployment with more kv_blocks",
		},
	} {
		err := c.o.fits(d)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
	}
}

// What a report says follows from times and costs.
func TestBenchReport(t *testing.T) {
	t.Parallel()
	c := readConfig(t, "nano-small")
	needs := newCost(c, 2)
	o := &benchOptions{prefill: 10, batch: 2, decode: 4, warmup: 1}
	r := twoRanks()
	m := &measured{
		roofs:   roofs{Read: 1e9, BF16: 1e10, F32: 1e9},
		prefill: paired{times: []time.Duration{time.Second, 3 * time.Second}, windows: []window{{0, 1, 1e9, 3e9}, {1, 2, 3e9, 1e9}}},
		decode:  paired{times: []time.Duration{1e9, 2e9, 3e9, 10e9}, windows: []window{{0, 3, 4e8, 6e8}}},

		prefillTrace: &r, decodeTrace: &r,
	}
	p := o.prefillReport(needs, m)
	require.Equal(t, 2, p.Calls)
	require.InDelta(t, 5, p.TokensPerSecond, 1e-12)
	require.InDelta(t, needs.prefillFlops(10)/2, p.FlopsPerSecond, 1e-6)
	slow, fast := needs.prefillFlops(10)/3/2e9, needs.prefillFlops(10)/2e9
	require.Equal(t, &spread{2, slow, slow, slow, fast, fast}, p.PairedFlops)
	require.InDelta(t, slow, p.FlopsOfRoof, 0)
	require.InDelta(t, 1, p.P50, 0)
	require.InDelta(t, 3, p.P99, 0)
	require.Zero(t, p.Bytes)

	d := o.decodeReport(needs, m, m.roofs.BF16)
	require.InDelta(t, 8./16, d.TokensPerSecond, 1e-12)
	require.InDelta(t, 2, d.P50, 0)
	require.InDelta(t, 10, d.P99, 0)
	require.InDelta(t, 4, d.Experts, 0) // of the trace
	require.InDelta(t, 13.5, d.Context, 1e-12)
	var bytes, paired, flops float64
	for context := 12; context <= 15; context++ {
		bytes += needs.decodeBytes(2, context, 4)
		flops += needs.decodeFlops(2, context)
		if context < 15 { // the last step is in no window
			paired += needs.decodeBytes(2, context, 4)
		}
	}
	require.InDelta(t, bytes/4, d.Bytes, 1e-6)
	require.InDelta(t, bytes/16, d.BytesPerSecond, 1e-6)
	require.InDelta(t, paired/6/5e8, d.BytesOfRoof, 1e-12)
	require.Equal(t, 1, d.PairedBytes.Windows)
	require.InDelta(t, d.BytesOfRoof, d.PairedBytes.Median, 0)
	require.InDelta(t, flops/16/1e10, d.FlopsOfRoof, 1e-12)
	require.Nil(t, d.PairedFlops)

	o.bank = c.Experts + 2
	require.InDelta(t, 2, o.decodeReport(needs, m, 1).Experts, 0) // shared experts are read whatever is chosen
	o.batch = 1
	require.InDelta(t, float64(c.TopK), o.decodeReport(needs, m, 1).Experts, 0)
	dense := newCost(readConfig(t, "nano-dense"), 4)
	m.decodeTrace = &recording{trace: host.NewTrace(0)}
	require.Zero(t, o.decodeReport(dense, m, 1).Experts)
}

func TestRoofs(t *testing.T) {
	m := newRoofMeter(kern.Best(), 1, "bf16")
	require.Positive(t, m.bytes())
	r, err := m.measure(t.Context())
	require.NoError(t, err)
	require.Positive(t, min(r.Read, r.BF16, r.F32))
	for _, precision := range []string{"bf16", "f32"} {
		m.precision = precision
		for _, now := range []func(context.Context) (float64, error){m.readNow, m.flopsNow} {
			rate, err := now(t.Context())
			require.NoError(t, err)
			require.Positive(t, rate)
		}
	}
	require.Equal(t, roofs{3, 5, 4}, roofs{1, 5, 2}.better(roofs{3, 1, 4}))
	require.InDelta(t, 5, roofs{3, 5, 4}.flops("bf16"), 0)
	require.InDelta(t, 4, roofs{3, 5, 4}.flops("f32"), 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, now := range []func(context.Context) (float64, error){m.readNow, m.flopsNow} {
		_, err = now(ctx)
		require.ErrorIs(t, err, context.Canceled)
	}
	_, err = m.measure(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestPeakMemory(t *testing.T) {
	if peakMemory() == 0 {
		t.Skip("the system does not say how much memory is in use")
	}
	before := peakMemory()
	b := make([]byte, 64<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	require.GreaterOrEqual(t, peakMemory(), max(before, int64(len(b))))
}

func TestProcField(t *testing.T) {
	t.Parallel()
	require.Empty(t, procField(filepath.Join(t.TempDir(), "none"), "key"))
	require.Empty(t, procField("bench_test.go", "no such key"))
	path := filepath.Join(t.TempDir(), "some")
	require.NoError(t, os.WriteFile(path, []byte("key name\t: wrong\nno pair\nkey\t: a: b \nkey: second\n"), 0o600))
	require.Equal(t, "a: b", procField(path, "key"))
}

func TestCancelledBenchWritesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bundle := filepath.Join(t.TempDir(), "x.quill")
	deployment := writeDeployment(t, "nano-dense", "model: MODEL\nmax_model_len: 4096\nmax_num_seqs: 1\nprecision: f32\n")
	run(t, exitOK, t.Context(), "compile", deployment, "-o", bundle)
	for _, after := range []time.Duration{0, 500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		run(t, exitInterrupted, ctx, "bench", bundle, "--model", "../../testdata/nano-dense", "--prefill", "2000", "--decode", "2000",
			"--trace", filepath.Join(dir, "t.json"), "--pprof", filepath.Join(dir, "p"))
		cancel()
		assertEmpty(t, dir)
	}
}

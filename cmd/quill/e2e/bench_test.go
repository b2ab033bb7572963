package e2e

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	quill "quill/runtime"
)

// BenchmarkDecode reports decode steps a second of nano-small on the host, and
// the process's peak memory against what the device's buffers hold.
func BenchmarkDecode(b *testing.B) {
	for _, tp := range []int{1, 2} {
		for _, seqs := range []int{1, 4} {
			b.Run(fmt.Sprintf("tp=%d/seqs=%d", tp, seqs), func(b *testing.B) { benchDecode(b, tp, seqs) })
		}
	}
}

func benchDecode(b *testing.B, tp, seqs int) {
	ctx := b.Context()
	s := nano("nano-small", tp, 16, "f32").open(b)
	prompt := expectedI32(b, "nano-small", "greedy.prompt")
	const limit = 256 // as the deployment's
	var qs []*quill.Sequence
	start := func() {
		for _, q := range qs {
			q.Close()
		}
		qs = qs[:0]
		for range seqs {
			q, err := s.NewSequence(limit)
			require.NoError(b, err)
			_, err = s.Prefill(ctx, q, prompt)
			require.NoError(b, err)
			qs = append(qs, q)
		}
	}
	start()
	defer func() {
		for _, q := range qs {
			q.Close()
		}
	}()
	tokens, logits := make([]int32, seqs), make([][]float32, seqs)
	for i := range logits {
		logits[i] = make([]float32, s.Info().Model.ValidVocab)
		tokens[i] = prompt[i]
	}
	for b.Loop() {
		if qs[0].Len() == limit {
			b.StopTimer()
			start()
			b.StartTimer()
		}
		require.NoError(b, s.DecodeInto(ctx, qs, tokens, logits))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "steps/s")
	if peak, ok := peakRSS(); ok {
		b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
	}
	var buffers int64
	for _, n := range s.Info().Bytes {
		buffers += n * int64(tp)
	}
	b.ReportMetric(float64(buffers)/(1<<20), "buffers-MiB")
}

// peakRSS is the process's high-water mark, where the system tells it.
func peakRSS() (bytes int64, ok bool) {
	if runtime.GOOS != "linux" {
		return 0, false
	}
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

package inkling

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/ir"
)

// deep is Inkling-Small with another number of layers.
func deep(t testing.TB, layers int) *Config {
	c := load(t, "configs/inkling-small")
	c.Layers = layers
	c.IsLocal = make([]bool, layers)
	for l := range c.IsLocal {
		c.IsLocal[l] = (l+1)%6 != 0
	}
	return c
}

// captureAll captures and verifies every family and returns the number of ops.
func captureAll(t testing.TB, c *Config) int {
	n := 0
	o := published(c)
	for _, fam := range c.Families(o) {
		m, err := Capture(c, o, fam)
		require.NoError(t, err)
		require.NoError(t, ir.Verify(m))
		n += len(m.Entry().Ops)
	}
	return n
}

// BenchmarkCapture reports the time to capture and verify one op.
func BenchmarkCapture(b *testing.B) {
	for _, layers := range []int{84, 168} {
		b.Run(fmt.Sprintf("layers=%d", layers), func(b *testing.B) {
			c := deep(b, layers)
			ops := 0
			for b.Loop() {
				ops += captureAll(b, c)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(ops), "ns/irop")
		})
	}
}

// BenchmarkCaptureGrowth reports how the time of an op grows from 84 to 168
// layers, the two measured alternately: 1 is linear.
func BenchmarkCaptureGrowth(b *testing.B) {
	c84, c168 := deep(b, 84), deep(b, 168)
	var t84, t168 time.Duration
	var n84, n168 int
	for b.Loop() {
		start := time.Now()
		n84 += captureAll(b, c84)
		mid := time.Now()
		n168 += captureAll(b, c168)
		t84 += mid.Sub(start)
		t168 += time.Since(mid)
	}
	b.ReportMetric(t168.Seconds()/float64(n168)/(t84.Seconds()/float64(n84)), "growth")
}

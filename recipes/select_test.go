package recipes

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// manyBuckets are about the buckets of a large deployment: 12 chunks, each with 33
// histories, and 6 sizes of a decode step, each with 20 numbers of references.
func manyBuckets() []Bucket {
	var bs []Bucket
	for q := 1; q <= 12; q++ {
		for c := range 33 {
			bs = append(bs, prefillOf(512*q, 64*c))
		}
	}
	for s := 1; s <= 6; s++ {
		for n := 1; n <= 20; n++ {
			bs = append(bs, decodeOf(3*s, 1600*n))
		}
		bs = append(bs, logitsOf(3*s))
	}
	return bs
}

// costs of a rank of a model with experts.
var someCosts = Costs{Row: 1_500_000_000, Pad: 24_000_000_000, Block: 44_000_000, Key: 43_000}

func TestSelectAllocatesNothing(t *testing.T) {
	s := NewSelector(&someCosts, 128, manyBuckets())
	for _, need := range []Bucket{prefillOf(300, 1900), decodeOf(16, 30000), logitsOf(17), prefillOf(9999, 0)} {
		require.Zero(t, testing.AllocsPerRun(10, func() { s.Select(need) }))
	}
}

func BenchmarkSelect(b *testing.B) {
	s := NewSelector(&someCosts, 128, manyBuckets())
	for name, need := range map[string]Bucket{
		"prefill first": prefillOf(1, 0), "prefill last": prefillOf(6144, 2048), "decode first": decodeOf(1, 1), "decode last": decodeOf(18, 32000),
		"none": decodeOf(19, 1),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Select(need)
			}
		})
	}
}

package recipes

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// costed is a manifest of which only what selection reads is set.
func costed(c Costs, block int) *Manifest {
	return &Manifest{Costs: c, Deployment: Deployment{BlockSize: block}}
}

func decodeOf(seqs, blocks int) Bucket { return Bucket{Phase: Decode, Seqs: seqs, Blocks: blocks} }

func prefillOf(query, blocks int) Bucket { return Bucket{Phase: Prefill, Query: query, Blocks: blocks} }

func logitsOf(rows int) Bucket { return Bucket{Phase: Logits, Seqs: rows} }

func TestSelect(t *testing.T) {
	// A row as much as four blocks, experts as much as seventy: about what the
	// Inkling models have.
	m := costed(Costs{Row: 40, Pad: 700, Block: 10, Key: 1}, 8)
	for _, c := range []struct {
		why        string
		need, want Bucket
		others     []Bucket
	}{
		{"a padding row reads experts, fourteen references do not", decodeOf(1, 2), decodeOf(1, 16), []Bucket{decodeOf(2, 2), decodeOf(4, 4)}},
		{"many references are more than the experts of a row", decodeOf(1, 2), decodeOf(2, 2), []Bucket{decodeOf(1, 77)}},
		{"if there is padding anyway, its experts are the same", decodeOf(3, 4), decodeOf(6, 6), []Bucket{decodeOf(4, 16)}},
		{"rows of padding are computed all the same", decodeOf(3, 4), decodeOf(4, 16), []Bucket{decodeOf(16, 4)}},
		{"what fits costs least", decodeOf(2, 2), decodeOf(2, 2), []Bucket{decodeOf(1, 16), decodeOf(2, 16), decodeOf(4, 4)}},
		{"a longer chunk is cheaper than a far longer history", prefillOf(4, 1), prefillOf(16, 1), []Bucket{prefillOf(4, 63)}},
		{"a history somewhat longer is cheaper than a longer chunk", prefillOf(4, 1), prefillOf(4, 4), []Bucket{prefillOf(16, 1)}},
		{"rows of logits", logitsOf(3), logitsOf(4), []Bucket{logitsOf(1), logitsOf(16)}},
		{"phases are kept apart", decodeOf(1, 1), decodeOf(16, 900), []Bucket{prefillOf(1, 1), logitsOf(1)}},
	} {
		buckets := append([]Bucket{c.want}, c.others...)
		for range 2 {
			require.Equal(t, c.want, buckets[m.Selector(buckets).Select(c.need)], c.why)
			buckets[0], buckets[len(buckets)-1] = buckets[len(buckets)-1], buckets[0]
		}
	}
	require.Equal(t, -1, m.Selector(nil).Select(decodeOf(1, 1)))
	require.Equal(t, -1, m.Selector([]Bucket{decodeOf(2, 3), decodeOf(3, 2), prefillOf(3, 3)}).Select(decodeOf(3, 3)))
}

// Equal costs are decided by the sizes, not by the order of the list.
func TestSelectBreaksTies(t *testing.T) {
	m := costed(Costs{Row: 10, Block: 5, Key: 1}, 1)
	for _, buckets := range [][]Bucket{{decodeOf(4, 4), decodeOf(3, 6), decodeOf(2, 8)}, {decodeOf(2, 8), decodeOf(4, 4), decodeOf(3, 6)}} {
		require.Equal(t, decodeOf(2, 8), buckets[m.Selector(buckets).Select(decodeOf(1, 1))])
	}
}

// The selected bucket covers, no other that covers is cheaper, and the order of
// the list does not matter. Costs are so small that many are equal.
func TestSelectIsCheapest(t *testing.T) {
	bucket := rapid.Custom(func(t *rapid.T) Bucket {
		size := func(label string, least int) int { return rapid.IntRange(least, 12).Draw(t, label) }
		switch rapid.SampledFrom([]Phase{Prefill, Decode, Logits}).Draw(t, "phase") {
		case Prefill:
			return prefillOf(size("query", 1), size("blocks", 0))
		case Decode:
			return decodeOf(size("seqs", 1), size("blocks", 1))
		}
		return logitsOf(size("rows", 1))
	})
	rapid.Check(t, func(t *rapid.T) {
		c := Costs{
			Row: rapid.Int64Range(1, 9).Draw(t, "row"), Pad: rapid.Int64Range(0, 30).Draw(t, "pad"),
			Block: rapid.Int64Range(1, 9).Draw(t, "block"), Key: rapid.Int64Range(1, 3).Draw(t, "key"),
		}
		m := costed(c, rapid.IntRange(1, 4).Draw(t, "block size"))
		buckets := rapid.SliceOf(bucket).Draw(t, "buckets")
		need := bucket.Draw(t, "need")
		cost := func(b Bucket) int64 { return costOf[int64](&c, b, need, m.Deployment.BlockSize) }

		best := m.Selector(buckets).Select(need)
		for _, b := range buckets {
			switch {
			case !b.Covers(need):
			case best < 0:
				t.Fatalf("%v covers %v, none was selected", b, need)
			case cost(b) < cost(buckets[best]):
				t.Fatalf("%v costs %d, the selected %v costs %d", b, cost(b), buckets[best], cost(buckets[best]))
			}
		}
		if best < 0 {
			return
		}
		selected := buckets[best]
		if !selected.Covers(need) {
			t.Fatalf("%v does not cover %v", selected, need)
		}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		r.Shuffle(len(buckets), func(i, j int) { buckets[i], buckets[j] = buckets[j], buckets[i] })
		if again := buckets[m.Selector(buckets).Select(need)]; again != selected {
			t.Fatalf("in another order %v is selected, not %v", again, selected)
		}
	})
}

// More of anything never costs less.
func TestCostsGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Costs{Row: rapid.Int64Range(1, 99).Draw(t, "row"), Pad: rapid.Int64Range(0, 99).Draw(t, "pad"), Block: 3, Key: 2}
		n, k := rapid.IntRange(1, 99).Draw(t, "n"), rapid.IntRange(1, 99).Draw(t, "k")
		for _, grown := range [][2]Bucket{
			{decodeOf(n, k), decodeOf(n+1, k)},
			{decodeOf(n, k), decodeOf(n, k+1)},
			{prefillOf(n, k), prefillOf(n+1, k)},
			{prefillOf(n, k), prefillOf(n, k+1)},
			{logitsOf(n), logitsOf(n + 1)},
		} {
			less, more := costOf[int64](&c, grown[0], grown[0], 4), costOf[int64](&c, grown[1], grown[0], 4)
			if less >= more {
				t.Fatalf("%v costs %d, %v costs %d", grown[0], less, grown[1], more)
			}
		}
	})
}

// Costs that are within bounds may still be too much for a bucket.
func TestCostsHold(t *testing.T) {
	c := Costs{Row: 1 << 40, Pad: 1 << 40, Block: 1 << 40, Key: 1 << 40}
	require.NoError(t, c.check())
	require.True(t, c.Hold(decodeOf(1<<20, 1<<20), 1))
	require.False(t, c.Hold(decodeOf(1<<20, 1<<22), 1))
	require.True(t, c.Hold(prefillOf(1<<8, 1<<8), 16))
	require.False(t, c.Hold(prefillOf(1<<8, 1<<8), 1<<12))
	require.ErrorContains(t, (&Costs{Row: 1, Block: maxCost + 1, Key: 1}).check(), "block is 281474976710657, want 1 to 281474976710656")
}

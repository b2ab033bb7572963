package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The numbers are worked out by hand. Of each layer, a token meets
//
//	attention      4096·4096 + 2·1024·4096 + 512·4096 + 4096·4096  44,040,192
//	convolutions   4·(1024 + 1024 + 4096 + 4096)                       40,960
//	norms          2·4096 + 2·128                                       8,448
//	router         258·4096 + 256 + 1                               1,057,025
//	shared experts 2·3·4096·256                                     6,291,456
//	routed experts 6·3·4096·256                                    18,874,368
//
// and two norms of 4096 once.
func TestCostOfRankShard(t *testing.T) {
	t.Parallel()
	k := newCost(readConfig(t, "configs/rank-shard"), 2)
	const (
		always   = 44_040_192 + 40_960 + 8_448 + 1_057_025 + 6_291_456
		relative = 3*16*512 + 16*1024
		unembed  = 25128 * 4096
	)
	require.EqualValues(t, 4, k.moeLayers())
	require.EqualValues(t, 3*4096*256*2, k.expert)
	require.EqualValues(t, 4*(always+18_874_368)+2*4096, k.active)
	// Four layers have 257 elements in f32.
	require.EqualValues(t, 2*(4*always+2*4096+relative+unembed)+2*4*257, k.fixed)
	require.EqualValues(t, 617_453_584, k.fixed)

	// Three layers see 512 tokens of 600.
	require.EqualValues(t, 2*2*8*128*(3*512+600), k.kvBytes(600))
	require.EqualValues(t, 2*2*8*128*4*100, k.kvBytes(100))
	require.InDelta(t, 777_205_776, k.decodeBytes(1, 600, 6), 0)
	require.InDelta(t, 617_453_584+4*100.5*6_291_456+16*(8192+8_749_056), k.decodeBytes(16, 600, 100.5), 0)

	// The relative bias reaches 1024 tokens on the layer that sees all.
	require.InDelta(t, 2*281_257_988+3*64*(256+16)*512+64*(256+16)*600, k.tokenFlops(600), 0)
	require.InDelta(t, 2*281_257_988+3*64*(256+16)*512+64*(256*4000+16*1024), k.tokenFlops(4000), 0)
	require.InDelta(t, 205_848_576, k.rowFlops(), 0)
	require.InDelta(t, 2*(599_699_464+205_848_576), k.decodeFlops(2, 600), 0)
	require.InDelta(t, 1_331_089_424, k.prefillFlops(2), 0)
}

// A model without experts, in f32: 4 bytes an element.
func TestCostOfDenseModel(t *testing.T) {
	t.Parallel()
	c := readConfig(t, "nano-dense")
	k := newCost(c, 4)
	require.Zero(t, k.moeLayers())
	require.Zero(t, k.expert)
	var all, embed int64
	for _, x := range c.Tensors() {
		n := int64(1)
		for _, d := range x.Shape {
			n *= d
		}
		all += n
		if x.Name == "model.llm.embed.weight" {
			embed = n
		}
	}
	require.Equal(t, 4*(all-embed), k.fixed)
	require.InDelta(t, float64(k.fixed+3*(4*int64(c.Hidden)+k.kvBytes(7))), k.decodeBytes(3, 7, 0), 0)
}

// Longer prompts cost what their tokens cost.
func TestPrefillIsDecodeWithoutRows(t *testing.T) {
	t.Parallel()
	k := newCost(readConfig(t, "nano-small"), 2)
	var sum float64
	for context := 1; context <= 40; context++ {
		sum += k.decodeFlops(1, context) - k.rowFlops()
	}
	require.InDelta(t, sum+k.rowFlops(), k.prefillFlops(40), 0)
}

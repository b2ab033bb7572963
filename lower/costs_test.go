package lower

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/ir/inkling"
	"quill/recipes"
)

func published(t testing.TB, name string) *inkling.Config {
	c, err := inkling.ReadConfig("../testdata/configs/" + name + "/config.json")
	require.NoError(t, err)
	return c
}

// The numbers are worked out by hand. In each of the four layers of rank-shard a
// row meets
//
//	queries and output  2·4096·32·128                33,554,432
//	keys and values     2·4096·8·128                  8,388,608
//	relative bias       4096·32·16                    2,097,152
//	router              258·4096                      1,056,768
//	experts             (6 + 2)·3·4096·256           25,165,824
func TestCostsOfRankShard(t *testing.T) {
	c := published(t, "rank-shard")
	require.Equal(t, recipes.Costs{
		Row:   4 * (33_554_432 + 8_388_608 + 2_097_152 + 1_056_768 + 25_165_824),
		Pad:   64 * 4 * 6 * 3 * 4096 * 256,
		Block: 64 * 4 * 2 * 8 * 128 * 128,
		Key:   4 * 2 * 32 * 128,
	}, dep(4096, 16, 128, 2048).costs(c))
}

// A rank has its part of heads and experts, and at least one key/value head. The
// first layers of Inkling-Small have no experts.
func TestCostsOfARank(t *testing.T) {
	c := published(t, "inkling-small")
	d := dep(4096, 16, 128, 2048)
	one := d.costs(c)
	d.TensorParallel = 8
	eight := d.costs(c)
	require.Equal(t, one.Pad/8, eight.Pad)
	require.Equal(t, one.Block/8, eight.Block)
	require.Equal(t, one.Key/8, eight.Key)
	require.EqualValues(t, 64*40*6*3*4096*256, eight.Pad)
	router := int64(40 * 258 * 4096) // every rank has all of it
	require.Equal(t, (one.Row-router)/8, eight.Row-router)

	d.TensorParallel = 16 // two ranks have the same head
	require.Equal(t, eight.Block, d.costs(c).Block)
}

// Without experts there are none to read for padding.
func TestCostsWithoutExperts(t *testing.T) {
	c, err := inkling.ReadConfig("../testdata/nano-dense/config.json")
	require.NoError(t, err)
	k := dep(64, 2, 16, 64).costs(c)
	require.Zero(t, k.Pad)
	require.Positive(t, min(k.Row, k.Block, k.Key))
}

// What steps of the published models are given, of the lists that the compiler
// makes for them.
func TestSelectionOfPublishedModels(t *testing.T) {
	decode := func(seqs, blocks int) recipes.Bucket {
		return recipes.Bucket{Phase: recipes.Decode, Seqs: seqs, Blocks: blocks}
	}
	prefill := func(query, blocks int) recipes.Bucket {
		return recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: query, Blocks: blocks}
	}
	for _, model := range []struct {
		name  string
		ranks int
	}{{"rank-shard", 1}, {"inkling-small", 8}, {"inkling", 8}} {
		d := dep(4096, 16, 128, 2048)
		d.TensorParallel = model.ranks
		set, err := d.planBuckets(d.costs(published(t, model.name)))
		require.NoError(t, err)
		m := &recipes.Manifest{Deployment: d.manifest(), Costs: d.costs(published(t, model.name))}
		for _, c := range []struct{ need, want recipes.Bucket }{
			{decode(1, 1), decode(1, 1)},
			{decode(1, 2), decode(1, 16)}, // 128 tokens and the next
			{decode(2, 17), decode(2, 32)},
			{decode(3, 4), decode(4, 16)},
			{decode(16, 16), decode(16, 16)},
			{prefill(100, 0), prefill(128, 0)},
			{prefill(129, 0), prefill(256, 0)},
			{prefill(100, 3), prefill(128, 4)},
			{recipes.Bucket{Phase: recipes.Logits, Seqs: 3}, recipes.Bucket{Phase: recipes.Logits, Seqs: 4}},
		} {
			i := m.Selector(set.Buckets).Select(c.need)
			require.GreaterOrEqual(t, i, 0, "%s: %v", model.name, c.need)
			require.Equal(t, c.want, set.Buckets[i], "%s: %v", model.name, c.need)
		}
	}
}

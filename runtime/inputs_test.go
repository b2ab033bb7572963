package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes"
)

// filled makes the inputs of a bucket; unset elements are −99.
func filled(b recipes.Bucket, l *layout) *inputSet {
	var in inputSet
	for i := range inputTable {
		id, size, ok := inputOf(inputTable[i].name, b, l)
		if !ok {
			continue
		}
		in[id] = make(ints, 4*size)
		for j := range size {
			in[id].set(j, -99)
		}
	}
	return &in
}

func values(x ints) []int32 {
	out := make([]int32, x.len())
	for i := range out {
		out[i] = x.at(i)
	}
	return out
}

func all(in *inputSet) map[string][]int32 {
	out := make(map[string][]int32)
	for i := range in {
		if in[i] != nil {
			out[inputTable[i].name] = values(in[i])
		}
	}
	return out
}

var four = layout{block: 4, zero: 20, trash: 21, pad: 7}

// A chunk of 5 tokens at position 6: blocks 9 and 3 of history, 3 and 11
// touched.
func TestPrefillInputs(t *testing.T) {
	b := recipes.Bucket{Phase: recipes.Prefill, Query: 8, Blocks: 3}
	in := filled(b, &four)
	four.prefill(in, []int32{9, 3, 11, 5}, 6, []int32{101, 102, 103, 104, 105})
	require.Equal(t, map[string][]int32{
		"tokens":     {101, 102, 103, 104, 105, 7, 7, 7},
		"positions":  {6, 7, 8, 9, 10, 0, 0, 0},
		"slots":      {14, 15, 44, 45, 46, 85, 86, 87},
		"q_len":      {5},
		"conv_read":  {3},
		"conv_rows":  {3, 11, 21},
		"conv_take":  {2, 5, 0},
		"ctx_len":    {6},
		"ctx_blocks": {20, 9, 3},
		"ctx_start":  {-4},
	}, all(in))
}

func TestFirstChunkInputs(t *testing.T) {
	b := recipes.Bucket{Phase: recipes.Prefill, Query: 4}
	in := filled(b, &four)
	four.prefill(in, []int32{9}, 0, []int32{101, 102, 103, 104})
	require.Equal(t, map[string][]int32{
		"tokens":    {101, 102, 103, 104},
		"positions": {0, 1, 2, 3},
		"slots":     {36, 37, 38, 39},
		"q_len":     {4},
		"conv_read": {20},
		"conv_rows": {9, 21},
		"conv_take": {4, 0},
	}, all(in))
}

// The bucket may have room for history where there is none.
func TestFirstChunkInputsWithHistoryBucket(t *testing.T) {
	in := filled(recipes.Bucket{Phase: recipes.Prefill, Query: 1, Blocks: 2}, &four)
	four.prefill(in, []int32{9}, 0, []int32{101})
	got := all(in)
	require.Equal(t, []int32{0}, got["ctx_len"])
	require.Equal(t, []int32{20, 20}, got["ctx_blocks"])
	require.Equal(t, []int32{-8}, got["ctx_start"])
}

func TestDecodeInputs(t *testing.T) {
	in := filled(recipes.Bucket{Phase: recipes.Decode, Seqs: 4, Blocks: 6}, &four)
	qs := []*Sequence{{n: 0, blocks: []int32{8}}, {n: 8, blocks: []int32{2, 6, 4}}, {n: 3, blocks: []int32{1}}}
	four.decode(in, qs, []int32{101, 102, 103})
	require.Equal(t, map[string][]int32{
		"tokens":     {101, 102, 103, 7},
		"positions":  {0, 8, 3, 0},
		"slots":      {32, 16, 7, 87},
		"conv_read":  {20, 6, 1, 20},
		"conv_write": {8, 4, 1, 21},
		"blocks":     {8, 2, 6, 4, 1, 20},
		"owners":     {0, 1, 1, 1, 2, 0},
		"ref_start":  {0, 0, 4, 8, 0, 1 << 30},
	}, all(in))
}

// Padding rows of a decode step are alike, but for where they write.
func TestDecodePaddingIsAlike(t *testing.T) {
	l := layout{block: 4, zero: 1000, trash: 1001, pad: 7}
	in := filled(recipes.Bucket{Phase: recipes.Decode, Seqs: 6, Blocks: 6}, &l)
	l.decode(in, []*Sequence{{n: 5, blocks: []int32{3, 9}}}, []int32{2})
	for _, id := range []input{inTokens, inPositions, inConvRead, inConvWrite} {
		rows := values(in[id])[1:]
		for _, v := range rows {
			require.Equal(t, rows[0], v, inputTable[id].name)
		}
	}
	require.Equal(t, make([]int32, 6), values(in[inOwners])) // no padding row has references
}

// A window of 6 tokens lies in 3 blocks of 4 at most; without the chunk's first
// token in 2.
func TestWindowInputs(t *testing.T) {
	l := four
	l.window = 6
	b := recipes.Bucket{Phase: recipes.Prefill, Query: 4, Blocks: 5}
	for _, c := range []struct {
		start  int
		blocks []int32
		first  int32
	}{
		{0, []int32{20, 20}, -8}, {3, []int32{20, 9}, -4}, {8, []int32{9, 3}, 0}, {9, []int32{3, 11}, 4}, {12, []int32{3, 11}, 4}, {17, []int32{5, 6}, 12},
	} {
		in := filled(b, &l)
		l.prefill(in, []int32{9, 3, 11, 5, 6}, c.start, []int32{101})
		got := all(in)
		require.Equal(t, c.blocks, got["window_blocks"], "chunk at %d", c.start)
		require.Equal(t, []int32{c.first}, got["window_start"], "chunk at %d", c.start)
	}

	// Position 17 sees 12 to 17, position 2 all before it, position 14 sees 9 to 14: of
	// each sequence the newest three blocks.
	in := filled(recipes.Bucket{Phase: recipes.Decode, Seqs: 4, Blocks: 12}, &l)
	qs := []*Sequence{{n: 17, blocks: []int32{8, 7, 6, 5, 4}}, {n: 2, blocks: []int32{1}}, {n: 14, blocks: []int32{12, 13, 14, 15}}}
	l.decode(in, qs, []int32{101, 102, 103})
	got := all(in)
	const pad = 1 << 30
	require.Equal(t, []int32{6, 5, 4, 1, 20, 20, 13, 14, 15, 20, 20, 20}, got["window_blocks"])
	require.Equal(t, []int32{8, 12, 16, 0, pad, pad, 4, 8, 12, pad, pad, pad}, got["window_start"])

	// A bucket of two references has no sequence with more.
	in = filled(recipes.Bucket{Phase: recipes.Decode, Seqs: 2, Blocks: 2}, &l)
	l.decode(in, []*Sequence{{n: 4, blocks: []int32{3, 4}}}, []int32{101})
	require.Equal(t, []int32{3, 4, 20, 20}, all(in)["window_blocks"])
	require.Equal(t, []int32{0, 4, pad, pad}, all(in)["window_start"])
}

func TestLogitsInputs(t *testing.T) {
	in := filled(recipes.Bucket{Phase: recipes.Logits, Seqs: 4}, &four)
	four.rows(in, 5, 2)
	require.Equal(t, map[string][]int32{"rows": {5, 6, 0, 0}}, all(in))
}

// Every element of every input is set, and the touched blocks always fit.
func TestPrefillInputsAreComplete(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := layout{block: rapid.IntRange(1, 9).Draw(t, "block"), window: rapid.IntRange(0, 30).Draw(t, "window"), zero: 1000, trash: 1001}
		start := rapid.IntRange(0, 50).Draw(t, "start")
		n := rapid.IntRange(1, 30).Draw(t, "tokens")
		b := recipes.Bucket{
			Phase:  recipes.Prefill,
			Query:  n + rapid.IntRange(0, 5).Draw(t, "more"),
			Blocks: l.blocksFor(start) + rapid.IntRange(0, 3).Draw(t, "pad"),
		}
		table := make([]int32, l.blocksFor(start+n))
		for i := range table {
			table[i] = int32(len(table) - i)
		}
		in := filled(b, &l)
		l.prefill(in, table, start, make([]int32, n))
		for name, v := range all(in) {
			require.NotContains(t, v, int32(-99), name)
		}
		// Each touched block once, each with the tokens of the chunk up to its end.
		want := make(map[int32]int32)
		for i := range n {
			want[table[(start+i)/l.block]] = int32(i + 1)
		}
		got := make(map[int32]int32)
		for i, row := range values(in[inConvRows]) {
			if row != l.trash {
				require.NotContains(t, got, row)
				got[row] = in[inConvTake].at(i)
			}
		}
		require.Equal(t, want, got)
	})
}

func TestInputNames(t *testing.T) {
	for _, c := range []struct {
		name string
		b    recipes.Bucket
		size int
	}{
		{"tokens", recipes.Bucket{Phase: recipes.Prefill, Query: 8}, 8},
		{"tokens", recipes.Bucket{Phase: recipes.Decode, Seqs: 3, Blocks: 4}, 3},
		{"tokens", recipes.Bucket{Phase: recipes.Logits, Seqs: 3}, 0},
		{"ctx_len", recipes.Bucket{Phase: recipes.Prefill, Query: 8}, 0},
		{"ctx_len", recipes.Bucket{Phase: recipes.Prefill, Query: 8, Blocks: 2}, 1},
		{"ctx_blocks", recipes.Bucket{Phase: recipes.Prefill, Query: 8, Blocks: 2}, 2},
		{"conv_rows", recipes.Bucket{Phase: recipes.Prefill, Query: 8}, 3},
		{"conv_rows", recipes.Bucket{Phase: recipes.Prefill, Query: 1}, 1},
		{"conv_write", recipes.Bucket{Phase: recipes.Prefill, Query: 1}, 0},
		{"blocks", recipes.Bucket{Phase: recipes.Decode, Seqs: 3, Blocks: 4}, 4},
		{"rows", recipes.Bucket{Phase: recipes.Logits, Seqs: 3}, 3},
		{"window_blocks", recipes.Bucket{Phase: recipes.Prefill, Query: 8}, 0},
		{"window_blocks", recipes.Bucket{Phase: recipes.Prefill, Query: 8, Blocks: 2}, 2},
		{"window_blocks", recipes.Bucket{Phase: recipes.Prefill, Query: 8, Blocks: 9}, 2},
		{"window_start", recipes.Bucket{Phase: recipes.Prefill, Query: 8, Blocks: 9}, 1},
		{"window_blocks", recipes.Bucket{Phase: recipes.Decode, Seqs: 3, Blocks: 2}, 6},
		{"window_blocks", recipes.Bucket{Phase: recipes.Decode, Seqs: 3, Blocks: 4}, 9},
		{"window_start", recipes.Bucket{Phase: recipes.Decode, Seqs: 3, Blocks: 40}, 9},
		{"noise", recipes.Bucket{Phase: recipes.Logits, Seqs: 3}, 0},
	} {
		_, size, ok := inputOf(c.name, c.b, &layout{block: 4, window: 6})
		require.Equal(t, c.size > 0, ok, "%s in %v", c.name, c.b)
		require.Equal(t, c.size, size, "%s in %v", c.name, c.b)
	}
}

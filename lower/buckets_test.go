package lower

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quill/recipes"
)

func dep(mml, seqs, block, mbt int) *Deployment {
	d, err := parseDeployment("/d.yaml", fmt.Appendf(nil, "model: m\nmax_model_len: %d\nmax_num_seqs: %d\nblock_size: %d\nmax_batched_tokens: %d\n", mml, seqs, block, mbt))
	if err != nil {
		panic(err)
	}
	return d
}

func covers(bs []recipes.Bucket, need recipes.Bucket) bool {
	return slices.ContainsFunc(bs, func(b recipes.Bucket) bool { return b.Covers(need) })
}

// The lists are those of vllm-gaudi 091bbad for 262,144 tokens, 16 sequences
// and blocks of 128.
func TestExpLists(t *testing.T) {
	require.Equal(t, []int{128, 256, 384, 512, 768, 1024, 1536, 2048, 2944, 4096, 5888, 8192}, curve(128, 128, 8192, log2Ceil(8192)))
	require.Equal(t, []int{128, 256, 384, 512, 768, 896, 1280, 1664, 2048}, curve(128, 128, 2048, log2Ceil(2048)))
	require.Equal(t, []int{0, 1, 2, 4, 8, 16, 32, 63, 126, 251, 499, 995, 1984}, curve(0, 1, 1984, log2Ceil(1984)+1))
	require.Equal(t, []int{1, 2, 4, 6, 10, 16}, curve(1, 2, 16, log2Ceil(16)+1))
}

// With the corrected edge every (query, context) pair has a bucket, and no
// more buckets are needed than without.
func TestExpCoversEverything(t *testing.T) {
	for _, c := range []struct{ mbt, prefill int }{{2048, 117}, {8192, 156}} {
		d := dep(262144, 16, 128, c.mbt)
		bs, err := d.buckets()
		require.NoError(t, err)
		var prefill []recipes.Bucket
		for _, b := range bs {
			if b.Phase == recipes.Prefill {
				prefill = append(prefill, b)
			}
		}
		require.Len(t, prefill, c.prefill)
		for q := 1; q <= c.mbt; q++ {
			most := ceilDiv(262144-q, 128) // the longest history a chunk of q tokens can have
			need := recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: q, Blocks: most}
			require.True(t, covers(prefill, need), "%s", need)
		}
	}
}

// Small deployments have no holes either, whatever their numbers.
func TestExpCoversSmall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := dep(rapid.IntRange(1, 300).Draw(t, "len"), rapid.IntRange(1, 9).Draw(t, "seqs"), rapid.IntRange(1, 40).Draw(t, "block"), rapid.IntRange(1, 200).Draw(t, "mbt"))
		bs, err := d.buckets()
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bs {
			if err := d.possible(b); err != nil {
				t.Fatalf("%s: %v", b, err)
			}
		}
		for q := 1; q <= d.MaxBatchedTokens; q++ {
			for p := 0; p+q <= d.MaxModelLen; p++ {
				need := recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: q, Blocks: ceilDiv(p, d.BlockSize)}
				if !covers(bs, need) {
					t.Fatalf("no bucket for %s", need)
				}
			}
		}
		for s := 1; s <= d.MaxNumSeqs; s++ {
			need := recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: s * ceilDiv(d.MaxModelLen, d.BlockSize)}
			if !covers(bs, need) {
				t.Fatalf("no bucket for %s", need)
			}
		}
	})
}

func TestFileBuckets(t *testing.T) {
	d := dep(256, 4, 16, 64)
	bs, err := d.fileBuckets("b.txt", []byte("# two\nprefill q=64,16 c=0,16\n\ndecode b=4 n=64,4 # full\ndecode b=4 n=64\n"))
	require.NoError(t, err)
	var names []string
	for _, b := range bs {
		names = append(names, b.String())
	}
	require.Equal(t, []string{"prefill/q=16,c=0", "prefill/q=16,c=16", "prefill/q=64,c=0", "prefill/q=64,c=16", "decode/b=4,n=4", "decode/b=4,n=64"}, names)
	for _, c := range [][2]string{
		{"warmup q=1 c=1", `b.txt:1: "warmup" is not a phase`},
		{"\nprefill q=1", "b.txt:2: a prefill line needs both q=… and c=…"},
		{"prefill q=1 n=1", `"n=1": a prefill line takes q=… and c=…`},
		{"prefill q=x c=1", `"x" in q=x is not a count`},
		{"prefill q=-1 c=1", "not a count"},
		{"prefill q=1 q=2 c=0", "q is given twice"},
		{"prefill q=0 c=0", "q must be at least 1"},
		{"prefill q=65 c=0", "q is more than a chunk can have, 64"},
		{"prefill q=1 c=17", "more than the 16 blocks of max_model_len"},
		{"decode b=5 n=5", "not from 1 to max_num_seqs 4"},
		{"decode b=2 n=33", "n is not from b (a block each) to 32"},
		{"decode b=2 n=1", "n is not from b"},
	} {
		_, err := d.fileBuckets("b.txt", []byte(c[0]))
		require.ErrorContains(t, err, c[1], c[0])
	}
}

// A list with a hole is refused, naming the shape.
func TestFileBucketsMustCover(t *testing.T) {
	dir := t.TempDir()
	write := func(list string) (*Deployment, error) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "b.txt"), []byte(list), 0o644))
		path := filepath.Join(dir, "d.yaml")
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(small, "../nano-small", "m", 1)+"buckets: {strategy: file, path: b.txt}\n"), 0o644))
		d, err := ReadDeployment(path)
		require.NoError(t, err)
		_, err = d.buckets()
		return d, err
	}
	_, err := write("prefill q=16 c=0,16\ndecode b=4 n=64\n")
	require.NoError(t, err)
	_, err = write("prefill q=16 c=0,15\ndecode b=4 n=64\n")
	require.ErrorContains(t, err, "line 7: buckets: no bucket covers prefill/q=1,c=16")
	_, err = write("prefill q=16 c=16\ndecode b=3 n=48\n")
	require.ErrorContains(t, err, "no bucket covers decode/b=4,n=64")
}

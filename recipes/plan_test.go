package recipes

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseBucket(t *testing.T) {
	for _, b := range []Bucket{
		{Phase: Prefill, Query: 128, Blocks: 4}, {Phase: Prefill, Query: 1}, {Phase: Decode, Seqs: 16, Blocks: 400}, {Phase: Logits, Seqs: 3},
	} {
		got, err := ParseBucket(b.String())
		require.NoError(t, err)
		require.Equal(t, b, got)
	}
	for _, s := range []string{"", "prefill", "prefill/q=1", "prefill/q=01,c=0", "prefill/q=1,c=0,x", "decode/b=1,n=", "logits/r=1 ", "train/x=1", "logits/r=0", "prefill/q=-1,c=2"} {
		_, err := ParseBucket(s)
		require.Error(t, err, s)
	}
}

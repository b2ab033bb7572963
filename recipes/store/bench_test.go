package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// large is a result such as that of a bucket: 40 blobs of 64 KiB that compress to a third.
func large(seed int) *Result {
	rng := rand.New(rand.NewPCG(uint64(seed), 9))
	r := &Result{Data: make([]byte, 200<<10), Blobs: map[recipes.Hash][]byte{}}
	for range 40 {
		blob := make([]byte, 64<<10)
		for i := 0; i < len(blob); i += 3 {
			blob[i] = byte(rng.Uint32())
		}
		r.Blobs[recipes.Sum(blob)] = blob
	}
	return r
}

func BenchmarkGet(b *testing.B) {
	s, _ := open(b, b.TempDir(), Options{})
	require.NoError(b, s.Put(b.Context(), testKey(1), large(1)))
	b.SetBytes(40*64<<10 + 200<<10)
	for b.Loop() {
		_, err := s.Do(b.Context(), testKey(1), unexpected)
		require.NoError(b, err)
	}
}

func BenchmarkPut(b *testing.B) {
	s, _ := open(b, b.TempDir(), Options{})
	b.SetBytes(40*64<<10 + 200<<10)
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		r := large(n)
		b.StartTimer()
		require.NoError(b, s.Put(b.Context(), testKey(n), r))
	}
}

// A bucket of which nothing is kept.
func BenchmarkMiss(b *testing.B) {
	s, _ := open(b, b.TempDir(), Options{})
	for n := 0; b.Loop(); n++ {
		r, err := s.Get(context.Background(), Key{{"n", fmt.Sprint(n)}})
		require.NoError(b, err)
		require.Nil(b, r)
	}
}

package store_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"quill/recipes"
	"quill/recipes/store"
)

// A compile that keeps its results, and goes on if it cannot.
func Example() {
	ctx := context.Background()
	base, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(base)
	key := store.Key{{Name: "quill", Text: "0.1.0"}, {Name: "bucket", Text: "decode/b=1,n=16"}}
	for _, dir := range []string{filepath.Join(base, "store"), filepath.Join(base, "store"), base} {
		s, err := store.Open(dir, store.Options{MaxBytes: 2 << 30, Warn: func(e *store.Error) { fmt.Println("note:", e) }})
		if err != nil {
			fmt.Println("note: results are not kept") // s is nil and keeps nothing
		}
		r, err := s.Do(ctx, key, func(context.Context) (*store.Result, error) {
			fmt.Println("compiling")
			recipe := []byte("recipe")
			return &store.Result{Data: []byte("plan"), Blobs: map[recipes.Hash][]byte{recipes.Sum(recipe): recipe}}, nil
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s with %d recipe, %d taken from the store\n", r.Data, len(r.Blobs), s.Counters().Hits)
		s.Close()
	}
	// Output:
	// compiling
	// plan with 1 recipe, 0 taken from the store
	// plan with 1 recipe, 1 taken from the store
	// note: results are not kept
	// compiling
	// plan with 1 recipe, 0 taken from the store
}

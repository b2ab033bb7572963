package main

import (
	"context"

	"github.com/rogpeppe/go-internal/testscript"

	"quill/recipes"
)

// addNative BUNDLE DRIVER OUT writes a bundle with native recipes that are none, as if that
// driver had compiled them.
func addNative(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: addnative BUNDLE DRIVER OUT")
	}
	b, err := recipes.ReadBundle(ts.MkAbs(args[0]))
	ts.Check(err)
	b.Native = &recipes.Native{Driver: args[1], Library: recipes.Hash{0xab}, Environment: []string{"TPC_X=" + args[1]}, Recipes: map[recipes.Hash]recipes.NativeRecipe{}}
	workspace := int64(0)
	for h := range b.Recipes {
		workspace += 1024
		b.Native.Recipes[h], err = recipes.PackNative([]byte(args[1]+h.String()), workspace, 3*workspace)
		ts.Check(err)
	}
	ts.Check(recipes.WriteBundle(context.Background(), ts.MkAbs(args[2]), b))
}

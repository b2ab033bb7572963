// Package nativetest makes native recipes in the process of a test, where a library that
// simulates the vendor's does no harm.
package nativetest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower/synapse/compiler"
	"quill/recipes"
	"quill/recipes/dl"
	"quill/recipes/target"
)

// Compile gives a bundle native recipes, which the library at a path makes.
func Compile(t testing.TB, library string, p *target.Profile, b *recipes.Bundle) {
	t.Helper()
	lib, err := dl.OpenSynapse(library)
	require.NoError(t, err)
	c, err := compiler.Load(lib)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	driver, err := c.Version()
	require.NoError(t, err)
	n := &recipes.Native{Driver: driver, Recipes: make(map[recipes.Hash]recipes.NativeRecipe)}
	path := filepath.Join(t.TempDir(), "recipe")
	for h, r := range b.Recipes {
		workspace, programs, err := c.Compile(r, p, path)
		require.NoError(t, err)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		n.Recipes[h], err = recipes.PackNative(data, workspace, programs)
		require.NoError(t, err)
	}
	b.Native = n
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The checked-in files are what the generator writes, and nothing else is.
func TestFilesAreCurrent(t *testing.T) {
	want := files()
	for name, text := range want {
		got, err := os.ReadFile(filepath.Join("..", "..", name))
		require.NoError(t, err)
		require.True(t, string(got) == string(text), "%s is stale: run go generate in runtime/host/kern", name)
	}
	found, err := filepath.Glob("../../*.s")
	require.NoError(t, err)
	for _, path := range found {
		require.Contains(t, want, filepath.Base(path), "not generated")
	}
}

func TestDeterministic(t *testing.T) {
	a, b := files(), files()
	require.Equal(t, a, b)
	for name, text := range a {
		require.True(t, strings.HasPrefix(string(text), header), name)
	}
}

package cmd_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Tests that the documents name exist.
func TestDocumentsNameTestsThatExist(t *testing.T) {
	have := map[string]bool{}
	defined := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range defined.FindAllSubmatch(src, -1) {
			have[string(m[1])] = true
		}
		return err
	}))
	documents, err := filepath.Glob("../docs/*.md")
	require.NoError(t, err)
	named := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	count := 0
	for _, path := range append(documents, "../README.md") {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range named.FindAllString(string(text), -1) {
			count++
			require.True(t, have[name], "%s names %s, which no package has", path, name)
		}
	}
	require.Greater(t, count, 30)
}

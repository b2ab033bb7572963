package lower

import (
	"os"
	"testing"
)

// TestMain gives files that reproduce failures, which tests cause, a folder that goes.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "quill-lower-test-")
	if err == nil {
		err = os.Setenv("TMPDIR", dir)
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

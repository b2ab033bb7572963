package recipes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, []byte("12345"), 0o666))
	data, err := ReadSmall(path, 5)
	require.NoError(t, err)
	require.Equal(t, "12345", string(data))
	_, err = ReadSmall(path, 4)
	require.ErrorContains(t, err, "5 bytes, more than the 4")
	_, err = ReadSmall(filepath.Dir(path), 4)
	require.ErrorContains(t, err, "not a regular file")
	_, err = ReadSmall(path+"y", 4)
	require.ErrorIs(t, err, os.ErrNotExist)
}

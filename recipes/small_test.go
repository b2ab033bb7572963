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

func TestReadConfig(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadConfig(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "config.json: no such file or directory; name the directory of a checkpoint, which has one")
	_, err = ReadConfig(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "none: no such file or directory; name the directory of a checkpoint")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o666))
	config, err := ReadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, "{}", string(config))
}

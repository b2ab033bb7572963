package safetensors

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Writes of whole blocks work either way, others only by the page cache.
func TestDirect(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "a"))
	require.NoError(t, err)
	defer f.Close()
	direct(f)
	piece := aligned(2 * blockSize)
	_, err = f.WriteAt(piece, blockSize)
	require.NoError(t, err)
	if _, err := f.WriteAt(piece[1:4], 1); err != nil {
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	buffered(f)
	_, err = f.WriteAt(piece[1:4], 1)
	require.NoError(t, err)
}

// A disk that is too small shows before anything is written.
func TestReserve(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "a"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, reserve(f, 5*blockSize+1))
	var stat syscall.Stat_t
	require.NoError(t, syscall.Fstat(int(f.Fd()), &stat))
	if stat.Blocks == 0 {
		t.Skip("the file system cannot reserve")
	}
	require.Error(t, reserve(f, 1<<60))
}

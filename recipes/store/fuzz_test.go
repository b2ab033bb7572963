package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
)

// Whatever the content of an action's file is, it is refused or the one that its action has.
func FuzzAction(f *testing.F) {
	blob := recipes.Sum([]byte("x"))
	for _, a := range []action{
		{key: testKey(1)},
		{key: testKey(2), blobs: []recipes.Hash{blob, blob}, data: []byte("plan")},
	} {
		f.Add(a.encode())
	}
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, content []byte) {
		a, err := decodeAction(content)
		if err != nil {
			require.ErrorIs(t, err, ErrDamaged)
			return
		}
		require.Equal(t, content, a.encode())
		require.NoError(t, a.key.check())
	})
}

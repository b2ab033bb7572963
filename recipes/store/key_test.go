package store

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawKey(t *rapid.T, label string) Key {
	fields := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Field {
		return Field{rapid.StringMatching(`[a-z]{1,2}`).Draw(t, "name"), rapid.StringMatching(`[a-z\x00]{0,3}`).Draw(t, "text")}
	}), 1, 4, func(f Field) string { return f.Name })
	return fields.Draw(t, label)
}

// Keys have one hash if they are equal, and only then.
func TestKeysAndHashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := drawKey(t, "x"), drawKey(t, "y")
		require.NoError(t, x.check())
		require.Equal(t, slices.Equal(x, y), x.Hash() == y.Hash())
		require.Equal(t, x.Hash(), slices.Clone(x).Hash())
	})
}

// Any change of a key is another key, with another result.
func TestEveryFieldCounts(t *testing.T) {
	s, _ := open(t, t.TempDir(), Options{})
	rapid.Check(t, func(t *rapid.T) {
		key := drawKey(t, "key")
		changed := slices.Clone(key)
		at := rapid.IntRange(0, len(key)-1).Draw(t, "at")
		switch rapid.SampledFrom([]string{"text", "name", "add", "remove", "shift", "reverse"}).Draw(t, "change") {
		case "text":
			changed[at].Text += "x"
		case "name":
			changed[at].Name += "xyz"
		case "add":
			changed = slices.Insert(changed, at, Field{"xyz", ""})
		case "remove":
			changed = slices.Delete(changed, at, at+1)
			changed = append(changed, Field{"xyz", ""})
		case "shift": // a character from the text to the name
			changed[at] = Field{key[at].Name + "x", key[at].Text}
			key = slices.Clone(key)
			key[at].Text = "x" + key[at].Text
		case "reverse":
			slices.Reverse(changed)
		}
		if slices.Equal(key, changed) || changed.check() != nil {
			return
		}
		require.NotEqual(t, key.Hash(), changed.Hash())
		// All results are kept: those of earlier draws must not be got either.
		name := func(k Key) *Result { return &Result{Data: k.append(nil)} }
		for _, k := range []Key{key, changed} {
			r, err := s.Do(t.Context(), k, func(context.Context) (*Result, error) { return name(k), nil })
			require.NoError(t, err)
			require.Equal(t, name(k).Data, r.Data)
		}
	})
}

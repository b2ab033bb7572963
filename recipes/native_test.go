package recipes

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNativeRecipes(t *testing.T) {
	b, err := ReadBundle(write(t, tinyBundle(t)))
	require.NoError(t, err)
	require.Equal(t, "1.21.0", b.Native.Driver)
	for h := range b.Recipes {
		data, err := b.Native.Recipe(h)
		require.NoError(t, err)
		require.Equal(t, serialized(h), data)
	}
	require.NoError(t, b.Native.Verify())
	_, err = b.Native.Recipe(Hash{5})
	require.ErrorContains(t, err, "the bundle has no native recipe 0500")
}

// Native recipes may be left out as a whole.
func TestBundleWithoutNativeRecipes(t *testing.T) {
	want := tinyBundle(t)
	want.Native = nil
	path := write(t, want)
	got, err := ReadBundle(path)
	require.NoError(t, err)
	require.Equal(t, want, got)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NotContains(t, string(data), "native")
}

// firstNative is the first of a bundle's native recipes, for tests that change it.
func firstNative(b *Bundle) Hash { return sortedHashes(b.Native.Recipes)[0] }

func changeNative(change func(r *NativeRecipe)) func(b *Bundle) {
	return func(b *Bundle) {
		h := firstNative(b)
		r := b.Native.Recipes[h]
		change(&r)
		b.Native.Recipes[h] = r
	}
}

func TestCheckOfNativeRecipes(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(b *Bundle)
		want string
	}{
		{"no driver", func(b *Bundle) { b.Native.Driver = "" }, "native recipes: no version of the driver"},
		{"order", func(b *Bundle) { b.Native.Environment = []string{"B=1", "A=1"} }, "the environment is not sorted"},
		{"twice", func(b *Bundle) { b.Native.Environment = []string{"A=1", "A=2"} }, `the environment has "A=2": want each variable once`},
		{"no value", func(b *Bundle) { b.Native.Environment = []string{"A"} }, `the environment has "A": want`},
		{"no name", func(b *Bundle) { b.Native.Environment = []string{"=1"} }, `the environment has "=1": want`},
		{"one missing", func(b *Bundle) { delete(b.Native.Recipes, firstNative(b)) }, "is missing: all recipes are there or none"},
		{"none", func(b *Bundle) { b.Native.Recipes = nil }, "is missing: all recipes are there or none"},
		{"one of nothing", func(b *Bundle) { b.Native.Recipes[Hash{5}] = b.Native.Recipes[firstNative(b)] }, "the bundle has no recipe 0500"},
		{"no bytes", changeNative(func(r *NativeRecipe) { r.Bytes = 0 }), "it has 0 bytes, want 1 to"},
		{"too many bytes", changeNative(func(r *NativeRecipe) { r.Bytes = MaxNative + 1 }), "it has 268435457 bytes, want 1 to"},
		{"workspace", changeNative(func(r *NativeRecipe) { r.WorkspaceBytes = -1 }), "its workspace has -1 bytes"},
		{"programs", changeNative(func(r *NativeRecipe) { r.ProgramBytes = -1 }), "its programs have -1 bytes"},
		{"other bytes", changeNative(func(r *NativeRecipe) { r.packed = append(bytes.Clone(r.packed), 0) }), "it is damaged: packed it has hash"},
		{"no frame", changeNative(func(r *NativeRecipe) { r.packed = []byte("x"); r.Packed = Sum(r.packed) }), "it is damaged: not one whole frame"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := tinyBundle(t)
			c.harm(b)
			require.ErrorContains(t, b.Check(), c.want)
		})
	}
}

// What the manifest says of a native recipe is what lies in the file, or it is not read.
func TestReadBundleRefusesNative(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(string, []byte) []byte
		extra []string
		want  string
	}{
		{"a missing one", func(n string, d []byte) []byte {
			if isNative(n) {
				return nil
			}
			return d
		}, nil, " is missing"},
		{"a changed one", func(n string, d []byte) []byte {
			if isNative(n) {
				return bytes.ToUpper(d)
			}
			return d
		}, nil, "it is damaged: packed it has hash"},
		{"a longer one", func(n string, d []byte) []byte {
			if isNative(n) {
				return append(bytes.Clone(d), 'x')
			}
			return d
		}, nil, "manifest.json says 1291"},
		{"one more", keep, []string{"native/" + strings.Repeat("0a", 32)}, "does not belong"},
		{"another spelling", keep, []string{"native/x"}, `"native/x" does not belong`},
		{"a null", on("manifest", func(s string) string {
			return s[:strings.Index(s, `"native": `)] + "\"native\": null\n}\n"
		}), nil, "does not belong"},
		{"an unknown field", on("manifest", sub(`"driver"`, `"new": 1, "driver"`)), nil, `unknown field "new"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := rezip(t, tinyBundle(t), c.edit, c.extra...)
			_, err := readClean(t, data)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// Contents that are not what the manifest says, though what is packed is, are found when
// they are asked for.
func TestNativeRecipeWithAnotherContent(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *NativeRecipe)
		want   string
	}{
		{"content", func(r *NativeRecipe) { r.Content = Hash{1} }, "is damaged: its content has hash"},
		{"checksum", func(r *NativeRecipe) { r.crc++ }, "is damaged: its content has hash"},
		{"fewer bytes", func(r *NativeRecipe) { r.Bytes-- }, "is damaged: "},
		{"a bomb", func(r *NativeRecipe) { r.packed = bomb(600); r.Packed = Sum(r.packed) }, "is damaged: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := tinyBundle(t)
			changeNative(c.change)(b)
			b, err := ReadBundle(write(t, b))
			require.NoError(t, err)
			_, err = b.Native.Recipe(firstNative(b))
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, b.Native.Verify(), c.want)
		})
	}
}

func TestPackNativeBounds(t *testing.T) {
	_, err := PackNative(nil, 0, 0)
	require.ErrorContains(t, err, "a serialized recipe of 0 bytes: want 1 to")
	_, err = PackNative(make([]byte, MaxNative+1), 0, 0)
	require.ErrorContains(t, err, "a serialized recipe of 268435457 bytes: want 1 to")
}

package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower"
	"quill/recipes"
)

// checkedDeployment is small and has one of everything that a manifest can have.
const checkedDeployment = `model: MODEL
tensor_parallel: 2
max_model_len: 64
max_num_seqs: 2
block_size: 16
max_batched_tokens: 32
precision: both
`

// checkedBundle compiles the deployment, and gives the paths of both.
func checkedBundle(t *testing.T) (bundle, deployment string) {
	deployment = writeDeployment(t, "nano-dense", checkedDeployment)
	bundle = filepath.Join(t.TempDir(), "b.quill")
	run(t, exitOK, t.Context(), "compile", deployment, "-o", bundle)
	return bundle, deployment
}

// patch copies a bundle with another manifest.
func patch(t *testing.T, bundle string, edit func(manifest []byte) []byte) string {
	z, err := zip.OpenReader(bundle)
	require.NoError(t, err)
	defer z.Close()
	path := filepath.Join(t.TempDir(), "patched.quill")
	f, err := os.Create(path)
	require.NoError(t, err)
	w := zip.NewWriter(f)
	for i, e := range z.File {
		if i > 0 {
			require.NoError(t, w.Copy(e))
			continue
		}
		text := edit(manifestOf(t, e))
		head := e.FileHeader
		head.CRC32, head.CompressedSize64, head.UncompressedSize64 = crc32.ChecksumIEEE(text), uint64(len(text)), uint64(len(text))
		to, err := w.CreateRaw(&head)
		require.NoError(t, err)
		_, err = to.Write(text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	return path
}

func manifestOf(t *testing.T, e *zip.File) []byte {
	require.Equal(t, "manifest.json", e.Name)
	r, err := e.Open()
	require.NoError(t, err)
	defer r.Close()
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return text
}

// fields are the leaves of a JSON value by path, with the function that replaces each.
func fields(path string, v any, replace func(any), to map[string]func(any)) {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			fields(strings.TrimPrefix(path+"."+key, "."), v[key], func(x any) { v[key] = x }, to)
		}
	case []any:
		for i := range v {
			fields(fmt.Sprintf("%s.%d", path, i), v[i], func(x any) { v[i] = x }, to)
		}
	default:
		to[path] = replace
	}
}

// Every field of a manifest counts: with another value the bundle is refused, or check
// says what it is and in which state the bundle is.
func TestCheckNoticesEveryManifestField(t *testing.T) {
	t.Parallel()
	bundle, deployment := checkedBundle(t)
	zeros := strings.Repeat("00", 32)
	const refused = exitError
	rows := []struct {
		path string // a pattern
		to   any
		code int
		want string
	}{
		{`format`, recipes.FormatVersion + 1, exitUnknown, "a newer quill wrote it, in a way that this one does not read: quill " + lower.Version},
		{`format`, recipes.FormatVersion - 1, exitUnsupported, "an older quill wrote it"},
		{`quill`, "0.0.9", exitRebuild, "quill: runs, rebuild advised\n    the bundle: 0.0.9\n    this quill: " + lower.Version + "\n    an older compiler made it"},
		{`quill`, "12.0.0", exitUnknown, "a newer compiler made it"},
		{`quill`, "1", exitUnknown, "does not say a version that can be compared"},
		{`target`, "gaudi9", exitUnsupported, "the bundle: gaudi9\n    this quill: gaudi2\n    there is no such target"},
		{`model\.fingerprint`, zeros, refused, "has fingerprint"},
		{`model\.layers`, 5, refused, "layer_kinds has 6 entries, want one for each of 5 layers"},
		{`model\.hidden`, 65, exitUnsupported, "model.hidden: unsupported\n    the bundle: 65\n    the bundle itself: 64\n    the runtime would take it for another model"},
		{`model\.vocab`, 513, exitUnsupported, "model.vocab: unsupported"},
		{`model\.unpadded_vocab`, 499, exitUnsupported, "model.unpadded_vocab: unsupported"},
		{`model\.eos_token_id`, 7, exitUnsupported, "model.eos_token_id: unsupported"},
		{`model\.window`, 17, exitUnsupported, "model.window: unsupported"},
		{`model\.layer_kinds\.\d+`, "global-moe", exitRebuild, "model.layer_kinds: runs, rebuild advised"},
		{`deployment\.tensor_parallel`, 4, refused, "overlap"},
		{`deployment\.max_model_len`, 63, exitUnsupported, "deployment.max_model_len: unsupported\n    the bundle: 63\n    the deployment: 64\n    the deployment needs more"},
		{`deployment\.max_num_seqs`, 1, exitUnsupported, "compiled.params.max_num_seqs: unsupported\n    the bundle: 2\n    the bundle itself: 1\n    passes relied on another number"},
		{`deployment\.max_num_seqs`, 3, exitUnsupported, "deployment.max_num_seqs: runs, rebuild advised\n    the bundle: 3\n    the deployment: 2\n    it takes more than the deployment needs"},
		{`deployment\.block_size`, 8, exitUnsupported, "deployment.block_size: unsupported"},
		{`deployment\.kv_blocks`, 7, exitUnsupported, "deployment.kv_blocks: unsupported"},
		{`deployment\.max_batched_tokens`, 31, exitUnsupported, "deployment.max_batched_tokens: unsupported"},
		{`deployment\.embedding`, "sharded", exitRebuild, "deployment.embedding: runs, rebuild advised"},
		{`costs\.row`, 5, exitRebuild, "costs.row: runs, rebuild advised\n    the bundle: 5\n    this quill: "},
		{`costs\.pad`, 5, exitRebuild, "costs.pad: runs, rebuild advised"},
		{`costs\.block`, 5, exitRebuild, "costs.block: runs, rebuild advised"},
		{`costs\.key`, 5, exitRebuild, "costs.key: runs, rebuild advised"},
		{`compiled\.build`, "abc", exitRebuild, "compiled.build: runs, rebuild advised\n    the bundle: abc"},
		{`compiled\.encoding`, 9, exitUnknown, "encoding version: unknown\n    the bundle: 9\n    this quill: 1"},
		{`compiled\.encoding`, 0, exitUnsupported, "encoding version: unsupported"},
		{`compiled\.profile`, "gaudi2-9.99", exitUnknown, "what this profile says of the target is not known here"},
		{`compiled\.profile_hash`, zeros, exitRebuild, "the profile said other things of the target"},
		{`compiled\.passes`, "outline-segments", exitRebuild, "it was compiled with other passes"},
		{`compiled\.passes`, "no-such-pass", exitUnknown, "no-such-pass"},
		{`compiled\.params\.\d+`, "nope=1", exitUnknown, "there is no parameter"},
		{`compiled\.params\.0`, "target=gaudi3", exitUnsupported, "compiled.params.target: unsupported\n    the bundle: gaudi3\n    the bundle itself: gaudi2"},
		{`compiled\.params\.1`, "attention=plain", exitRebuild, "compiled.params.attention: runs, rebuild advised\n    the bundle: plain\n    the deployment: banded"},
		{`compiled\.params\.2`, "far=exact", exitRebuild, "compiled.params.far: "},
		{`compiled\.params\.3`, "moe=gather", exitRebuild, "compiled.params.moe: "},
		{`compiled\.params\.9`, "mask_budget=5", exitRebuild, "compiled.params.mask_budget: "},
		{`compiled\.params\.10`, "sub_block_rows=5", exitRebuild, "compiled.params.sub_block_rows: "},
		{`sets\.\d\.precision`, "f16", refused, "f16/weights.json is missing"},
		{`sets\.\d\.bytes\.\w+`, 1 << 30, exitRebuild, ": runs, rebuild advised\n    the bundle: 1073741824\n    the bundle itself: "},
		{`sets\.\d\.bytes\.\w+`, 1 << 40, exitUnsupported, "device_memory: unsupported\n    the bundle: "},
		{`sets\.\d\.bytes\.\w+`, 1, refused, ""},
		{`sets\.\d\.workspace_bytes`, 1 << 30, exitRebuild, ".workspace_bytes: runs, rebuild advised"},
		{`sets\.\d\.plans\.\d+\.phase`, "logits", refused, ""},
		{`sets\.\d\.plans\.\d+\.(seqs|query|blocks)`, 7, refused, ""},
		{`entries\..*`, zeros, refused, "is damaged: its content has hash"},
	}
	// One bundle has some fields more than once; the first of each kind is changed.
	all := map[string]func(any){}
	patch(t, bundle, func(m []byte) []byte {
		var v any
		require.NoError(t, json.Unmarshal(m, &v))
		fields("", v, nil, all)
		return m
	})
	used := map[string]bool{}
	for i, row := range rows {
		pattern := regexp.MustCompile("^" + row.path + "$")
		matched := slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(p string) bool { return !pattern.MatchString(p) })
		require.NotEmpty(t, matched, row.path)
		for _, p := range matched {
			used[p] = true
		}
		t.Run(fmt.Sprintf("%d %s", i, matched[0]), func(t *testing.T) {
			path := patch(t, bundle, func(m []byte) []byte {
				var v any
				require.NoError(t, json.Unmarshal(m, &v))
				at := map[string]func(any){}
				fields("", v, nil, at)
				at[matched[0]](row.to)
				text, err := json.Marshal(v)
				require.NoError(t, err)
				return text
			})
			var stdout, stderr bytes.Buffer
			code := execute(t.Context(), []string{"check", path, "--against", deployment}, &stdout, &stderr)
			require.Equal(t, row.code, code, "%s%s", &stdout, &stderr)
			require.Contains(t, stdout.String()+stderr.String(), row.want)
			if row.code == refused {
				require.Empty(t, stdout.String())
				return
			}
			require.Empty(t, stderr.String())
			require.Contains(t, stdout.String(), "\nrebuild: quill compile "+deployment+" -o "+path+"\n")
		})
	}
	for p := range all {
		require.True(t, used[p], "no row changes %s", p)
	}
}

// Both ways of naming a word come back from a shell.
func TestShellQuote(t *testing.T) {
	for word, want := range map[string]string{"a/b-1.quill": "a/b-1.quill", "a b": "'a b'", "it's": `'it'\''s'`, "": "''", "$x": "'$x'"} {
		require.Equal(t, want, shellQuote(word))
	}
}

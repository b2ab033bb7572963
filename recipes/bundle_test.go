package recipes

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"quill/recipes/dtype"
)

// tinyRecipe adds a weight to an arena tensor.
func tinyRecipe(name string, t dtype.Type) *Recipe {
	n := int64(4 * t.Size())
	return &Recipe{
		Name:     name,
		Sections: []Section{{Name: "w", Buffer: Weights, Size: n}, {Name: "a", Buffer: Arena, Size: 2 * n}},
		Tensors: []Tensor{
			{Name: "w", DType: t, Dims: []int64{4}, Section: 0},
			{Name: "x", DType: t, Dims: []int64{4}, Section: 1},
			{Name: "y", DType: t, Dims: []int64{4}, Section: 1, Offset: n},
		},
		Nodes: []Node{{Name: "add", GUID: "add_fwd_" + t.String(), In: []int{0, 1}, Out: []int{2}, Params: &Params{
			Struct: "none", Fields: []Field{{Name: "eps", Type: F32, Float: 1e-6}, {Name: "axis", Type: U32, Ints: []int64{3}}},
		}}},
	}
}

// tinyArchitecture is the least that has a fingerprint.
var tinyArchitecture = []byte(`{"eos_token_id":6,"model_type":"tiny","text_config":{}}`)

// tinyBundle is small and has one of everything.
func tinyBundle(t testing.TB) *Bundle {
	fp, err := Fingerprint(tinyArchitecture)
	require.NoError(t, err)
	b := &Bundle{
		Architecture: tinyArchitecture,
		Manifest: Manifest{
			Format: FormatVersion, Quill: "test", Target: "gaudi2",
			Model: Model{Fingerprint: fp, Layers: 1, Hidden: 4, Vocab: 8, ValidVocab: 7, EOS: 6},
			Deployment: Deployment{
				TensorParallel: 2, MaxModelLen: 16, MaxNumSeqs: 2, BlockSize: 4,
				KVBlocks: 8, MaxBatchedTokens: 8, Embedding: "replicated",
			},
			Costs:    Costs{Row: 3, Pad: 5, Block: 2, Key: 1},
			Compiled: Compiled{Build: "0f", Encoding: EncodingVersion, Profile: "any-1", ProfileHash: Hash{7}, Passes: "cse", Params: []string{"target=any"}},
		},
		Checkpoint: []CheckpointTensor{
			{Name: "embed", DType: "BF16", Shape: []int64{8, 4}, Part: TextPart},
			{Name: "tower", DType: "BF16", Shape: []int64{2}, Part: VisionPart},
		},
		Recipes: make(map[Hash]*Recipe),
	}
	for _, d := range []dtype.Type{dtype.BF16, dtype.F32} {
		r := tinyRecipe("seg", d)
		h := r.Hash()
		b.Recipes[h] = r
		b.Sets = append(b.Sets, tinySet(d, h))
		b.Manifest.Sets = append(b.Manifest.Sets, b.Sets[len(b.Sets)-1].Info)
	}
	b.Native = tinyNative(t, b)
	return b
}

// serialized stands for what the vendor's compiler makes of a recipe.
func serialized(h Hash) []byte {
	return []byte("serialized " + strings.Repeat(h.String(), 20))
}

func tinyNative(t testing.TB, b *Bundle) *Native {
	n := &Native{Driver: "1.21.0", Library: Hash{9}, Environment: []string{"GC_KERNEL_PATH=0a", "TPC_X=1"}, Recipes: map[Hash]NativeRecipe{}}
	for h := range b.Recipes {
		r, err := PackNative(serialized(h), 256, 512)
		require.NoError(t, err)
		n.Recipes[h] = r
	}
	return n
}

func tinySet(d dtype.Type, h Hash) Set {
	size := int64(d.Size())
	prefill := Bucket{Phase: Prefill, Query: 8, Blocks: 2}
	logits := Bucket{Phase: Logits, Seqs: 2}
	return Set{
		Info: SetInfo{
			Precision: d.String(),
			Bytes:     map[Buffer]int64{Weights: 256, KV: 64, Conv: 64, Arena: 512, Carry: 64},
			Plans:     []Bucket{prefill, logits},
		},
		Weights: []Weight{
			{Tensor: "embed", Ways: 2, DType: d, Shape: []int64{4, 4}},
			{Tensor: "embed", Reshape: []int64{8, 2, 2}, Perm: []int{2, 0, 1}, Axis: 1, Ways: 2, DType: d, Shape: []int64{2, 4, 2}, Offset: 16 * size},
			{Fill: -1, Step: 4, DType: dtype.I32, Shape: []int64{2}, Offset: 32 * size},
		},
		Plans: []Plan{
			{
				Bucket: prefill, Family: "prefill", ArenaBytes: 512,
				Inputs: []IO{{Name: "tokens", DType: dtype.I32, Dims: []int64{8}, Offset: 128}, {Name: "rows", DType: d, Dims: []int64{4}, Offset: 256}},
				Steps: []Step{
					{Launch: &Launch{Recipe: h, Bindings: []Binding{{Weights, 16}, {Arena, 256}}, Label: "layer 0"}},
					{Collective: &Collective{Kind: AllReduce, DType: d, Count: 4, In: 256 + 4*size, Out: 256 + 4*size}},
				},
			},
			{
				Bucket: logits, Family: "logits", ArenaBytes: 256,
				Inputs:  []IO{{Name: "part", DType: dtype.F32, Dims: []int64{8}, Offset: 128}},
				Outputs: []IO{{Name: "logits", DType: dtype.F32, Dims: []int64{7, 2}}},
				Steps:   []Step{{Collective: &Collective{Kind: AllGather, DType: dtype.F32, Count: 8, In: 128, Out: 0}}},
			},
		},
	}
}

func write(t testing.TB, b *Bundle) string {
	path := filepath.Join(t.TempDir(), "tiny.quill")
	require.NoError(t, WriteBundle(t.Context(), path, b))
	return path
}

func TestBundleRoundTrip(t *testing.T) {
	want := tinyBundle(t)
	got, err := ReadBundle(write(t, want))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestBundleBytesAreDeterministic(t *testing.T) {
	first, err := os.ReadFile(write(t, tinyBundle(t)))
	require.NoError(t, err)
	for range 5 {
		again, err := os.ReadFile(write(t, tinyBundle(t)))
		require.NoError(t, err)
		require.Equal(t, first, again)
	}
}

func TestBundleIsAReadableZip(t *testing.T) {
	z := openZip(t, write(t, tinyBundle(t)))
	names := make([]string, len(z.File))
	for i, f := range z.File {
		names[i] = f.Name
		require.True(t, f.Modified.IsZero() || f.Modified.Year() < 1981, "%s has time %v", f.Name, f.Modified)
	}
	require.Equal(t, []string{
		"manifest.json", "config.json", "checkpoint.json",
		"bf16/weights.json", "bf16/plans/prefill-q=8,c=2.plan", "bf16/plans/logits-r=2.plan",
		"f32/weights.json", "f32/plans/prefill-q=8,c=2.plan", "f32/plans/logits-r=2.plan",
	}, names[:9])
	require.True(t, slices.IsSorted(names[9:11]) && strings.HasPrefix(names[9], "recipes/"))
	require.True(t, slices.IsSorted(names[11:]) && strings.HasPrefix(names[11], "native/"))
	require.Len(t, names, 13)
	require.Equal(t, uint16(zip.Store), z.File[0].Method)
	text := string(unzip(t, z.File[0]))
	require.Contains(t, text, "\n  \"model\": {\n    \"fingerprint\": \""+tinyBundle(t).Manifest.Model.Fingerprint+"\",\n")
}

// openZip opens a bundle as any reader of ZIP files that knows Zstandard does.
func openZip(t testing.TB, path string) *zip.ReadCloser {
	z, err := zip.OpenReader(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, z.Close()) })
	z.RegisterDecompressor(zstd.ZipMethodWinZip, zstd.ZipDecompressor())
	return z
}

func unzip(t testing.TB, f *zip.File) []byte {
	r, err := f.Open()
	require.NoError(t, err)
	defer r.Close()
	data, err := io.ReadAll(r)
	require.NoError(t, err)
	return data
}

func TestWriteBundleReplacesWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "b.quill")
	require.NoError(t, WriteBundle(t.Context(), path, tinyBundle(t)))
	before, err := os.ReadFile(path)
	require.NoError(t, err)

	bad := tinyBundle(t)
	bad.Manifest.Deployment.BlockSize = 0
	require.ErrorContains(t, WriteBundle(t.Context(), path, bad), "block_size is 0")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)

	require.Error(t, replace(t.Context(), path, func(w io.Writer) error { return fmt.Errorf("disk full") }))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "taken"), 0o777))
	require.Error(t, WriteBundle(t.Context(), filepath.Join(dir, "taken"), tinyBundle(t)))
	require.Error(t, WriteBundle(t.Context(), filepath.Join(dir, "no", "b.quill"), tinyBundle(t)))

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "something was left behind: %v", entries)
	require.NoError(t, WriteBundle(t.Context(), path, tinyBundle(t)))
}

// Every fault of a bundle is found by name, when writing as when reading.
func TestCheckFindsFaults(t *testing.T) {
	for _, c := range []struct {
		name string
		harm func(b *Bundle)
		want string
	}{
		{"no ranks", func(b *Bundle) { b.Manifest.Deployment.TensorParallel = 0 }, "tensor_parallel is 0"},
		{"too many slots", func(b *Bundle) { b.Manifest.Deployment.KVBlocks, b.Manifest.Deployment.BlockSize = 1<<26, 64 }, "31 bits"},
		{"model longer than the pool", func(b *Bundle) { b.Manifest.Deployment.MaxModelLen = 33 }, "needs 9 blocks, kv_blocks is 8"},
		{"valid vocabulary", func(b *Bundle) { b.Manifest.Model.ValidVocab = 9 }, "9 valid ids in a vocabulary of 8"},
		{"no set", func(b *Bundle) { b.Sets = nil }, "no recipe set"},
		{"twin sets", func(b *Bundle) { b.Sets[1].Info.Precision = "bf16" }, "set bf16 is there twice"},
		{"set named as a folder", func(b *Bundle) { b.Sets[0].Info.Precision = "recipes" }, "not a usable name"},
		{"set named as the other folder", func(b *Bundle) { b.Sets[0].Info.Precision = "native" }, "not a usable name"},
		{"set named as a path", func(b *Bundle) { b.Sets[0].Info.Precision = "../x" }, "not a usable name"},
		{"checkpoint twins", func(b *Bundle) { b.Checkpoint[1].Name = "embed" }, "listed twice"},
		{"checkpoint part", func(b *Bundle) { b.Checkpoint[1].Part = "smell" }, `part "smell"`},
		{"checkpoint shape", func(b *Bundle) { b.Checkpoint[0].Shape = []int64{1 << 40, 1 << 40} }, "has shape [1099511627776, 1099511627776]"},
		{"buffer", func(b *Bundle) { b.Sets[0].Info.Bytes["disk"] = 1 }, `unknown buffer "disk"`},
		{"buffer size", func(b *Bundle) { b.Sets[0].Info.Bytes[KV] = -1 }, "buffer kv has -1 bytes"},
		{"plan count", func(b *Bundle) { b.Sets[0].Info.Plans = b.Sets[0].Info.Plans[:1] }, "lists 1 plans, the set has 2"},
		{"plan order", func(b *Bundle) { b.Sets[0].Info.Plans[0].Query = 9 }, "plan 0 is for prefill/q=8,c=2, the manifest says prefill/q=9,c=2"},
		{"plan twins", func(b *Bundle) {
			s := &b.Sets[0]
			s.Plans, s.Info.Plans = append(s.Plans, s.Plans[0]), append(s.Info.Plans, s.Info.Plans[0])
		}, "is there twice"},
		{"bucket", func(b *Bundle) {
			b.Sets[0].Plans[0].Bucket.Query, b.Sets[0].Info.Plans[0].Query = 0, 0
		}, "cannot be"},
		{"no costs", func(b *Bundle) { b.Manifest.Costs = Costs{} }, "costs: row is 0, want 1 to"},
		{"negative costs", func(b *Bundle) { b.Manifest.Costs.Pad = -1 }, "costs: pad is -1, want 0 to"},
		{"cost overflow", func(b *Bundle) {
			b.Manifest.Costs.Key = maxCost
			b.Sets[0].Plans[0].Bucket.Query, b.Sets[0].Info.Plans[0].Query = 1<<12, 1<<12
		}, "plan prefill/q=4096,c=2: its cost is more than 62 bits count"},
		{"arena", func(b *Bundle) { b.Sets[0].Plans[0].ArenaBytes = 513 }, "needs 513 bytes of an arena of 512"},
		{"arena of layers", func(b *Bundle) { b.Sets[0].Plans[0].LayerBytes = 513 }, "has 513 bytes for values of several layers in its arena of 512"},
		{"workspace", func(b *Bundle) { b.Sets[0].Plans[0].WorkspaceBytes = 1 }, "needs 1 bytes of a workspace of 0"},
		{"negative workspace", func(b *Bundle) { b.Sets[0].Plans[0].WorkspaceBytes = -1 }, "needs -1 bytes of a workspace of 0"},
		{"workspace of the set", func(b *Bundle) { b.Sets[0].Info.WorkspaceBytes = -1 }, "the workspace has -1 bytes"},
		{"negative arena of layers", func(b *Bundle) { b.Sets[0].Plans[0].LayerBytes = -1 }, "has -1 bytes for values of several layers in its arena of 512"},
		{"io", func(b *Bundle) { b.Sets[0].Plans[0].Inputs[0].Offset = 500 }, `"tokens" has 32 bytes at byte 500`},
		{"io overflow", func(b *Bundle) { b.Sets[0].Plans[0].Inputs[0].Dims = []int64{1 << 62, 4} }, `"tokens" has dims`},
		{"io overlap", func(b *Bundle) {
			p := &b.Sets[0].Plans[0]
			p.Inputs = append(p.Inputs, IO{Name: "x", DType: dtype.I32, Dims: []int64{1}, Offset: 156})
		}, `inputs "tokens" and "x" share bytes`},
		{"io twins", func(b *Bundle) {
			p := &b.Sets[0].Plans[0]
			p.Inputs = append(p.Inputs, IO{Name: "tokens", DType: dtype.I32, Dims: []int64{1}})
		}, `input "tokens" is there twice`},
		{"step", func(b *Bundle) { b.Sets[0].Plans[0].Steps[0] = Step{} }, "step 0: want either"},
		{"recipe missing", func(b *Bundle) { b.Sets[0].Plans[0].Steps[0].Launch.Recipe = Hash{1} }, "the bundle has no recipe 0100"},
		{"recipe under a wrong hash", func(b *Bundle) { b.Recipes[Hash{1}] = tinyRecipe("seg", dtype.F32) }, "is filed under 0100"},
		{"recipe at fault", func(b *Bundle) {
			r := tinyRecipe("seg", dtype.F32)
			r.Nodes[0].In[0] = 7
			b.Recipes[r.Hash()] = r
		}, "reads tensor 7 of 3"},
		{"bindings", func(b *Bundle) {
			l := b.Sets[0].Plans[0].Steps[0].Launch
			l.Bindings = l.Bindings[:1]
		}, "1 bindings for the 2 sections"},
		{"binding buffer", func(b *Bundle) { b.Sets[0].Plans[0].Steps[0].Launch.Bindings[0].Buffer = KV }, "lies in weights, the binding says kv"},
		{"binding bounds", func(b *Bundle) { b.Sets[0].Plans[0].Steps[0].Launch.Bindings[1].Offset = 500 }, "16 bytes at byte 500 of arena"},
		{"binding without a size", func(b *Bundle) { delete(b.Sets[0].Info.Bytes, Arena) }, "arena of 0"},
		{"collective kind", func(b *Bundle) { b.Sets[0].Plans[1].Steps[0].Collective.Kind = "scatter" }, `unknown collective "scatter"`},
		{"collective bounds", func(b *Bundle) { b.Sets[0].Plans[1].Steps[0].Collective.Out = 200 }, "64 bytes at 200 of the plan's arena of 256"},
		{"collective overlap", func(b *Bundle) { b.Sets[0].Plans[1].Steps[0].Collective.In = 32 }, "overlap"},
		{"collective overflow", func(b *Bundle) { b.Sets[0].Plans[1].Steps[0].Collective.Count = 1 << 62 }, "moves 4611686018427387904 elements"},
		{"weight bounds", func(b *Bundle) { b.Sets[0].Weights[2].Offset = 250 }, "8 bytes at byte 250 of a weights buffer of 256"},
		{"weight overlap", func(b *Bundle) { b.Sets[0].Weights[1].Offset = 30 }, "weights 0 (embed) and 1 (embed) share bytes"},
		{"weight conflict", func(b *Bundle) {
			w := b.Sets[0].Weights
			w[1] = Weight{Fill: 1, Ways: 1, DType: w[0].DType, Shape: w[0].Shape, Offset: w[0].Offset}
		}, "share bytes"},
		{"weight unknown", func(b *Bundle) { b.Sets[0].Weights[0].Tensor = "embed2" }, "weight 0 (embed2): the checkpoint list has no such tensor"},
		{"weight reshape", func(b *Bundle) { b.Sets[0].Weights[0].Reshape = []int64{5} }, "cannot reshape [8, 4] to [5]"},
		{"weight perm", func(b *Bundle) { b.Sets[0].Weights[0].Perm = []int{0, 0} }, "no order of the 2 axes"},
		{"weight ways", func(b *Bundle) { b.Sets[0].Weights[0].Ways = 3 }, "3 parts for 2 ranks"},
		{"weight axis", func(b *Bundle) { b.Sets[0].Weights[0].Axis = 2 }, "cannot cut axis 2 of [8, 4]"},
		{"weight shape", func(b *Bundle) { b.Sets[0].Weights[0].Shape = []int64{4, 2} }, "the part has shape [4, 4], the slot [4, 2]"},
		{"constant", func(b *Bundle) { b.Sets[0].Weights[2].Fill = 0.5 }, "constant 0.5 is no i32"},
		{"constant that is infinite", func(b *Bundle) { b.Sets[0].Weights[2].DType, b.Sets[0].Weights[2].Fill = dtype.F32, 1e300 }, "constant 1e+300 is no f32"},
		{"constant plus", func(b *Bundle) { b.Sets[0].Weights[2].Plus = 1 }, "rows, times and plus are of a tensor, not of a constant"},
		{"constant of rows", func(b *Bundle) { b.Sets[0].Weights[2].Rows = []int64{0, 1} }, "rows, times and plus are of a tensor, not of a constant"},
		{"weight rows", func(b *Bundle) { b.Sets[0].Weights[0].Rows = []int64{5, 9} }, "rows [5 9] of a view of shape [8, 4]"},
		{"weight plus too much", func(b *Bundle) { b.Sets[0].Weights[0].Plus = -1e300 }, "weight 0 (embed): -1e+300 is 0 or infinite in f32"},
		{"weight times too little", func(b *Bundle) { b.Sets[0].Weights[0].Times = 1e-300 }, "weight 0 (embed): 1e-300 is 0 or infinite in f32"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := tinyBundle(t)
			c.harm(b)
			path := filepath.Join(t.TempDir(), "b.quill")
			err := WriteBundle(t.Context(), path, b)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, path)
			var z bytes.Buffer
			if writeZip(&z, b) != nil {
				return // cannot even be spelled
			}
			_, err = readBundle(bytes.NewReader(z.Bytes()), int64(z.Len()))
			require.Error(t, err)
		})
	}
}

// Tied weights may share a slot.
func TestCheckAllowsEqualSlots(t *testing.T) {
	b := tinyBundle(t)
	b.Sets[0].Weights = append(b.Sets[0].Weights, b.Sets[0].Weights[0])
	require.NoError(t, b.Check())
}

// rezip writes a bundle's entries again, changed by edit: nil drops an entry. The
// manifest has the hashes of what edit made.
func rezip(t testing.TB, b *Bundle, edit func(name string, data []byte) []byte, extra ...string) []byte {
	z := openZip(t, write(t, b))
	var names []string
	contents := map[string][]byte{}
	for _, f := range z.File {
		before := unzip(t, f)
		if after := edit(f.Name, before); after != nil {
			names, contents[f.Name] = append(names, f.Name), after
			rehash(contents, before, after)
		}
	}
	for _, name := range extra {
		names, contents[name] = append(names, name), extraContent(contents[name])
	}
	return pack(t, names, contents)
}

// extraContent is that of an entry that was there already, or any.
func extraContent(data []byte) []byte {
	if data == nil {
		return []byte("{}")
	}
	return data
}

// pack makes a file of entries as WriteBundle does, whatever they are.
func pack(t testing.TB, names []string, contents map[string][]byte) []byte {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstdLevel), zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	p := packer{zstd: enc}
	for _, name := range names {
		require.NoError(t, p.add(name, contents[name]))
	}
	var out bytes.Buffer
	require.NoError(t, p.write(&out))
	return out.Bytes()
}

// rehash puts the hash of an entry's new content into the manifest, which comes first.
func rehash(contents map[string][]byte, before, after []byte) {
	m := contents[manifestName]
	contents[manifestName] = bytes.ReplaceAll(m, []byte(Sum(before).String()), []byte(Sum(after).String()))
}

func keep(_ string, data []byte) []byte { return data }

// on edits the entries whose name begins with prefix.
func on(prefix string, edit func(text string) string) func(string, []byte) []byte {
	return func(name string, data []byte) []byte {
		if strings.HasPrefix(name, prefix) {
			return []byte(edit(string(data)))
		}
		return data
	}
}

func sub(from, to string) func(string) string {
	return func(s string) string { return strings.Replace(s, from, to, 1) }
}

func TestReadBundleRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		edit  func(string, []byte) []byte
		extra []string
		want  []string
	}{
		{"another format", on("manifest", sub(`"format": 5`, `"format": 7, "new": 1`)), nil, []string{"format 7", "format 5", `quill "test"`}},
		{"an unknown manifest field", on("manifest", sub(`"quill"`, `"new": 1, "quill"`)), nil, []string{"manifest.json", `unknown field "new"`}},
		{"an unknown weights field", on("bf16/weights", sub(`"ways"`, `"new": 1, "ways"`)), nil, []string{"bf16/weights.json", `unknown field "new"`}},
		{"a plan of another version", on("bf16/plans/prefill", sub(planKind+"\x01", planKind+"\x02")), nil, []string{"bf16/plans/prefill-q=8,c=2.plan has encoding version 2, this quill reads encoding version 1"}},
		{"a plan that is a recipe", on("bf16/plans/prefill", sub(planKind, recipeKind)), nil, []string{`bf16/plans/prefill-q=8,c=2.plan does not begin with "quill plan\n"`}},
		{"a plan that goes on", on("bf16/plans/prefill", func(s string) string { return s + "x" }), nil, []string{"bf16/plans/prefill-q=8,c=2.plan 1 bytes too many"}},
		{"another architecture", on("config", sub(`:6`, `: 6`)), nil, []string{"config.json of the bundle has fingerprint", "the manifest says"}},
		{"no hash", on("manifest", sub(`"checkpoint.json"`, `"checkpoint.jso"`)), nil, []string{"checkpoint.json has no hash in manifest.json"}},
		{"another hash", on("manifest", func(s string) string {
			i := strings.Index(s, `"checkpoint.json": "`)
			return s[:i] + strings.Replace(s[i:], `": "`, `": "00`, 1)
		}), nil, []string{"manifest.json", "has 66 characters"}},
		{"a hash of nothing", on("manifest", sub(`"entries": {`, `"entries": {"x": "`+strings.Repeat("00", 32)+`",`)), nil, []string{"x is missing"}},
		{"two values in an entry", on("f32/weights", func(s string) string { return s + "[]" }), nil, []string{"f32/weights.json: more than one"}},
		{"an entry that is no JSON", on("f32/weights", func(s string) string { return s[:9] }), nil, []string{"f32/weights.json", "unexpected EOF"}},
		{"a changed recipe", on("recipes/", sub("add", "sub")), nil, []string{"recipes/", "is damaged: its content has hash"}},
		{"a missing plan", func(n string, d []byte) []byte {
			if n == "bf16/plans/logits-r=2.plan" {
				return nil
			}
			return d
		}, nil, []string{"bf16/plans/logits-r=2.plan is missing"}},
		{"a missing manifest", func(n string, d []byte) []byte {
			if n == "manifest.json" {
				return nil
			}
			return d
		}, nil, []string{"manifest.json is missing"}},
		{"a missing recipe", func(n string, d []byte) []byte {
			if strings.HasPrefix(n, "recipes/") {
				return nil
			}
			return d
		}, nil, []string{"the bundle has no recipe"}},
		{"a stray entry", keep, []string{"../../etc/passwd"}, []string{`"../../etc/passwd" does not belong`}},
		{"a recipe with another spelling", keep, []string{"recipes/" + strings.Repeat("AB", 32) + ".recipe"}, []string{"does not belong"}},
		{"an entry twice", keep, []string{"manifest.json"}, []string{`"manifest.json" is there twice`}},
		{"a null manifest", on("manifest", func(string) string { return "null" }), nil, []string{"format 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "b.quill")
			require.NoError(t, os.WriteFile(path, rezip(t, tinyBundle(t), c.edit, c.extra...), 0o666))
			_, err := ReadBundle(path)
			for _, want := range append(c.want, path) {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "\n")
		})
	}
	_, err := ReadBundle(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = ReadBundle(t.TempDir())
	require.ErrorContains(t, err, "no regular file")
}

// What cannot be read is not written.
func TestWriteBundleCapsSizes(t *testing.T) {
	b := tinyBundle(t)
	b.Manifest.Quill = strings.Repeat("x", maxEntry)
	require.ErrorContains(t, WriteBundle(t.Context(), filepath.Join(t.TempDir(), "b"), b), "manifest.json")
}

// The fuzzer changes either the file itself (entry 0) or, since a checksum
// guards every entry, the content of one entry.
func FuzzReadBundle(f *testing.F) {
	path := write(f, tinyBundle(f))
	whole, err := os.ReadFile(path)
	require.NoError(f, err)
	z := openZip(f, path)
	f.Add(uint8(0), whole)
	f.Add(uint8(0), whole[:len(whole)/2])
	var names []string
	var contents [][]byte
	for i, file := range z.File {
		names, contents = append(names, file.Name), append(contents, unzip(f, file))
		f.Add(uint8(i+1), contents[i])
	}
	f.Fuzz(func(t *testing.T, entry uint8, data []byte) {
		if i := int(entry) - 1; i >= 0 && i < len(names) {
			data = rebuild(t, names, contents, i, data)
		}
		b, err := readBundle(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		// What reads can be written, and reads as the same again.
		var first, second bytes.Buffer
		require.NoError(t, writeZip(&first, b))
		again, err := readBundle(bytes.NewReader(first.Bytes()), int64(first.Len()))
		require.NoError(t, err)
		require.NoError(t, writeZip(&second, again))
		require.Equal(t, first.Bytes(), second.Bytes())
	})
}

// rebuild is a bundle with the content of entry i replaced; a recipe is filed
// under its new hash, and the manifest has that of another entry.
func rebuild(t testing.TB, names []string, contents [][]byte, i int, data []byte) []byte {
	now := map[string][]byte{}
	for j, name := range names {
		now[name] = contents[j]
	}
	old := now[names[i]]
	now[names[i]] = data
	rehash(now, old, data)
	if strings.HasPrefix(names[i], recipeDir+"/") {
		names = slices.Clone(names)
		names[i] = recipeName(Sum(data))
		now[names[i]] = data
	}
	return pack(t, names, now)
}

// A bundle that an older quill wrote is refused by its format, whatever else it holds.
func TestReadBundleOfAnOlderFormat(t *testing.T) {
	_, err := ReadBundle("testdata/format-1.quill")
	require.EqualError(t, err, "bundle testdata/format-1.quill: has format 1 (written by quill \"0.1.0\"), this quill reads format 5: compile the deployment again with this quill, or use the other one")
}

// So is one that a newer quill wrote, though its file may have another layout.
func TestReadBundleOfANewerFormat(t *testing.T) {
	data, err := os.ReadFile("testdata/format-1.quill")
	require.NoError(t, err)
	at := bytes.Index(data, []byte(`"format": 1`))
	data[at+len(`"format": `)] = '9'
	for _, file := range [][]byte{data, append(slices.Clone(data), "and more"...), data[:at+100]} {
		_, err = readBundle(bytes.NewReader(file), int64(len(file)))
		var e *VersionError
		require.ErrorAs(t, err, &e)
		require.Equal(t, &VersionError{What: "format", Have: 9, Want: FormatVersion, Quill: "0.1.0"}, e)
	}
	// What is no bundle is none of any format.
	data[0] = 'X'
	_, err = readBundle(bytes.NewReader(data), int64(len(data)))
	require.NotContains(t, err.Error(), "format 9")
}

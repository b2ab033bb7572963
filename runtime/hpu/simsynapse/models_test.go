package simsynapse

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower"
	"quill/recipes"
	"quill/recipes/dtype"
	"quill/runtime/host"
)

// compileModel makes the recipes of a small model.
func compileModel(t *testing.T, more string) map[recipes.Hash]*recipes.Recipe {
	t.Helper()
	models, err := filepath.Abs("../../../testdata")
	require.NoError(t, err)
	dir := t.TempDir()
	text := "model: " + models + "/nano-small\ntensor_parallel: 2\nmax_model_len: 256\nmax_num_seqs: 4\nblock_size: 16\nmax_batched_tokens: 64\nprecision: both\n" +
		"buckets: {strategy: file, path: buckets.txt}\n" + more
	require.NoError(t, os.WriteFile(filepath.Join(dir, "buckets.txt"), []byte("prefill q=64 c=0,1,16\ndecode b=1 n=1,16\ndecode b=4 n=4,64\n"), 0o666))
	path := filepath.Join(dir, "deploy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	d, err := lower.ReadDeployment(path)
	require.NoError(t, err)
	b, _, err := lower.Compile(t.Context(), d, nil)
	require.NoError(t, err)
	return b.Recipes
}

// Every recipe of a model, built by calls, compiled, written, read and launched, gives the
// bits that the host device gives.
func TestRecipesOfModels(t *testing.T) {
	list := compileModel(t, "")
	for h, r := range compileModel(t, "moe: gather\nattention: plain\n") {
		list[h] = r
	}
	l := open(t, Config{Profile: "../../../recipes/dump/testdata/standin.h"})
	rig := newRig(t, l)
	hashes := make([]recipes.Hash, 0, len(list))
	for h := range list {
		hashes = append(hashes, h)
	}
	slices.SortFunc(hashes, func(a, b recipes.Hash) int { return bytes.Compare(a[:], b[:]) })
	for i, h := range hashes {
		r := list[h]
		b := build(t, l, l.profile, r)
		compiled := got(l.GraphCompile(b.graph, r.Name))
		ok(t, l.GraphDestroy(b.graph))
		path := filepath.Join(t.TempDir(), "r.recipe")
		ok(t, l.RecipeSerialize(compiled, path))
		ok(t, l.RecipeDestroy(compiled))
		compiled = got(l.RecipeDeSerialize(path))
		fill := randomSections(r, uint64(i))
		require.Equal(t, onHost(t, r, fill), rig.onDevice(t, r, compiled, fill), "recipe %s (%v)", r.Name, h)
		ok(t, l.RecipeDestroy(compiled))
	}
	require.Greater(t, len(hashes), 20)
}

// randomSections fills sections with small numbers, which as integers are few.
func randomSections(r *recipes.Recipe, seed uint64) [][]byte {
	g := rand.New(rand.NewPCG(seed, 1))
	out := make([][]byte, len(r.Sections))
	for i := range r.Sections {
		out[i] = make([]byte, r.Sections[i].Size)
	}
	for i := range r.Tensors {
		t := &r.Tensors[i]
		if t.Section == recipes.Workspace {
			continue
		}
		at := out[t.Section][t.Offset : t.Offset+t.Bytes()]
		switch t.DType {
		case dtype.BF16:
			for k := 0; k < len(at); k += 2 {
				h := dtype.ToBF16(g.Float32() - 0.5)
				at[k], at[k+1] = byte(h), byte(h>>8)
			}
		case dtype.F32:
			for k := 0; k < len(at); k += 4 {
				h := dtype.ToBF16(g.Float32() - 0.5)
				at[k], at[k+1], at[k+2], at[k+3] = 0, 0, byte(h), byte(h>>8)
			}
		default:
			clear(at) // indices and predicates
		}
	}
	return out
}

// onHost runs a recipe on the host device, which knows its buffers, and gives its sections.
func onHost(t *testing.T, r *recipes.Recipe, fill [][]byte) [][]byte {
	t.Helper()
	sizes := map[recipes.Buffer]int64{}
	bindings := make([]recipes.Binding, len(r.Sections))
	for i := range r.Sections {
		b := r.Sections[i].Buffer
		bindings[i] = recipes.Binding{Buffer: b, Offset: sizes[b]}
		sizes[b] += recipes.Align(r.Sections[i].Size)
	}
	d, err := host.New(host.Options{Ranks: 1, Threads: 1, Bytes: sizes})
	require.NoError(t, err)
	defer d.Close()
	section := func(i int) []byte {
		return d.Bytes(0, bindings[i].Buffer)[bindings[i].Offset:][:r.Sections[i].Size]
	}
	for i := range fill {
		copy(section(i), fill[i])
	}
	p, err := d.Load(r)
	require.NoError(t, err)
	run, err := d.Bind(p, bindings)
	require.NoError(t, err)
	require.NoError(t, run.Run(t.Context()))
	out := make([][]byte, len(fill))
	for i := range out {
		out[i] = slices.Clone(section(i))
	}
	return out
}

// onDevice runs a compiled recipe and gives its sections.
func (g *rig) onDevice(t *testing.T, r *recipes.Recipe, h Handle, fill [][]byte) [][]byte {
	t.Helper()
	at := make([]uint64, len(fill))
	for i, data := range fill {
		at[i] = g.upload(data)
	}
	space := got(g.DeviceMalloc(0, max(1, got(g.WorkspaceSize(h))), 0, 0))
	var infos []LaunchTensor
	section := map[string]int{}
	for i := range r.Tensors {
		section[r.Tensors[i].Name] = r.Tensors[i].Section
	}
	for _, x := range got(g.LaunchInfos(h, got(g.LaunchIDs(h, got(g.LaunchAmount(h)))))) {
		infos = append(infos, LaunchTensor{ID: x.ID, Address: at[section[x.Name]] + x.Offset})
	}
	ok(t, g.Launch(g.stream, infos, space, h, 0))
	g.sync()
	out := make([][]byte, len(fill))
	for i := range out {
		out[i] = g.read(at[i], len(fill[i]))
		if out[i] == nil {
			out[i] = []byte{}
		}
		ok(t, g.DeviceFree(0, at[i]))
	}
	ok(t, g.DeviceFree(0, space))
	return out
}

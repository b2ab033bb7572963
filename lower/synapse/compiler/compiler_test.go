//go:build linux && amd64 && !nohpu

package compiler_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/lower/synapse/compiler"
	"quill/recipes"
	"quill/recipes/dl"
	"quill/recipes/dl/dltest"
	"quill/recipes/dtype"
	"quill/recipes/target"
)

// sample reads a row of weights and updates a state in place after it was read.
func sample() *recipes.Recipe {
	const ws = recipes.Workspace
	return &recipes.Recipe{
		Name: "decode-seg1",
		Sections: []recipes.Section{
			{Name: "weights", Buffer: recipes.Weights, Size: 4096},
			{Name: "kv", Buffer: recipes.KV, Size: 4096},
			{Name: "arena", Buffer: recipes.Arena, Size: 4096},
		},
		Tensors: []recipes.Tensor{
			{Name: "x", DType: dtype.BF16, Dims: []int64{16, 2}, Section: 2},
			{Name: "w", DType: dtype.BF16, Dims: []int64{16, 8}, Section: 0, Offset: 128},
			{Name: "y", DType: dtype.BF16, Dims: []int64{8, 2}, Section: ws},
			{Name: "state", DType: dtype.BF16, Dims: []int64{8, 4}, Section: 1},
			{Name: "index", DType: dtype.I32, Dims: []int64{2}, Section: 2, Offset: 512},
			{Name: "state.next", DType: dtype.BF16, Dims: []int64{8, 4}, Section: 1},
			{Name: "read", DType: dtype.BF16, Dims: []int64{8, 2}, Section: 2, Offset: 1024},
			{Name: "unused", DType: dtype.F32, Dims: []int64{3}, Section: 2, Offset: 2048},
		},
		Nodes: []recipes.Node{
			{
				Name: "n0", GUID: "gemm", In: []int{0, 1}, Out: []int{2}, Origin: "layer 3 attn.q",
				Params: &recipes.Params{Struct: "synGEMMParams", Fields: []recipes.Field{
					{Name: "transpose_a", Type: recipes.U8, Ints: []int64{0}}, {Name: "transpose_b", Type: recipes.U8, Ints: []int64{1}},
				}},
			},
			{
				Name: "n1", GUID: "gather_fwd_bf16", In: []int{3, 4}, Out: []int{6}, Origin: "layer 3 kv_read",
				Params: &recipes.Params{Struct: "ns_GatherKernel::Params", Fields: []recipes.Field{{Name: "axis", Type: recipes.I32, Ints: []int64{1}}}},
			},
			{
				Name: "n2", GUID: "index_copy_fwd_bf16", In: []int{3, 4, 2}, Out: []int{5}, After: []int{1}, Origin: "layer 3 kv_write",
				Params: &recipes.Params{Struct: "ns_IndexCopy::Params", Fields: []recipes.Field{{Name: "axis", Type: recipes.I32, Ints: []int64{0}}}},
			},
		},
	}
}

func load(t *testing.T, flags ...string) (*dltest.Fake, *compiler.Compiler, *target.Profile) {
	t.Helper()
	lib := dltest.New(t, flags...)
	c, err := compiler.Load(lib.Library)
	require.NoError(t, err)
	require.Equal(t, "synInitialize\n", lib.Trace())
	p, err := target.Load(target.Names()[0])
	require.NoError(t, err)
	return lib, c, p
}

const graph = 0x1000

// The whole order of calls, with all arguments.
func TestBuild(t *testing.T) {
	lib, c, p := load(t)
	g, err := c.Build(sample(), p)
	require.NoError(t, err)
	const weights, kv, arena = 0x1010, 0x1020, 0x1030
	const x, w, y, state, index, next, read = 0x1040, 0x1050, 0x1060, 0x1070, 0x1080, 0x1090, 0x10a0
	l := dltest.Line
	tensor := func(h int, name string, number, section, offset int, dims ...any) string {
		geometry := func(kind int) string {
			return l("synTensorSetGeometry", append(append([]any{h}, dims...), kind)...)
		}
		s := l("synTensorHandleCreate", graph, 0, `"`+name+`"`, h) + geometry(1) + l("synTensorSetDeviceDataType", h, number) + geometry(0)
		if section != 0 {
			s += l("synTensorAssignToSection", h, section, offset)
		}
		return s
	}
	section := func(h, group int) string {
		return l("synSectionCreate", 0, graph, h) + l("synSectionSetPersistent", h, 1) + l("synSectionSetGroup", h, group)
	}
	want := l("synGraphCreate", 4, graph) + l("synGraphSetAttributes", graph, 0, 1, 1) +
		section(weights, 1) + section(kv, 2) + section(arena, 4) +
		tensor(x, "x", 2, arena, 0, 16, 2) + tensor(w, "w", 2, weights, 128, 16, 8) + tensor(y, "y", 2, 0, 0, 8, 2) +
		tensor(state, "state", 2, kv, 0, 8, 4) + tensor(index, "index", 16, arena, 512, 2) +
		tensor(next, "state.next", 2, kv, 0, 8, 4) + tensor(read, "read", 2, arena, 1024, 8, 2) +
		l("synNodeCreateWithId", graph, x, w, "->", y, "[", 0, 1, "]", `"gemm" "n0"`, 0, 0) +
		l("synNodeCreateWithId", graph, state, index, "->", read, "[", 1, 0, 0, 0, "]", `"gather_fwd_bf16" "n1"`, 0, 0) +
		l("synNodeCreateWithId", graph, state, index, y, "->", next, "[", 0, 0, 0, 0, "]", `"index_copy_fwd_bf16" "n2"`, 0, 0) +
		l("synNodeDependencySet", graph, uint64(1<<64-1), 1) // its id is one less
	require.Equal(t, want, lib.Trace())
	require.NoError(t, g.Destroy())
	require.Equal(t, l("synGraphDestroy", graph), lib.Trace())
}

func TestCompile(t *testing.T) {
	for _, v := range []struct{ flag, compile string }{{"-DNEW", "synGraphCompileV2"}, {"-DOLD", "synGraphCompile"}} {
		lib, c, p := load(t, v.flag)
		g, err := c.Build(sample(), p)
		require.NoError(t, err)
		lib.Trace()
		x, err := g.Compile("seg1")
		require.NoError(t, err)
		require.NoError(t, g.Destroy())
		path := filepath.Join(t.TempDir(), "a.recipe")
		require.NoError(t, x.Serialize(path))
		workspace, programs, err := x.Sizes()
		require.NoError(t, err)
		require.EqualValues(t, 1000, workspace)
		require.EqualValues(t, 1006, programs)
		require.NoError(t, x.Destroy())
		require.NoError(t, c.Close())
		l, recipe := dltest.Line, 0x1000
		require.Equal(t, l(v.compile, graph, `"seg1" NULL`, recipe)+l("synGraphDestroy", graph)+l("synRecipeSerialize", recipe, `"`+path+`"`)+
			l("synRecipeGetAttribute", 2, recipe)+l("synRecipeDestroy", recipe)+l("synDestroy"), lib.Trace())
		_, err = g.Compile("seg1")
		require.EqualError(t, err, "recipe decode-seg1: its graph was compiled before, which the library does once")
	}
}

// Each call that fails is told with what it was for, and no graph is left.
func TestBuildFails(t *testing.T) {
	lib, c, p := load(t)
	for call, want := range map[string]string{
		"synGraphCreate":             "recipe decode-seg1: synGraphCreate: status 26 (synFail)",
		"synGraphSetAttributes":      "recipe decode-seg1: inference: synGraphSetAttributes",
		"synSectionCreate":           "recipe decode-seg1: section weights: synSectionCreate",
		"synSectionSetPersistent":    "recipe decode-seg1: section weights: synSectionSetPersistent",
		"synSectionSetGroup":         "recipe decode-seg1: section weights: group 1: synSectionSetGroup",
		"synTensorHandleCreate":      "recipe decode-seg1: tensor x bf16[16 2]: synTensorHandleCreate",
		"synTensorSetGeometry":       "recipe decode-seg1: tensor x bf16[16 2]: synTensorSetGeometry",
		"synTensorSetDeviceDataType": "recipe decode-seg1: tensor x bf16[16 2]: synTensorSetDeviceDataType",
		"synTensorAssignToSection":   "recipe decode-seg1: tensor x bf16[16 2] at byte 0 of section arena: synTensorAssignToSection",
		"synNodeCreateWithId": "recipe decode-seg1: node n0 (gemm of layer 3 attn.q) reads x bf16[16 2], w bf16[16 8], " +
			"gives y bf16[8 2], parameters synGEMMParams: synNodeCreateWithId",
		"synNodeDependencySet": "recipe decode-seg1: node n2 (index_copy_fwd_bf16 of layer 3 kv_write) reads state bf16[8 4], index i32[2], " +
			"y bf16[8 2], gives state.next bf16[8 4], parameters ns_IndexCopy::Params: synNodeDependencySet",
	} {
		lib.Fail(call, 26, "said so")
		_, err := c.Build(sample(), p)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "said so")
		require.ErrorIs(t, err, dl.StatusFail)
		trace := lib.Trace()
		require.True(t, strings.HasSuffix(trace, dltest.Line("synGraphDestroy", graph)), "%s\n%s", call, trace)
	}

	r := sample()
	r.Tensors[6].Name = "x"
	_, err := c.Build(r, p)
	require.ErrorContains(t, err, "recipe decode-seg1: tensor x: want a name that no other tensor has")
	r = sample()
	r.Nodes[2].After = nil
	_, err = c.Build(r, p)
	require.ErrorContains(t, err, "n2 (index_copy_fwd_bf16")
	require.Empty(t, lib.Trace(), "a recipe that is refused never reaches the library")
}

func TestCompileFails(t *testing.T) {
	kernels := filepath.Join(t.TempDir(), "libtpc_kernels.so")
	require.NoError(t, os.WriteFile(kernels, nil, 0o600))
	for _, v := range []struct{ flag, call, path, want, not string }{
		{"-DNEW", "synGraphCompileV2", kernels, "recipe decode-seg1: synGraphCompileV2: status 26 (synFail): failure, for which the status has no reason; " +
			"the library says: pass loadTpcKernels failed; help: ", "GC_KERNEL_PATH"},
		{"-DNEW", "synGraphCompileV2", "", "the library says: pass loadTpcKernels failed; GC_KERNEL_PATH is not set", ""},
		{"-DOLD", "synGraphCompile", kernels, "synGraphCompile: status 26 (synFail): failure, for which the status has no reason; the library says: brief of 26; help: ", "GC_KERNEL_PATH"},
		{"-DOLD", "synGraphCompile", "", "the library says: brief of 26; GC_KERNEL_PATH is not set, so the graph compiler has no kernels", ""},
	} {
		t.Setenv("GC_KERNEL_PATH", v.path)
		lib, c, p := load(t, v.flag)
		g, err := c.Build(sample(), p)
		require.NoError(t, err)
		lib.Trace()
		lib.Fail(v.call, 26, "pass loadTpcKernels failed")
		_, err = g.Compile("seg1")
		require.ErrorIs(t, err, dl.StatusFail)
		require.ErrorContains(t, err, v.want)
		if v.not != "" {
			require.NotContains(t, err.Error(), v.not)
		}
		if v.flag == "-DNEW" {
			require.Contains(t, lib.Trace(), "synErrorDestroy 1\n")
		}
	}
}

func TestLoadPartial(t *testing.T) {
	lib := dltest.New(t, "-DPARTIAL")
	_, err := compiler.Load(lib.Library)
	require.ErrorContains(t, err, "libfake.so does not export synGraphSetAttributes, synSectionCreate; help: ")
	require.Empty(t, lib.Trace())
}

//go:build linux && amd64 && !nohpu

package compiler

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dl"
	"quill/recipes/dl/dltest"
	"quill/recipes/target"
)

func load(t *testing.T, flags ...string) (*dltest.Fake, *Compiler, *target.Profile) {
	t.Helper()
	lib := dltest.New(t, flags...)
	c, err := Load(lib.Library)
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
	g, err := c.build(sample(), p)
	require.NoError(t, err)
	require.EqualValues(t, graph, g)
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
}

// resultCalls are those that follow the building of the sample's graph.
func resultCalls(compile, path string) []string {
	const recipe = 0x10b0
	l := dltest.Line
	return []string{
		l(compile, graph, `"decode-seg1" NULL`, recipe), l("synGraphDestroy", graph),
		l("synRecipeSerialize", recipe, `"`+path+`"`), l("synRecipeGetAttribute", 2, recipe), l("synRecipeDestroy", recipe),
	}
}

// behindBuild is what was called since the sample's graph was built.
func behindBuild(lib *dltest.Fake) string {
	trace := lib.Trace()
	_, behind, _ := strings.Cut(trace[strings.LastIndex(trace, "synNodeDependencySet"):], "\n")
	return behind
}

// A graph is compiled, written and given back, and so is what was compiled.
func TestCompile(t *testing.T) {
	for _, v := range []struct{ flag, compile string }{{"-DNEW", "synGraphCompileV2"}, {"-DOLD", "synGraphCompile"}} {
		lib, c, p := load(t, v.flag)
		path := filepath.Join(t.TempDir(), "a.recipe")
		workspace, programs, err := c.Compile(sample(), p, path)
		require.NoError(t, err)
		require.EqualValues(t, 1000, workspace)
		require.EqualValues(t, 1006, programs)
		require.Equal(t, strings.Join(resultCalls(v.compile, path), ""), behindBuild(lib))
		require.NoError(t, c.Close())
		require.Equal(t, "synDestroy\n", lib.Trace())
	}
}

// Whatever fails behind the compile is told, and all else is given back.
func TestResultFails(t *testing.T) {
	lib, c, p := load(t)
	for fails, want := range map[string]string{
		"synGraphDestroy":       "recipe decode-seg1: synGraphDestroy: status 26",
		"synRecipeSerialize":    "recipe decode-seg1: a.recipe: synRecipeSerialize: status 26",
		"synRecipeGetAttribute": "recipe decode-seg1: synRecipeGetAttribute: status 26",
		"synRecipeDestroy":      "recipe decode-seg1: synRecipeDestroy: status 26",
	} {
		lib.Fail(fails, 26, "")
		_, _, err := c.Compile(sample(), p, "a.recipe")
		require.ErrorContains(t, err, want)
		calls := resultCalls("synGraphCompileV2", "a.recipe")
		if fails == "synGraphDestroy" {
			calls = slices.Delete(calls, 2, 3) // then nothing is written
		}
		require.Equal(t, strings.Join(calls, ""), behindBuild(lib), fails)
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
		_, _, err := c.Compile(sample(), p, "a.recipe")
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "said so")
		require.ErrorIs(t, err, dl.StatusFail)
		trace := lib.Trace()
		require.True(t, strings.HasSuffix(trace, dltest.Line("synGraphDestroy", graph)), "%s\n%s", call, trace)
	}

	r := sample()
	r.Tensors[6].Name = "x"
	_, _, err := c.Compile(r, p, "a.recipe")
	require.ErrorContains(t, err, "recipe decode-seg1: tensor x: want a name that no other tensor has")
	r = sample()
	r.Nodes[2].After = nil
	_, _, err = c.Compile(r, p, "a.recipe")
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
		lib.Fail(v.call, 26, "pass loadTpcKernels failed")
		_, _, err := c.Compile(sample(), p, "a.recipe")
		require.ErrorIs(t, err, dl.StatusFail)
		require.ErrorContains(t, err, v.want)
		if v.not != "" {
			require.NotContains(t, err.Error(), v.not)
		}
		trace := lib.Trace()
		require.Equal(t, v.flag == "-DNEW", strings.Contains(trace, "synErrorDestroy 1\n"))
		require.True(t, strings.HasSuffix(trace, dltest.Line("synGraphDestroy", graph)), trace)
	}
}

func TestLoadPartial(t *testing.T) {
	lib := dltest.New(t, "-DPARTIAL")
	_, err := Load(lib.Library)
	require.ErrorContains(t, err, "libfake.so does not export synGraphSetAttributes, synSectionCreate; help: ")
	require.Empty(t, lib.Trace())
}

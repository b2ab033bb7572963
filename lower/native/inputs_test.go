package native

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/recipes/target"
)

// moeRecipe has a node whose parameters have no public layout.
func moeRecipe(t *testing.T, p *target.Profile) *recipes.Recipe {
	t.Helper()
	tensor := func(name string, d dtype.Type, dims ...int64) recipes.Tensor {
		return recipes.Tensor{Name: name, DType: d, Dims: dims, Section: recipes.Workspace}
	}
	r := &recipes.Recipe{
		Name: "experts",
		Tensors: []recipes.Tensor{
			tensor("x", dtype.BF16, 64, 4), tensor("ids", dtype.I32, 2, 4), tensor("probs", dtype.BF16, 2, 4),
			tensor("gate_up", dtype.BF16, 128, 64), tensor("down", dtype.BF16, 64, 64), tensor("y", dtype.BF16, 64, 4),
		},
		Nodes: []recipes.Node{{Name: "moe", GUID: "moe_bf16", In: []int{0, 1, 2, 3, 4}, Out: []int{5}, Params: &recipes.Params{Struct: "ns_MoeKernel::ParamsV2"}}},
	}
	_, err := p.EncodeNode(r, &r.Nodes[0])
	require.ErrorContains(t, err, "no layout of ns_MoeKernel::ParamsV2")
	return r
}

// Each thing that a native recipe depends on has its part in the key.
func TestKeyHasEveryInput(t *testing.T) {
	in := inputs{"1.21.0", recipes.Hash{1}, []string{"A=1"}, "00", recipes.Hash{2}}
	seen := map[recipes.Hash]string{in.key(recipes.Hash{3}).Hash(): "none"}
	see := func(in *inputs, recipe recipes.Hash, field string) {
		h := in.key(recipe).Hash()
		require.NotContains(t, seen, h, "%s changes nothing", field)
		seen[h] = field
	}
	see(&in, recipes.Hash{4}, "recipe")
	for i := range reflect.TypeFor[inputs]().NumField() {
		other := in
		field := reflect.TypeFor[inputs]().Field(i)
		switch p := any(fieldOf(&other, i)).(type) {
		case *string:
			*p += "x"
		case *recipes.Hash:
			p[5]++
		case *[]string:
			*p = []string{"A=1", "B=2"}
		default:
			t.Fatalf("field %s of a type that this test does not change", field.Name)
		}
		see(&other, recipes.Hash{3}, field.Name)
	}
	// Texts do not run into each other, in a field or between fields.
	see(&inputs{"1.21.0", recipes.Hash{1}, []string{"A=1x"}, "00", recipes.Hash{2}}, recipes.Hash{3}, "value")
	require.NotEmpty(t, in.key(recipes.Hash{}).Text("graph"))
}

// fieldOf is the address of a field that is not exported.
func fieldOf(in *inputs, i int) any {
	return []any{&in.driver, &in.library, &in.variables, &in.kernels, &in.profile}[i]
}

func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o666))
		return path
	}
	hash := func(content string) string { return recipes.Sum([]byte(content)).String() }
	a, b := file("a.so", "a"), file("b.so", "b")
	var in inputs
	require.NoError(t, in.environment([]string{
		"HOME=/root", "TPC_X=1", "ENABLE_Y=0", "TPC_X=2", "GC_KERNEL_PATH=" + a + ":" + b, "HABANA_LOGS=/tmp", "HABANA_PROFILE=1",
		"SYNAPSE_CONFIGURATION_FILE=" + b, "COMMON_DIMS=1", "RUN_TPC_FUSER=0", "QUILL_CACHE=x", "XTPC_=1", "EMPTY",
	}))
	require.Equal(t, []string{
		"COMMON_DIMS=1", "ENABLE_Y=0", "GC_KERNEL_PATH=" + hash("a") + ":" + hash("b"), "HABANA_PROFILE=1", "RUN_TPC_FUSER=0",
		"SYNAPSE_CONFIGURATION_FILE=" + hash("b"), "TPC_X=2",
	}, in.variables)
	require.Equal(t, hash("a")+":"+hash("b"), in.kernels)

	// Another place is the same library, another order is another one.
	var moved, turned inputs
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o777))
	require.NoError(t, moved.environment([]string{"GC_KERNEL_PATH=" + file("sub/a2.so", "a") + ":" + b}))
	require.Equal(t, in.kernels, moved.kernels)
	require.NoError(t, turned.environment([]string{"GC_KERNEL_PATH=" + b + ":" + a}))
	require.NotEqual(t, in.kernels, turned.kernels)

	require.ErrorContains(t, in.environment([]string{"GC_KERNEL_PATH=" + dir + "/none"}), "GC_KERNEL_PATH: open ")
	require.ErrorContains(t, in.environment([]string{"SYNAPSE_CONFIGURATION_FILE=" + dir + "/none"}), "SYNAPSE_CONFIGURATION_FILE: open ")
}

func TestHashFiles(t *testing.T) {
	write := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o666))
		return path
	}
	sum := func(files ...string) recipes.Hash {
		h, err := hashFiles(files)
		require.NoError(t, err)
		return h
	}
	a, b := write("a", "1"), write("b", "2")
	require.Equal(t, sum(a, b), sum(b, a))
	require.Equal(t, sum(a, b), sum(write("a", "1"), write("b", "2")))
	for _, other := range []recipes.Hash{sum(a), sum(a, write("b", "3")), sum(a, write("c", "2")), sum(write("a", "2"), write("b", "1"))} {
		require.NotEqual(t, sum(a, b), other)
	}
	_, err := hashFiles([]string{a + "x"})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestMappedLibraries(t *testing.T) {
	files, err := mappedLibraries(strings.NewReader(`7f00-7f01 r-xp 00000000 08:01 1   /usr/lib/habanalabs/libSynapse.so.1.21
7f01-7f02 r--p 00000000 08:01 1   /usr/lib/habanalabs/libSynapse.so.1.21
7f02-7f03 r--p 00000000 08:01 1   /usr/lib/habana labs/libTPCFuser.so
7f03-7f04 rw-p 00000000 00:00 0
7f04-7f05 r--p 00000000 00:00 0   [heap]
7f05-7f06 r--p 00000000 00:00 0   /usr/bin/quill
`))
	require.NoError(t, err)
	require.Equal(t, []string{"/usr/lib/habanalabs/libSynapse.so.1.21", "/usr/lib/habana labs/libTPCFuser.so"}, files)
}

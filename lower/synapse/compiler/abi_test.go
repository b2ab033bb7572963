package compiler

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dl/dltest"
	"quill/recipes/dtype"
	"quill/recipes/target"
)

func TestABI(t *testing.T) {
	a, err := dltest.Read("../../../recipes/dl/testdata/abi.json")
	require.NoError(t, err)
	structs := map[string]reflect.Type{"synTensorGeometry": reflect.TypeFor[geometry]()}
	require.NoError(t, a.Table(reflect.TypeFor[functions](), structs))
	for enum, values := range map[string]map[string]int64{
		"synDeviceType":     {"synDeviceGaudi2": deviceGaudi2},
		"synGraphAttribute": {"GRAPH_ATTRIBUTE_INFERENCE": attributeInference},
		"synTensorType":     {"DATA_TENSOR": dataTensor},
		"synGeometryType":   {"synGeometryMinSizes": geometryMin, "synGeometryMaxSizes": geometryMax},
		"synRecipeAttribute": {
			"RECIPE_ATTRIBUTE_WORKSPACE_SIZE": workspaceSize, "RECIPE_ATTRIBUTE_DEVICE_MEMORY_SIZE": deviceMemorySize,
		},
		"": {"HABANA_DIM_MAX": maxDims},
	} {
		require.NoError(t, a.Values(enum, values))
	}
	for i := range a.Structs {
		if a.Structs[i].Name == "synTensorGeometry" {
			a.Structs[i].Fields[1].Offset -= 8
		}
	}
	require.ErrorContains(t, a.Table(reflect.TypeFor[functions](), structs), "want dims at 192 of 4 bytes, have dims at 200 of 4")
}

// All of quill's types have the number of the C interface in each profile.
func TestTypeNumbers(t *testing.T) {
	a, err := dltest.Read("../../../recipes/dl/testdata/abi.json")
	require.NoError(t, err)
	names := map[dtype.Type]string{
		dtype.I8: "syn_type_int8", dtype.U8: "syn_type_uint8", dtype.I32: "syn_type_int32", dtype.I64: "syn_type_int64",
		dtype.BF16: "syn_type_bf16", dtype.F32: "syn_type_float",
	}
	for _, name := range target.Names() {
		p, err := target.Load(name)
		require.NoError(t, err)
		for dt, c := range names {
			n, err := typeNumber(p, &recipes.Tensor{Name: "x", DType: dt, Dims: []int64{1}})
			require.NoError(t, err)
			require.NoError(t, a.Values("synDataType", map[string]int64{c: int64(n)}))
		}
	}
	p := &target.Profile{Name: "none"}
	_, err = typeNumber(p, &recipes.Tensor{Name: "x", DType: dtype.F32, Dims: []int64{1}})
	require.EqualError(t, err, "tensor x: profile none has no type f32")
	for _, dims := range [][]int64{nil, make([]int64, 26)} {
		_, err = typeNumber(p, &recipes.Tensor{Name: "x", DType: dtype.F32, Dims: dims})
		require.ErrorContains(t, err, "dims, want 1 to 25")
	}
}

package launch

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dl"
	"quill/recipes/dl/dltest"
	"quill/recipes/dtype"
)

func TestABI(t *testing.T) {
	a, err := dltest.Read("../../../recipes/dl/testdata/abi.json")
	require.NoError(t, err)
	structs := map[string]reflect.Type{
		"synLaunchTensorInfo":          reflect.TypeFor[Binding](),
		"synRetrievedLaunchTensorInfo": reflect.TypeFor[retrieved](),
		"hcclUniqueId":                 reflect.TypeFor[dl.UniqueID](),
	}
	require.NoError(t, a.Table(reflect.TypeFor[functions](), structs))
	require.NoError(t, a.Table(reflect.TypeFor[collectives](), structs))
	for enum, values := range map[string]map[string]int64{
		"synDmaDir":   {"HOST_TO_DRAM": hostToDRAM, "DRAM_TO_HOST": dramToHost, "DRAM_TO_DRAM": dramToDRAM},
		"hcclRedOp_t": {"hcclSum": redOpSum},
		"":            {"HABANA_DIM_MAX": maxDims, "ENQUEUE_TENSOR_NAME_MAX_SIZE": maxName},
		"hcclDataType_t": {
			"hcclInt8": int64(hcclTypes[dtype.I8]), "hcclUint8": int64(hcclTypes[dtype.U8]), "hcclInt32": int64(hcclTypes[dtype.I32]),
			"hcclInt64": int64(hcclTypes[dtype.I64]), "hcclBfloat16": int64(hcclTypes[dtype.BF16]), "hcclFloat32": int64(hcclTypes[dtype.F32]),
		},
	} {
		require.NoError(t, a.Values(enum, values))
	}
	names := map[dtype.Type]string{
		dtype.I8: "syn_type_int8", dtype.U8: "syn_type_uint8", dtype.I32: "syn_type_int32", dtype.I64: "syn_type_int64",
		dtype.BF16: "syn_type_bf16", dtype.F32: "syn_type_float",
	}
	require.Len(t, dataTypes, len(names))
	for n, dt := range dataTypes {
		require.NoError(t, a.Values("synDataType", map[string]int64{names[dt]: int64(n)}))
	}

	// A place that is wrong by one is found in each field of each struct.
	for i := range a.Structs {
		have, ok := structs[a.Structs[i].Name]
		if !ok {
			continue
		}
		for k := range a.Structs[i].Fields {
			a.Structs[i].Fields[k].Offset++
			require.Error(t, a.Struct(a.Structs[i].Name, have))
			a.Structs[i].Fields[k].Offset--
		}
		require.NoError(t, a.Struct(a.Structs[i].Name, have))
	}
}

func TestBinding(t *testing.T) {
	v := Tensor{ID: 7, Type: 3, Dims: []uint64{640}}
	b := v.Bind(0x1000)
	require.Equal(t, Binding{Address: 0x1000, Type: 3, ID: 7, Size: [25]uint64{640, 1}}, b, "1-D tensors have sizes [n,1]")
	v.Dims = []uint64{5, 6, 7}
	require.Equal(t, [25]uint64{5, 6, 7}, ptr(v.Bind(0)).Size)
}

func ptr[T any](v T) *T { return &v }

func TestRetrievedRefused(t *testing.T) {
	r := retrieved{dtype: 8192}
	copy(r.name[:], "x")
	_, err := r.tensor()
	require.EqualError(t, err, "tensor x has element type 8192, which quill does not have; help: it is not a recipe that quill compiled")
	r.dtype, r.dims = 2, 26
	_, err = r.tensor()
	require.EqualError(t, err, "tensor x has 26 dims, more than 25")
}

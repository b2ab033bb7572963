package dl_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dl"
	"quill/recipes/dl/dltest"
)

func table(t *testing.T) *dltest.ABI {
	t.Helper()
	a, err := dltest.Read("testdata/abi.json")
	require.NoError(t, err)
	return a
}

var uniqueID = map[string]reflect.Type{"hcclUniqueId": reflect.TypeFor[dl.UniqueID]()}

func TestTables(t *testing.T) {
	a := table(t)
	require.NoError(t, a.Struct("hcclUniqueId", reflect.TypeFor[dl.UniqueID]()))
	for _, table := range dl.Tables {
		require.NoError(t, a.Table(table, nil))
	}
}

// All statuses and results have the headers' names.
func TestCodes(t *testing.T) {
	a := table(t)
	statuses, results := map[string]int64{}, map[string]int64{}
	for s := dl.Status(0); s.Name() != ""; s++ {
		statuses[s.Name()] = int64(s)
	}
	for r := dl.Result(-1); r.Name() != ""; r++ {
		results[r.Name()] = int64(r)
	}
	require.NoError(t, a.Values("synStatus", statuses))
	require.NoError(t, a.Values("hcclResult_t", results))
	for _, e := range a.Enums {
		switch e.Name {
		case "synStatus":
			require.Len(t, statuses, len(e.Values))
		case "hcclResult_t":
			require.Len(t, results, len(e.Values))
		}
	}
	require.NoError(t, a.Values("synStatus", map[string]int64{
		"synSuccess": int64(dl.Success), "synInvalidArgument": int64(dl.InvalidArgument), "synOutOfHostMemory": int64(dl.OutOfHostMemory),
		"synObjectAlreadyInitialized": int64(dl.AlreadyObject), "synNoDeviceFound": int64(dl.NoDeviceFound), "synBusy": int64(dl.Busy),
		"synFail": int64(dl.StatusFail), "synUninitialized": int64(dl.Uninitialized), "synAlreadyInitialized": int64(dl.AlreadyInit),
		"synFailedSectionValidation": int64(dl.SectionValidation), "synMappingNotFound": int64(dl.MappingNotFound),
	}))
	require.NoError(t, a.Values("hcclResult_t", map[string]int64{"hcclSuccess": int64(dl.ResultSuccess), "hcclUnsupported": int64(dl.ResultUnsupported)}))
	require.NoError(t, a.Values("", map[string]int64{"STATUS_DESCRIPTION_MAX_SIZE": dl.BriefSize}))
}

// What is wrong by one byte, place, name, width or argument is found.
func TestTableFindsFaults(t *testing.T) {
	type good struct {
		Last  func() string                                                       `sym:"synGetLastErrorMessage,optional"`
		Count func(n *uint32) dl.Status                                           `sym:"synDeviceGetCount"`
		Copy  func(s dl.Handle, src, n, dst uint64, dir uint32) dl.Status         `sym:"synMemCopyAsync"`
		Set   func(addr uint64, v uint8, n uint64, s dl.Handle) dl.Status         `sym:"synMemsetD8Async"`
		Init  func(c *dl.Handle, n int32, id dl.UniqueID, rank int32) dl.Result   `sym:"hcclCommInitRank"`
		Own   func(s dl.Handle, persistent bool) dl.Status                        `sym:"synSectionSetPersistent"`
		Get   func(v *uint64, ids *uint32, n uint32, r dl.Handle) dl.Status       `sym:"synRecipeGetAttribute"`
		Name  func(t *dl.Handle, g dl.Handle, kind uint32, name string) dl.Status `sym:"synTensorHandleCreate"`
	}
	require.NoError(t, table(t).Table(reflect.TypeFor[good](), uniqueID))

	fields := map[string]func(a *dltest.ABI){
		"offset": func(a *dltest.ABI) { a.Structs[4].Fields[1].Offset++ },
		"size":   func(a *dltest.ABI) { a.Structs[4].Size += 8 },
		"field":  func(a *dltest.ABI) { a.Structs[4].Fields[0].Size-- },
		"name":   func(a *dltest.ABI) { a.Structs[4].Fields[0].Name = "bytes" },
		"type":   func(a *dltest.ABI) { a.Structs[4].Fields[0].Type = "uint32_t[256]" },
		"less":   func(a *dltest.ABI) { a.Structs[4].Fields = a.Structs[4].Fields[:1] },
	}
	for what, plant := range fields {
		a := table(t)
		require.Equal(t, "hcclUniqueId", a.Structs[4].Name)
		plant(a)
		require.Error(t, a.Struct("hcclUniqueId", reflect.TypeFor[dl.UniqueID]()), what)
	}

	n := 0
	for i := range reflect.TypeFor[good]().NumField() {
		name, _ := dl.Tag(reflect.TypeFor[good]().Field(i))
		for k := range table(t).Functions {
			a := table(t)
			f := &a.Functions[k]
			if f.Name != name {
				continue
			}
			for arg, c := range f.Args {
				for _, other := range []string{"uint64_t", "uint32_t", "unsigned char", "bool", "const char*", "uint64_t*", "uint32_t*", "synTensor", "int"} {
					f.Args[arg] = other
					if equivalent(c, other) {
						require.NoError(t, a.Table(reflect.TypeFor[good](), uniqueID), "%s, argument %d: %s for %s", name, arg, other, c)
						continue
					}
					require.Error(t, a.Table(reflect.TypeFor[good](), uniqueID), "%s, argument %d: %s for %s", name, arg, other, c)
					n++
				}
				f.Args[arg] = c
			}
			f.Args = append(f.Args, "uint32_t")
			require.Error(t, a.Table(reflect.TypeFor[good](), uniqueID), name)
		}
	}
	require.Greater(t, n, 150)

	a := table(t)
	require.ErrorContains(t, a.Values("synStatus", map[string]int64{"synBusy": 23}), "synBusy: want 22, have 23")
	require.ErrorContains(t, a.Values("synStatus", map[string]int64{"synBored": 1}), "no synBored")
	type mandatory struct {
		Last func() string `sym:"synGetLastErrorMessage"`
	}
	require.ErrorContains(t, a.Table(reflect.TypeFor[mandatory](), nil), "came with 1.21, so it must be optional")
	type result struct {
		Destroy func() dl.Result `sym:"synDestroy"`
	}
	require.ErrorContains(t, a.Table(reflect.TypeFor[result](), nil), "result: want synStatus, have dl.Result")
	type bare struct {
		Destroy uintptr `sym:"synDestroy"`
	}
	require.ErrorContains(t, a.Table(reflect.TypeFor[bare](), nil), "has no method Call")
}

// equivalent reports whether two C types are passed alike.
func equivalent(a, b string) bool {
	class := map[string]string{
		"const uint64_t": "u64", "uint64_t": "u64", "const size_t": "u64", "size_t": "u64",
		"const uint32_t": "u32", "uint32_t": "u32", "const unsigned int": "u32", "const synDmaDir": "u32", "synTensorType": "u32",
		"const unsigned char": "u8", "unsigned char": "u8", "bool": "bool", "int": "i32", "const char*": "text",
		"uint64_t*": "u64*", "uint32_t*": "u32*", "const synRecipeAttribute*": "u32*",
		"const synStreamHandle": "handle", "synSectionHandle": "handle", "synGraphHandle": "handle", "const synRecipeHandle": "handle", "synTensor": "handle",
		"synTensor*": "handle*", "hcclComm_t*": "handle*", "hcclUniqueId": "id",
	}
	if class[a] == "" || class[b] == "" {
		panic(fmt.Sprintf("no class for %s or %s", a, b))
	}
	return class[a] == class[b]
}

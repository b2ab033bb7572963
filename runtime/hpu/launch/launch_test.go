//go:build linux && amd64 && !nohpu

package launch_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes/dl"
	"quill/recipes/dl/dltest"
	"quill/recipes/dtype"
	"quill/runtime/hpu/launch"
)

const device = 77 // what the library gives

func load(t testing.TB, flags ...string) (*dltest.Fake, *launch.Runtime) {
	t.Helper()
	lib := dltest.New(t, flags...)
	rt, err := launch.Load(lib.Library)
	require.NoError(t, err)
	return lib, rt
}

func acquire(t testing.TB) (*dltest.Fake, *launch.Runtime, *launch.Device) {
	t.Helper()
	lib, rt := load(t)
	d, err := rt.Acquire(3)
	require.NoError(t, err)
	require.Equal(t, "synInitialize\nsynDeviceAcquireByModuleId 3\n", lib.Trace())
	return lib, rt, d
}

func TestDevice(t *testing.T) {
	lib, rt, d := acquire(t)
	ids, err := rt.ModuleIDs()
	require.NoError(t, err)
	require.Equal(t, []uint32{3, 6}, ids)
	v, err := rt.Version()
	require.NoError(t, err)
	require.Equal(t, "1.21.0-test", v)
	free, total, err := d.Memory()
	require.NoError(t, err)
	require.Equal(t, []uint64{1 << 36, 1 << 37}, []uint64{free, total})
	addr, err := d.Malloc(5 << 30)
	require.NoError(t, err)
	require.EqualValues(t, 0x1001000000000080, addr)
	require.NoError(t, d.Free(addr))
	require.NoError(t, d.Release())
	require.NoError(t, rt.Close())
	require.Equal(t, dltest.Line("synDeviceGetCount")+dltest.Line("synDeviceGetModuleIDs", 2)+dltest.Line("synDriverGetVersion", 256)+
		dltest.Line("synDeviceGetMemoryInfo", device)+dltest.Line("synDeviceMalloc", device, 5<<30, 0, 0)+dltest.Line("synDeviceFree", device, addr, 0)+
		dltest.Line("synDeviceRelease", device)+dltest.Line("synDestroy"), lib.Trace())
}

func TestHostMemory(t *testing.T) {
	lib, _, d := acquire(t)
	mem := bytes.Repeat([]byte{42}, 1000)
	require.NoError(t, d.HostMap(mem))
	require.NoError(t, d.HostUnmap(mem))
	own, err := d.HostMalloc(4096)
	require.NoError(t, err)
	require.Len(t, own, 4096)
	own[4095] = 1
	require.NoError(t, d.HostFree(own))
	require.Equal(t, dltest.Line("synHostMap", device, 1000, 42)+dltest.Line("synHostUnmap", device, 42)+
		dltest.Line("synHostMalloc", device, 4096, 0)+dltest.Line("synHostFree", device, 0), lib.Trace())
	for _, f := range []func([]byte) error{d.HostMap, d.HostUnmap, d.HostFree} {
		require.EqualError(t, f(nil), "no bytes of host memory to map")
	}
}

func TestStream(t *testing.T) {
	lib, rt, d := acquire(t)
	s, err := d.NewStream()
	require.NoError(t, err)
	e, err := d.NewEvent()
	require.NoError(t, err)
	r, err := rt.LoadRecipe("/some/where.recipe", "where")
	require.NoError(t, err)
	const stream, event, recipe = 0x1000, 0x1010, 0x1020
	require.Equal(t, dltest.Line("synStreamCreateGeneric", device, 0, stream)+dltest.Line("synEventCreate", device, 0, event)+
		dltest.Line("synRecipeDeSerialize", `"/some/where.recipe"`, recipe), lib.Trace())

	const far = uint64(0x1001000000000080)
	mem := []byte{9, 8, 7}
	require.NoError(t, d.HostMap(mem))
	require.Equal(t, dltest.Line("synHostMap", device, 3, 9), lib.Trace())
	tensors := []launch.Binding{
		{Address: far, Type: 0, Size: [25]uint64{11, 12, 24: 13}, ID: 5},
		{Address: far + 128, Type: 6, Size: [25]uint64{21}, ID: 6<<56 | 1},
	}
	require.NoError(t, s.CopyToDevice(far, mem))
	require.NoError(t, s.CopyToHost(mem[1:], far+1))
	require.NoError(t, s.CopyOnDevice(far, far+128, 1<<33))
	require.NoError(t, s.Memset(far, 0xfe, 1<<34))
	require.NoError(t, s.Launch(r, tensors, far+256))
	require.NoError(t, s.Launch(r, nil, 0))
	require.NoError(t, s.Record(e))
	require.NoError(t, s.Synchronize())
	require.NoError(t, e.Synchronize())
	done, err := e.Query()
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, e.Destroy())
	require.NoError(t, s.Destroy())
	require.NoError(t, r.Destroy())
	require.Equal(t, dltest.Line("synMemCopyAsync", stream, 9, 3, far, 0)+
		dltest.Line("synMemCopyAsync", stream, far+1, 2, 8, 1)+
		dltest.Line("synMemCopyAsync", stream, far+128, 1<<33, far, 2)+
		dltest.Line("synMemsetD8Async", far, 0xfe, 1<<34, stream)+
		dltest.Line("synLaunch", stream, "{", 0, far, 0, 11, 12, 13, 5, "} {", 0, far+128, 6, 21, 0, 0, uint64(6<<56|1), "}", 2, far+256, recipe, 0)+
		dltest.Line("synLaunch", stream, 0, 0, recipe, 0)+
		dltest.Line("synEventRecord", event, stream)+
		dltest.Line("synStreamSynchronize", stream)+
		dltest.Line("synEventSynchronize", event)+dltest.Line("synEventQuery", event)+
		dltest.Line("synEventDestroy", event)+dltest.Line("synStreamDestroy", stream)+dltest.Line("synRecipeDestroy", recipe), lib.Trace())

	lib.Fail("synEventQuery", int32(dl.Busy), "")
	done, err = e.Query()
	require.NoError(t, err)
	require.False(t, done)
	lib.Fail("synLaunch", int32(dl.SectionValidation), "tensor tensor1 is elsewhere")
	err = s.Launch(r, tensors, 0)
	require.ErrorIs(t, err, dl.SectionValidation)
	require.ErrorContains(t, err, "where: synLaunch: status 30 (synFailedSectionValidation)")
	require.ErrorContains(t, err, "tensor tensor1 is elsewhere; help: all tensors of a section")
}

func TestRecipe(t *testing.T) {
	lib, rt := load(t)
	r, err := rt.LoadRecipe("a.recipe", "a")
	require.NoError(t, err)
	n, err := r.Workspace()
	require.NoError(t, err)
	require.EqualValues(t, 65792, n)
	tensors, err := r.Tensors()
	require.NoError(t, err)
	require.Equal(t, []launch.Tensor{
		{Name: "tensor0", ID: 0, Section: 4, Offset: 0, DType: dtype.BF16, Dims: []uint64{5}},
		{Name: "tensor1", ID: 1, Section: 5, Offset: 128, DType: dtype.I32, Dims: []uint64{15, 16, 17}},
	}, tensors)

	lib.Fail("synRecipeDeSerialize", 19, "")
	_, err = rt.LoadRecipe("b.recipe", "b")
	require.ErrorContains(t, err, "b: synRecipeDeSerialize: status 19 (synWrongParamsFile): not a recipe file, or one of another version")
}

func TestCollectives(t *testing.T) {
	lib, rt, d := acquire(t)
	s, err := d.NewStream()
	require.NoError(t, err)
	id, err := rt.UniqueID()
	require.NoError(t, err)
	require.Len(t, id, 1032)
	require.Equal(t, []byte{1, 8, 15}, id[:3])
	c, err := rt.InitRank(8, id, 5)
	require.NoError(t, err)
	var sum uint64
	for i, b := range id[:1024] {
		sum += uint64(i+1) * uint64(b)
	}
	const stream, comm = 0x1000, 0x1010
	require.Equal(t, dltest.Line("synStreamCreateGeneric", device, 0, stream)+"hcclGetUniqueId\n"+
		dltest.Line("hcclCommInitRank", 8, sum, 1000, 5, 0, comm), lib.Trace())

	const far = uint64(0x1001000000000080)
	require.NoError(t, c.AllReduce(s, far, far+128, 1<<33, dtype.F32))
	require.NoError(t, c.AllGather(s, far, far+128, 99, dtype.BF16))
	require.NoError(t, c.AsyncError())
	require.NoError(t, c.Finalize())
	require.NoError(t, c.Destroy())
	require.NoError(t, c.Abort())
	require.Equal(t, dltest.Line("hcclAllReduce", far, far+128, 1<<33, 7, 0, comm, stream)+
		dltest.Line("hcclAllGather", far, far+128, 99, 9, comm, stream)+
		dltest.Line("hcclCommGetAsyncError", comm)+dltest.Line("hcclCommFinalize", comm)+dltest.Line("hcclCommDestroy", comm)+
		dltest.Line("hcclCommAbort", comm), lib.Trace())

	lib.Fail("async", 16, "")
	err = c.AsyncError()
	require.ErrorIs(t, err, dl.Result(16))
	require.EqualError(t, err, "rank 5 of 8: a collective that was enqueued: result 16 (hcclPortDown): a port of the network is down; "+
		"the library says: peer 3 is gone; help: look at the links of the cards")
	lib.Fail("hcclAllReduce", 9, "connect: refused")
	require.ErrorContains(t, c.AllReduce(s, 0, 0, 1, dtype.F32), "rank 5 of 8: hcclAllReduce: result 9 (hcclSocketError): ranks could not connect; "+
		"the library says: some error: connect: refused; help: set HCCL_SOCKET_IFNAME")
	require.EqualError(t, c.AllReduce(s, 0, 0, 1, dtype.Invalid), "collectives have no type invalid")
	require.EqualError(t, c.AllGather(s, 0, 0, 1, dtype.Type(200)), "collectives have no type dtype(200)")
	_, err = rt.InitRank(8, id[1:], 0)
	require.ErrorContains(t, err, "has 1031 bytes, want 1032")
	_, err = rt.InitRank(8, id, 8)
	require.EqualError(t, err, "rank 8 of 8 ranks does not exist")
}

// Libraries before 1.20 have no function to finalize, and no texts.
func TestOldLibrary(t *testing.T) {
	lib, rt := load(t, "-DOLD")
	id, err := rt.UniqueID()
	require.NoError(t, err)
	c, err := rt.InitRank(2, id, 0)
	require.NoError(t, err)
	lib.Trace()
	require.NoError(t, c.Finalize())
	require.Empty(t, lib.Trace())
	lib.Fail("async", 5, "")
	require.EqualError(t, c.AsyncError(), "rank 0 of 2: a collective that was enqueued: result 5 (hcclSystemError): a system call failed; "+
		"the library says: system error; help: look at limits of open files and locked memory")
}

// What a step calls allocates nothing.
func TestAllocs(t *testing.T) {
	lib, rt, d := acquire(t)
	s, e, r, c, mem, tensors := step(t, rt, d)
	lib.Quiet(true)
	for name, f := range calls(s, e, r, c, mem, tensors) {
		require.NoError(t, f())
		require.Zero(t, testing.AllocsPerRun(2000, func() { _ = f() }), name)
	}
}

func step(t testing.TB, rt *launch.Runtime, d *launch.Device) (*launch.Stream, *launch.Event, *launch.Recipe, *launch.Comm, []byte, []launch.Binding) {
	t.Helper()
	s, err := d.NewStream()
	require.NoError(t, err)
	e, err := d.NewEvent()
	require.NoError(t, err)
	r, err := rt.LoadRecipe("a.recipe", "a")
	require.NoError(t, err)
	id, err := rt.UniqueID()
	require.NoError(t, err)
	c, err := rt.InitRank(2, id, 0)
	require.NoError(t, err)
	return s, e, r, c, make([]byte, 4096), make([]launch.Binding, 40)
}

func calls(s *launch.Stream, e *launch.Event, r *launch.Recipe, c *launch.Comm, mem []byte, tensors []launch.Binding) map[string]func() error {
	return map[string]func() error{
		"CopyToDevice":      func() error { return s.CopyToDevice(1, mem) },
		"CopyToHost":        func() error { return s.CopyToHost(mem, 1) },
		"CopyOnDevice":      func() error { return s.CopyOnDevice(1, 2, 3) },
		"Memset":            func() error { return s.Memset(1, 2, 3) },
		"Launch":            func() error { return s.Launch(r, tensors, 1) },
		"Record":            func() error { return s.Record(e) },
		"Synchronize":       s.Synchronize,
		"Event.Synchronize": e.Synchronize,
		"Event.Query":       func() error { _, err := e.Query(); return err },
		"AllReduce":         func() error { return c.AllReduce(s, 1, 2, 3, dtype.BF16) },
		"AllGather":         func() error { return c.AllGather(s, 1, 2, 3, dtype.F32) },
	}
}

func BenchmarkLaunch(b *testing.B) {
	lib, rt, d := acquire(b)
	s, _, r, _, _, tensors := step(b, rt, d)
	lib.Quiet(true)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Launch(r, tensors, 1); err != nil {
			b.Fatal(err)
		}
	}
}

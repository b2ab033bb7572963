package simsynapse

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// is wants a status.
func is(t *testing.T, want, have Status) {
	t.Helper()
	require.Equal(t, want.String(), have.String())
}

// bf16 and f32 are numbers of element types.
const bf16Type, f32Type = 2, 4

// sketch is a graph that a test draws.
type sketch struct {
	*testing.T
	l     *Library
	graph Handle
}

func newSketch(t *testing.T, l *Library) *sketch {
	return &sketch{t, l, got(l.GraphCreate(gaudi2))}
}

// temp is a tensor that no section has.
func (s *sketch) temp(name string, dims ...uint64) Handle {
	s.Helper()
	h := got(s.l.TensorHandleCreate(s.graph, 0, name))
	sizes := make([]uint64, MaxDims)
	copy(sizes, dims)
	ok(s.T, s.l.TensorSetGeometry(h, sizes, uint32(len(dims)), 1))
	ok(s.T, s.l.TensorSetDeviceDataType(h, f32Type))
	return h
}

// in is a tensor in a section, of its own if that is 0.
func (s *sketch) in(section Handle, offset uint64, name string, dims ...uint64) Handle {
	s.Helper()
	h := s.temp(name, dims...)
	if section == 0 {
		section = got(s.l.SectionCreate(s.graph))
	}
	ok(s.T, s.l.TensorAssignToSection(h, section, offset))
	return h
}

func (s *sketch) node(guid string, in, out []Handle, params ...byte) (uint64, Status) {
	s.Helper()
	return s.l.NodeCreate(s.graph, in, out, params, guid, guid+s.l.handleName())
}

func (l *Library) handleName() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	return string(rune('a'+l.last%26)) + string(rune('a'+l.last/26%26))
}

func (s *sketch) compile() (Handle, Status) { return s.l.GraphCompile(s.graph, "sketch") }

type hs = []Handle

// Statuses of calls as they were observed of the open-sourced graph compiler.
func TestInitialization(t *testing.T) {
	l, err := New(Config{Kernels: kernels(t)})
	require.NoError(t, err)
	is(t, Uninitialized, l.Destroy())
	is(t, Uninitialized, second(l.GraphCreate(gaudi2)))
	require.Contains(t, l.DriverVersion(), "simsynapse, a test library")
	ok(t, l.Initialize())
	ok(t, l.Initialize())
	is(t, InvalidArgument, l.ConfigurationSet("NO_SUCH_THING", "1"))
	ok(t, l.ConfigurationSet("GRAPH_VISUALIZATION", "1"))
	require.Equal(t, "1", got(l.ConfigurationGet("GRAPH_VISUALIZATION")))
	is(t, InvalidArgument, second(l.ConfigurationGet("NO_SUCH_THING")))
	// What needs a device.
	is(t, Fail, second(l.StreamCreate(0, 0)))
	is(t, Fail, second(l.DeviceMalloc(0, 128, 0, 0)))
	is(t, Fail, second(l.HostMalloc(0, 128)))
	is(t, Fail, second(l.DeviceMemory(0)))
	is(t, Fail, l.DeviceSynchronize(0))
	is(t, NoDeviceFound, l.DeviceRelease(0))
	require.Equal(t, []uint64{dramBase, 0xffffff, 1, 4, 16777216, 128, 8}, got(l.DeviceAttributes(-1, []int32{1, 5, 6, 7, 9, 11, 12})))
	is(t, Unsupported, second(l.DeviceAttributes(-1, []int32{3})))
	ok(t, l.Destroy())
	is(t, Uninitialized, l.Destroy())
	ok(t, l.Initialize())
	ok(t, l.Destroy())
}

func TestBuildingGraphs(t *testing.T) {
	l := open(t, Config{})
	for device := range int32(8) {
		ok(t, second(l.GraphCreate(device)))
	}
	s := newSketch(t, l)
	x := s.in(0, 0, "x", 8, 4)
	again, st := l.TensorHandleCreate(s.graph, 0, "x")
	is(t, NameIsAlreadyUsed, st)
	require.Equal(t, x, again)
	ok(t, second(l.TensorHandleCreate(s.graph, 0, "")))
	ok(t, second(l.TensorHandleCreate(s.graph, 0, "")))
	sizes := make([]uint64, MaxDims)
	ok(t, l.TensorSetGeometry(x, sizes, 0, 1))
	is(t, Fail, l.TensorSetGeometry(x, sizes, 26, 1))
	ok(t, l.TensorSetGeometry(x, sizes, 2, 1)) // sizes of 0
	copy(sizes, []uint64{8, 4})
	ok(t, l.TensorSetGeometry(x, sizes, 2, 1))
	ok(t, l.TensorSetGeometry(x, sizes, 2, 0))
	ok(t, l.TensorSetDeviceDataType(x, bf16Type))
	ok(t, l.TensorSetDeviceFullLayout(x, make([]uint32, 25), f32Type)) // the last one counts
	ok(t, l.TensorSetPermutation(x, []uint8{0, 1}))
	ok(t, l.TensorSetAllowPermutation(x, 0))
	ok(t, l.TensorSetExternal(x, false))
	section := got(l.SectionCreate(s.graph))
	ok(t, l.SectionSetGroup(section, 1))
	ok(t, l.SectionSetConst(section, false))
	ok(t, l.TensorAssignToSection(x, section, 0))
	ok(t, l.TensorAssignToSection(x, section, 128))
	is(t, Fail, l.SectionSetPersistent(section, false))
	dead := got(l.SectionCreate(s.graph))
	ok(t, l.SectionDestroy(dead))
	is(t, InvalidArgument, l.TensorAssignToSection(x, dead, 0))

	unset := got(l.TensorHandleCreate(s.graph, 0, "unset"))
	is(t, InvalidArgument, second(s.node("neg_fwd_f32", hs{unset}, hs{x})))
	is(t, Fail, second(s.node("no_such_thing_f32", hs{x}, hs{s.temp("t", 8, 4)})))
	is(t, InvalidArgument, second(s.node("reshape", hs{x}, hs{s.temp("u", 8, 5)})))
	is(t, InvalidArgument, second(s.node("concat", hs{x, x}, hs{s.temp("v", 8, 7)}, 1, 0, 0, 0)))
	is(t, InvalidArgument, second(s.node("neg_fwd_f32", hs{x}, hs{s.temp("w", 8, 4)}, 1)))
	is(t, Fail, second(s.node("transpose", hs{x}, hs{s.temp("k", 4, 8)}, 1)))
	first := got(s.node("neg_fwd_f32", hs{x}, hs{s.temp("n", 8, 4)}))
	require.NotZero(t, first, "tensors count too")
	is(t, ObjectAlreadySet, l.TensorSetDeviceDataType(x, bf16Type))
	is(t, Fail, second(s.node("neg_fwd_f32", hs{x}, hs{got2tensor(s, "n")})))
	is(t, InvalidArgument, l.NodeDependencySet(s.graph, []uint64{first}, []uint64{999}))
	is(t, Fail, l.GraphSetAttributes(s.graph, []int32{0}, []uint64{1}))
	ok(t, l.TensorDestroy(unset))
	ok(t, l.TensorDestroy(unset))
	ok(t, l.GraphDestroy(s.graph))
	ok(t, l.GraphDestroy(s.graph))
	is(t, InvalidArgument, l.GraphDestroy(12345))
}

// got2tensor is a tensor that has a name already.
func got2tensor(s *sketch, name string) Handle {
	h, _ := s.l.TensorHandleCreate(s.graph, 0, name)
	return h
}

func TestCompiling(t *testing.T) {
	l := open(t, Config{})
	add := func(s *sketch) {
		ok(t, second(s.node("add_fwd_f32", hs{s.in(0, 0, "x", 8), s.in(0, 0, "y", 8)}, hs{s.in(0, 0, "z", 8)})))
	}
	for _, c := range []struct {
		name string
		draw func(s *sketch)
		want Status
		log  string // what the log says
	}{
		{"a sum", add, Success, ""},
		{"nothing", func(*sketch) {}, Success, ""},
		{"no persistent result", func(s *sketch) { ok(t, second(s.node("neg_fwd_f32", hs{s.in(0, 0, "x", 8)}, hs{s.temp("y", 8)}))) }, Success, ""},
		{"an input that nothing makes", func(s *sketch) { ok(t, second(s.node("neg_fwd_f32", hs{s.temp("x", 8)}, hs{s.in(0, 0, "y", 8)}))) }, Fail, "reads x before it is written"},
		{"a product that does not fit", func(s *sketch) {
			ok(t, second(s.node("gemm", hs{s.in(0, 0, "a", 8, 4), s.in(0, 0, "b", 2, 9)}, hs{s.in(0, 0, "y", 2, 4)})))
		}, Fail, "gemm"},
		{"a product without parameters", func(s *sketch) {
			ok(t, second(s.node("gemm", hs{s.in(0, 0, "a", 8, 4), s.in(0, 0, "b", 2, 8)}, hs{s.in(0, 0, "y", 2, 4)})))
		}, Success, ""},
		{"a product with one of them", func(s *sketch) {
			ok(t, second(s.node("gemm", hs{s.in(0, 0, "a", 4, 8), s.in(0, 0, "b", 2, 8)}, hs{s.in(0, 0, "y", 2, 4)}, 1)))
		}, Success, ""},
		{"a tensor without a type", func(s *sketch) {
			x := got(l.TensorHandleCreate(s.graph, 0, "x"))
			ok(t, l.TensorSetGeometry(x, []uint64{8}, 1, 1))
			ok(t, l.TensorAssignToSection(x, got(l.SectionCreate(s.graph)), 0))
			ok(t, second(s.node("neg_fwd_f32", hs{x}, hs{s.in(0, 0, "y", 8)})))
		}, Fail, "has no data type"},
		{"nodes that wait for each other", func(s *sketch) {
			a := got(s.node("neg_fwd_f32", hs{s.in(0, 0, "x", 8)}, hs{s.in(0, 0, "y", 8)}))
			b := got(s.node("neg_fwd_f32", hs{s.in(0, 0, "v", 8)}, hs{s.in(0, 0, "w", 8)}))
			ok(t, l.NodeDependencySet(s.graph, []uint64{a}, []uint64{b}))
			ok(t, l.NodeDependencySet(s.graph, []uint64{b}, []uint64{a}))
		}, Fail, "waits for itself"},
		{"nodes in the order of reading", func(s *sketch) {
			y := s.temp("y", 8)
			ok(t, second(s.node("neg_fwd_f32", hs{y}, hs{s.in(0, 0, "z", 8)})))
			ok(t, second(s.node("neg_fwd_f32", hs{s.in(0, 0, "x", 8)}, hs{y})))
		}, Success, ""},
		{"a read and a write of the same bytes in no order", func(s *sketch) { race(s, false) }, Fail, "a path from node"},
		{"a read, then a write of the same bytes", func(s *sketch) { race(s, true) }, Success, ""},
		{"writes of bytes that overlap", func(s *sketch) {
			section := got(l.SectionCreate(s.graph))
			x := s.in(0, 0, "x", 8)
			ok(t, second(s.node("neg_fwd_f32", hs{x}, hs{s.in(section, 0, "y", 8)})))
			ok(t, second(s.node("exp_fwd_f32", hs{x}, hs{s.in(section, 16, "z", 8)})))
		}, Fail, "a path from node"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSketch(t, l)
			c.draw(s)
			r, st := s.compile()
			require.Equal(t, c.want.String(), st.String(), l.LastError())
			require.Contains(t, l.LastError(), c.log)
			_, st = s.compile()
			is(t, Fail, st)
			if c.want == Success {
				ok(t, l.GraphDestroy(s.graph))
				ok(t, second(l.WorkspaceSize(r)))
				ok(t, l.RecipeDestroy(r))
				ok(t, l.RecipeDestroy(r))
			}
		})
	}
	bare := open(t, Config{Kernels: "/nothing/there.so"})
	s := newSketch(t, bare)
	s.l = bare
	x := s.in(0, 0, "x", 8)
	ok(t, second(s.node("neg_fwd_f32", hs{x}, hs{s.in(0, 0, "y", 8)})))
	is(t, Fail, second(s.compile()))
	require.Contains(t, bare.LastError(), "GC_KERNEL_PATH names no file")
}

// race reads x and writes to its bytes, ordered or not.
func race(s *sketch, ordered bool) {
	section := got(s.l.SectionCreate(s.graph))
	x := s.in(section, 0, "x", 8)
	a := got(s.node("neg_fwd_f32", hs{x}, hs{s.in(0, 0, "y", 8)}))
	b := got(s.node("neg_fwd_f32", hs{s.in(0, 0, "v", 8)}, hs{s.in(section, 0, "w", 8)}))
	if ordered {
		ok(s.T, s.l.NodeDependencySet(s.graph, []uint64{a}, []uint64{b}))
	}
}

func TestRecipeFiles(t *testing.T) {
	l := open(t, Config{})
	s := newSketch(t, l)
	a, b := s.in(0, 0, "a", 8, 4), s.in(0, 0, "b", 2, 8)
	ok(t, second(s.node("gemm", hs{a, b}, hs{s.in(0, 256, "y", 2, 4)})))
	r := got(s.compile())
	dir := t.TempDir()
	path, again := filepath.Join(dir, "r"), filepath.Join(dir, "again")
	ok(t, l.RecipeSerialize(r, path))
	is(t, Fail, l.RecipeSerialize(r, filepath.Join(dir, "no", "folder")))
	data, err := os.ReadFile(path)
	require.NoError(t, err)

	read := got(l.RecipeDeSerialize(path))
	ok(t, l.RecipeSerialize(read, again))
	same, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, data, same)
	require.Equal(t, got(l.RecipeAttributes(r, []int32{0, 1, 2, 3, 4, 5, 6})), got(l.RecipeAttributes(read, []int32{0, 1, 2, 3, 4, 5, 6})))
	values := got(l.RecipeAttributes(read, []int32{0, 1, 2, 4, 5}))
	require.Equal(t, []uint64{scratch, 3, uint64(len(data) - 4), 3 * (312 + 2), 0}, values)
	is(t, InvalidArgument, second(l.RecipeAttributes(r, []int32{7})))
	require.EqualValues(t, 3, got(l.LaunchAmount(read)))
	require.Equal(t, []uint64{0, 1, 2}, got(l.LaunchIDs(read, 3)))
	is(t, InvalidArgument, second(l.LaunchIDs(read, 4)))
	require.Equal(t, []uint64{2, InvalidID, 0}, got(l.IDsByName(read, []string{"y", "nothing", "a"})))
	require.Equal(t, TensorInfo{"y", 2, 0, f32Type, []uint64{2, 4}, 6, 256, false}, got(l.LaunchInfos(read, []uint64{2}))[0])
	require.True(t, got(l.InfosByName(read, []string{"b"}))[0].IsInput)
	is(t, InvalidArgument, second(l.InfosByName(read, []string{"nothing"})))
	is(t, InvalidArgument, second(l.LaunchInfos(read, []uint64{3})))
	require.Equal(t, []string{"a", "b", "y"}, got(l.PersistentNames(read, 3)))
	require.Zero(t, got(l.SectionProperty(read, 4, 2)))
	is(t, Fail, second(l.SectionProperty(read, 4, 0)))

	write := func(b []byte) string {
		p := filepath.Join(t.TempDir(), "bad")
		require.NoError(t, os.WriteFile(p, b, 0o666))
		return p
	}
	is(t, WrongParamsFile, second(l.RecipeDeSerialize(filepath.Join(dir, "missing"))))
	is(t, WrongParamsFile, second(l.RecipeDeSerialize(write(nil))))
	is(t, Fail, second(l.RecipeDeSerialize(write(data[:len(data)-20]))))
	last := append([]byte(nil), data...)
	last[len(last)-1]++
	ok(t, second(l.RecipeDeSerialize(write(last)))) // nobody looks at the checksum
}

// Constant sections carry their data, which is given out and can be cleared.
func TestConstantSections(t *testing.T) {
	l := open(t, Config{})
	s := newSketch(t, l)
	section := got(l.SectionCreate(s.graph))
	ok(t, l.SectionSetConst(section, true))
	c := s.in(section, 0, "c", 2)
	ok(t, l.TensorSetHostPtr(c, []byte{1, 2, 3, 4, 5, 6, 7, 8}, f32Type, true))
	is(t, Unsupported, l.TensorSetHostPtr(c, []byte{1}, f32Type, false))
	ok(t, second(s.node("neg_fwd_f32", hs{c}, hs{s.in(0, 0, "y", 2)})))
	r := got(s.compile())
	require.EqualValues(t, 1, got(l.SectionProperty(r, 4, 2)))
	require.EqualValues(t, 8, got(l.SectionProperty(r, 4, 0)))
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, got(l.SectionData(r, 4)))
	require.Equal(t, []uint64{8 + 24}, got(l.RecipeAttributes(r, []int32{5})))
	ok(t, l.SectionHostBuffersClear(r, []uint32{4}))
	is(t, Fail, second(l.SectionData(r, 4)))
}

func TestDevices(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, Config{Dir: dir, Modules: 2}), open(t, Config{Dir: dir, Modules: 2})
	c := open(t, Config{Dir: dir, Modules: 2})
	require.EqualValues(t, 2, got(a.DeviceCount()))
	require.Equal(t, [7]uint32{4: 2}, got(a.DeviceCounts()))
	require.Equal(t, []uint32{0, 1}, got(a.ModuleIDs(8)))
	is(t, NoDeviceFound, second(a.DeviceAcquireByModule(2)))
	is(t, NoDeviceFound, second(a.DeviceAcquire(2)))
	ok(t, second(a.DeviceAcquireByModule(0)))
	is(t, DeviceAlreadyAcquired, second(a.DeviceAcquireByModule(1)))
	is(t, DeviceAlreadyAcquired, second(b.DeviceAcquireByModule(0))) // another process has it
	ok(t, second(b.DeviceAcquire(7)))                                // the lowest free one
	require.Equal(t, 1, got(b.DeviceInfo(0)).Module)
	is(t, DeviceAlreadyAcquired, second(c.DeviceAcquire(gaudi2)))
	ok(t, b.DeviceRelease(0))
	ok(t, second(c.DeviceAcquire(gaudi2)))
	require.Equal(t, uint64(1<<30), got(c.DeviceMemory(0)).Total)
	require.Equal(t, []uint64{1 << 30, 1 << 30}, got(c.DeviceAttributes(0, []int32{3, 4})))
}

func TestDeviceMemory(t *testing.T) {
	l := open(t, Config{DRAM: 1 << 20})
	g := newRig(t, l)
	a := got(l.DeviceMalloc(0, 100, 0, 0))
	b := got(l.DeviceMalloc(0, 100, 0, 0))
	require.EqualValues(t, dramBase, a)
	require.EqualValues(t, dramBase+128, b)
	at := got(l.DeviceMalloc(0, 128, dramBase+4096, 0))
	require.EqualValues(t, dramBase+4096, at)
	require.EqualValues(t, dramBase+256, got(l.DeviceMalloc(0, 1, dramBase+4096, 0))) // there is no room
	is(t, InvalidArgument, second(l.DeviceMalloc(0, 1, 3, 0)))
	is(t, InvalidArgument, second(l.DeviceMalloc(0, 0, 0, 0)))
	is(t, OutOfDeviceMemory, second(l.DeviceMalloc(0, 1<<20, 0, 0)))
	is(t, OutOfDeviceMemory, second(l.DeviceMalloc(0, 1<<60, 0, 0)))
	require.EqualValues(t, 1<<20-4*128, got(l.DeviceMemory(0)).Free)
	require.Equal(t, []byte{0xff, 0xff}, g.read(a, 2)) // nothing was written
	ok(t, l.DeviceFree(0, a))
	is(t, InvalidArgument, l.DeviceFree(0, a))
	is(t, InvalidArgument, l.DeviceFree(0, b+1))
	require.Equal(t, a, got(l.DeviceMalloc(0, 128, 0, 0)))

	h := g.hostMemory(256)
	is(t, InvalidArgument, l.MemCopy(g.stream, h.at, 101, b, HostToDevice)) // beyond the allocation
	is(t, InvalidArgument, l.MemCopy(g.stream, h.at, 1, dramBase+512, HostToDevice))
	is(t, MappingNotFound, l.MemCopy(g.stream, h.at, 257, b, HostToDevice))
	var own [64]byte
	is(t, MappingNotFound, l.MemCopy(g.stream, b, 64, uint64(uintptr(unsafe.Pointer(&own))), DeviceToHost))
	ok(t, l.HostMap(0, 64, unsafe.Pointer(&own)))
	is(t, InvalidArgument, l.HostMap(0, 8, unsafe.Pointer(&own[8])))
	ok(t, l.Memset(b, 0x0102, 2, 32, g.stream))
	ok(t, l.MemCopy(g.stream, b, 64, uint64(uintptr(unsafe.Pointer(&own))), DeviceToHost))
	g.sync()
	require.Equal(t, [4]byte{2, 1, 2, 1}, [4]byte(own[60:]))
	is(t, MappingNotFound, l.HostFree(0, unsafe.Pointer(&own)))
	ok(t, l.HostUnmap(0, unsafe.Pointer(&own)))
	is(t, MappingNotFound, l.HostUnmap(0, unsafe.Pointer(&own)))
	is(t, InvalidArgument, l.MemCopy(g.stream, b, 1, h.at, 3))
}

package simsynapse

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/target"
)

// kernels makes a file that stands for a library of kernels.
func kernels(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libkernels.so")
	require.NoError(t, os.WriteFile(path, []byte("nop"), 0o666))
	return path
}

// open makes an initialized library, which the test ends.
func open(t *testing.T, c Config) *Library {
	t.Helper()
	if c.Kernels == "" {
		c.Kernels = kernels(t)
	}
	if c.DRAM == 0 {
		c.DRAM = 1 << 30
	}
	l, err := New(c)
	require.NoError(t, err)
	ok(t, l.Initialize())
	t.Cleanup(func() { _ = l.Destroy() })
	return l
}

func ok(t *testing.T, st Status) {
	t.Helper()
	require.Equal(t, Success, st, st.String())
}

// got is the result of a call that must succeed.
func got[R any](r R, st Status) R {
	if st != Success {
		panic(st) // the stack says which call
	}
	return r
}

// built is a recipe as a graph.
type built struct {
	graph    Handle
	tensors  []Handle
	sections []Handle
	nodes    []uint64
}

// build makes the calls that describe a recipe, as a binding would.
func build(t *testing.T, l *Library, p *target.Profile, r *recipes.Recipe) built {
	t.Helper()
	b := built{graph: got(l.GraphCreate(gaudi2))}
	for range r.Sections {
		s := got(l.SectionCreate(b.graph))
		ok(t, l.SectionSetPersistent(s, true))
		b.sections = append(b.sections, s)
	}
	for i := range r.Tensors {
		x := &r.Tensors[i]
		h := got(l.TensorHandleCreate(b.graph, 0, x.Name))
		var sizes [MaxDims]uint64
		for k, d := range x.Dims {
			sizes[k] = uint64(d)
		}
		ok(t, l.TensorSetGeometry(h, sizes[:], uint32(len(x.Dims)), 1))
		ok(t, l.TensorSetDeviceDataType(h, int32(l.numberOf(x.DType))))
		if x.Section != recipes.Workspace {
			ok(t, l.TensorAssignToSection(h, b.sections[x.Section], uint64(x.Offset)))
		}
		b.tensors = append(b.tensors, h)
	}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		params, err := p.EncodeNode(r, n)
		require.NoError(t, err)
		b.nodes = append(b.nodes, got(b.node(l, n, params)))
	}
	for i := range r.Nodes {
		if after := r.Nodes[i].After; len(after) > 0 {
			var first []uint64
			for _, a := range after {
				first = append(first, b.nodes[a])
			}
			ok(t, l.NodeDependencySet(b.graph, first, []uint64{b.nodes[i]}))
		}
	}
	return b
}

func (b *built) node(l *Library, n *recipes.Node, params []byte) (uint64, Status) {
	operands := func(list []int) []Handle {
		var hs []Handle
		for _, t := range list {
			if t == recipes.Absent {
				hs = append(hs, 0)
			} else {
				hs = append(hs, b.tensors[t])
			}
		}
		return hs
	}
	return l.NodeCreate(b.graph, operands(n.In), operands(n.Out), params, n.GUID, n.Name)
}

// rig is a device with a stream and mapped memory, which the test gives back.
type rig struct {
	*testing.T
	*Library
	stream Handle
}

func newRig(t *testing.T, l *Library) *rig {
	t.Helper()
	ok(t, second(l.DeviceAcquireByModule(0)))
	return &rig{t, l, got(l.StreamCreate(0, 0))}
}

func second[R any](_ R, st Status) Status { return st }

func (r *rig) sync() { r.Helper(); ok(r.T, r.StreamSynchronize(r.stream)) }

// upload puts bytes into device memory of their own.
func (r *rig) upload(data []byte) uint64 {
	r.Helper()
	at := got(r.DeviceMalloc(0, uint64(max(1, len(data))), 0, 0))
	r.write(at, data)
	return at
}

func (r *rig) write(at uint64, data []byte) {
	r.Helper()
	if len(data) == 0 {
		return
	}
	h := r.hostMemory(len(data))
	copy(h.bytes, data)
	ok(r.T, r.MemCopy(r.stream, h.at, uint64(len(data)), at, HostToDevice))
	r.sync()
	h.free()
}

func (r *rig) read(at uint64, n int) []byte {
	r.Helper()
	if n == 0 {
		return nil
	}
	h := r.hostMemory(n)
	ok(r.T, r.MemCopy(r.stream, at, uint64(n), h.at, DeviceToHost))
	r.sync()
	out := slices.Clone(h.bytes)
	h.free()
	return out
}

// hostMemory is memory of the host that is mapped.
type hostMemory struct {
	rig   *rig
	at    uint64
	p     unsafe.Pointer
	bytes []byte
}

func (r *rig) hostMemory(n int) hostMemory {
	r.Helper()
	p := got(r.HostMalloc(0, uint64(n)))
	return hostMemory{r, uint64(uintptr(p)), p, unsafe.Slice((*byte)(p), n)}
}

func (h hostMemory) free() { ok(h.rig.T, h.rig.HostFree(0, h.p)) }

// longLag is a lag that no test reaches without waiting.
const longLag = time.Hour

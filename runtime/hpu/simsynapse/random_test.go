package simsynapse

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Calls in any order, with objects that are there, were there, or never were, end with a
// status: nothing panics, and nothing waits for what cannot come.
func TestCallsInAnyOrder(t *testing.T) {
	kernels, dir := kernels(t), t.TempDir()
	outcomes := map[bool]int{}
	rapid.Check(t, func(r *rapid.T) {
		l, err := New(Config{Kernels: kernels, DRAM: 1 << 16, Lag: time.Microsecond})
		require.NoError(r, err)
		require.Equal(r, Success, l.Initialize())
		defer l.Destroy()
		handles, numbers := []Handle{0, 7}, []uint64{0, 1, 4, 100, 1 << 15, 1 << 40, 1<<63 - 1, ^uint64(0), dramBase, dramBase + 128, dramBase + 1<<16}
		h := func() Handle { return rapid.SampledFrom(handles).Draw(r, "handle") }
		n := func() uint64 { return rapid.SampledFrom(numbers).Draw(r, "number") }
		few := func() int32 { return rapid.Int32Range(-1, 9).Draw(r, "few") }
		keep := func(x Handle, st Status) Status {
			if st == Success {
				handles = append(handles, x)
			}
			return st
		}
		at := func(x uint64, st Status) Status {
			if st == Success {
				numbers = append(numbers, x)
			}
			return st
		}
		path := filepath.Join(dir, "r")
		calls := []func() Status{
			func() Status { return keep(l.GraphCreate(4)) },
			func() Status { return keep(l.SectionCreate(h())) },
			func() Status {
				return keep(l.TensorHandleCreate(h(), 0, rapid.StringMatching("[a-d]?").Draw(r, "name")))
			},
			func() Status {
				return l.TensorSetGeometry(h(), append([]uint64{n(), n()}, make([]uint64, 23)...), uint32(few()), few())
			},
			func() Status { return l.TensorSetGeometry(h(), append([]uint64{8}, make([]uint64, 24)...), 1, 1) },
			func() Status {
				return l.TensorSetDeviceDataType(h(), rapid.SampledFrom([]int32{0, 2, 4, 4, 4}).Draw(r, "type"))
			},
			func() Status { return l.TensorAssignToSection(h(), h(), n()) },
			func() Status { return l.TensorAssignToSection(h(), h(), 0) },
			func() Status { return l.SectionSetConst(h(), true) },
			func() Status { return at(l.NodeCreate(h(), hs{h()}, hs{h()}, nil, "neg_fwd_f32", "n")) },
			func() Status { return at(l.NodeCreate(h(), hs{h(), h()}, hs{h()}, []byte{0}, "gemm", "m")) },
			func() Status { return l.NodeDependencySet(h(), []uint64{n()}, []uint64{n()}) },
			func() Status { return keep(l.GraphCompile(h(), "g")) },
			func() Status { return l.GraphDestroy(h()) },
			func() Status { return l.TensorDestroy(h()) },
			func() Status { return l.SectionDestroy(h()) },
			func() Status { return l.RecipeSerialize(h(), path) },
			func() Status { return keep(l.RecipeDeSerialize(path)) },
			func() Status { return l.RecipeDestroy(h()) },
			func() Status { return at(l.WorkspaceSize(h())) },
			func() Status { return second(l.LaunchInfos(h(), []uint64{n()})) },
			func() Status { return second(l.DeviceAcquireByModule(uint32(few()))) },
			func() Status { return l.DeviceRelease(0) },
			func() Status { return at(l.DeviceMalloc(0, n(), n(), 0)) },
			func() Status { return l.DeviceFree(0, n()) },
			func() Status { return keep(l.StreamCreate(0, 0)) },
			func() Status { return keep(l.EventCreate(0, 1)) },
			func() Status { return l.EventRecord(h(), h()) },
			func() Status { return l.StreamWaitEvent(h(), h(), 0) },
			func() Status { return l.EventSynchronize(h()) },
			func() Status { return second(l.EventElapsed(h(), h())) },
			func() Status { return l.StreamDestroy(h()) },
			func() Status { return l.StreamSynchronize(h()) },
			func() Status { return l.DeviceSynchronize(0) },
			func() Status { return l.MemCopy(h(), n(), n(), n(), few()) },
			func() Status { return l.Memset(n(), 1, 4, n(), h()) },
			func() Status {
				return l.Launch(h(), []LaunchTensor{{ID: n(), Address: n()}, {ID: n(), Address: n()}}, n(), h(), 0)
			},
			func() Status { return Status(l.AllReduce(n(), n(), n(), 7, 0, h(), h())) },
			func() Status { return Status(l.CommAbort(h())) },
		}
		for range rapid.IntRange(1, 300).Draw(r, "calls") {
			outcomes[rapid.SampledFrom(calls).Draw(r, "call")() == Success]++
		}
	})
	require.NotZero(t, outcomes[true])
	require.NotZero(t, outcomes[false])
}

// Whatever a recipe file holds, it is read or refused.
func FuzzUnpack(f *testing.F) {
	l, err := New(Config{Kernels: "random_test.go"})
	require.NoError(f, err)
	require.Equal(f, Success, l.Initialize())
	g := got(l.GraphCreate(gaudi2))
	x, y := got(l.TensorHandleCreate(g, 0, "x")), got(l.TensorHandleCreate(g, 0, "y"))
	for _, t := range []Handle{x, y} {
		require.Equal(f, Success, l.TensorSetGeometry(t, append([]uint64{8}, make([]uint64, 24)...), 1, 1))
		require.Equal(f, Success, l.TensorSetDeviceDataType(t, f32Type))
		require.Equal(f, Success, l.TensorAssignToSection(t, got(l.SectionCreate(g)), 0))
	}
	got(l.NodeCreate(g, hs{x}, hs{y}, nil, "neg_fwd_f32", "n"))
	path := filepath.Join(f.TempDir(), "r")
	require.Equal(f, Success, l.RecipeSerialize(got(l.GraphCompile(g, "g")), path))
	data, err := os.ReadFile(path)
	require.NoError(f, err)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := unpack(data)
		if err == nil {
			require.NoError(t, r.program.Check())
		}
	})
}

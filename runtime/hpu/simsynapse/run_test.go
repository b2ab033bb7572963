package simsynapse

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/runtime/host"
)

func f32s(v ...float32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// negation is a recipe y = −x of 4 numbers, and a launch of it.
type negation struct {
	*rig
	recipe  Handle
	x, y, w uint64
}

func newNegation(t *testing.T, c Config) *negation {
	l := open(t, c)
	s := newSketch(t, l)
	ok(t, second(s.node("neg_fwd_f32", hs{s.in(0, 0, "x", 4)}, hs{s.in(0, 0, "y", 4)})))
	n := &negation{recipe: got(s.compile())}
	n.rig = newRig(t, l)
	n.x, n.y = n.upload(f32s(1, 2, 3, 4)), n.upload(f32s(0, 0, 0, 0))
	n.w = got(l.DeviceMalloc(0, got(l.WorkspaceSize(n.recipe)), 0, 0))
	return n
}

func (n *negation) tensors() []LaunchTensor {
	return []LaunchTensor{{ID: 0, Address: n.x, Name: "x"}, {ID: 1, Address: n.y, Name: "y"}}
}

func (n *negation) launch() Status { return n.Launch(n.stream, n.tensors(), n.w, n.recipe, 0) }

// Work is done when somebody waits for it, in order.
func TestWorkIsLater(t *testing.T) {
	n := newNegation(t, Config{Lag: longLag})
	h := n.hostMemory(16)
	event := got(n.EventCreate(0, 1))
	before := got(n.EventCreate(0, 1))
	ok(t, n.EventQuery(event)) // was never recorded
	ok(t, n.EventRecord(before, n.stream))
	ok(t, n.launch())
	ok(t, n.MemCopy(n.stream, n.y, 16, h.at, DeviceToHost))
	ok(t, n.EventRecord(event, n.stream))
	is(t, Busy, n.StreamQuery(n.stream))
	is(t, Busy, n.EventQuery(event))
	is(t, Busy, n.StreamDestroy(n.stream))
	is(t, Busy, n.RecipeDestroy(n.recipe))
	is(t, Busy, n.HostFree(0, h.p))
	is(t, FailedToCollectTime, second(n.EventElapsed(before, event)))
	require.Equal(t, make([]byte, 16), h.bytes, "what was there before")
	ok(t, n.EventSynchronize(event))
	require.Equal(t, f32s(-1, -2, -3, -4), h.bytes)
	ok(t, n.StreamQuery(n.stream))
	ok(t, second(n.EventElapsed(before, event)))
	require.Equal(t, bytes.Repeat([]byte{pattern}, 16), n.read(n.w, 16), "the workspace holds nothing")

	// Another stream waits for an event of the first one.
	other := got(n.StreamCreate(0, 0))
	n.write(n.x, f32s(5, 6, 7, 8))
	ok(t, n.launch())
	ok(t, n.EventRecord(event, n.stream))
	ok(t, n.StreamWaitEvent(other, event, 0))
	ok(t, n.MemCopy(other, n.y, 16, h.at, DeviceToHost))
	ok(t, n.StreamSynchronize(other))
	require.Equal(t, f32s(-5, -6, -7, -8), h.bytes)
	ok(t, n.DeviceSynchronize(0))
	h.free()
	ok(t, n.StreamDestroy(other))
	is(t, InvalidArgument, n.StreamSynchronize(other))
	ok(t, n.EventDestroy(event))
	is(t, InvalidEventHandle, n.EventQuery(event))
}

// Work begins without anybody who waits, too.
func TestWorkBeginsByItself(t *testing.T) {
	n := newNegation(t, Config{Lag: time.Millisecond})
	ok(t, n.launch())
	require.Eventually(t, func() bool { return n.StreamQuery(n.stream) == Success }, time.Minute, time.Millisecond)
}

func TestLaunches(t *testing.T) {
	n := newNegation(t, Config{})
	free := got(n.DeviceMalloc(0, 64, 0, 0))
	ok(t, n.DeviceFree(0, free))
	for _, c := range []struct {
		name   string
		change func(x []LaunchTensor, w *uint64) []LaunchTensor
		want   Status
	}{
		{"nothing", func(x []LaunchTensor, _ *uint64) []LaunchTensor { return x }, Success},
		{"an entry that is skipped", func(x []LaunchTensor, _ *uint64) []LaunchTensor { return append(x, LaunchTensor{ID: InvalidID}) }, Success},
		{"a tensor that is not bound", func(x []LaunchTensor, _ *uint64) []LaunchTensor { return x[:1] }, InvalidArgument},
		{"an unknown id", func(x []LaunchTensor, _ *uint64) []LaunchTensor { x[1].ID = 2; return x }, InvalidArgument},
		{"another type", func(x []LaunchTensor, _ *uint64) []LaunchTensor { x[1].Type = 1; return x }, InvalidTensorProperties},
		{"another type in the id", func(x []LaunchTensor, _ *uint64) []LaunchTensor { x[1].ID |= 1 << 56; return x }, InvalidTensorProperties},
		{"no address", func(x []LaunchTensor, _ *uint64) []LaunchTensor { x[1].Address = 0; return x }, InvalidArgument},
		{"a wild address", func(x []LaunchTensor, _ *uint64) []LaunchTensor { x[1].Address = 4096; return x }, InvalidArgument},
		{"memory that was freed", func(x []LaunchTensor, _ *uint64) []LaunchTensor { x[1].Address = free; return x }, InvalidArgument},
		{"beyond an allocation", func(x []LaunchTensor, _ *uint64) []LaunchTensor { x[1].Address += 4; return x }, InvalidArgument},
		{"a tensor inside another one", func(x []LaunchTensor, _ *uint64) []LaunchTensor { x[1].Address = x[0].Address; return x }, FailedSectionValidation},
		{"no workspace", func(x []LaunchTensor, w *uint64) []LaunchTensor { *w = 0; return x }, InvalidArgument},
		{"a workspace that is too small", func(x []LaunchTensor, w *uint64) []LaunchTensor { *w = n.x; return x }, InvalidArgument},
		{"a workspace out of line", func(x []LaunchTensor, w *uint64) []LaunchTensor { *w++; return x }, InvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := n.w
			x := c.change(n.tensors(), &w)
			is(t, c.want, n.Launch(n.stream, x, w, n.recipe, 0))
		})
	}
	is(t, InvalidArgument, n.Launch(n.stream, n.tensors(), n.w, n.recipe, 2))
	is(t, InvalidArgument, n.Launch(n.stream, n.tensors(), n.w, 77, 0))
	named := n.tensors()
	named[0].ID, named[1].ID = 0, 0
	ok(t, n.Launch(n.stream, named, n.w, n.recipe, byName))
	named[0].Name = "z"
	is(t, InvalidArgument, n.Launch(n.stream, named, n.w, n.recipe, byName))
	n.sync()
	require.Equal(t, f32s(-1, -2, -3, -4), n.read(n.y, 16))
}

// Tensors of one section agree where it is; one address does for all.
func TestSectionOfSeveralTensors(t *testing.T) {
	l := open(t, Config{})
	s := newSketch(t, l)
	section := got(l.SectionCreate(s.graph))
	x, y := s.in(section, 0, "x", 4), s.in(section, 128, "y", 4)
	ok(t, second(s.node("neg_fwd_f32", hs{x}, hs{y})))
	r := got(s.compile())
	g := newRig(t, l)
	at := got(l.DeviceMalloc(0, 256, 0, 0))
	w := got(l.DeviceMalloc(0, got(l.WorkspaceSize(r)), 0, 0))
	g.write(at, f32s(1, 2, 3, 4))
	ok(t, l.Launch(g.stream, []LaunchTensor{{ID: 0, Address: at}, {ID: 1}}, w, r, 0))
	ok(t, l.Launch(g.stream, []LaunchTensor{{ID: 0, Address: at}, {ID: 1, Address: at + 128}}, w, r, 0))
	is(t, FailedSectionValidation, l.Launch(g.stream, []LaunchTensor{{ID: 0, Address: at}, {ID: 1, Address: at + 64}}, w, r, 0))
	require.Equal(t, f32s(-1, -2, -3, -4), g.read(at+128, 16))
}

// What is freed or unmapped while work needs it costs the device.
func TestUseAfterFree(t *testing.T) {
	n := newNegation(t, Config{Lag: longLag})
	ok(t, n.launch())
	ok(t, n.DeviceFree(0, n.y))
	is(t, DeviceReset, n.StreamSynchronize(n.stream))
	is(t, DeviceReset, n.launch())
	is(t, DeviceReset, second(n.DeviceMalloc(0, 1, 0, 0)))
	require.Contains(t, n.LastError(), "was freed before it was done")
	ok(t, n.DeviceRelease(0))
	ok(t, second(n.DeviceAcquireByModule(0))) // which resets it
}

// A recipe is used again on a device that was acquired anew.
func TestDeviceAcquiredAgain(t *testing.T) {
	n := newNegation(t, Config{})
	ok(t, n.launch())
	n.sync()
	ok(t, n.DeviceRelease(0))
	n.rig = newRig(t, n.Library)
	n.x, n.y = n.upload(f32s(1, 2, 3, 4)), n.upload(f32s(0, 0, 0, 0))
	n.w = got(n.DeviceMalloc(0, got(n.WorkspaceSize(n.recipe)), 0, 0))
	ok(t, n.launch())
	require.Equal(t, f32s(-1, -2, -3, -4), n.read(n.y, 16))
}

func TestFaults(t *testing.T) {
	n := newNegation(t, Config{Faults: "launch:2=26, launch:3@1=37,launch:4@0=37,alloc:4=4,sync:9=lost"})
	ok(t, n.launch())
	is(t, Fail, n.launch())
	ok(t, n.launch())
	is(t, 37, n.launch())
	is(t, OutOfDeviceMemory, second(n.DeviceMalloc(0, 1, 0, 0)))
	ok(t, second(n.DeviceMalloc(0, 1, 0, 0)))
	var st Status
	for range 10 {
		if st = n.StreamSynchronize(n.stream); st != Success {
			break
		}
	}
	is(t, DeviceReset, st)
	is(t, DeviceReset, n.launch())

	n = newNegation(t, Config{Faults: "copy:3=terminated"})
	h := n.hostMemory(16)
	is(t, SynapseTerminated, n.MemCopy(n.stream, n.y, 16, h.at, DeviceToHost))
	is(t, SynapseTerminated, n.launch())

	n = newNegation(t, Config{Faults: "launch:1=late"})
	begin := time.Now()
	ok(t, n.launch())
	n.sync()
	require.GreaterOrEqual(t, time.Since(begin), late)
	require.Equal(t, f32s(-1, -2, -3, -4), n.read(n.y, 16))

	n = newNegation(t, Config{Faults: "launch:1=stuck"})
	ok(t, n.launch())
	time.Sleep(10 * time.Millisecond)
	is(t, Busy, n.StreamQuery(n.stream))
	ok(t, n.DeviceRelease(0)) // ends it

	var signals []syscall.Signal
	n = newNegation(t, Config{Faults: "launch:1=segv,launch:2=abort", Die: func(s syscall.Signal) { signals = append(signals, s) }})
	ok(t, n.launch())
	ok(t, n.launch())
	require.Equal(t, []syscall.Signal{syscall.SIGSEGV, syscall.SIGABRT}, signals)
}

func TestParseFaults(t *testing.T) {
	for text, want := range map[string]string{
		"launch:0=26":     `"launch:0=26": want POINT:COUNT=ACTION, with a count from 1`,
		"launch:1":        "want POINT:COUNT=ACTION",
		"lunch:1=26":      `no point is called "lunch"`,
		"launch:1=broken": `action "broken" is no status and none of lost, `,
		"launch:1@x=26":   `module "x" is no number`,
		"seed=4/0":        "want seed=NUMBER or seed=NUMBER/MODULES",
		"seed=x":          "want seed=NUMBER or seed=NUMBER/MODULES",
	} {
		_, err := parseFaults(text)
		require.ErrorContains(t, err, want)
	}
	seen := map[string]bool{}
	for seed := range uint64(200) {
		a, b := drawFaults(seed, 2), drawFaults(seed, 2)
		require.Equal(t, a, b)
		for _, f := range a {
			seen[f.point+f.action] = true
			require.Positive(t, f.count)
			require.Less(t, f.module, 2)
		}
	}
	require.Greater(t, len(seen), 12)
	some, err := parseFaults("seed=9/2,launch:1=26")
	require.NoError(t, err)
	require.Equal(t, append(drawFaults(9, 2), fault{point: "synLaunch", count: 1, module: -1, status: Fail}), some.list)
}

// Every call is in the trace, with all that is needed to make it again.
func TestTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	n := newNegation(t, Config{Trace: path})
	ok(t, n.launch())
	n.sync()
	is(t, InvalidArgument, n.StreamSynchronize(9))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var calls []line
	for row := range bytes.Lines(text) {
		var l line
		dec := json.NewDecoder(bytes.NewReader(row))
		dec.UseNumber() // addresses have more bits than floats
		require.NoError(t, dec.Decode(&l))
		require.Equal(t, len(calls)+1, l.N)
		calls = append(calls, l)
	}
	find := func(name string) (found []line) {
		for _, c := range calls {
			if c.Call == name {
				found = append(found, c)
			}
		}
		return found
	}
	require.Equal(t, "x", find("synTensorHandleCreate")[0].Args["name"])
	require.NotZero(t, find("synTensorHandleCreate")[0].Out)
	node := find("synNodeCreateWithId")[0]
	require.Equal(t, "neg_fwd_f32", node.Args["guid"])
	require.Len(t, node.Args["in"], 1)
	launch := find("synLaunch")[0].Args["tensors"].([]any)
	require.Equal(t, json.Number(strconv.FormatUint(n.y, 10)), launch[1].(map[string]any)["Address"])
	last := calls[len(calls)-1]
	require.Equal(t, "synStreamSynchronize", last.Call)
	require.EqualValues(t, InvalidArgument, last.Status)
}

// The account says at every moment what was not given back.
func TestAccount(t *testing.T) {
	dir := t.TempDir()
	n := newNegation(t, Config{Dir: dir})
	read := func() (a Account) {
		paths, err := filepath.Glob(filepath.Join(dir, "account-*.json"))
		require.NoError(t, err)
		require.Len(t, paths, 1)
		text, err := os.ReadFile(paths[0])
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &a))
		return a
	}
	ok(t, n.launch())
	n.sync()
	a := read()
	require.Equal(t, Account{
		PID: os.Getpid(), DeviceBytes: 16 + 16 + scratch, Allocations: 3, Streams: 1, Recipes: 1, Graphs: 1,
	}, a)
	require.False(t, a.Clean())
	ok(t, n.Destroy())
	a = read()
	require.True(t, a.Destroyed)
	require.Equal(t, 3, a.Allocations)
	require.Equal(t, 1, a.Launches)
}

// ranks are processes that have a communicator.
type member struct {
	*rig
	comm Handle
}

func newRanks(t *testing.T, n int, faults string) []member {
	t.Helper()
	dir := t.TempDir()
	list := make([]member, n)
	for i := range list {
		l := open(t, Config{Faults: faults, Kernels: kernels(t)})
		l.config.Dir = dir // for the locks
		ok(t, second(l.DeviceAcquireByModule(uint32(i))))
		list[i].rig = &rig{t, l, got(l.StreamCreate(0, 0))}
	}
	id, res := list[0].UniqueID()
	require.Equal(t, HCCLSuccess, res)
	require.LessOrEqual(t, len(id), IDSize)
	var all sync.WaitGroup
	results := make([]Result, n)
	for i := range list {
		all.Go(func() { list[i].comm, results[i] = list[i].CommInitRank(int32(n), id, int32(i)) })
	}
	all.Wait()
	require.Equal(t, make([]Result, n), results)
	return list
}

// Sums of ranks are the bits that collectives of the host device give.
func TestCollectives(t *testing.T) {
	const ranks, n = 3, 1111
	list := newRanks(t, ranks, "")
	for _, c := range []struct {
		number int32
		dtype  dtype.Type
	}{{7, dtype.F32}, {9, dtype.BF16}, {2, dtype.I32}} {
		size := c.dtype.Size()
		d, err := host.New(host.Options{Ranks: ranks, Bytes: map[recipes.Buffer]int64{recipes.Arena: int64(2*n*size + n*size*ranks)}})
		require.NoError(t, err)
		at, to := make([]uint64, ranks), make([]uint64, ranks)
		for i, m := range list {
			data := make([]byte, n*size)
			for k := range n {
				v := float32(math.Sin(float64(k*ranks+i))) * float32(math.Pow(10, float64(k%9)))
				switch c.dtype {
				case dtype.F32:
					binary.LittleEndian.PutUint32(data[4*k:], math.Float32bits(v))
				case dtype.BF16:
					binary.LittleEndian.PutUint16(data[2*k:], dtype.ToBF16(v))
				default:
					binary.LittleEndian.PutUint32(data[4*k:], uint32(k*i)<<12)
				}
			}
			copy(d.Bytes(i, recipes.Arena), data)
			at[i] = m.upload(data)
			to[i] = got(m.DeviceMalloc(0, uint64(n*size*ranks), 0, 0))
		}
		sum, joined := int64(n*size), int64(2*n*size)
		require.NoError(t, d.Collective(t.Context(), &recipes.Collective{Kind: recipes.AllReduce, DType: c.dtype, Count: n, Out: sum}))
		require.NoError(t, d.Collective(t.Context(), &recipes.Collective{Kind: recipes.AllGather, DType: c.dtype, Count: n, Out: joined}))
		for i, m := range list {
			require.Equal(t, HCCLSuccess, m.AllGather(at[i], to[i], n, c.number, m.comm, m.stream))
		}
		for i, m := range list {
			require.Equal(t, d.Bytes(i, recipes.Arena)[joined:], m.read(to[i], n*size*ranks))
			require.Equal(t, HCCLSuccess, m.AllReduce(at[i], at[i], n, c.number, 0, m.comm, m.stream)) // in place
		}
		for i, m := range list {
			require.Equal(t, d.Bytes(i, recipes.Arena)[sum:joined], m.read(at[i], n*size), "%v of rank %d", c.dtype, i)
		}
		require.NoError(t, d.Close())
	}
	var at [ranks]uint64
	for i, m := range list {
		at[i] = m.upload(f32s(float32(i), 7))
		require.Equal(t, HCCLSuccess, m.Broadcast(at[i], at[i], 2, 7, 1, m.comm, m.stream))
		require.Equal(t, HCCLSuccess, m.Barrier(m.comm, m.stream))
	}
	for i, m := range list {
		require.Equal(t, f32s(1, 7), m.read(at[i], 8))
		require.Equal(t, HCCLInvalidArgument, m.AllReduce(at[i], at[i], 3000, 7, 0, m.comm, m.stream))
		require.Equal(t, HCCLUnsupported, m.AllReduce(at[i], at[i], 1, 7, 2, m.comm, m.stream))
		require.Equal(t, HCCLInvalidArgument, m.AllReduce(at[i], at[i], 1, 4, 0, m.comm, m.stream))
		count, _ := m.CommCount(m.comm)
		rank, _ := m.CommRank(m.comm)
		require.Equal(t, []int32{ranks, int32(i)}, []int32{count, rank})
		require.Equal(t, HCCLSuccess, m.CommFinalize(m.comm))
		require.Equal(t, HCCLSuccess, m.CommDestroy(m.comm))
		require.Equal(t, HCCLInvalidArgument, m.CommDestroy(m.comm))
	}
}

// A collective that a peer does not take part in ends when the communicator is aborted.
func TestStuckCollective(t *testing.T) {
	list := newRanks(t, 2, "reduce:1@1=stuck")
	for _, m := range list {
		at := m.upload(f32s(1))
		require.Equal(t, HCCLSuccess, m.AllReduce(at, at, 1, 7, 0, m.comm, m.stream))
	}
	time.Sleep(20 * time.Millisecond)
	for _, m := range list {
		is(t, Busy, m.StreamQuery(m.stream))
		require.Equal(t, HCCLSuccess, m.CommAbort(m.comm))
		is(t, FailHCCL, m.StreamSynchronize(m.stream))
	}
}

// A rank whose peer is gone never leaves the collective; it can be told by asking.
func TestPeerIsGone(t *testing.T) {
	list := newRanks(t, 2, "")
	ok(t, list[0].Destroy())
	m := list[1]
	at := m.upload(f32s(1))
	require.Equal(t, HCCLSuccess, m.AllReduce(at, at, 1, 7, 0, m.comm, m.stream))
	time.Sleep(20 * time.Millisecond)
	is(t, Busy, m.StreamQuery(m.stream))
	require.Equal(t, HCCLSuccess, m.CommAbort(m.comm))
	is(t, FailHCCL, m.StreamSynchronize(m.stream))
}

// Ranks that ask for different things are told, and wait.
func TestRanksThatDiffer(t *testing.T) {
	list := newRanks(t, 2, "")
	for i, m := range list {
		at := m.upload(f32s(1, 2))
		require.Equal(t, HCCLSuccess, m.AllReduce(at, at, uint64(1+i), 7, 0, m.comm, m.stream))
	}
	for _, m := range list {
		require.Eventually(t, func() bool {
			e, _ := m.CommAsyncError(m.comm)
			return e == HCCLSocketError && strings.Contains(m.LastError(), "rank 0 asks for")
		}, time.Minute, time.Millisecond)
	}
}

// Ranks may be told the address by the environment; then the id is not looked at.
func TestCommID(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	var all sync.WaitGroup
	for rank := range int32(2) {
		l := open(t, Config{CommID: address})
		ok(t, second(l.DeviceAcquireByModule(uint32(rank))))
		all.Go(func() {
			if rank == 0 {
				_, res := l.UniqueID()
				assert.Equal(t, HCCLSuccess, res)
			}
			_, res := l.CommInitRank(2, nil, rank)
			assert.Equal(t, HCCLSuccess, res)
		})
	}
	all.Wait()
}

// What a communicator cannot be.
func TestCommInitRefuses(t *testing.T) {
	l := open(t, Config{})
	id, res := l.UniqueID()
	require.Equal(t, HCCLSuccess, res)
	_, res = l.CommInitRank(1, id, 0)
	require.Equal(t, HCCLInvalidUsage, res)
	ok(t, second(l.DeviceAcquireByModule(0)))
	_, res = l.CommInitRank(1, id, 1)
	require.Equal(t, HCCLInvalidArgument, res)
	_, res = l.CommInitRank(1, []byte("nothing"), 0)
	require.Equal(t, HCCLSocketError, res)
	bad := bytes.Clone(id)
	bad[len(bad)-1]++
	_, res = l.CommInitRank(1, bad, 0) // a stranger
	require.Equal(t, HCCLSocketError, res)
	_, res = l.CommInitRank(1, id, 0)
	require.Equal(t, HCCLSuccess, res)
	ok(t, l.Destroy())
	_, res = l.UniqueID()
	require.Equal(t, HCCLUninitialized, res)
}

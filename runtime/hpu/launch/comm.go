package launch

import (
	"fmt"
	"runtime"
	"unsafe"

	"quill/recipes/dl"
	"quill/recipes/dtype"
)

// hcclTypes are the numbers of types in collectives (hcclDataType_t).
var hcclTypes = [...]int8{
	dtype.Invalid: -1, dtype.I8: 0, dtype.U8: 1, dtype.I32: 2, dtype.I64: 4, dtype.BF16: 9, dtype.F32: 7,
}

// bindComm resolves the functions of collectives, which one rank alone does not need.
func (r *Runtime) bindComm() error {
	r.commOnce.Do(func() { r.commErr = r.lib.Bind(&r.comm) })
	return r.commErr
}

func (r *Runtime) result(call string, res dl.Result, context string) error {
	if res == dl.ResultSuccess {
		return nil
	}
	return r.lib.Fail(call, res, context)
}

// idBytes is the size of the identity of a communicator.
const idBytes = int(unsafe.Sizeof(dl.UniqueID{}))

// UniqueID makes the identity of a communicator, 1,032 bytes, which all ranks need. Rank
// 0 makes it after all ranks have acquired their devices, and stays: it coordinates
// the others.
func (r *Runtime) UniqueID() ([]byte, error) {
	if err := r.bindComm(); err != nil {
		return nil, err
	}
	defer dl.Lock()()
	var id dl.UniqueID
	if err := r.result("hcclGetUniqueId", r.comm.GetUniqueID(&id), ""); err != nil {
		return nil, err
	}
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&id)), idBytes)...), nil
}

// InitRank joins a communicator of so many ranks as one of them. It returns when all
// have joined. With HCCL_COMM_ID set in the environment the library does not look at
// the id, but rank 0 must have called UniqueID all the same.
func (r *Runtime) InitRank(ranks int, id []byte, rank int) (*Comm, error) {
	if err := r.bindComm(); err != nil {
		return nil, err
	}
	if len(id) != idBytes {
		return nil, fmt.Errorf("the id of a communicator has %d bytes, want %d: those that UniqueID gave rank 0", len(id), idBytes)
	}
	if rank < 0 || rank >= ranks {
		return nil, fmt.Errorf("rank %d of %d ranks does not exist", rank, ranks)
	}
	defer dl.Lock()()
	var u dl.UniqueID
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&u)), idBytes), id)
	c := &Comm{rt: r, name: fmt.Sprintf("rank %d of %d", rank, ranks)}
	if err := r.result("hcclCommInitRank", r.comm.CommInitRank.Call(&c.handle, int32(ranks), u, int32(rank)), c.name); err != nil {
		return nil, err
	}
	return c, nil
}

// Comm is this rank's part of a communicator. Collectives are enqueued on a stream, in
// the same order on all ranks; they allocate nothing. A rank whose peer died waits in
// them for ever: Abort from another goroutine ends that.
type Comm struct {
	rt     *Runtime
	handle dl.Handle
	name   string
}

// AllReduce sums count elements over the ranks. send and recv may be the same address.
// Types are f32 and bf16.
func (c *Comm) AllReduce(s *Stream, send, recv, count uint64, t dtype.Type) error {
	n, err := hcclType(t)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	res := c.rt.comm.AllReduce.Call(uintptr(send), uintptr(recv), count, n, redOpSum, c.handle, s.handle)
	err = c.rt.result("hcclAllReduce", res, c.name)
	runtime.UnlockOSThread()
	return err
}

// AllGather joins count elements of each rank in the order of ranks: recv has ranks
// times as many.
func (c *Comm) AllGather(s *Stream, send, recv, count uint64, t dtype.Type) error {
	n, err := hcclType(t)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	res := c.rt.comm.AllGather.Call(uintptr(send), uintptr(recv), count, n, c.handle, s.handle)
	err = c.rt.result("hcclAllGather", res, c.name)
	runtime.UnlockOSThread()
	return err
}

func hcclType(t dtype.Type) (uint32, error) {
	if int(t) >= len(hcclTypes) || hcclTypes[t] < 0 {
		return 0, fmt.Errorf("collectives have no type %s", t)
	}
	return uint32(hcclTypes[t]), nil
}

// AsyncError is what went wrong since in a collective that was enqueued, nil if nothing
// did. The error is a [dl.Result].
func (c *Comm) AsyncError() error {
	defer dl.Lock()()
	var async dl.Result
	if err := c.rt.result("hcclCommGetAsyncError", c.rt.comm.CommAsyncError(c.handle, &async), c.name); err != nil || async == dl.ResultSuccess {
		return err
	}
	err := c.rt.lib.Fail("a collective that was enqueued", async, c.name)
	if get := c.rt.comm.CommAsyncMessage; get != nil {
		if text := get(c.handle); text != "" {
			err.Detail = "the library says: " + text
		}
	}
	return err
}

// Finalize waits for all collectives and prepares the end, where the library has that.
// Destroy follows.
func (c *Comm) Finalize() error {
	if c.rt.comm.CommFinalize == nil {
		return nil
	}
	defer dl.Lock()()
	return c.rt.result("hcclCommFinalize", c.rt.comm.CommFinalize(c.handle), c.name)
}

// Destroy waits for all collectives and frees the communicator, before streams are
// destroyed and the device is released.
func (c *Comm) Destroy() error {
	defer dl.Lock()()
	return c.rt.result("hcclCommDestroy", c.rt.comm.CommDestroy(c.handle), c.name)
}

// Abort frees the communicator and ends its collectives. It may itself hang after a
// failure: call it from a goroutine, wait some seconds, and end the process.
func (c *Comm) Abort() error {
	defer dl.Lock()()
	return c.rt.result("hcclCommAbort", c.rt.comm.CommAbort(c.handle), c.name)
}

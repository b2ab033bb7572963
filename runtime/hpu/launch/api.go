package launch

import (
	"unsafe"

	"quill/recipes/dl"
)

// Numbers of the C interface. The tests compare them with recipes/dl/testdata/abi.json.
const (
	hostToDRAM = 0 // synDmaDir
	dramToHost = 1
	dramToDRAM = 2

	maxDims = 25   // HABANA_DIM_MAX
	maxName = 1024 // ENQUEUE_TENSOR_NAME_MAX_SIZE, with the NUL

	redOpSum = 0 // hcclSum
)

// functions are those of a step's path and of what comes before and after it. Those of the
// path are uintptrs, which call without allocating (see package dl).
type functions struct {
	DeviceGetCount          func(n *uint32) dl.Status                                                  `sym:"synDeviceGetCount"`
	DeviceGetModuleIDs      func(ids, n *uint32) dl.Status                                             `sym:"synDeviceGetModuleIDs"`
	DeviceAcquireByModuleID func(dev *uint32, module uint32) dl.Status                                 `sym:"synDeviceAcquireByModuleId"`
	DeviceRelease           func(dev uint32) dl.Status                                                 `sym:"synDeviceRelease"`
	DeviceGetMemoryInfo     func(dev uint32, free, total *uint64) dl.Status                            `sym:"synDeviceGetMemoryInfo"`
	DeviceMalloc            func(dev uint32, size, wish uint64, flags uint32, addr *uint64) dl.Status  `sym:"synDeviceMalloc"`
	DeviceFree              func(dev uint32, addr uint64, flags uint32) dl.Status                      `sym:"synDeviceFree"`
	HostMalloc              func(dev uint32, size uint64, flags uint32, buf *unsafe.Pointer) dl.Status `sym:"synHostMalloc"`
	HostFree                func(dev uint32, buf unsafe.Pointer, flags uint32) dl.Status               `sym:"synHostFree"`
	HostMap                 func(dev uint32, size uint64, buf unsafe.Pointer) dl.Status                `sym:"synHostMap"`
	HostUnmap               func(dev uint32, buf unsafe.Pointer) dl.Status                             `sym:"synHostUnmap"`
	StreamCreateGeneric     func(stream *dl.Handle, dev, flags uint32) dl.Status                       `sym:"synStreamCreateGeneric"`
	StreamDestroy           func(stream dl.Handle) dl.Status                                           `sym:"synStreamDestroy"`
	EventCreate             func(event *dl.Handle, dev, flags uint32) dl.Status                        `sym:"synEventCreate"`
	EventDestroy            func(event dl.Handle) dl.Status                                            `sym:"synEventDestroy"`
	RecipeDeSerialize       func(recipe *dl.Handle, path string) dl.Status                             `sym:"synRecipeDeSerialize"`
	RecipeDestroy           func(recipe dl.Handle) dl.Status                                           `sym:"synRecipeDestroy"`
	WorkspaceGetSize        func(size *uint64, recipe dl.Handle) dl.Status                             `sym:"synWorkspaceGetSize"`
	LaunchAmount            func(recipe dl.Handle, n *uint32) dl.Status                                `sym:"synTensorRetrieveLaunchAmount"`
	LaunchIDs               func(recipe dl.Handle, ids *uint64, n uint32) dl.Status                    `sym:"synTensorRetrieveLaunchIds"`
	LaunchInfo              func(recipe dl.Handle, n uint32, infos *retrieved) dl.Status               `sym:"synTensorRetrieveLaunchInfoById"`

	Launch            launchFunc `sym:"synLaunch"`
	MemCopyAsync      copyFunc   `sym:"synMemCopyAsync"`
	MemsetD8Async     memsetFunc `sym:"synMemsetD8Async"`
	EventRecord       recordFunc `sym:"synEventRecord"`
	EventSynchronize  handleFunc `sym:"synEventSynchronize"`
	EventQuery        handleFunc `sym:"synEventQuery"`
	StreamSynchronize handleFunc `sym:"synStreamSynchronize"`
}

// collectives are the functions of HCCL, which libSynapse.so exports too. They are
// resolved with the first communicator.
type collectives struct {
	GetUniqueID      func(id *dl.UniqueID) dl.Result                   `sym:"hcclGetUniqueId"`
	CommInitRank     initRankFunc                                      `sym:"hcclCommInitRank"`
	CommFinalize     func(comm dl.Handle) dl.Result                    `sym:"hcclCommFinalize,optional"`
	CommDestroy      func(comm dl.Handle) dl.Result                    `sym:"hcclCommDestroy"`
	CommAbort        func(comm dl.Handle) dl.Result                    `sym:"hcclCommAbort"`
	CommAsyncError   func(comm dl.Handle, result *dl.Result) dl.Result `sym:"hcclCommGetAsyncError"`
	CommAsyncMessage func(comm dl.Handle) string                       `sym:"hcclCommGetAsyncErrorMessage,optional"`

	AllReduce allReduceFunc `sym:"hcclAllReduce"`
	AllGather allGatherFunc `sym:"hcclAllGather"`
}

// Binding binds a persistent tensor of a recipe to an address of the device
// (synLaunchTensorInfo). A caller keeps those of a launch and changes addresses only.
// [Tensor.Bind] makes them.
type Binding struct {
	name    uintptr `c:"tensorName"` // NULL: tensors are found by ID
	Address uint64  `c:"pTensorAddress"`
	Type    uint32  `c:"tensorType"` // as it was compiled
	_       uint32
	Size    [maxDims]uint64 `c:"tensorSize"` // fastest first
	ID      uint64          `c:"tensorId"`   // index | Type << 56
}

// retrieved is what a recipe says of a persistent tensor (synRetrievedLaunchTensorInfo).
type retrieved struct {
	name    [maxName]byte `c:"tensorName"`
	id      uint64        `c:"tensorId"` // filled by the caller
	kind    uint32        `c:"tensorType"`
	dtype   uint32        `c:"tensorDataType"`
	dims    uint32        `c:"tensorDims"`
	_       uint32
	maxSize [maxDims]uint64 `c:"tensorMaxSize"`
	_       [maxDims]uint64 `c:"tensorMinSize"`
	_       [maxDims]uint8  `c:"tensorPermutation"`
	_       [3]uint8
	section uint32 `c:"tensorSectionId"`
	offset  uint64 `c:"tensorOffsetInSection"`
	_       uint8  `c:"isInput"`
	_       [3]uint8
	_       [10]uint32 `c:"reserved"`
	_       uint32
}

type (
	launchFunc    uintptr
	copyFunc      uintptr
	memsetFunc    uintptr
	recordFunc    uintptr
	handleFunc    uintptr
	initRankFunc  uintptr
	allReduceFunc uintptr
	allGatherFunc uintptr
)

func (f launchFunc) Call(stream dl.Handle, tensors *Binding, n uint32, workspace uint64, recipe dl.Handle, flags uint32) dl.Status {
	return dl.Status(dl.Call(uintptr(f), uintptr(stream), uintptr(unsafe.Pointer(tensors)), uintptr(n), uintptr(workspace), uintptr(recipe), uintptr(flags), 0))
}

// Call takes addresses of the device, or of memory that is mapped and that the caller
// keeps until the copy is done.
func (f copyFunc) Call(stream dl.Handle, src, bytes, dst uint64, dir uint32) dl.Status {
	return dl.Status(dl.Call(uintptr(f), uintptr(stream), uintptr(src), uintptr(bytes), uintptr(dst), uintptr(dir), 0, 0))
}

func (f memsetFunc) Call(addr uint64, value uint8, n uint64, stream dl.Handle) dl.Status {
	return dl.Status(dl.Call(uintptr(f), uintptr(addr), uintptr(value), uintptr(n), uintptr(stream), 0, 0, 0))
}

func (f recordFunc) Call(event, stream dl.Handle) dl.Status {
	return dl.Status(dl.Call(uintptr(f), uintptr(event), uintptr(stream), 0, 0, 0, 0, 0))
}

func (f handleFunc) Call(h dl.Handle) dl.Status {
	return dl.Status(dl.Call(uintptr(f), uintptr(h), 0, 0, 0, 0, 0, 0))
}

func (f initRankFunc) Call(comm *dl.Handle, ranks int32, id dl.UniqueID, rank int32) dl.Result {
	return dl.CommInitRank(uintptr(f), comm, ranks, &id, rank)
}

func (f allReduceFunc) Call(send, recv uintptr, count uint64, dtype, op uint32, comm, stream dl.Handle) dl.Result {
	return dl.Result(dl.Call(uintptr(f), send, recv, uintptr(count), uintptr(dtype), uintptr(op), uintptr(comm), uintptr(stream)))
}

func (f allGatherFunc) Call(send, recv uintptr, count uint64, dtype uint32, comm, stream dl.Handle) dl.Result {
	return dl.Result(dl.Call(uintptr(f), send, recv, uintptr(count), uintptr(dtype), uintptr(comm), uintptr(stream), 0))
}

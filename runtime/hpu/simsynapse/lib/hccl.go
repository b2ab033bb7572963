//go:build cgo

package main

/*
#include <stdlib.h>
#include "abi.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"quill/runtime/hpu/simsynapse"
)

const wrong = C.int(simsynapse.HCCLInvalidArgument)

func answer[T any](to *T, v T, res simsynapse.Result) C.int {
	if to == nil {
		return wrong
	}
	if res == simsynapse.HCCLSuccess {
		*to = v
	}
	return C.int(res)
}

//export simUnsupportedHCCL
func simUnsupportedHCCL(name *C.char) C.int {
	library().Unsupported(text(name))
	return C.int(simsynapse.HCCLUnsupported)
}

//export hcclGetVersion
func hcclGetVersion(to *C.int) C.int {
	return answer(to, simsynapse.HCCLVersion, simsynapse.HCCLSuccess)
}

//export hcclGetUniqueId
func hcclGetUniqueId(to *C.simUniqueId) C.int {
	id, res := library().UniqueID()
	if to == nil {
		return wrong
	}
	*to = C.simUniqueId{length: C.uint64_t(len(id))}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&to.internal[0])), len(to.internal)), id)
	return C.int(res)
}

//export hcclCommInitRank
func hcclCommInitRank(to unsafe.Pointer, ranks C.int, id C.simUniqueId, rank C.int) C.int {
	if to == nil || id.length > simsynapse.IDSize {
		return wrong
	}
	h, res := library().CommInitRank(int32(ranks), copied[byte](&id.internal[0], int(id.length)), int32(rank))
	if res == simsynapse.HCCLSuccess {
		*(*uintptr)(to) = uintptr(h)
	}
	return C.int(res)
}

//export hcclCommFinalize
func hcclCommFinalize(c unsafe.Pointer) C.int { return C.int(library().CommFinalize(of(c))) }

//export hcclCommDestroy
func hcclCommDestroy(c unsafe.Pointer) C.int { return C.int(library().CommDestroy(of(c))) }

//export hcclCommAbort
func hcclCommAbort(c unsafe.Pointer) C.int { return C.int(library().CommAbort(of(c))) }

//export hcclCommCount
func hcclCommCount(c unsafe.Pointer, to *C.int) C.int {
	n, res := library().CommCount(of(c))
	return answer(to, C.int(n), res)
}

//export hcclCommUserRank
func hcclCommUserRank(c unsafe.Pointer, to *C.int) C.int {
	n, res := library().CommRank(of(c))
	return answer(to, C.int(n), res)
}

// hcclCommSynDevice is known to leave its result as it was.
//
//export hcclCommSynDevice
func hcclCommSynDevice(c unsafe.Pointer, to *C.int) C.int {
	_, res := library().CommRank(of(c))
	return C.int(res)
}

//export hcclCommGetAsyncError
func hcclCommGetAsyncError(c unsafe.Pointer, to *C.int) C.int {
	e, res := library().CommAsyncError(of(c))
	return answer(to, C.int(e), res)
}

// kept holds what is given out for good: C reads it whenever it likes.
type kept struct {
	mu    sync.Mutex
	texts map[string]*C.char
}

var messages = kept{texts: map[string]*C.char{}}

func (k *kept) text(s string) *C.char {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, ok := k.texts[s]
	if !ok {
		p = C.CString(s)
		k.texts[s] = p
	}
	return p
}

// constantData holds copies of the data of constant sections.
type constantData struct {
	mu   sync.Mutex
	data map[constantKey]unsafe.Pointer
}

type constantKey struct {
	recipe  handle
	section uint32
}

var constants = constantData{data: map[constantKey]unsafe.Pointer{}}

// keep gives the address of a section's data.
func (c *constantData) keep(r handle, section uint32, data []byte) uintptr {
	if len(data) == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := constantKey{r, section}
	if c.data[k] == nil {
		c.data[k] = C.CBytes(data)
	}
	return uintptr(c.data[k])
}

//export hcclGetErrorString
func hcclGetErrorString(res C.int) *C.char { return messages.text(simsynapse.Result(res).String()) }

//export hcclAllReduce
func hcclAllReduce(send, recv, count C.uint64_t, dataType, op C.int, c, s unsafe.Pointer) C.int {
	return C.int(library().AllReduce(uint64(send), uint64(recv), uint64(count), int32(dataType), int32(op), of(c), of(s)))
}

//export hcclAllGather
func hcclAllGather(send, recv, count C.uint64_t, dataType C.int, c, s unsafe.Pointer) C.int {
	return C.int(library().AllGather(uint64(send), uint64(recv), uint64(count), int32(dataType), of(c), of(s)))
}

//export hcclBroadcast
func hcclBroadcast(send, recv, count C.uint64_t, dataType, root C.int, c, s unsafe.Pointer) C.int {
	return C.int(library().Broadcast(uint64(send), uint64(recv), uint64(count), int32(dataType), int32(root), of(c), of(s)))
}

//export hcclBcast
func hcclBcast(buf, count C.uint64_t, dataType, root C.int, c, s unsafe.Pointer) C.int {
	return hcclBroadcast(buf, buf, count, dataType, root, c, s)
}

//export hcclBarrier
func hcclBarrier(c, s unsafe.Pointer) C.int { return C.int(library().Barrier(of(c), of(s))) }

//export hcclGroupStart
func hcclGroupStart() C.int { return C.int(simsynapse.HCCLSuccess) }

//export hcclGroupEnd
func hcclGroupEnd() C.int { return C.int(simsynapse.HCCLSuccess) }

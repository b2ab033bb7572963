//go:build cgo

package main

/*
#include <signal.h>
#include "abi.h"

// die ends the process as a fault in native code does, whoever handles signals.
static void die(int sig) {
    signal(sig, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, sig);
    sigprocmask(SIG_UNBLOCK, &set, 0);
    raise(sig);
}
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"quill/runtime/hpu/simsynapse"
)

// library is the one of the process. A wrong setting of the environment ends it: there is
// nobody who could be told otherwise.
var library = sync.OnceValue(func() *simsynapse.Library {
	c, err := simsynapse.FromEnv()
	var l *simsynapse.Library
	if err == nil {
		c.Die = func(s syscall.Signal) { C.die(C.int(s)) }
		l, err = simsynapse.New(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "simsynapse:", err)
		os.Exit(2)
	}
	return l
})

type handle = simsynapse.Handle

// of is the handle that a pointer of the interface is.
func of(p unsafe.Pointer) handle { return handle(uintptr(p)) }

// give stores a handle. It is no pointer, so it is stored as the number that it is.
func give(to unsafe.Pointer, h handle, st simsynapse.Status) C.int {
	if to == nil {
		return C.int(simsynapse.InvalidArgument)
	}
	if h != 0 {
		*(*uintptr)(to) = uintptr(h)
	}
	return C.int(st)
}

// put stores a result, if there is one.
func put[T any](to *T, v T, st simsynapse.Status) C.int {
	if to == nil {
		return C.int(simsynapse.InvalidArgument)
	}
	if st == simsynapse.Success {
		*to = v
	}
	return C.int(st)
}

// list is a C array as Go sees it.
func list[T any](p *T, n int) []T { return unsafe.Slice(p, n) }

// copied is a C array of numbers of which nothing is kept.
func copied[To, From ~uint8 | ~int8 | ~uint32 | ~int32 | ~uint64 | ~uintptr](p *From, n int) []To {
	out := make([]To, n)
	for i, v := range list(p, n) {
		out[i] = To(v)
	}
	return out
}

func text(p *C.char) string {
	if p == nil {
		return ""
	}
	return C.GoString(p)
}

// texts is an array of C strings.
func texts(p **C.char, n int) []string {
	out := make([]string, n)
	for i, s := range list(p, n) {
		out[i] = text(s)
	}
	return out
}

// store writes a text and its zero byte to n bytes; it says no if they are too few.
func store(to *C.char, n int, s string) C.int {
	if to == nil || n <= len(s) {
		return C.int(simsynapse.InvalidArgument)
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(to)), n)
	b[copy(b, s)] = 0
	return C.int(simsynapse.Success)
}

// launchTensors are the tensors of a launch.
func launchTensors(p *C.simLaunchTensorInfo, n int) []simsynapse.LaunchTensor {
	out := make([]simsynapse.LaunchTensor, n)
	for i := range out {
		x := &list(p, n)[i]
		out[i] = simsynapse.LaunchTensor{Name: text(x.tensorName), Address: uint64(x.pTensorAddress), Type: int32(x.tensorType), ID: uint64(x.tensorId)}
		sizes := x.tensorSize[:]
		for len(sizes) > 0 && sizes[len(sizes)-1] == 0 {
			sizes = sizes[:len(sizes)-1]
		}
		for _, s := range sizes {
			out[i].Sizes = append(out[i].Sizes, uint64(s))
		}
	}
	return out
}

// retrieved fills in what is told of a tensor by its id.
func retrieved(to *C.simRetrievedLaunchTensorInfo, x *simsynapse.TensorInfo) {
	*to = C.simRetrievedLaunchTensorInfo{
		tensorId: C.uint64_t(x.ID), tensorType: C.uint32_t(x.Type), tensorDataType: C.uint32_t(x.DType), tensorDims: C.uint32_t(len(x.Dims)),
		tensorSectionId: C.uint32_t(x.Section), tensorOffsetInSection: C.uint64_t(x.Offset),
	}
	store(&to.tensorName[0], len(to.tensorName), x.Name)
	for i, d := range x.Dims {
		to.tensorMaxSize[i], to.tensorMinSize[i] = C.uint64_t(d), C.uint64_t(d)
	}
	for i := range to.tensorPermutation {
		to.tensorPermutation[i] = C.uint8_t(i)
	}
	if x.IsInput {
		to.isInput = 1
	}
}

// metadata fills in what is told of a tensor by its name, which stays.
func metadata(to *C.simTensorMetadataInfo, x *simsynapse.TensorInfo) {
	*to = C.simTensorMetadataInfo{
		tensorName: to.tensorName, elementType: C.uint32_t(x.DType), scale: 1, dimensions: C.uint32_t(len(x.Dims)),
		sectionId: C.uint32_t(x.Section), offsetInSection: C.uint64_t(x.Offset),
	}
	for i, d := range x.Dims {
		to.dimensionsSize[i] = C.uint64_t(d)
	}
	if x.IsInput {
		to.isInput = 1
	}
}

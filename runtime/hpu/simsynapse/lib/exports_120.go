//go:build cgo && !syn116

package main

/*
#include "abi.h"
*/
import "C"

import (
	"sync"
	"unsafe"
)

// Release 1.20 added a compile that says why it fails. The reason is an object that the
// caller destroys.

var reasons = struct {
	sync.Mutex
	texts map[handle]string
	last  handle
}{texts: map[handle]string{}}

//export synGraphCompileV2
func synGraphCompileV2(to, g unsafe.Pointer, name, log *C.char, reason unsafe.Pointer) C.int {
	st := synGraphCompile(to, g, name, log)
	if reason == nil {
		return st
	}
	*(*uintptr)(reason) = 0
	if st != success {
		reasons.Lock()
		defer reasons.Unlock()
		reasons.last++
		reasons.texts[reasons.last] = library().LastError()
		*(*uintptr)(reason) = uintptr(reasons.last)
	}
	return st
}

// reasonOf is the text of a reason.
func reasonOf(reason unsafe.Pointer) (string, bool) {
	reasons.Lock()
	defer reasons.Unlock()
	t, ok := reasons.texts[of(reason)]
	return t, ok
}

//export synErrorGetMessageLength
func synErrorGetMessageLength(reason unsafe.Pointer, n *C.uint64_t) C.int {
	t, ok := reasonOf(reason)
	if !ok || n == nil {
		return invalid
	}
	*n = C.uint64_t(len(t))
	return success
}

//export synErrorGetMessage
func synErrorGetMessage(reason unsafe.Pointer, buf *C.char, n C.uint64_t) C.int {
	t, ok := reasonOf(reason)
	if !ok {
		return invalid
	}
	return store(buf, int(n), t)
}

//export synErrorDestroy
func synErrorDestroy(reason unsafe.Pointer) C.int {
	reasons.Lock()
	defer reasons.Unlock()
	if _, ok := reasons.texts[of(reason)]; !ok {
		return invalid
	}
	delete(reasons.texts, of(reason))
	return success
}

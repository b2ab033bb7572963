//go:build cgo && !syn116

package main

// #include <stdint.h>
import "C"

import (
	"sync"
	"unsafe"

	"quill/runtime/hpu/simsynapse"
)

// failures are why compiles failed, by the handles that were given out for them.
var failures struct {
	sync.Mutex
	last handle
	text map[handle]string
}

//export synGraphCompileV2
func synGraphCompileV2(to, g unsafe.Pointer, name, log *C.char, failure unsafe.Pointer) C.int {
	if name == nil {
		return invalid
	}
	h, st := library().GraphCompile(of(g), text(name))
	if st != simsynapse.Success && failure != nil {
		failures.Lock()
		defer failures.Unlock()
		if failures.text == nil {
			failures.text = make(map[handle]string)
		}
		failures.last++
		failures.text[failures.last] = library().LastError()
		give(failure, failures.last, st)
	}
	return give(to, h, st)
}

// failure is the text of a handle.
func failure(e unsafe.Pointer) (string, bool) {
	failures.Lock()
	defer failures.Unlock()
	s, ok := failures.text[of(e)]
	return s, ok
}

//export synErrorGetMessageLength
func synErrorGetMessageLength(e unsafe.Pointer, n *C.uint64_t) C.int {
	s, ok := failure(e)
	if !ok {
		return invalid
	}
	return put(n, C.uint64_t(len(s)), simsynapse.Success)
}

//export synErrorGetMessage
func synErrorGetMessage(e unsafe.Pointer, to *C.char, n C.uint64_t) C.int {
	s, ok := failure(e)
	if !ok || to == nil || n == 0 {
		return invalid
	}
	out := list((*byte)(unsafe.Pointer(to)), int(n))
	out[copy(out[:n-1], s)] = 0
	return 0
}

//export synErrorDestroy
func synErrorDestroy(e unsafe.Pointer) C.int {
	failures.Lock()
	defer failures.Unlock()
	if _, ok := failures.text[of(e)]; !ok {
		return invalid
	}
	delete(failures.text, of(e))
	return 0
}

//go:build linux && amd64 && !nohpu

package dl

import (
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// open loads a library. Its symbols do not serve others: that is how the vendor's own
// users load it, and all its references must resolve now rather than in a step.
func open(name string) (uintptr, error) {
	defer Lock()() // the loader keeps what is wrong for each thread
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func symbol(handle uintptr, name string) uintptr {
	fn, err := purego.Dlsym(handle, name)
	if err != nil {
		return 0
	}
	return fn
}

func register(fptr any, fn uintptr) { purego.RegisterFunc(fptr, fn) }

// Call calls a C function of up to seven arguments, integers and pointers, and gives its
// integer result; arguments that the function does not have are 0. It allocates
// nothing, which it would with a list of arguments. A pointer must be converted in the argument itself,
// uintptr(unsafe.Pointer(p)): the compiler then keeps what it points to on the heap,
// which does not move, and alive during the call.
//
//go:uintptrescapes
func Call(fn, a1, a2, a3, a4, a5, a6, a7 uintptr) uintptr {
	args := pool.Get().(*callArgs)
	*args = callArgs{a1, a2, a3, a4, a5, a6, a7}
	r, _, _ := purego.SyscallN(fn, args[:]...)
	pool.Put(args)
	return r
}

// callArgs are the arguments of one call; the list that SyscallN takes must be on the
// heap.
type callArgs [7]uintptr

var pool = sync.Pool{New: func() any { return new(callArgs) }}

// byValue holds the address of the assembly that passes a structure by value.
var byValue uintptr

// initRank is what the assembly reads, in this order.
type initRank struct {
	fn    uintptr
	comm  *Handle
	ranks int
	id    *UniqueID
	rank  int
}

// CommInitRank calls hcclCommInitRank at fn, which takes the id by value: 1,032 bytes on
// the stack, which no other way of calling passes. It blocks until all ranks called it.
func CommInitRank(fn uintptr, comm *Handle, ranks int32, id *UniqueID, rank int32) Result {
	a := &initRank{fn, comm, int(ranks), id, int(rank)}
	return Result(Call(byValue, uintptr(unsafe.Pointer(a)), 0, 0, 0, 0, 0, 0))
}

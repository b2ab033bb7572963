package host

import (
	"runtime"
	"syscall"
)

// pause is called between two looks at something that another thread is about
// to change; i counts them. Where that takes long, the other thread may be
// waiting for this one's processor.
func pause(i int) {
	if i%spins == spins-1 {
		runtime.Gosched()
		_, _, _ = syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0) // cannot fail
	}
}

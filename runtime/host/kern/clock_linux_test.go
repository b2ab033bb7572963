package kern

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// busy is the mean time for which the threads of threads goroutines that run f
// had a processor: what others run on the machine in between does not count.
func busy(threads int, f func(i int)) time.Duration {
	times := make([]time.Duration, threads)
	spread(threads, func(i int) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		start := threadTime()
		f(i)
		times[i] = threadTime() - start
	})
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	return sum / time.Duration(threads)
}

func threadTime() time.Duration {
	const clockThreadCPUTime = 3
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockThreadCPUTime, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}

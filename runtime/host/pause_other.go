//go:build !linux

package host

import "runtime"

// pause is called between two looks at something that another thread is about
// to change; i counts them.
func pause(i int) {
	if i%spins == spins-1 {
		runtime.Gosched()
	}
}

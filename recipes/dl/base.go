package dl

import "runtime"

// base are the functions that compiler and runtime have in common.
type base struct {
	Initialize       func() Status                   `sym:"synInitialize"`
	Destroy          func() Status                   `sym:"synDestroy"`
	DriverGetVersion func(buf *byte, n int32) Status `sym:"synDriverGetVersion"`
}

// bind fills the table of common functions, once.
func (l *Library) bind() error {
	if l.bound {
		return nil
	}
	err := l.Bind(&l.base)
	l.bound = err == nil
	return err
}

// Start initialises the library. Each Start needs a [Library.Stop]; those after the
// first only count. It needs no device.
func (l *Library) Start() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.bind(); err != nil {
		return err
	}
	if l.uses == 0 {
		defer Lock()()
		// Something else in this process may have initialised it.
		if s := l.base.Initialize(); s != Success && s != AlreadyObject && s != AlreadyInit {
			return l.Fail("synInitialize", s, l.name)
		}
	}
	l.uses++
	return nil
}

// Stop ends the library with the last user of it. Devices must have been released.
func (l *Library) Stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.uses == 0 {
		return nil
	}
	l.uses--
	if l.uses > 0 {
		return nil
	}
	defer Lock()()
	if s := l.base.Destroy(); s != Success && s != Uninitialized {
		return l.Fail("synDestroy", s, l.name)
	}
	return nil
}

// Version is the version of the driver and the library, as in "1.21.0". It needs no
// Start.
func (l *Library) Version() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.bind(); err != nil {
		return "", err
	}
	defer Lock()()
	buf := make([]byte, 256)
	if s := l.base.DriverGetVersion(&buf[0], int32(len(buf))); s != Success {
		return "", l.Fail("synDriverGetVersion", s, l.name)
	}
	return CString(buf), nil
}

// Lock keeps the goroutine on its thread until what it returns is called: the library
// keeps the text of an error for each thread.
func Lock() (unlock func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

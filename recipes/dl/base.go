package dl

import "runtime"

// base are the functions that compiler and runtime have in common.
type base struct {
	Initialize         func() Status                                                `sym:"synInitialize"`
	Destroy            func() Status                                                `sym:"synDestroy"`
	DriverGetVersion   func(buf *byte, n int32) Status                              `sym:"synDriverGetVersion"`
	RecipeGetAttribute func(values *uint64, ids *uint32, n uint32, r Handle) Status `sym:"synRecipeGetAttribute"`
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

// RecipeAttributes are what a compiled recipe says of itself, in bytes if it is not a
// number.
type RecipeAttributes struct {
	Workspace         uint64 // scratch memory that each launch needs
	PersistentTensors uint64 // number of tensors that a launch binds
	HostMemory        uint64
	ExternalTensors   uint64 // number of tensors with events of their own
	TensorTables      uint64 // what describes the persistent tensors
	Constants         uint64 // sections of constants
	DeviceMemory      uint64 // programs and their data, which the library keeps on the device
}

// recipeAttributes are the numbers of a recipe's attributes (synRecipeAttribute), in the order
// of the fields of RecipeAttributes.
var recipeAttributes = [...]uint32{0, 1, 2, 3, 4, 5, 6}

// RecipeAttributes asks a recipe for its attributes. The library must be started.
func (l *Library) RecipeAttributes(recipe Handle, context string) (RecipeAttributes, error) {
	defer Lock()()
	var v [len(recipeAttributes)]uint64
	ids := recipeAttributes
	if s := l.base.RecipeGetAttribute(&v[0], &ids[0], uint32(len(ids)), recipe); s != Success {
		return RecipeAttributes{}, l.Fail("synRecipeGetAttribute", s, context)
	}
	return RecipeAttributes{v[0], v[1], v[2], v[3], v[4], v[5], v[6]}, nil
}

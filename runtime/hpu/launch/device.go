// Package launch loads recipes of the vendor's format and launches them on a Gaudi 2
// through libSynapse.so.
//
//	Runtime ──Acquire──→ Device ──→ Stream  copies, launches, events
//	   │                    └─────→ memory of device and host
//	   ├──LoadRecipe──→ Recipe ──Tensors──→ Binding, bound once
//	   └──InitRank────→ Comm   all-reduce, all-gather on a stream
//
// Work that a Stream is given runs in its order, copies, launches and collectives
// alike; calls return before it is done. Addresses of the device are numbers. What a
// step calls allocates nothing. One process has one device.
package launch

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"quill/recipes/dl"
)

// Runtime is the library's part that runs recipes. Its methods may be called by several
// goroutines, as may those of a Device; a Stream or a Comm has one user at a time.
type Runtime struct {
	lib *dl.Library
	fn  functions

	commOnce sync.Once
	comm     collectives
	commErr  error
}

// Load binds the functions of the library and initialises it.
func Load(lib *dl.Library) (*Runtime, error) {
	r := &Runtime{lib: lib}
	if err := lib.Bind(&r.fn); err != nil {
		return nil, err
	}
	return r, lib.Start()
}

// Close ends the use of the library. Devices must have been released.
func (r *Runtime) Close() error { return r.lib.Stop() }

// Version is the version of the installed software.
func (r *Runtime) Version() (string, error) { return r.lib.Version() }

// check is nil for success. The thread must not have changed since the call.
func (r *Runtime) check(call string, s dl.Status, context string) error {
	if s == dl.Success {
		return nil
	}
	return r.lib.Fail(call, s, context)
}

// Count is the number of devices of the machine, taken or not.
func (r *Runtime) Count() (int, error) {
	defer dl.Lock()()
	var n uint32
	err := r.check("synDeviceGetCount", r.fn.DeviceGetCount(&n), "")
	return int(n), err
}

// ModuleIDs are the numbers of the devices by their places in the machine, by which
// [Runtime.Acquire] takes them.
func (r *Runtime) ModuleIDs() ([]uint32, error) {
	n, err := r.Count()
	if err != nil || n == 0 {
		return nil, err
	}
	defer dl.Lock()()
	ids := make([]uint32, n)
	have := uint32(n)
	if err := r.check("synDeviceGetModuleIDs", r.fn.DeviceGetModuleIDs(&ids[0], &have), ""); err != nil {
		return nil, err
	}
	return ids[:min(int(have), n)], nil
}

// Acquire takes the device of a module. A process should have one device, and hold it until it
// ends: one that is released and taken again at once was seen to read zeros.
func (r *Runtime) Acquire(module uint32) (*Device, error) {
	defer dl.Lock()()
	d := &Device{rt: r, name: fmt.Sprintf("device of module %d", module)}
	if err := r.check("synDeviceAcquireByModuleId", r.fn.DeviceAcquireByModuleID(&d.id, module), d.name); err != nil {
		return nil, err
	}
	return d, nil
}

// Device is a device that this process has.
type Device struct {
	rt   *Runtime
	id   uint32
	name string

	mu     sync.Mutex
	mapped map[unsafe.Pointer]struct{} // host memory, which stays alive as long as it is mapped
}

// Release gives the device back. What was made on it must have been destroyed and freed.
func (d *Device) Release() error {
	defer dl.Lock()()
	return d.rt.check("synDeviceRelease", d.rt.fn.DeviceRelease(d.id), d.name)
}

// Memory is the free device memory and all of it, in bytes.
func (d *Device) Memory() (free, total uint64, err error) {
	defer dl.Lock()()
	err = d.rt.check("synDeviceGetMemoryInfo", d.rt.fn.DeviceGetMemoryInfo(d.id, &free, &total), d.name)
	return free, total, err
}

// Malloc allocates device memory; the address is a multiple of 128.
func (d *Device) Malloc(bytes uint64) (addr uint64, err error) {
	defer dl.Lock()()
	err = d.rt.check("synDeviceMalloc", d.rt.fn.DeviceMalloc(d.id, bytes, 0, 0, &addr), fmt.Sprintf("%s: %d bytes", d.name, bytes))
	return addr, err
}

// Free frees what Malloc gave.
func (d *Device) Free(addr uint64) error {
	defer dl.Lock()()
	return d.rt.check("synDeviceFree", d.rt.fn.DeviceFree(d.id, addr, 0), fmt.Sprintf("%s: address %#x", d.name, addr))
}

var errNoMemory = errors.New("no bytes of host memory to map")

// HostMap makes host memory known to the device, so that copies can read and write it
// without another copy. It is kept alive until HostUnmap.
func (d *Device) HostMap(mem []byte) error {
	if len(mem) == 0 {
		return errNoMemory
	}
	defer dl.Lock()()
	p := unsafe.Pointer(unsafe.SliceData(mem))
	s := d.rt.fn.HostMap(d.id, uint64(len(mem)), p)
	if err := d.rt.check("synHostMap", s, fmt.Sprintf("%s: %d bytes", d.name, len(mem))); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mapped == nil {
		d.mapped = map[unsafe.Pointer]struct{}{}
	}
	d.mapped[p] = struct{}{}
	return nil
}

// HostUnmap ends a HostMap; mem begins where that began.
func (d *Device) HostUnmap(mem []byte) error {
	if len(mem) == 0 {
		return errNoMemory
	}
	defer dl.Lock()()
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if err := d.rt.check("synHostUnmap", d.rt.fn.HostUnmap(d.id, p), fmt.Sprintf("%s: %d bytes", d.name, len(mem))); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mapped, p)
	return nil
}

// HostMalloc allocates host memory that the device knows. It is not Go's: HostFree
// frees it.
func (d *Device) HostMalloc(bytes uint64) ([]byte, error) {
	defer dl.Lock()()
	context := fmt.Sprintf("%s: %d bytes", d.name, bytes)
	var p unsafe.Pointer
	if err := d.rt.check("synHostMalloc", d.rt.fn.HostMalloc(d.id, bytes, 0, &p), context); err != nil {
		return nil, err
	}
	if p == nil {
		return nil, d.rt.lib.Fail("synHostMalloc", dl.OutOfHostMemory, context)
	}
	return unsafe.Slice((*byte)(p), bytes), nil
}

// HostFree frees what HostMalloc gave.
func (d *Device) HostFree(mem []byte) error {
	if len(mem) == 0 {
		return errNoMemory
	}
	defer dl.Lock()()
	return d.rt.check("synHostFree", d.rt.fn.HostFree(d.id, unsafe.Pointer(unsafe.SliceData(mem)), 0), d.name)
}

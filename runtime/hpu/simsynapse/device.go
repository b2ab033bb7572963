package simsynapse

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/gofrs/flock"

	"quill/recipes"
	"quill/runtime/host"
)

// Facts of a simulated device.
const (
	dramBase  = 0x1001_0000_0000_0000
	tpcMask   = 0xffffff
	maxRMW    = 16 << 20
	alignment = recipes.Alignment
)

// device is the one that the process has acquired. Its id is 0.
type device struct {
	module      int
	lock        *flock.Flock
	host        *host.Device
	memory      []byte
	allocations []*allocation // by address
	mapped      []*mapping    // by address
	launches    int
}

// allocation is device memory that was given out, from byte at of the device's.
type allocation struct {
	at, size int64
	freed    atomic.Bool
}

// mapping is memory of the host that the device may reach.
type mapping struct {
	p     unsafe.Pointer
	at    uint64 // its address
	size  uint64
	own   []byte // of synHostMalloc
	freed atomic.Bool
}

// DeviceCount is synDeviceGetCount.
func (l *Library) DeviceCount() (uint32, Status) {
	return call(l, "synDeviceGetCount", nil, func() (uint32, Status) { return uint32(l.config.Modules), Success })
}

// DeviceCounts is synDeviceCount and synDeviceGetCountByDeviceType: by type. The last one,
// of the invalid type, is not set.
func (l *Library) DeviceCounts() ([7]uint32, Status) {
	return call(l, "synDeviceCount", nil, func() (counts [7]uint32, _ Status) {
		counts[gaudi2] = uint32(l.config.Modules)
		return counts, Success
	})
}

// ModuleIDs is synDeviceGetModuleIDs, for an array of n.
func (l *Library) ModuleIDs(n uint32) ([]uint32, Status) {
	return call(l, "synDeviceGetModuleIDs", args{"n": n}, func() ([]uint32, Status) {
		var ids []uint32
		for i := range min(n, uint32(l.config.Modules)) {
			ids = append(ids, i)
		}
		return ids, Success
	})
}

// DeviceAcquireByModule is synDeviceAcquireByModuleId.
func (l *Library) DeviceAcquireByModule(module uint32) (uint32, Status) {
	return call(l, "synDeviceAcquireByModuleId", args{"module": module}, func() (uint32, Status) {
		if module >= uint32(l.config.Modules) {
			return 0, l.refused(NoDeviceFound, "module %d of %d", module, l.config.Modules)
		}
		return 0, l.acquire([]int{int(module)})
	})
}

// DeviceAcquire is synDeviceAcquireByDeviceType (7 is any type) and synDeviceAcquire: the
// lowest module that is free.
func (l *Library) DeviceAcquire(deviceType int32) (uint32, Status) {
	return call(l, "synDeviceAcquireByDeviceType", args{"device_type": deviceType}, func() (uint32, Status) {
		if deviceType != gaudi2 && deviceType != 7 {
			return 0, l.refused(NoDeviceFound, "there is no device of type %d", deviceType)
		}
		modules := make([]int, l.config.Modules)
		for i := range modules {
			modules[i] = i
		}
		return 0, l.acquire(modules)
	})
}

// acquire takes the first module that no other process has.
func (l *Library) acquire(modules []int) Status {
	if l.device != nil {
		return l.refused(DeviceAlreadyAcquired, "this process has module %d", l.device.module)
	}
	for _, m := range modules {
		d := &device{module: m}
		if l.config.Dir != "" {
			d.lock = flock.New(filepath.Join(l.config.Dir, fmt.Sprintf("module-%d.lock", m)))
			if ok, err := d.lock.TryLock(); err != nil {
				return l.refused(Fail, "module %d: %v", m, err)
			} else if !ok {
				continue
			}
		}
		if err := d.open(&l.config); err != nil {
			d.unlock()
			return l.refused(Fail, "module %d: %v", m, err)
		}
		l.device = d
		return Success
	}
	return l.refused(DeviceAlreadyAcquired, "other processes have modules %v", modules)
}

func (d *device) open(c *Config) error {
	var err error
	if d.memory, err = newPages(c.DRAM); err != nil {
		return fmt.Errorf("%d bytes of device memory (SIMSYNAPSE_DRAM): %w", c.DRAM, err)
	}
	d.host, err = host.New(host.Options{
		Ranks: 1, Threads: c.Threads, Bytes: map[recipes.Buffer]int64{recipes.Arena: c.DRAM},
		Memory: func(int, recipes.Buffer, int64) ([]byte, error) { return d.memory, nil },
	})
	if err != nil {
		return errors.Join(err, freePages(d.memory))
	}
	return nil
}

func (d *device) unlock() {
	if d.lock != nil {
		_ = d.lock.Unlock() // the end of the process unlocks it otherwise
	}
}

// DeviceRelease is synDeviceRelease. Streams, events, memory and mappings go with the device,
// once pending work is done.
func (l *Library) DeviceRelease(id uint32) Status {
	return l.wait("synDeviceRelease", args{"device": id}, func() (func() Status, Status) {
		if l.device == nil || id != 0 {
			return nil, l.refused(NoDeviceFound, "device %d is not acquired", id)
		}
		l.releaseDevice()
		return nil, Success
	})
}

func (l *Library) releaseDevice() {
	d := l.device
	l.device = nil
	for _, c := range l.comms {
		c.close() // ends collectives that wait
	}
	for h, s := range l.streams {
		s.stop()
		delete(l.streams, h)
	}
	l.events = map[Handle]*event{}
	for _, r := range l.recipes {
		r.loaded, r.bound = nil, nil
	}
	err := d.host.Close()
	for _, m := range d.mapped {
		if m.own != nil {
			err = errors.Join(err, freePages(m.own))
		}
	}
	if err = errors.Join(err, freePages(d.memory)); err != nil {
		l.logs.runtime("module %d: %v", d.module, err)
	}
	d.unlock()
	l.lost.Store(int32(Success))
}

// withDevice makes a call about the acquired device.
func withDevice[R any](l *Library, name string, id uint32, a args, body func(*device) (R, Status)) (R, Status) {
	a["device"] = id
	return call(l, name, a, func() (out R, st Status) {
		if l.device == nil || id != 0 {
			return out, l.refused(Fail, "%s: device %d is not acquired", name, id)
		}
		return body(l.device)
	})
}

// DeviceInfo is what synDeviceGetInfoV2 tells.
type DeviceInfo struct {
	DRAMBase, DRAMSize, TPCMask uint64
	DeviceType                  int32
	Module                      int
}

// DeviceInfo is synDeviceGetInfo and synDeviceGetInfoV2.
func (l *Library) DeviceInfo(id uint32) (DeviceInfo, Status) {
	return withDevice(l, "synDeviceGetInfoV2", id, args{}, func(d *device) (DeviceInfo, Status) {
		return DeviceInfo{dramBase, uint64(len(d.memory)), tpcMask, gaudi2, d.module}, Success
	})
}

// Memory is device memory in bytes.
type Memory struct{ Free, Total uint64 }

// DeviceMemory is synDeviceGetMemoryInfo.
func (l *Library) DeviceMemory(id uint32) (Memory, Status) {
	return withDevice(l, "synDeviceGetMemoryInfo", id, args{}, func(d *device) (Memory, Status) { return d.free(), Success })
}

func (d *device) free() Memory {
	m := Memory{uint64(len(d.memory)), uint64(len(d.memory))}
	for _, a := range d.allocations {
		m.Free -= uint64(recipes.Align(a.size))
	}
	return m
}

// DeviceAttributes is synDeviceGetAttribute; those that need no device are synDeviceTypeGetAttribute
// too, with device −1.
func (l *Library) DeviceAttributes(id int64, attributes []int32) ([]uint64, Status) {
	return call(l, "synDeviceGetAttribute", args{"device": id, "attributes": attributes}, func() ([]uint64, Status) {
		if id >= 0 && (l.device == nil || id != 0) {
			return nil, l.refused(Fail, "device %d is not acquired", id)
		}
		values := make([]uint64, len(attributes))
		known := map[int32]uint64{1: dramBase, 5: tpcMask, 6: 1, 7: gaudi2, 9: maxRMW, 11: alignment, 12: 8}
		if id >= 0 {
			m := l.device.free()
			known[3], known[4] = m.Total, m.Free
		}
		for i, a := range attributes {
			v, ok := known[a]
			if !ok {
				return nil, l.refused(Unsupported, "device attribute %d", a)
			}
			values[i] = v
		}
		return values, Success
	})
}

// DeviceMalloc is synDeviceMalloc: at the address that is asked for, if it is not 0 and free,
// else at the lowest one with room. New memory holds a pattern.
func (l *Library) DeviceMalloc(id uint32, size, request uint64, flags uint32) (uint64, Status) {
	return withDevice(l, "synDeviceMalloc", id, args{"size": size, "request": request, "flags": flags}, func(d *device) (uint64, Status) {
		if size == 0 || flags != 0 || request%alignment != 0 {
			return 0, l.refused(InvalidArgument, "device memory of %d bytes at %#x with flags %d", size, request, flags)
		}
		if size > uint64(len(d.memory)) {
			return 0, l.refused(OutOfDeviceMemory, "%d bytes of device memory, there are %d", size, len(d.memory))
		}
		a := &allocation{size: int64(size)}
		i, ok := d.room(a, int64(request)-dramBase)
		if !ok {
			return 0, l.refused(OutOfDeviceMemory, "%d bytes of device memory, %d are free", size, d.free().Free)
		}
		d.allocations = slices.Insert(d.allocations, i, a)
		if !l.config.NoPoison {
			poison(d.memory[a.at : a.at+a.size])
		}
		return uint64(dramBase + a.at), Success
	})
}

// room finds a place for an allocation, and its index.
func (d *device) room(a *allocation, request int64) (int, bool) {
	best, end := -1, int64(0)
	for i := 0; i <= len(d.allocations); i++ {
		next := int64(len(d.memory))
		if i < len(d.allocations) {
			next = d.allocations[i].at
		}
		if request >= end && request <= next-a.size {
			a.at = request
			return i, true
		}
		if best < 0 && end <= next-a.size {
			best, a.at = i, end
		}
		if i < len(d.allocations) {
			end = next + recipes.Align(d.allocations[i].size)
		}
	}
	return best, best >= 0
}

// pattern is what new memory and workspaces hold: as bf16 or f32 it is no number.
const pattern = 0xff

func poison(b []byte) {
	for i := range b {
		b[i] = pattern
	}
}

// DeviceFree is synDeviceFree. Work that is pending and uses the memory loses the device.
func (l *Library) DeviceFree(id uint32, address uint64) Status {
	_, st := withDevice(l, "synDeviceFree", id, args{"address": address}, func(d *device) (none, Status) {
		i, ok := slices.BinarySearchFunc(d.allocations, int64(address)-dramBase, func(a *allocation, at int64) int { return cmp.Compare(a.at, at) })
		if !ok {
			return none{}, l.refused(InvalidArgument, "device memory at %#x is not allocated, or does not begin there", address)
		}
		d.allocations[i].freed.Store(true)
		d.allocations = slices.Delete(d.allocations, i, i+1)
		return none{}, Success
	})
	return st
}

// find is the allocation that has all of some bytes, nil if there is none.
func (d *device) find(address, size uint64) *allocation {
	if address < dramBase || address-dramBase > uint64(len(d.memory)) || size > uint64(len(d.memory)) {
		return nil
	}
	at := int64(address - dramBase)
	i, found := slices.BinarySearchFunc(d.allocations, at, func(a *allocation, at int64) int { return cmp.Compare(a.at, at) })
	if !found {
		i--
	}
	if i < 0 || at+int64(size) > d.allocations[i].at+d.allocations[i].size {
		return nil
	}
	return d.allocations[i]
}

// bytes is device memory.
func (d *device) bytes(address, size uint64) []byte {
	return d.memory[address-dramBase:][:size:size]
}

// HostMalloc is synHostMalloc: memory of the host that is mapped.
func (l *Library) HostMalloc(id uint32, size uint64) (unsafe.Pointer, Status) {
	var p unsafe.Pointer
	_, st := withDevice(l, "synHostMalloc", id, args{"size": size}, func(d *device) (uint64, Status) {
		if size == 0 || size > 1<<40 {
			return 0, l.refused(InvalidArgument, "host memory of %d bytes", size)
		}
		own, err := newPages(int64(size))
		if err != nil {
			return 0, l.refused(OutOfHostMemory, "host memory of %d bytes: %v", size, err)
		}
		p = unsafe.Pointer(unsafe.SliceData(own))
		m := &mapping{p: p, at: uint64(uintptr(p)), size: size, own: own}
		i, _ := d.mappingAt(m.at)
		d.mapped = slices.Insert(d.mapped, i, m)
		return m.at, Success
	})
	return p, st
}

// HostMap is synHostMap. Memory is mapped once; that parts of it are refused is chosen.
func (l *Library) HostMap(id uint32, size uint64, p unsafe.Pointer) Status {
	at := uint64(uintptr(p))
	_, st := withDevice(l, "synHostMap", id, args{"size": size, "address": at}, func(d *device) (none, Status) {
		if p == nil || size == 0 || at+size < at {
			return none{}, l.refused(InvalidArgument, "host memory of %d bytes at %#x", size, at)
		}
		i, found := d.mappingAt(at)
		if found || i > 0 && d.mapped[i-1].at+d.mapped[i-1].size > at || i < len(d.mapped) && at+size > d.mapped[i].at {
			return none{}, l.refused(InvalidArgument, "host memory of %d bytes at %#x is mapped in part", size, at)
		}
		d.mapped = slices.Insert(d.mapped, i, &mapping{p: p, at: at, size: size})
		return none{}, Success
	})
	return st
}

// HostUnmap is synHostUnmap, HostFree synHostFree.
func (l *Library) HostUnmap(id uint32, p unsafe.Pointer) Status {
	return l.unmap("synHostUnmap", id, p, false)
}

// HostFree is synHostFree.
func (l *Library) HostFree(id uint32, p unsafe.Pointer) Status {
	return l.unmap("synHostFree", id, p, true)
}

func (l *Library) unmap(name string, id uint32, p unsafe.Pointer, own bool) Status {
	at := uint64(uintptr(p))
	_, st := withDevice(l, name, id, args{"address": at}, func(d *device) (none, Status) {
		i, found := d.mappingAt(at)
		if !found || (d.mapped[i].own != nil) != own {
			return none{}, l.refused(MappingNotFound, "%s of host memory at %#x", name, at)
		}
		m := d.mapped[i]
		for _, s := range l.streams {
			if s.usesHost(m) { // chosen: a real device would fault
				return none{}, l.refused(Busy, "%s of host memory at %#x, which pending work uses", name, at)
			}
		}
		m.freed.Store(true)
		d.mapped = slices.Delete(d.mapped, i, i+1)
		if own {
			if err := freePages(m.own); err != nil {
				return none{}, l.refused(Fail, "%s: %v", name, err)
			}
		}
		return none{}, Success
	})
	return st
}

func (d *device) mappingAt(at uint64) (int, bool) {
	return slices.BinarySearchFunc(d.mapped, at, func(m *mapping, at uint64) int { return cmp.Compare(m.at, at) })
}

// hostBytes is memory of the host, nil if it is not mapped.
func (d *device) hostBytes(address, size uint64) ([]byte, *mapping) {
	i, found := d.mappingAt(address)
	if !found {
		i--
	}
	if i < 0 {
		return nil, nil
	}
	m := d.mapped[i]
	if from := address - m.at; from > m.size || size > m.size-from {
		return nil, nil
	}
	return unsafe.Slice((*byte)(unsafe.Add(m.p, address-m.at)), size), m
}

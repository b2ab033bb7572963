package launch

import (
	"runtime"
	"unsafe"

	"quill/recipes/dl"
)

// Stream is a queue of work of a device. Each kind of work (copies each way, launches,
// collectives) has its own hardware queue, and the library keeps the order between them.
// Calls enqueue, and what they were given must stay until it is done; but for
// Synchronize none waits for the device. None allocates.
//
// Methods keep the goroutine on its thread between a call and the question why it
// failed. A goroutine that replays steps had better be locked to a thread anyway.
type Stream struct {
	rt     *Runtime
	handle dl.Handle
}

// NewStream makes a stream of the device.
func (d *Device) NewStream() (*Stream, error) {
	defer dl.Lock()()
	s := &Stream{rt: d.rt}
	if err := d.rt.check("synStreamCreateGeneric", d.rt.fn.StreamCreateGeneric(&s.handle, d.id, 0), d.name); err != nil {
		return nil, err
	}
	return s, nil
}

// Destroy ends the stream. Its work must be done: otherwise the error is [dl.Busy].
func (s *Stream) Destroy() error {
	defer dl.Lock()()
	return s.rt.check("synStreamDestroy", s.rt.fn.StreamDestroy(s.handle), "")
}

// CopyToDevice copies host memory that is mapped to an address of the device.
func (s *Stream) CopyToDevice(dst uint64, src []byte) error {
	return s.copy(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(src)))), dst, uint64(len(src)), hostToDRAM, "copy to the device")
}

// CopyToHost copies from an address of the device to host memory that is mapped.
func (s *Stream) CopyToHost(dst []byte, src uint64) error {
	return s.copy(src, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(dst)))), uint64(len(dst)), dramToHost, "copy to the host")
}

// CopyOnDevice copies within the device's memory.
func (s *Stream) CopyOnDevice(dst, src, bytes uint64) error {
	return s.copy(src, dst, bytes, dramToDRAM, "copy on the device")
}

func (s *Stream) copy(src, dst, bytes uint64, dir uint32, context string) error {
	runtime.LockOSThread()
	err := s.rt.check("synMemCopyAsync", s.rt.fn.MemCopyAsync.Call(s.handle, src, bytes, dst, dir), context)
	runtime.UnlockOSThread()
	return err
}

// Memset sets bytes of the device's memory.
func (s *Stream) Memset(addr uint64, value byte, bytes uint64) error {
	runtime.LockOSThread()
	err := s.rt.check("synMemsetD8Async", s.rt.fn.MemsetD8Async.Call(addr, value, bytes, s.handle), "")
	runtime.UnlockOSThread()
	return err
}

// Launch runs a recipe. All its persistent tensors are in tensors, and those of a section
// agree on its base. At workspace are as many bytes as [Recipe.Workspace] says.
func (s *Stream) Launch(r *Recipe, tensors []Binding, workspace uint64) error {
	runtime.LockOSThread()
	st := s.rt.fn.Launch.Call(s.handle, unsafe.SliceData(tensors), uint32(len(tensors)), workspace, r.handle, 0)
	err := s.rt.check("synLaunch", st, r.name)
	runtime.UnlockOSThread()
	return err
}

// Record makes the event stand for the work that was enqueued last.
func (s *Stream) Record(e *Event) error {
	runtime.LockOSThread()
	err := s.rt.check("synEventRecord", s.rt.fn.EventRecord.Call(e.handle, s.handle), "")
	runtime.UnlockOSThread()
	return err
}

// Synchronize waits until all work of the stream is done.
func (s *Stream) Synchronize() error {
	runtime.LockOSThread()
	err := s.rt.check("synStreamSynchronize", s.rt.fn.StreamSynchronize.Call(s.handle), "")
	runtime.UnlockOSThread()
	return err
}

// Event is a place in a stream's work.
type Event struct {
	rt     *Runtime
	handle dl.Handle
}

// NewEvent makes an event.
func (d *Device) NewEvent() (*Event, error) {
	defer dl.Lock()()
	e := &Event{rt: d.rt}
	if err := d.rt.check("synEventCreate", d.rt.fn.EventCreate(&e.handle, d.id, 0), d.name); err != nil {
		return nil, err
	}
	return e, nil
}

// Destroy ends the event.
func (e *Event) Destroy() error {
	defer dl.Lock()()
	return e.rt.check("synEventDestroy", e.rt.fn.EventDestroy(e.handle), "")
}

// Synchronize waits for the event.
func (e *Event) Synchronize() error {
	runtime.LockOSThread()
	err := e.rt.check("synEventSynchronize", e.rt.fn.EventSynchronize.Call(e.handle), "")
	runtime.UnlockOSThread()
	return err
}

// Query reports whether what the event stands for is done.
func (e *Event) Query() (done bool, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := e.rt.fn.EventQuery.Call(e.handle)
	if s == dl.Busy {
		return false, nil
	}
	err = e.rt.check("synEventQuery", s, "")
	return err == nil, err
}

// Package simsynapse is a test and development tool: a library that behaves like Intel's
// libSynapse.so (1.16 to 1.21) as far as public headers and observations say how that
// does, without a card. It is no device, and no measure of one's speed.
//
//	lib          the C functions: a shared library
//	Library      their state: call order, arguments, statuses
//	  graph.go     graphs, tensors, nodes            → recipes.Recipe, from what calls say alone
//	  compile.go   what the graph compiler refuses   → native file, with the recipe as its program
//	  device.go    devices, memory, what is mapped
//	  stream.go    streams and events: work is done later, in order
//	  launch.go    launches, executed by runtime/host
//	  hccl.go      communicators between processes
//	  faults.go    what goes wrong on purpose
//	  trace.go     every call as a line of JSON, and what is not given back
//
// Statuses are those that are known of the library: the public headers
// (HabanaAI/Intel_Gaudi3_Software, HabanaAI/HCL), its open-sourced graph compiler, and
// reports of those who drive it without a framework. Where nothing is known, the comment
// says that a status is chosen.
package simsynapse

import (
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"quill/recipes/target"
)

// Handle is what the library gives out for an object. No two objects of a process have
// the same.
type Handle uint64

// Library is the state of one process. Its methods are those of the C interface without
// their prefix, and may be called from several goroutines.
type Library struct {
	config  Config
	profile *target.Profile
	faults  *faults
	tracer  tracer
	logs    logs
	fault   *fault       // that happens at the call which is made
	lost    atomic.Int32 // the status of everything once the device is lost

	mu          sync.Mutex
	initialized bool
	accounted   Account
	last        Handle
	settings    map[string]string // of synConfigurationSet
	graphs      map[Handle]*graph
	sections    map[Handle]*section
	tensors     map[Handle]*tensor
	recipes     map[Handle]*recipe
	gone        map[Handle]bool // recipes, tensors and graphs that were destroyed
	device      *device         // nil while none is acquired
	streams     map[Handle]*stream
	events      map[Handle]*event
	comms       map[Handle]*comm
	meetings    []net.Listener // of coordinators
}

// New makes a library that is not initialized.
func New(c Config) (*Library, error) {
	c.defaults()
	p, err := c.profile()
	if err != nil {
		return nil, fmt.Errorf("SIMSYNAPSE_PROFILE: %w", err)
	}
	f, err := parseFaults(c.Faults)
	if err != nil {
		return nil, fmt.Errorf("SIMSYNAPSE_FAULTS: %w", err)
	}
	if c.Dir != "" {
		if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("SIMSYNAPSE_DIR: %s is no folder", c.Dir)
		}
	}
	l := &Library{config: c, profile: p, faults: f, logs: logs{dir: c.Logs}}
	l.clear()
	if err := l.tracer.open(c.Trace); err != nil {
		return nil, fmt.Errorf("SIMSYNAPSE_TRACE: %w", err)
	}
	return l, nil
}

// clear forgets all objects.
func (l *Library) clear() {
	l.settings = map[string]string{}
	l.graphs, l.sections, l.tensors, l.recipes = map[Handle]*graph{}, map[Handle]*section{}, map[Handle]*tensor{}, map[Handle]*recipe{}
	l.gone = map[Handle]bool{}
	l.streams, l.events, l.comms = map[Handle]*stream{}, map[Handle]*event{}, map[Handle]*comm{}
}

// handle makes one that looks like an address.
func (l *Library) handle() Handle {
	l.last++
	return 0x5e00_0000_0000 + l.last<<4
}

// args are a call's arguments in the trace.
type args map[string]any

// none is the result of calls that have none beside their status.
type none struct{}

// call makes one call: what must hold for all of them, then its body, under the lock.
func call[R any](l *Library, name string, a args, body func() (R, Status)) (R, Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var r R
	st := l.enter(name)
	if st == Success {
		r, st = body()
	}
	l.account()
	l.tracer.call(name, a, r, int32(st))
	return r, st
}

// do is call without a result.
func (l *Library) do(name string, a args, body func() Status) Status {
	_, st := call(l, name, a, func() (none, Status) { return none{}, body() })
	return st
}

// wait makes a call that may take long: its body finds under the lock what to wait for,
// which then is waited for without.
func (l *Library) wait(name string, a args, body func() (func() Status, Status)) Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := l.enter(name)
	var until func() Status
	if st == Success {
		until, st = body()
	}
	if st == Success && until != nil {
		l.mu.Unlock()
		st = until()
		l.mu.Lock()
	}
	l.account()
	l.tracer.call(name, a, none{}, int32(st))
	return st
}

// afterLoss are the calls that work, or do nothing, once a device is lost.
var afterLoss = map[string]bool{"synInitialize": true, "synDestroy": true, "synDeviceRelease": true, "hcclCommAbort": true}

// exitCode is that of a process which a fault ends.
const exitCode = 3

// enter checks what holds for all calls, and lets a fault happen.
func (l *Library) enter(name string) Status {
	if !l.initialized && name != "synInitialize" {
		return Uninitialized
	}
	if st := Status(l.lost.Load()); st != Success && !afterLoss[name] {
		return st
	}
	f := l.faults.hit(name, l.module())
	l.fault = f
	switch {
	case f == nil:
		return Success
	case f.action == "exit":
		os.Exit(exitCode)
	case f.action == "segv":
		l.config.Die(syscall.SIGSEGV)
	case f.action == "abort":
		l.config.Die(syscall.SIGABRT)
	case f.action == "hang":
		for {
			time.Sleep(time.Hour)
		}
	case f.action == "lost":
		l.lose(DeviceReset, "by a planned fault at "+name)
		return DeviceReset
	case f.action == "terminated":
		l.lose(SynapseTerminated, "by a planned fault at "+name)
		return SynapseTerminated
	case f.status != Success:
		l.logs.runtime("%s: planned fault: %v", name, f.status)
		return f.status
	}
	return Success
}

// lose makes all later calls fail.
func (l *Library) lose(st Status, why string, a ...any) {
	l.logs.runtime("device lost: "+why, a...)
	l.lost.CompareAndSwap(int32(Success), int32(st))
}

// module is the acquired device's, −1 if there is none.
func (l *Library) module() int {
	if l.device == nil {
		return -1
	}
	return l.device.module
}

// refused says in the log why a call failed.
func (l *Library) refused(st Status, format string, a ...any) Status {
	l.logs.runtime("%v: "+format, append([]any{st}, a...)...)
	return st
}

// Initialize is synInitialize. A second time is a success that does nothing.
func (l *Library) Initialize() Status {
	return l.do("synInitialize", nil, func() Status {
		l.initialized = true
		return Success
	})
}

// Destroy is synDestroy. What was not given back stays in the account, and is given back.
func (l *Library) Destroy() Status {
	return l.do("synDestroy", nil, func() Status {
		if err := l.writeAccount(true); err != nil {
			l.logs.runtime("account: %v", err)
		}
		if l.device != nil {
			l.releaseDevice()
		}
		for _, m := range l.meetings {
			m.Close()
		}
		l.meetings = nil
		l.clear()
		l.initialized = false
		l.lost.Store(int32(Success))
		return Success
	})
}

// DriverVersion is what synDriverGetVersion tells: the simulated version, and that this is
// a simulation.
func (l *Library) DriverVersion() string {
	return l.config.Version + " simsynapse, a test library without a device"
}

// settable are the settings that synConfigurationSet knows.
var settable = []string{"ENABLE_EXPERIMENTAL_FLAGS", "GRAPH_VISUALIZATION", "ENABLE_PARALLEL_COMPILATION"}

// ConfigurationSet is synConfigurationSet: what it knows is kept, and changes nothing.
func (l *Library) ConfigurationSet(name, value string) Status {
	return l.do("synConfigurationSet", args{"name": name, "value": value}, func() Status {
		for _, s := range settable {
			if s == name {
				l.settings[name] = value
				return Success
			}
		}
		return InvalidArgument
	})
}

// ConfigurationGet is synConfigurationGet.
func (l *Library) ConfigurationGet(name string) (string, Status) {
	return call(l, "synConfigurationGet", args{"name": name}, func() (string, Status) {
		if v, ok := l.settings[name]; ok {
			return v, Success
		}
		return "", InvalidArgument
	})
}

// Unsupported is a call that is not simulated.
func (l *Library) Unsupported(name string) Status {
	return l.do(name, nil, func() Status { return l.refused(Unsupported, "%s is not simulated", name) })
}

package simsynapse

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fault is one thing that goes wrong: at the count-th call of a point, in the process that
// has a module.
type fault struct {
	point  string
	count  int
	module int // −1 for any
	action string
	status Status // for actions that are numbers
}

// late is how long work takes that is late.
const late = 300 * time.Millisecond

// points are short names of calls.
var points = map[string]string{
	"compile": "synGraphCompile", "launch": "synLaunch", "alloc": "synDeviceMalloc", "copy": "synMemCopyAsync", "node": "synNodeCreate",
	"acquire": "synDeviceAcquireByModuleId", "sync": "synStreamSynchronize", "map": "synHostMap", "load": "synRecipeDeSerialize",
	"reduce": "hcclAllReduce", "gather": "hcclAllGather", "join": "hcclCommInitRank",
}

// actions are what may happen beside statuses.
var actions = []string{"lost", "terminated", "late", "stuck", "exit", "segv", "abort", "hang"}

type faults struct {
	mu     sync.Mutex
	list   []fault
	counts map[string]int // calls so far, by point; "any" counts all
}

// parseFaults reads a list of faults:
//
//	launch:7=26          the seventh synLaunch returns 26; points are names of functions,
//	                     the short names in points, or any
//	alloc:3@1=4          so, in the process that has module 1
//	sync:2=lost          the device is lost: everything returns 17 from then on; or
//	                     terminated: 31
//	copy:5=late          what the call enqueues takes 300 ms more
//	reduce:9=stuck       what the call enqueues is never done; a collective is until its
//	                     communicator is aborted
//	compile:1=segv       the process dies (segv, abort, exit with code 3), or hangs
//	seed=42/2            up to three faults drawn with that seed, for modules below 2, or 8 if
//	                     only the seed is given; every process draws the same
func parseFaults(text string) (*faults, error) {
	f := &faults{counts: map[string]int{}}
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		seed, isSeed := strings.CutPrefix(item, "seed=")
		switch {
		case item == "":
		case isSeed:
			number, below, some := strings.Cut(seed, "/")
			n, err := strconv.ParseUint(number, 10, 64)
			modules := 8
			if some && err == nil {
				modules, err = strconv.Atoi(below)
			}
			if err != nil || modules < 1 {
				return nil, fmt.Errorf("%q: want seed=NUMBER or seed=NUMBER/MODULES", item)
			}
			f.list = append(f.list, drawFaults(n, modules)...)
		default:
			one, err := parseFault(item)
			if err != nil {
				return nil, err
			}
			f.list = append(f.list, one)
		}
	}
	return f, nil
}

func parseFault(item string) (fault, error) {
	f := fault{module: -1}
	where, action, ok := strings.Cut(item, "=")
	where, module, hasModule := strings.Cut(where, "@")
	point, count, hasCount := strings.Cut(where, ":")
	var err error
	if f.count, err = strconv.Atoi(count); !ok || !hasCount || err != nil || f.count < 1 {
		return f, fmt.Errorf("%q: want POINT:COUNT=ACTION, with a count from 1", item)
	}
	if hasModule {
		if f.module, err = strconv.Atoi(module); err != nil || f.module < 0 {
			return f, fmt.Errorf("%q: module %q is no number", item, module)
		}
	}
	if f.point = point; points[point] != "" {
		f.point = points[point]
	} else if point != "any" && !strings.HasPrefix(point, "syn") && !strings.HasPrefix(point, "hccl") {
		return f, fmt.Errorf("%q: no point is called %q", item, point)
	}
	if n, err := strconv.Atoi(action); err == nil && n > 0 {
		f.status = Status(n)
		return f, nil
	}
	for _, a := range actions {
		if a == action {
			f.action = a
			return f, nil
		}
	}
	return f, fmt.Errorf("%q: action %q is no status and none of %s", item, action, strings.Join(actions, ", "))
}

// drawFaults draws up to three faults.
func drawFaults(seed uint64, modules int) []fault {
	r := rand.New(rand.NewPCG(seed, 0x5e_ed))
	kinds := []string{
		"launch=26", "launch=37", "launch=lost", "launch=late", "launch=exit", "alloc=4", "copy=lost", "copy=late", "copy=exit",
		"reduce=stuck", "reduce=lost", "reduce=exit", "gather=stuck", "sync=lost", "sync=terminated", "compile=26", "compile=segv", "compile=exit",
	}
	var list []fault
	for range 1 + r.IntN(3) {
		point, action, _ := strings.Cut(kinds[r.IntN(len(kinds))], "=")
		// A few calls are the first ones of a load, many those of a long run.
		count := 1 + r.IntN(1<<(1+r.IntN(7)))
		where := fmt.Sprintf("%s:%d@%d", point, count, r.IntN(modules))
		if point == "compile" {
			where = fmt.Sprintf("%s:%d", point, count) // no device is needed
		}
		f, _ := parseFault(where + "=" + action) // of that form
		list = append(list, f)
	}
	return list
}

// hit counts a call and gives the fault that happens at it, nil if none does.
func (f *faults) hit(name string, module int) *fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == "synNodeCreateWithId" {
		name = "synNodeCreate"
	}
	f.counts[name]++
	f.counts["any"]++
	for i := range f.list {
		x := &f.list[i]
		if (x.point != name && x.point != "any") || x.count != f.counts[x.point] || x.module >= 0 && x.module != module {
			continue
		}
		return x
	}
	return nil
}

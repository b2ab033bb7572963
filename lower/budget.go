package lower

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
)

// budget bounds the memory that compiling holds at once: near the bound fewer buckets are
// in work, down to one. It knows the heap of the process, whoever uses it.
type budget struct {
	limit   int64 // bytes, 0 is no bound
	heap    func() heap
	collect func()

	mu      sync.Mutex
	ended   sync.Cond // a bucket
	running int
	need    int64 // what a bucket may allocate: the most that one did so far
	done    int
}

// heap is what the memory holds, in bytes.
type heap struct {
	live      int64 // at the end of the last collection
	objects   int64 // now, those that nothing refers to included
	allocated int64 // ever
}

// newBudget is a budget of so many bytes. An eighth is left for what is no object, and for
// the collector, which works as hard as it must to stay within the whole.
func newBudget(bytes int64) *budget {
	b := &budget{limit: bytes / 8 * 7, need: bytes / 8, heap: readHeap, collect: runtime.GC}
	b.ended.L = &b.mu
	return b
}

func readHeap() heap {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return heap{int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64()), int64(samples[2].Value.Uint64())}
}

// MemoryError is that compiling holds more memory than it may, although one bucket at most
// is in work.
type MemoryError struct {
	Held, Limit int64 // bytes
	Done        int   // buckets whose results are part of it
}

func (e *MemoryError) Error() string {
	const mib = 1 << 20
	return fmt.Sprintf("compiling holds %.1f MiB with one bucket in work, the model's graphs and the results of %d buckets included, of %.1f MiB that objects may have: allow more memory (compile --memory), or compile fewer buckets or one precision",
		float64(e.Held)/mib, e.Done, float64(e.Limit)/mib)
}

// begin waits until there is room for another bucket, or none is in work. Its result is
// what end wants.
func (b *budget) begin() (from int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.limit > 0 && !b.room() {
		if b.running == 0 {
			if h := b.heap(); h.live > b.limit {
				return 0, &MemoryError{h.live, b.limit, b.done}
			}
			break
		}
		b.ended.Wait()
	}
	b.running++
	return b.heap().allocated, nil
}

// room reports whether one more bucket fits beside those in work, as far as is known.
func (b *budget) room() bool {
	if b.fits() {
		return true
	}
	b.collect()
	return b.fits()
}

func (b *budget) fits() bool { return b.heap().objects+int64(b.running+1)*b.need <= b.limit }

// end ends what begin began.
func (b *budget) end(from int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	h, alone := b.heap(), b.running == 1
	if b.done == 0 {
		b.need = 0 // it was a guess
	}
	b.need = max(b.need, (h.allocated-from)/int64(b.running)) // about: others allocated as much
	b.running--
	b.done++
	b.ended.Broadcast()
	if b.limit > 0 && alone && h.live > b.limit {
		return &MemoryError{h.live, b.limit, b.done}
	}
	return nil
}

package kern

import (
	"context"
	"runtime"
	"time"
	"unsafe"
)

// readBytes is the size of the buffer of a Reader: far more than the caches of a
// processor.
const readBytes = 256 << 20

// Reader measures the rate at which threads goroutines read memory: the roof of
// a GEMV whose weights are in memory. It keeps its buffer, so it can measure
// again and again, between other things.
type Reader struct {
	buf     []byte
	threads int
}

// NewReader allocates and touches the buffer.
func NewReader(threads int) *Reader {
	r := &Reader{buf: make([]byte, readBytes), threads: threads}
	for i := range r.buf {
		r.buf[i] = byte(i) // pages that were never written may all be one page
	}
	return r
}

// Bytes is the size of the buffer.
func (r *Reader) Bytes() int64 { return int64(len(r.buf)) }

// orders are two orders of reading; which is faster depends on the processor.
var orders = [...]func([]byte){readInLine, readInStreams}

// Bandwidth is the rate in bytes per second: the median of several runs, in the
// better of two orders of reading.
func (r *Reader) Bandwidth(ctx context.Context) (float64, error) {
	var best float64
	for _, read := range orders {
		rate, err := median(ctx, func() float64 { return readRate(r.buf, r.threads, read, spread) })
		if err != nil {
			return 0, err
		}
		best = max(best, rate)
	}
	return best, nil
}

// Burst is the mean rate of the next moments, in bytes per second: it reads for
// about as long as it is told, the buffer at least once in each order. The
// orders take turns, so that both meet the same moments.
func (r *Reader) Burst(atLeast time.Duration) float64 {
	var took [len(orders)]time.Duration
	turns := 0
	for start := time.Now(); turns == 0 || time.Since(start) < atLeast; turns++ {
		for i, read := range orders {
			took[i] += readTime(r.buf, r.threads, read, spread)
		}
	}
	return float64(readLen(r.buf)*turns) / min(took[0], took[1]).Seconds()
}

// readRate is the rate of reading buf once, each goroutine its part, as clock
// measures it.
func readRate(buf []byte, threads int, read func([]byte), clock clock) float64 {
	return float64(readLen(buf)) / readTime(buf, threads, read, clock).Seconds()
}

func readTime(buf []byte, threads int, read func([]byte), clock clock) time.Duration {
	return clock(threads, func(i int) {
		n0, n1 := split(len(buf)/readBlock, threads, i)
		for b := n0; b < n1; b++ {
			read(buf[b*readBlock : (b+1)*readBlock])
		}
	})
}

// readLen is how many bytes of buf are read.
func readLen(buf []byte) int { return len(buf) / readBlock * readBlock }

// readBlock is what one call reads: eight streams as long as those of a GEMV.
const readBlock = 8 * streamBytes

// goRead reads buf in Go.
func goRead(buf []byte) {
	words := unsafe.Slice((*uint64)(unsafe.Pointer(&buf[0])), len(buf)/8)
	var a, b, c, d uint64
	for len(words) >= 4 {
		a, b, c, d = a|words[0], b|words[1], c|words[2], d|words[3]
		words = words[4:]
	}
	runtime.KeepAlive(a | b | c | d)
}

package host

import "unsafe"

// alignment is the alignment of buffers and of scratch memory: a cache line, and
// enough for every element type.
const alignment = 64

func align[T int | int64](n T) T { return (n + alignment - 1) &^ (alignment - 1) }

// chunk is the number of elements that kernels stage at a time where an
// operand must be widened or broadcast first.
const chunk = 512

// maxRank is the largest number of dimensions of a tensor.
const maxRank = 8

// alloc returns n zero bytes that begin at an aligned address. Go objects do
// not move, so the alignment lasts.
func alloc(n int64) []byte {
	raw := make([]byte, n+alignment-1)
	off := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (alignment - 1))
	return raw[off : off+n : off+n]
}

// as views bytes as elements of T. Load and Bind have checked the alignment.
func as[T any](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/sizeOf[T]())
}

// mem is the memory of one unit's operands as one thread sees it. Absent
// operands are nil.
type mem struct {
	in, out [][]byte
	scratch []byte // shared by the threads of a team
	own     []byte // the thread's

	device *Device
	launch *Launch
	rank   int
	unit   *unit
	slots  [][]byte // backing of in and out
	tile   tile     // of units that compute by rows
}

// grow makes room and reports whether there was too little.
func (m *mem) grow(operands, values int) bool {
	more := len(m.slots) < operands || len(m.tile.backing) < values
	if len(m.slots) < operands {
		m.slots = make([][]byte, operands)
	}
	if len(m.tile.backing) < values {
		m.tile.backing = make([]lane, values)
	}
	return more
}

// region is a part of a node's scratch memory.
type region struct{ off, n int }

func (r region) f32(scratch []byte) []float32 { return as[float32](scratch[r.off : r.off+r.n]) }
func (r region) i32(scratch []byte) []int32   { return as[int32](scratch[r.off : r.off+r.n]) }
func (r region) of(scratch []byte) []byte     { return scratch[r.off : r.off+r.n] }

// sizeOf is the size of an element of T.
func sizeOf[T any]() int {
	var zero T
	return int(unsafe.Sizeof(zero))
}

// product of dimensions; 1 for none.
func product(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

// dense returns the strides of a contiguous tensor, in elements.
func dense(dims []int) []int {
	s := make([]int, len(dims))
	n := 1
	for i, d := range dims {
		s[i] = n
		n *= d
	}
	return s
}

// pattern maps the elements of a result, in order, to elements of a source:
// element (i0, i1, …) comes from source element Σ i·stride. Broadcasts,
// transposes and slices are all patterns.
type pattern struct{ dims, strides []int }

// newPattern drops dims of one element and merges dims that the source walks
// as one, so that the innermost run is as long as possible. It always has a
// dim.
func newPattern(dims, strides []int) pattern {
	var p pattern
	for i, d := range dims {
		if d == 1 {
			continue
		}
		if n := len(p.dims) - 1; n >= 0 && strides[i] == p.strides[n]*p.dims[n] {
			p.dims[n] *= d
			continue
		}
		p.dims = append(p.dims, d)
		p.strides = append(p.strides, strides[i])
	}
	if len(p.dims) == 0 {
		return pattern{dims: []int{1}, strides: []int{1}}
	}
	return p
}

// broadcastPattern reads a dense tensor of dims src as one of dims dst.
func broadcastPattern(src, dst []int) pattern {
	strides := dense(src)
	for i, d := range src {
		if d == 1 {
			strides[i] = 0
		}
	}
	return newPattern(dst, strides)
}

// expand fills dst with the pattern's elements start, start+1, … of src.
func expand[T any](dst, src []T, p *pattern, start int) {
	if len(dst) == 0 {
		return
	}
	var idx [maxRank]int
	at := 0
	for i, d := range p.dims {
		idx[i] = start % d
		start /= d
		at += idx[i] * p.strides[i]
	}
	d0, s0 := p.dims[0], p.strides[0]
	for {
		run := dst[:min(d0-idx[0], len(dst))]
		switch s0 {
		case 1:
			copy(run, src[at:])
		case 0:
			v := src[at]
			for i := range run {
				run[i] = v
			}
		default:
			from := src[at:]
			for i := range run {
				run[i] = from[i*s0]
			}
		}
		dst = dst[len(run):]
		if len(dst) == 0 {
			return
		}
		at -= idx[0] * s0
		idx[0] = 0
		for i := 1; ; i++ {
			idx[i]++
			at += p.strides[i]
			if idx[i] < p.dims[i] {
				break
			}
			at -= idx[i] * p.strides[i]
			idx[i] = 0
		}
	}
}

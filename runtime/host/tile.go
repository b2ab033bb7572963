package host

import (
	"unsafe"

	"quill/runtime/host/kern"
)

// A tile is some rows of every value of a group, a row being a value's elements
// along the fastest dimension. Nodes of a group execute one after the other on a
// tile, which stays in a near cache, instead of on whole tensors.
type tile struct {
	kernels kern.Kernels
	rows    int
	lanes   []lane // by value
	backing []lane
	tmp     []byte // for the operation that executes
	mem     *mem
	// least is what the largest score of a row must reach: see span.
	least float32
}

// lane is the rows of one value: the first one begins at p.
type lane struct {
	p      unsafe.Pointer
	stride int // bytes between rows
	n      int // elements of a row; 1 may stand for any number
	// Of a matrix, of which rows are the stride apart: rows of the tile that it
	// serves before the next one does, which is so many bytes on. 0 is all.
	every, step int
	// Of a matrix in pieces of so many rows each, if there are picks: piece i begins at
	// picks[i] times apart bytes from p. Rows before skip are left out.
	picks             []int32
	apart, each, skip int
}

func (l *lane) row(r int) unsafe.Pointer { return unsafe.Add(l.p, r*l.stride) }

// elems views n elements at p.
func elems[T any](p unsafe.Pointer, n int) []T { return unsafe.Slice((*T)(p), n) }

func rowOf[T any](l *lane, r int) []T { return elems[T](l.row(r), l.n) }

func valueOf[T any](l *lane, r int) T { return *(*T)(l.row(r)) }

// tmpOf is the operation's memory as elements.
func tmpOf[T any](t *tile, at, n int) []T { return elems[T](unsafe.Pointer(&t.tmp[at]), n) }

// operation executes one node on a tile. It may be called for any rows and
// results do not depend on which rows are together.
type operation struct {
	run     func(t *tile, o *operation) error
	in, out []int // values
	// positional operations compute element i of the result from elements i of
	// the operands, or from their only one.
	positional bool
	tmp        int // bytes
	product    *rowProduct
	name       string // the node's GUID without type
}

// typed is a lane and the size of its elements.
type typed struct {
	*lane
	size int
}

// flat joins the rows of a positional operation if they are one piece in every
// lane, and returns how many there are then.
func (t *tile) flat(y typed, operands ...typed) int {
	if t.rows == 1 {
		return 1
	}
	if y.stride != y.n*y.size {
		return t.rows
	}
	for _, x := range operands {
		uniform := x.n == 1 && x.stride == 0
		if !uniform && (x.n != y.n || x.stride != x.n*x.size) {
			return t.rows
		}
	}
	y.n *= t.rows
	for _, x := range operands {
		if x.stride != 0 {
			x.n = y.n
		}
	}
	return 1
}

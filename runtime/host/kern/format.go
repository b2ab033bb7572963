package kern

import (
	"fmt"
	"unsafe"
)

// format is how a tier computes with an element type.
type format struct {
	size    int    // bytes an element
	arith   arith  // what its tile functions do
	rows    int    // rows of x of a tile
	streams int    // rows of w of a GEMV
	grow    int    // bytes of panel a byte of operand
	csr     uint32 // of the tile functions
}

type arith uint8

const (
	law arith = iota // no tile functions
	fma256
	fma512
	dot512
)

// bf16 and f32 describe the element types.
func (s Kernels) bf16() format {
	f := format{size: 2, arith: law, rows: maxRows, streams: maxStreams, grow: 2, csr: flushCSR}
	switch s.tier {
	case AVX2:
		f.arith, f.rows, f.streams = fma256, 3, 4
	case AVX512:
		f.arith = fma512
	case AVX512BF16:
		f.arith, f.grow, f.csr = dot512, 1, 0
	}
	return f
}

func (s Kernels) f32() format {
	f := format{size: 4, arith: law, rows: maxRows, streams: maxStreams, grow: 1}
	switch s.tier {
	case AVX2:
		f.arith, f.rows, f.streams = fma256, 3, 4
	case AVX512, AVX512BF16:
		f.arith = fma512
	}
	return f
}

// wide reports whether bf16 is widened to two FMAs.
func (f *format) wide() bool { return f.csr != 0 }

// packs reports whether tiles need w in panels: to be widened, or because the
// rows' ends need masks. Otherwise a copy costs more than it saves.
func (f *format) packs() bool { return f.wide() || f.arith == fma256 }

// matrix is an operand: its rows are step bytes apart.
type matrix struct {
	first unsafe.Pointer
	step  int
}

// at is where byte c of row i lies.
func (m matrix) at(i, c int) unsafe.Pointer { return unsafe.Add(m.first, i*m.step+c) }

// from is the matrix from row i on.
func (m matrix) from(i int) matrix { return matrix{m.at(i, 0), m.step} }

func (f *format) matrix(first unsafe.Pointer, ld int) matrix { return matrix{first, ld * f.size} }

// extents panics if one is negative.
func extents(m, n, k int) {
	if m < 0 || n < 0 || k < 0 {
		panic("kern: negative extent")
	}
}

// check panics if an operand is shorter than its shape.
func check(what string, have, want int) {
	if have < want {
		short(what, have, want)
	}
}

func short(what string, have, want int) {
	panic(fmt.Sprintf("kern: %s has %d elements, its shape needs %d", what, have, want))
}

// span is the number of elements of n rows that are ld apart, to the end of the
// last one. Rows may overlap.
func span(n, ld, cols int) int {
	if ld < 0 {
		panic("kern: negative stride")
	}
	if n == 0 || cols == 0 {
		return 0
	}
	return (n-1)*ld + cols
}

// rowOf is the row of k elements at an offset that may be out of range if there
// are none.
func rowOf[T any](x []T, at, k int) []T {
	if k == 0 {
		return nil
	}
	return x[at : at+k]
}

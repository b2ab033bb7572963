package host

import "quill/runtime/host/kern"

// matrix is where a matrix lies: its first element is at of data, its rows
// begin ld elements apart.
type matrix struct {
	data   []byte
	at, ld int
}

// from is the matrix without the rows and columns before i and j.
func (x matrix) from(i, j int) matrix { return matrix{x.data, x.at + i*x.ld + j, x.ld} }

// arithmetic is that of operands of one type, f32 or bf16, by the laws of kern.
type arithmetic struct {
	kern.Kernels
	bf16 bool
}

// size is that of an element in bytes.
func (p arithmetic) size() int {
	if p.bf16 {
		return 2
	}
	return 4
}

// dots is y = x·wᵀ, 16 lanes an element: x has m rows of k, w n. scratch has as
// many bytes as dotsScratch says.
func (p arithmetic) dots(y []float32, ldy int, x, w matrix, m, n, k int, scratch []byte) {
	if p.bf16 {
		p.GemmBF16(y, ldy, as[uint16](x.data)[x.at:], x.ld, as[uint16](w.data)[w.at:], w.ld, m, n, k, scratch)
		return
	}
	p.GemmF32(y, ldy, as[float32](x.data)[x.at:], x.ld, as[float32](w.data)[w.at:], w.ld, m, n, k, scratch)
}

// dotsScratch is what dots needs for any number of rows up to m.
func (p arithmetic) dotsScratch(m, k int) int {
	most := 0
	for i := range m {
		if p.bf16 {
			most = max(most, p.ScratchBF16(i+1, k))
		} else {
			most = max(most, p.ScratchF32(i+1, k))
		}
	}
	return most
}

// sums is y = x·w, an element summed in index order: w has k rows of n. If more, it
// goes on from what is in y.
func (p arithmetic) sums(y []float32, ldy int, x, w matrix, m, n, k int, more bool) {
	if p.bf16 {
		mul := p.MulBF16
		if more {
			mul = p.AddMulBF16
		}
		mul(y, ldy, as[uint16](x.data)[x.at:], x.ld, as[uint16](w.data)[w.at:], w.ld, m, n, k)
		return
	}
	mul := p.MulF32
	if more {
		mul = p.AddMulF32
	}
	mul(y, ldy, as[float32](x.data)[x.at:], x.ld, as[float32](w.data)[w.at:], w.ld, m, n, k)
}

// store rounds x into elements at, at+1, … of m.
func (p arithmetic) store(m []byte, at int, x []float32) {
	if p.bf16 {
		p.Narrow(as[uint16](m)[at:at+len(x)], x)
		return
	}
	copy(as[float32](m)[at:at+len(x)], x)
}

// round rounds x to the type. half has room for as many bf16 elements.
func (p arithmetic) round(x []float32, half []uint16) {
	if p.bf16 {
		p.Narrow(half[:len(x)], x)
		p.Widen(x, half[:len(x)])
	}
}

package kern

// GemmBF16 is y[i, j] = Σ_k x[i, k]·w[j, k] with bf16 operands: x is [m, k], w
// is [n, k] and y is [m, n]; their rows begin ldx, ldw and ldy elements apart.
// scratch has ScratchBF16 bytes; its contents are of no meaning before and
// after.
//
// A range of rows of w is w from the range's first row, and y from its first
// column.
func (s Kernels) GemmBF16(y []float32, ldy int, x []uint16, ldx int, w []uint16, ldw int, m, n, k int, scratch []byte) {
	extents(m, n, k)
	check("x", len(x), span(m, ldx, k))
	check("w", len(w), span(n, ldw, k))
	checkY(y, ldy, m, n)
	f := s.bf16()
	if f.arith == law {
		for i := range m {
			for j := range n {
				y[i*ldy+j] = DotBF16(rowOf(x, i*ldx, k), rowOf(w, j*ldw, k))
			}
		}
		return
	}
	f.gemm(y, ldy, f.matrix(ptr(x), ldx), f.matrix(ptr(w), ldw), m, n, f.size*k, scratch)
}

// GemmF32 is GemmBF16 with f32 operands; scratch has ScratchF32 bytes.
func (s Kernels) GemmF32(y []float32, ldy int, x []float32, ldx int, w []float32, ldw int, m, n, k int, scratch []byte) {
	extents(m, n, k)
	check("x", len(x), span(m, ldx, k))
	check("w", len(w), span(n, ldw, k))
	checkY(y, ldy, m, n)
	f := s.f32()
	if f.arith == law {
		for i := range m {
			for j := range n {
				y[i*ldy+j] = DotF32(rowOf(x, i*ldx, k), rowOf(w, j*ldw, k))
			}
		}
		return
	}
	f.gemm(y, ldy, f.matrix(ptr(x), ldx), f.matrix(ptr(w), ldw), m, n, f.size*k, scratch)
}

// ScratchBF16 is the number of bytes GemmBF16 needs beside its operands.
func (s Kernels) ScratchBF16(m, k int) int { f := s.bf16(); return f.scratch(m, f.size*k) }

// ScratchF32 is the number of bytes GemmF32 needs beside its operands.
func (s Kernels) ScratchF32(m, k int) int { f := s.f32(); return f.scratch(m, f.size*k) }

func checkY(y []float32, ldy, m, n int) {
	if m > 0 && n > 0 {
		check("y", len(y), (m-1)*ldy+n)
	}
	if m > 1 && ldy < n {
		panic("kern: rows of y overlap")
	}
}

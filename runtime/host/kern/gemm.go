package kern

// GemmBF16 is y[i, j] = Σ_k x[i, k]·w[j, k] with bf16 operands: x is [m, k], w
// is [n, k], and row i of y begins at element i·ldy. scratch has ScratchBF16
// bytes; its contents are of no meaning before and after.
//
// A range of rows of w is a slice of w, and of y from the range's first column.
func (s Kernels) GemmBF16(y []float32, ldy int, x, w []uint16, m, n, k int, scratch []byte) {
	extents(m, n, k)
	check("x", len(x), m*k)
	check("w", len(w), n*k)
	checkY(y, ldy, m, n)
	f := s.bf16()
	if f.arith == law {
		for i := range m {
			for j := range n {
				y[i*ldy+j] = DotBF16(x[i*k:(i+1)*k], w[j*k:(j+1)*k])
			}
		}
		return
	}
	f.gemm(y, ldy, ptr(x), ptr(w), m, n, f.size*k, scratch)
}

// GemmF32 is GemmBF16 with f32 operands; scratch has ScratchF32 bytes.
func (s Kernels) GemmF32(y []float32, ldy int, x, w []float32, m, n, k int, scratch []byte) {
	extents(m, n, k)
	check("x", len(x), m*k)
	check("w", len(w), n*k)
	checkY(y, ldy, m, n)
	f := s.f32()
	if f.arith == law {
		for i := range m {
			for j := range n {
				y[i*ldy+j] = DotF32(x[i*k:(i+1)*k], w[j*k:(j+1)*k])
			}
		}
		return
	}
	f.gemm(y, ldy, ptr(x), ptr(w), m, n, f.size*k, scratch)
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

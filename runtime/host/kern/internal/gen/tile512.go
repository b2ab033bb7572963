package main

// kind is the arithmetic of a kernel.
type kind int

const (
	f32  kind = iota // one FMA a lane and vector
	bf16             // VDPBF16PS
	wide             // bf16 without VDPBF16PS: two FMAs a lane and vector
)

func (k kind) String() string { return [...]string{"F32", "BF16", "Wide"}[k] }

const (
	cols    = 4 // rows of w, columns of y, of a tile
	rows512 = 6 // rows of x of a tile
)

// mac writes acc += x·w.
func (a *asm) mac(k kind, acc, x, w int) {
	if k == bf16 {
		a.dp(acc, x, w)
		return
	}
	a.op("VFMADD231PS Z%d, Z%d, Z%d", w, x, acc)
}

// begin loads what every tile function needs and jumps to the code for the
// number of rows, which is never 1: such a product is a GEMV.
func (a *asm) begin(max int) {
	for _, f := range [][2]string{
		{"a", "SI"}, {"b", "BX"}, {"y", "DI"}, {"pf", "R9"}, {"vecs", "CX"}, {"ldy", "R8"}, {"rows", "AX"},
	} {
		a.op("MOVQ tile_%s(DX), %s", f[0], f[1])
	}
	for m := 2; m < max; m++ {
		a.op("CMPQ AX, $%d", m)
		a.op("JEQ rows%d", m)
	}
}

// fetchY fetches the part of y that the tile updates, while it is computed.
func (a *asm) fetchY(m int) {
	a.op("MOVQ DI, R10")
	for i := range m {
		a.data([]byte{0x41, 0x0f, 0x0d, 0x0a}, "PREFETCHW (R10)")
		if i < m-1 {
			a.op("ADDQ R8, R10")
		}
	}
}

// flushOn switches the FMAs to the arithmetic of VDPBF16PS: denormals are zero.
func (a *asm) flushOn(k kind, m int) {
	switch k {
	case wide:
		a.op("STMXCSR csr-8(SP)")
		a.op("LDMXCSR tile_csr(DX)")
	case f32:
		a.op("CMPL tile_csr(DX), $0")
		a.op("JEQ plain%d", m)
		a.op("STMXCSR csr-8(SP)")
		a.op("LDMXCSR tile_csr(DX)")
		a.label("plain%d", m)
	}
}

// flushOff undoes flushOn; it falls through to label sum.
func (a *asm) flushOff(k kind, m int) {
	switch k {
	case wide:
		a.op("LDMXCSR csr-8(SP)")
	case f32:
		a.op("CMPL tile_csr(DX), $0")
		a.op("JEQ sum%d", m)
		a.op("LDMXCSR csr-8(SP)")
		a.label("sum%d", m)
	}
}

// frame is the local memory of a function of kind k.
func frame(k kind) int {
	if k == bf16 {
		return 0
	}
	return 8
}

// tiles512 has one function: bf16 is widened when it is packed, and operands
// that need no widening are read where they lie.
func tiles512(a *asm) {
	a.text("tileF32x512", frame(f32),
		"computes one tile of a product from packed panels of both operands.", "t *tile")
	a.begin(rows512)
	for m := rows512; m > 1; m-- {
		if m < rows512 {
			a.label("rows%d", m)
		}
		a.fetchY(m)
		a.clear512(cols * m)
		a.flushOn(f32, m)
		a.label("loop%d", m)
		for n := range cols {
			a.op("VMOVUPS %d(BX), Z%d", 64*n, 24+n)
		}
		for i := range m {
			x := 28 + i%3
			a.op("VMOVUPS %d(SI), Z%d", 64*i, x)
			for n := range cols {
				a.mac(f32, cols*i+n, x, 24+n)
			}
		}
		a.op("PREFETCHT1 (R9)")
		a.op("ADDQ $%d, SI", 64*m)
		a.op("ADDQ $%d, BX", 64*cols)
		a.op("ADDQ $64, R9")
		a.op("DECQ CX")
		a.op("JNE loop%d", m)
		a.flushOff(f32, m)
		a.reduce512(m)
		a.ret()
	}
}

// clear512 zeroes Z0 … Zn−1.
func (a *asm) clear512(n int) {
	for i := range n {
		a.op("VPXORD Z%d, Z%d, Z%d", i, i, i)
	}
}

// reduce512 adds the lanes of the m·4 accumulators and updates y.
func (a *asm) reduce512(m int) {
	a.note("The lanes of each block of four, then the blocks.")
	a.op("KMOVW tile_keep(DX), K2")
	a.op("MOVL $0x7fc00000, AX")
	a.op("VPBROADCASTD AX, X31")
	for i := range m {
		z := cols * i
		a.fold("Z", z, 24, 27)
		a.op("VEXTRACTF64X4 $1, Z24, Y25")
		a.op("VADDPS Y25, Y24, Y24")
		a.op("VEXTRACTF32X4 $1, Y24, X25")
		a.op("VADDPS X25, X24, X24")
		a.op("VMOVUPS.Z (DI), K2, X25")
		a.op("VADDPS X25, X24, X24")
		a.op("VCMPPS $3, X24, X24, K1")
		a.op("VMOVAPS X31, K1, X24")
		a.op("VMOVUPS X24, (DI)")
		if i < m-1 {
			a.op("ADDQ R8, DI")
		}
	}
}

// fold leaves in register to, for each block of four lanes, the sums
// (l0 + l2) + (l1 + l3) of registers z … z+3. It uses registers to … top.
func (a *asm) fold(r string, z, to, top int) {
	a.foldOf(r, [cols]int{z, z + 1, z + 2, z + 3}, to, top)
}

// foldOf is fold of four registers that need not be next to each other.
func (a *asm) foldOf(r string, z [cols]int, to, top int) {
	t := [3]int{to, to + 1, top}
	for i := range 2 {
		lo, hi := z[2*i], z[2*i+1]
		a.op("VUNPCKLPS %s%d, %s%d, %s%d", r, hi, r, lo, r, t[i])
		a.op("VUNPCKHPS %s%d, %s%d, %s%d", r, hi, r, lo, r, t[2])
		a.op("VADDPS %s%d, %s%d, %s%d", r, t[2], r, t[i], r, t[i])
	}
	a.op("VUNPCKHPD %s%d, %s%d, %s%d", r, t[1], r, t[0], r, t[2])
	a.op("VUNPCKLPD %s%d, %s%d, %s%d", r, t[1], r, t[0], r, t[0])
	a.op("VADDPS %s%d, %s%d, %s%d", r, t[2], r, t[0], r, t[0])
}

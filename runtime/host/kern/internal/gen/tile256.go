package main

import "fmt"

const rows256 = 3

// tiles256 has one function: bf16 panels are widened when they are packed.
// Sixteen lanes of all sums do not fit in the registers, so it does half of the
// lanes at a time.
func tiles256(a *asm) {
	const accs = 32 * cols * rows256 // local memory for the first half
	a.text("tileF32x256", accs+8,
		"computes one tile of a product from packed panels of both operands.", "t *tile")
	a.begin(rows256)
	acc := func(i int) string { return fmt.Sprintf("acc%d-%d(SP)", i, 8+32*(i+1)) }
	for m := rows256; m > 1; m-- {
		if m < rows256 {
			a.label("rows%d", m)
		}
		a.flushOn(f32, m)
		for half := range 2 {
			if half == 1 {
				for i := range cols * m {
					a.op("VMOVUPS Y%d, %s", i, acc(i))
				}
				a.op("MOVQ tile_a(DX), SI")
				a.op("MOVQ tile_b(DX), BX")
				a.op("MOVQ tile_vecs(DX), CX")
			}
			a.half256(m, half)
		}
		a.flushOff(f32, m)
		for i := range m {
			z := cols * i
			a.fold("Y", z, 12, 15)
			for n := range cols {
				a.op("VMOVUPS %s, Y%d", acc(z+n), z+n)
			}
			a.fold("Y", z, 13, 15)
			if i == 0 {
				a.constants256()
			}
			a.op("VADDPS Y13, Y12, Y12")
			a.store256(12, i == m-1)
		}
		a.ret()
	}
}

// half256 sums one half of the lanes in Y0 … Y(4m−1).
func (a *asm) half256(m, half int) {
	a.clear256(cols * m)
	a.label("loop%d", 10*m+half)
	for i := range m {
		a.op("VMOVUPS %d(SI), Y%d", 64*i+32*half, 12+i)
	}
	for n := range cols {
		a.op("VMOVUPS %d(BX), Y15", 64*n+32*half)
		for i := range m {
			a.op("VFMADD231PS Y15, Y%d, Y%d", 12+i, cols*i+n)
		}
	}
	if half == 0 {
		a.op("PREFETCHT1 (R9)")
		a.op("ADDQ $64, R9")
	}
	a.op("ADDQ $%d, SI", 64*m)
	a.op("ADDQ $%d, BX", 64*cols)
	a.op("DECQ CX")
	a.op("JNE loop%d", 10*m+half)
}

// constants256 are used by store256, which runs when Y0 … Y3 are free.
func (a *asm) constants256() {
	a.op("MOVL $0x7fc00000, AX")
	a.op("VMOVD AX, X2")
	a.op("VBROADCASTSS X2, X2")
	a.op("VBROADCASTSS tile_keep(DX), X3")
}

// store256 adds the two halves of register y and updates y.
func (a *asm) store256(y int, last bool) {
	a.op("VEXTRACTF128 $1, Y%d, X0", y)
	a.op("VADDPS X0, X%d, X%d", y, y)
	a.op("VANDPS (DI), X3, X0")
	a.op("VADDPS X0, X%d, X%d", y, y)
	a.op("VCMPPS $3, X%d, X%d, X0", y, y)
	a.op("VBLENDVPS X0, X2, X%d, X%d", y, y)
	a.op("VMOVUPS X%d, (DI)", y)
	if !last {
		a.op("ADDQ R8, DI")
	}
}

// clear256 zeroes Y0 … Yn−1.
func (a *asm) clear256(n int) {
	for i := range n {
		a.op("VXORPS Y%d, Y%d, Y%d", i, i, i)
	}
}

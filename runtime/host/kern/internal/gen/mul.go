package main

import "fmt"

// Products in the order of k keep a tile of y in registers. A step multiplies
// one column of x, an element broadcast at a time, by vectors of a row of w.
// Those of bf16 are split in even and odd columns, which is one instruction
// each; the order of the columns comes right when the tile is stored.

const mulRows = 6 // rows of x of a tile

// mulVectors are the vectors of f32 of a tile's rows, widest first.
func mulVectors(w width) []int {
	if w.bytes == 64 {
		return []int{4, 2}
	}
	return []int{2}
}

// mulRegs are the registers of a tile function.
type mulRegs struct {
	width
	kind
	rows, vecs int
}

func (m mulRegs) acc(i, v int) int { return i*m.vecs + v }
func (m mulRegs) w(v int) int      { return mulRows*mulVectors(m.width)[0] + v }

// lineBytes are the bytes of w that a step reads.
func (m mulRegs) lineBytes() int {
	if m.kind == bf16 {
		return m.vecs * m.bytes / 2
	}
	return m.vecs * m.bytes
}

// x alternates between two registers where there are as many.
func (m mulRegs) x(i int) int {
	first := m.w(mulVectors(m.width)[0])
	if m.bytes == 64 {
		return first + i%2
	}
	return first
}

// mask is a register of 0xffff0000 in every lane.
func (m mulRegs) mask() int { return m.width.bytes/2 - 1 }

// rowRegs point to the rows of x.
var rowRegs = [mulRows]string{"SI", "R9", "R10", "R11", "R12", "R13"}

func muls(a *asm) {
	for _, c := range []struct {
		name  string
		first [2]int // in the lower and in the upper half, or in all
		step  int
	}{{"low", [2]int{0, 16}, 0}, {"high", [2]int{8, 24}, 0}, {"even", [2]int{0, 0}, 2}, {"odd", [2]int{1, 1}, 2}} {
		a.WriteString("\n")
		for at := range 8 {
			lo, hi := c.first[0]+at, c.first[1]+at
			if c.step != 0 {
				lo, hi = c.first[0]+2*c.step*at, c.first[0]+2*c.step*at+c.step
			}
			fmt.Fprintf(a, "DATA %s<>+%d(SB)/8, $0x%08x%08x\n", c.name, 8*at, hi, lo)
		}
		fmt.Fprintf(a, "GLOBL %s<>(SB), RODATA|NOPTR, $64\n", c.name)
	}
	for _, w := range widths {
		for _, k := range []kind{f32, bf16} {
			a.mul(w, k)
		}
	}
}

func (a *asm) mul(w width, k kind) {
	a.text(fmt.Sprintf("mul%sx%s", k, w.name), 0,
		"computes one tile of a product in the order of k.", "t *mulTile")
	for _, f := range [][2]string{{"x", "SI"}, {"w", "BX"}, {"y", "DI"}, {"ldx", "AX"}, {"ldw", "R8"}, {"k", "CX"}} {
		a.op("MOVQ mulTile_%s(DX), %s", f[0], f[1])
	}
	for i := 1; i < mulRows; i++ {
		a.op("LEAQ (%s)(AX*1), %s", rowRegs[i-1], rowRegs[i])
	}
	m := mulRegs{width: w, kind: k}
	if k == bf16 {
		a.op("MOVL $0xffff0000, AX")
		if w.bytes == 64 {
			a.op("VPBROADCASTD AX, Z%d", m.mask())
		} else {
			a.op("VMOVD AX, X%d", m.mask())
			a.op("VPBROADCASTD X%d, Y%d", m.mask(), m.mask())
		}
	}
	if w.bytes == 64 {
		a.op("KMOVQ mulTile_mask(DX), K1")
		for v := 1; v < 4; v++ {
			a.op("KSHIFTRQ $%d, K1, K%d", 16*v, 1+v)
		}
	}
	a.op("MOVQ mulTile_rows(DX), AX")
	vecs := mulVectors(w)
	if len(vecs) > 1 {
		a.op("CMPQ mulTile_cols(DX), $%d", 16*vecs[1])
		a.op("JLE narrow")
	}
	for n, v := range vecs {
		if n > 0 {
			a.label("narrow")
		}
		for r := 1; r < mulRows; r++ {
			a.op("CMPQ AX, $%d", r)
			a.op("JEQ rows%d", 10*v+r)
		}
		for m.vecs, m.rows = v, mulRows; m.rows > 0; m.rows-- {
			a.mulTile(m)
		}
	}
}

// mulTile is the code for one number of rows and vectors.
func (a *asm) mulTile(m mulRegs) {
	id := 10*m.vecs + m.rows
	if m.rows < mulRows {
		a.label("rows%d", id)
	}
	a.op("CMPL mulTile_keep(DX), $0")
	a.op("JNE load%d", id)
	for i := range m.rows * m.vecs {
		a.r(m.width, m.pick("VXORPS", "VPXORD"), i, i, i)
	}
	a.label("start%d", id)
	if m.kind == bf16 {
		// Only the first element has none before it.
		a.mulStep(m, true)
		a.op("MOVL $1, AX")
		a.op("CMPQ AX, CX")
		a.op("JGE end%d", id)
	} else {
		a.op("XORL AX, AX")
	}
	a.label("loop%d", id)
	a.mulStep(m, false)
	a.op("INCQ AX")
	a.op("CMPQ AX, CX")
	a.op("JLT loop%d", id)
	a.label("end%d", id)
	a.mulStore(m)
	a.ret()
	a.label("load%d", id)
	a.mulLoad(m)
	a.op("JMP start%d", id)
}

// mulStep multiplies a column of x by a row of w.
func (a *asm) mulStep(m mulRegs, first bool) {
	a.mulW(m)
	for i := range m.rows {
		a.mulX(m, i, first)
		for v := range m.vecs {
			a.r(m.width, "VFMADD231PS", m.w(v), m.x(i), m.acc(i, v))
		}
	}
	a.op("ADDQ R8, BX")
}

// mulX repeats element AX of a row of x in a register. One of bf16 is the upper
// half of 32 bits.
func (a *asm) mulX(m mulRegs, i int, first bool) {
	x, row := m.x(i), rowRegs[i]
	switch {
	case m.kind == f32:
		a.op("VBROADCASTSS (%s)(AX*4), %s%d", row, m.reg, x)
	case first:
		a.op("VPBROADCASTW (%s), %s%d", row, m.reg, x)
		a.op("VPSLLD $16, %s%d, %s%d", m.reg, x, m.reg, x)
	case m.bytes == 64:
		a.op("VPANDD.BCST -2(%s)(AX*2), Z%d, Z%d", row, m.mask(), x)
	default:
		a.op("VPBROADCASTD -2(%s)(AX*2), Y%d", row, x)
		a.r(m.width, "VPAND", m.mask(), x, x)
	}
}

// mulW loads a row of w.
func (a *asm) mulW(m mulRegs) {
	for at := 0; at < m.lineBytes(); at += 64 {
		a.op("PREFETCHT0 %d(BX)(R8*8)", at)
	}
	if m.kind == f32 {
		for v := range m.vecs {
			a.masked(m, "VMOVUPS", fmt.Sprintf("%d(BX)", m.bytes*v), 1+v, m.w(v))
		}
		return
	}
	for v := 0; v < m.vecs; v += 2 {
		even, odd := m.w(v), m.w(v+1)
		a.masked(m, m.pick("VMOVDQU", "VMOVDQU16"), fmt.Sprintf("%d(BX)", m.bytes*v/2), 1+v, odd)
		a.op("VPSLLD $16, %s%d, %s%d", m.reg, odd, m.reg, even)
		a.r(m.width, m.pick("VPAND", "VPANDD"), m.mask(), odd, odd)
	}
}

// masked loads a vector; in 512 bits, of the elements in mask k.
func (a *asm) masked(m mulRegs, name, from string, k, to int) {
	if m.bytes == 64 {
		a.op("%s.Z %s, K%d, Z%d", name, from, k, to)
		return
	}
	a.op("%s %s, Y%d", name, from, to)
}

// mulLoad loads the sums of a tile that is continued.
func (a *asm) mulLoad(m mulRegs) {
	a.op("MOVQ DI, AX")
	t := m.w(0)
	for i := range m.rows {
		for v := range m.vecs {
			a.masked(m, "VMOVUPS", fmt.Sprintf("%d(AX)", m.bytes*v), 1+v, m.acc(i, v))
		}
		for v := 0; v < m.vecs && m.kind == bf16; v += 2 {
			lo, hi := m.acc(i, v), m.acc(i, v+1)
			if m.bytes == 64 {
				a.op("VMOVUPS even<>(SB), Z%d", t)
				a.op("VMOVUPS odd<>(SB), Z%d", t+1)
				a.op("VMOVAPS Z%d, Z%d", lo, t+2)
				a.op("VPERMT2PS Z%d, Z%d, Z%d", hi, t, lo)
				a.op("VPERMT2PS Z%d, Z%d, Z%d", hi, t+1, t+2)
				a.op("VMOVAPS Z%d, Z%d", t+2, hi)
				continue
			}
			a.op("VPERM2F128 $0x20, Y%d, Y%d, Y%d", hi, lo, t)
			a.op("VPERM2F128 $0x31, Y%d, Y%d, Y%d", hi, lo, t+1)
			a.op("VSHUFPS $0x88, Y%d, Y%d, Y%d", t+1, t, lo)
			a.op("VSHUFPS $0xdd, Y%d, Y%d, Y%d", t+1, t, hi)
		}
		a.op("ADDQ mulTile_ldy(DX), AX")
	}
}

// mulStore stores the tile, with +0 for −0 and one NaN.
func (a *asm) mulStore(m mulRegs) {
	t := m.w(0)
	for i := range m.rows {
		for v := 0; v < m.vecs && m.kind == bf16; v += 2 {
			even, odd := m.acc(i, v), m.acc(i, v+1)
			if m.bytes == 64 {
				a.op("VMOVUPS low<>(SB), Z%d", t)
				a.op("VMOVUPS high<>(SB), Z%d", t+1)
				a.op("VMOVAPS Z%d, Z%d", even, t+2)
				a.op("VPERMT2PS Z%d, Z%d, Z%d", odd, t, even)
				a.op("VPERMT2PS Z%d, Z%d, Z%d", odd, t+1, t+2)
				a.op("VMOVAPS Z%d, Z%d", t+2, odd)
				continue
			}
			a.op("VUNPCKLPS Y%d, Y%d, Y%d", odd, even, t)
			a.op("VUNPCKHPS Y%d, Y%d, Y%d", odd, even, t+1)
			a.op("VPERM2F128 $0x20, Y%d, Y%d, Y%d", t+1, t, even)
			a.op("VPERM2F128 $0x31, Y%d, Y%d, Y%d", t+1, t, odd)
		}
		for v := range m.vecs {
			r := m.acc(i, v)
			a.r(m.width, m.pick("VXORPS", "VPXORD"), t, t, t)
			a.r(m.width, "VADDPS", t, r, r)
			a.op("VBROADCASTSS mulTile_nan(DX), %s%d", m.reg, t+1)
			if m.bytes == 64 {
				a.op("VCMPPS $3, Z%d, Z%d, K6", r, r)
				a.op("VMOVAPS Z%d, K6, Z%d", t+1, r)
				a.op("VMOVUPS Z%d, K%d, %d(DI)", r, 1+v, 64*v)
				continue
			}
			a.op("VCMPPS $3, Y%d, Y%d, Y%d", r, r, t)
			a.op("VBLENDVPS Y%d, Y%d, Y%d, Y%d", t, t+1, r, r)
			a.op("VMOVUPS Y%d, %d(DI)", r, 32*v)
		}
		a.op("ADDQ mulTile_ldy(DX), DI")
	}
}

package main

import "fmt"

// A GEMV reads several rows of w at the same columns: x is loaded once for all
// of them, and each row is a stream of its own for the processor to follow.
const (
	streams512 = 8
	streams256 = 4
	// fetch is the distance of prefetches. It is short enough to stay in the
	// rows for most of their length, and goes to the second-level cache: the
	// first has too few misses in flight for the latency of memory. Past the end
	// of w it is without effect.
	fetch = 1024
)

func gemvs512(a *asm) {
	for _, k := range []kind{bf16, f32, wide} {
		gemv512(a, k)
	}
}

func gemvs256(a *asm) {
	for _, k := range []kind{f32, wide} {
		gemv256(a, k)
	}
}

// beginGemv loads the parameters of a GEMV.
func (a *asm) beginGemv() {
	a.op("MOVQ tile_a(DX), SI")
	a.op("MOVQ tile_b(DX), BX")
	a.op("MOVQ tile_y(DX), DI")
	a.op("MOVQ tile_vecs(DX), CX")
	a.op("MOVQ tile_ldb(DX), R10")
	a.op("LEAQ (R10)(R10*2), R11")
}

// endStep advances to the next vector.
func (a *asm) endStep(bases ...string) {
	for _, r := range append(bases, "SI") {
		a.op("ADDQ $64, %s", r)
	}
	a.op("DECQ CX")
	a.op("JNE loop")
}

func gemv512(a *asm, k kind) {
	a.text(fmt.Sprintf("gemv%sx512", k), frame(k), "multiplies one row of x by eight rows of w.", "t *tile")
	a.beginGemv()
	a.op("LEAQ (BX)(R10*4), R9")
	a.op("KMOVD tile_tail(DX), K1")
	a.clear512(streams512)
	if k == wide {
		a.flushOn(k, 0)
		a.op("MOVL $0xffff0000, AX")
		a.op("VPBROADCASTD AX, Z20")
	}
	a.op("TESTQ CX, CX")
	a.op("JEQ last")
	a.label("loop")
	a.step512(k, false)
	a.endStep("BX", "R9")
	a.label("last")
	a.op("KTESTD K1, K1")
	a.op("JEQ done")
	a.step512(k, true)
	a.label("done")
	if k == wide {
		a.flushOff(k, 0)
	}
	a.op("MOVQ $%d, R8", 4*cols)
	a.reduce512(streams512 / cols)
	a.ret()
}

// row is the address of row n of eight: R9 is the fifth one.
func row(n int) mem { return rowOf("BX", "R9", n) }

// rowOf is that of row n where first and fifth are the registers of two rows,
// R10 is the distance of rows and R11 three times that.
func rowOf(first, fifth string, n int) mem {
	m := mem{base: [2]string{first, fifth}[n/cols], index: "R10", scale: n % cols}
	switch n % cols {
	case 0:
		m.index = ""
	case 3:
		m.index, m.scale = "R11", 1
	}
	return m
}

// step512 multiplies one vector of each row.
func (a *asm) step512(k kind, last bool) {
	a.load512("(SI)", 24, last)
	if k == wide {
		a.op("VPANDD Z20, Z24, Z25")
		a.op("VPSLLD $16, Z24, Z24")
	}
	for n := range streams512 {
		from := row(n)
		if !last {
			a.op("PREFETCHT1 %d%s", fetch, from)
			if k == bf16 {
				a.dp(n, 24, from)
				continue
			}
		}
		a.load512(from.String(), 28, last)
		if k == wide {
			a.op("VPANDD Z20, Z28, Z29")
			a.op("VPSLLD $16, Z28, Z28")
			a.mac(f32, n, 25, 29)
			a.mac(f32, n, 24, 28)
			continue
		}
		a.mac(k, n, 24, 28)
	}
}

// gemv256 keeps the halves of the lanes of row n in registers 2n and 2n+1.
// There are no masks for 16-bit elements: the last vectors come from a buffer
// padded with zeros.
func gemv256(a *asm, k kind) {
	a.text(fmt.Sprintf("gemv%sx256", k), frame(k),
		"multiplies one row of x by four rows of w, and the padded\nvectors in pad.", "t *tile")
	a.beginGemv()
	a.clear256(2 * streams256)
	if k == wide {
		a.flushOn(k, 0)
		a.op("VPCMPEQD Y15, Y15, Y15")
		a.op("VPSLLD $16, Y15, Y15")
	}
	a.op("TESTQ CX, CX")
	a.op("JEQ last")
	a.label("loop")
	for n := range streams256 {
		a.op("PREFETCHT1 %d(BX)%s", fetch, quad[n])
	}
	a.step256(k)
	a.endStep("BX")
	a.label("last")
	a.op("CMPL tile_tail(DX), $0")
	a.op("JEQ done")
	a.op("LEAQ tile_pad(DX), SI")
	a.op("LEAQ tile_pad+64(DX), BX")
	a.op("MOVQ $64, R10")
	a.op("MOVQ $192, R11")
	a.step256(k)
	a.label("done")
	if k == wide {
		a.flushOff(k, 0)
	}
	for half := range 2 {
		for n := range cols {
			a.op("VMOVAPS Y%d, Y%d", 2*n+half, 8+n)
		}
		a.fold("Y", 8, 12+half, 15)
	}
	a.constants256()
	a.op("VADDPS Y13, Y12, Y12")
	a.store256(12, true)
	a.ret()
}

// step256 multiplies one vector of each row, both halves.
func (a *asm) step256(k kind) {
	at := [2]string{"", "32"}
	for half := range 2 {
		a.op("VMOVUPS %s(SI), Y%d", at[half], 8+half)
		if k == wide {
			a.op("VPAND Y15, Y%d, Y%d", 8+half, 10+half)
			a.op("VPSLLD $16, Y%d, Y%d", 8+half, 8+half)
		}
	}
	for n := range streams256 {
		for half := range 2 {
			acc := 2*n + half
			a.op("VMOVUPS %s(BX)%s, Y12", at[half], quad[n])
			if k == wide {
				a.op("VPAND Y15, Y12, Y13")
				a.op("VPSLLD $16, Y12, Y12")
				a.op("VFMADD231PS Y13, Y%d, Y%d", 10+half, acc)
			}
			a.op("VFMADD231PS Y12, Y%d, Y%d", 8+half, acc)
		}
	}
}

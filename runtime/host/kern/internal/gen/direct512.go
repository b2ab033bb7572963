package main

import "fmt"

func directs512(a *asm) {
	for _, k := range []kind{bf16, f32} {
		direct512(a, k)
	}
}

// direct512 reads four rows of w where they lie, and fetches the ones that the
// next call reads meanwhile.
func direct512(a *asm, k kind) {
	a.text(fmt.Sprintf("direct%sx512", k), 0,
		"computes one tile of a product from a packed panel of x and\nfour rows of w.", "t *tile")
	for n, r := range fetches[1:] {
		a.op("MOVQ tile_fetch+%d(DX), %s", 8*n+8, r)
	}
	a.begin(rows512)
	for m := rows512; m > 1; m-- {
		if m < rows512 {
			a.label("rows%d", m)
		}
		a.op("KMOVD tile_tail(DX), K1")
		a.op("MOVQ tile_fetch(DX), %s", fetches[0])
		a.fetchY(m)
		a.op("MOVQ tile_ldb(DX), R10")
		a.op("LEAQ (R10)(R10*2), R11")
		a.clear512(cols * m)
		a.op("TESTQ CX, CX")
		a.op("JEQ last%d", m)
		a.label("loop%d", m)
		a.direct(k, m, false)
		a.op("ADDQ $%d, SI", 64*m)
		a.op("ADDQ $64, BX")
		a.op("DECQ CX")
		a.op("JNE loop%d", m)
		a.label("last%d", m)
		a.op("KTESTD K1, K1")
		a.op("JEQ done%d", m)
		a.direct(k, m, true)
		a.label("done%d", m)
		a.reduce512(m)
		a.ret()
	}
}

// quad are the addresses of four rows, R10 bytes apart; R11 is three times R10.
var quad = [cols]string{"", "(R10*1)", "(R10*2)", "(R11*1)"}

// fetches are the distances from the first row to what is fetched.
var fetches = [cols]string{"R9", "R12", "R13", "R14"}

// direct multiplies one vector of each row; the last one is masked.
func (a *asm) direct(k kind, m int, last bool) {
	for i := range m {
		a.op("VMOVUPS %d(SI), Z%d", 64*i, 24+i)
	}
	for n := range cols {
		if !last {
			a.op("PREFETCHT1 (BX)(%s*1)", fetches[n])
		}
		a.load512("(BX)"+quad[n], 30, last)
		for i := range m {
			a.mac(k, cols*i+n, 24+i, 30)
		}
	}
}

// load512 loads a vector; of the last one only the elements in K1.
func (a *asm) load512(from string, z int, last bool) {
	if last {
		a.op("VMOVDQU16.Z %s, K1, Z%d", from, z)
		return
	}
	a.op("VMOVUPS %s, Z%d", from, z)
}

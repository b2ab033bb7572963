package main

import "fmt"

// Short rows would spend more time on adding lanes than on multiplying. So w is
// transposed: a register holds one lane of the law for 16 rows of w, an element
// of x is multiplied by it, and lanes are added without shuffles. It takes the
// lanes in the order in which their sums are used up,
//
//	(l0 + l2) + (l1 + l3)    and of blocks    (b0 + b2) + (b1 + b3)
const (
	shortMin = 4 // rows of x of a tile
	shortMax = 8
)

// shortLanes is the order of the lanes in a transposed panel.
func shortLanes() (order [16]int) {
	swap := [4]int{0, 2, 1, 3}
	for i := range order {
		order[i] = 4*swap[i/4] + swap[i%4]
	}
	return order
}

func shorts512(a *asm) {
	for _, k := range []kind{bf16, f32} {
		a.short(k)
	}
	a.transpose()
}

func (a *asm) short(k kind) {
	a.text(fmt.Sprintf("short%sx512", k), 0,
		"multiplies four to eight rows of x by a transposed panel of 16\nrows of w.", "t *tile")
	for _, f := range [][2]string{{"a", "SI"}, {"b", "BX"}, {"y", "DI"}, {"sums", "R8"}, {"pf", "R14"}, {"lda", "R10"}, {"vecs", "CX"}, {"rows", "AX"}} {
		a.op("MOVQ tile_%s(DX), %s", f[0], f[1])
	}
	a.op("ADDQ tile_ahead(DX), R14")
	a.op("LEAQ (R10)(R10*2), R11")
	a.op("LEAQ (SI)(R10*4), R9")
	a.op("MOVQ CX, R13")
	a.op("SHLQ $6, R13")
	a.op("XORL R12, R12")
	for m := shortMin; m < shortMax; m++ {
		a.op("CMPQ AX, $%d", m)
		a.op("JEQ block%d", m)
	}
	for m := shortMax; m >= shortMin; m-- {
		a.shortTile(k, m)
	}
}

// shortTile sums four blocks of lanes, of which R12 is the number, with the sums
// that wait for others in registers of their own or in memory.
func (a *asm) shortTile(k kind, m int) {
	a.label("block%d", m)
	first, second, third := 0, m, 2*m
	a.shortLane(k, m, 0, first, 8)
	a.shortLane(k, m, 1, second, -4)
	a.addAll(m, second, first)
	a.shortLane(k, m, 2, second, 8)
	a.shortLane(k, m, 3, third, 20)
	a.addAll(m, third, second)
	a.addAll(m, second, first)
	a.op("INCQ R12")
	a.op("CMPQ R12, $2")
	a.op("JEQ second%d", m)
	a.op("JGT third%d", m)
	for i := range m {
		a.op("VMOVUPS Z%d, %s", first+i, shortSum(0, i))
	}
	a.op("JMP block%d", m)

	a.label("second%d", m)
	for i := range m {
		a.op("VADDPS %s, Z%d, Z%d", shortSum(0, i), first+i, first+i)
		a.op("VMOVUPS Z%d, %s", first+i, shortSum(0, i))
	}
	a.op("SUBQ $48, SI")
	a.op("SUBQ $48, R9")
	a.op("JMP block%d", m)

	a.label("third%d", m)
	a.op("CMPQ R12, $4")
	a.op("JEQ last%d", m)
	for i := range m {
		a.op("VMOVUPS Z%d, %s", first+i, shortSum(1, i))
	}
	a.op("JMP block%d", m)

	a.label("last%d", m)
	a.op("MOVQ tile_ldy(DX), R9")
	a.op("MOVL $0x7fc00000, AX")
	a.op("VPBROADCASTD AX, Z31")
	a.op("VPXORD Z30, Z30, Z30")
	for i := range m {
		z := first + i
		a.op("VADDPS %s, Z%d, Z%d", shortSum(1, i), z, z)
		a.op("VADDPS %s, Z%d, Z%d", shortSum(0, i), z, z)
		a.op("VADDPS Z30, Z%d, Z%d", z, z)
		a.op("VCMPPS $3, Z%d, Z%d, K1", z, z)
		a.op("VMOVAPS Z31, K1, Z%d", z)
		a.op("VMOVUPS Z%d, (DI)", z)
		a.op("ADDQ R9, DI")
	}
	a.ret()
}

// shortSum is memory for the sums of a block, or of two.
func shortSum(n, i int) string { return fmt.Sprintf("%d(R8)", 64*(shortMax*n+i)) }

// shortLane fetches a row of w and sums a lane of m rows, of which the lane after it is step bytes
// further in x, in registers to ….
func (a *asm) shortLane(k kind, m, n, to, step int) {
	w := 3 * shortMax
	for i := range m {
		a.op("VPXORD Z%d, Z%d, Z%d", to+i, to+i, to+i)
	}
	a.op("MOVQ CX, AX")
	a.label("lane%d", 10*m+n)
	a.op("VMOVUPS (BX), Z%d", w)
	for i := range m {
		x := rowOf("SI", "R9", i)
		x.bcast = k == bf16
		if k == bf16 {
			a.dp(to+i, w, x)
		} else {
			a.op("VFMADD231PS.BCST %s, Z%d, Z%d", x, w, to+i)
		}
	}
	a.op("PREFETCHT1 (R14)")
	for _, r := range []string{"R14", "BX", "SI", "R9"} {
		a.op("ADDQ $64, %s", r)
	}
	a.op("DECQ AX")
	a.op("JNE lane%d", 10*m+n)
	a.op("SUBQ R13, R14")
	a.op("ADDQ tile_ldb(DX), R14")
	for _, r := range []string{"SI", "R9"} {
		a.op("SUBQ R13, %s", r)
		a.op("ADDQ $%d, %s", step, r)
	}
}

// addAll adds m registers to others.
func (a *asm) addAll(m, from, to int) {
	for i := range m {
		a.op("VADDPS Z%d, Z%d, Z%d", from+i, to+i, to+i)
	}
}

// transpose writes 16 rows as a panel: vector v of the lane that is number i
// goes to dst + 64·(i·all + v), where all is the number of vectors with the one
// of which only the elements in the mask tail are read.
func (a *asm) transpose() {
	a.text("transposex512", 0, "transposes 16 rows, step bytes apart, with vecs vectors each and\nthe elements in the mask tail.",
		"dst unsafe.Pointer", "src unsafe.Pointer", "step", "vecs", "tail")
	a.op("LEAQ (R8)(R8*2), R11")
	a.op("KMOVD R9, K1")
	a.op("MOVQ CX, R12")
	a.op("TESTQ R9, R9")
	a.op("JEQ whole")
	a.op("INCQ R12")
	a.label("whole")
	a.op("SHLQ $6, R12")
	a.op("LEAQ (R12)(R12*2), R13")
	a.op("TESTQ CX, CX")
	a.op("JEQ last")
	a.label("loop")
	a.transposeVector(false)
	a.op("ADDQ $64, SI")
	a.op("ADDQ $64, DI")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.label("last")
	a.op("KTESTD K1, K1")
	a.op("JEQ done")
	a.transposeVector(true)
	a.label("done")
	a.ret()
}

func (a *asm) transposeVector(last bool) {
	a.op("MOVQ SI, BX")
	for i := range 16 {
		if i%4 == 0 && i > 0 {
			a.op("LEAQ (BX)(R8*4), BX")
		}
		a.load512("(BX)"+[4]string{"", "(R8*1)", "(R8*2)", "(R11*1)"}[i%4], i, last)
	}
	// Pairs of rows, then fours: block b of Z(4g+k) is column 4b+k of rows 4g ….
	for i := 0; i < 16; i += 2 {
		a.op("VUNPCKLPS Z%d, Z%d, Z%d", i+1, i, 16+i)
		a.op("VUNPCKHPS Z%d, Z%d, Z%d", i+1, i, 17+i)
	}
	for g := 0; g < 16; g += 4 {
		for k := range 2 {
			lo, hi := 16+g+k, 16+g+k+2
			a.op("VUNPCKLPD Z%d, Z%d, Z%d", hi, lo, g+2*k)
			a.op("VUNPCKHPD Z%d, Z%d, Z%d", hi, lo, g+2*k+1)
		}
	}
	// Blocks of the four groups.
	var at [16]int // where a lane goes
	for i, l := range shortLanes() {
		at[l] = i
	}
	bases := [4]string{"DI", "BX", "R10", "R9"}
	for i := range 3 {
		a.op("LEAQ (%s)(R12*4), %s", bases[i], bases[i+1])
	}
	for k := range 4 {
		for i, imm := range []int{0x44, 0xee} {
			a.op("VSHUFF32X4 $%#x, Z%d, Z%d, Z%d", imm, 4+k, k, 16+i)
			a.op("VSHUFF32X4 $%#x, Z%d, Z%d, Z%d", imm, 12+k, 8+k, 18+i)
		}
		for b := range 4 {
			a.op("VSHUFF32X4 $%#x, Z%d, Z%d, Z%d", [2]int{0x88, 0xdd}[b%2], 18+b/2, 16+b/2, 20+b)
		}
		for b := range 4 {
			n := at[4*b+k]
			a.op("VMOVUPS Z%d, (%s)%s", 20+b, bases[n/4], [4]string{"", "(R12*1)", "(R12*2)", "(R13*1)"}[n%4])
		}
	}
}

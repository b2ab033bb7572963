package main

// packs copy one row of an operand into its panel: vector v of the row goes to
// dst + v·step.
func packs(a *asm) {
	a.text("packRowx512", 0,
		"copies vecs vectors of a row and one more of which only the\nelements in the mask tail are read; the rest of that vector is zero.",
		"dst unsafe.Pointer", "src unsafe.Pointer", "step", "vecs", "tail")
	a.copyLoop(func(last bool) {
		if last {
			a.op("KMOVD R9, K1")
			a.op("VMOVDQU16.Z (SI), K1, Z0")
		} else {
			a.op("VMOVDQU16 (SI), Z0")
		}
		a.op("VMOVDQU16 Z0, (DI)")
	})
	a.text("packRowx256", 0,
		"copies vecs vectors of a row.",
		"dst unsafe.Pointer", "src unsafe.Pointer", "step", "vecs")
	a.copyLoop256(func() {
		a.op("VMOVUPS (SI), Y0")
		a.op("VMOVUPS 32(SI), Y1")
		a.op("VMOVUPS Y0, (DI)")
		a.op("VMOVUPS Y1, 32(DI)")
		a.op("ADDQ R8, DI")
	})
	a.text("packWidex512", 0,
		"widens vecs vectors of bf16 and one more of which only the\nelements in the mask tail are read. Each becomes two: odd elements, then even\nones.",
		"dst unsafe.Pointer", "src unsafe.Pointer", "step", "vecs", "tail")
	a.op("MOVL $0xffff0000, AX")
	a.op("VPBROADCASTD AX, Z2")
	a.copyLoop(func(last bool) {
		if last {
			a.op("KMOVD R9, K1")
			a.op("VMOVDQU16.Z (SI), K1, Z0")
		} else {
			a.op("VMOVDQU16 (SI), Z0")
		}
		a.op("VPANDD Z2, Z0, Z1")
		a.op("VPSLLD $16, Z0, Z0")
		a.op("VMOVDQU16 Z1, (DI)")
		a.op("ADDQ R8, DI")
		a.op("VMOVDQU16 Z0, (DI)")
	})
	a.text("packWidex256", 0,
		"widens vecs vectors of bf16. Each becomes two: odd elements,\nthen even ones.",
		"dst unsafe.Pointer", "src unsafe.Pointer", "step", "vecs")
	a.op("VPCMPEQD Y4, Y4, Y4")
	a.op("VPSLLD $16, Y4, Y4")
	a.copyLoop256(func() {
		a.op("VMOVDQU (SI), Y0")
		a.op("VMOVDQU 32(SI), Y1")
		a.op("VPAND Y4, Y0, Y2")
		a.op("VPAND Y4, Y1, Y3")
		a.op("VMOVDQU Y2, (DI)")
		a.op("VMOVDQU Y3, 32(DI)")
		a.op("ADDQ R8, DI")
		a.op("VPSLLD $16, Y0, Y0")
		a.op("VPSLLD $16, Y1, Y1")
		a.op("VMOVDQU Y0, (DI)")
		a.op("VMOVDQU Y1, 32(DI)")
		a.op("ADDQ R8, DI")
	})
}

func (a *asm) copyLoop(step func(last bool)) {
	a.op("TESTQ CX, CX")
	a.op("JEQ last")
	a.label("loop")
	step(false)
	a.op("ADDQ R8, DI")
	a.op("ADDQ $64, SI")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.label("last")
	a.op("TESTQ R9, R9")
	a.op("JEQ done")
	step(true)
	a.label("done")
	a.ret()
}

func (a *asm) copyLoop256(step func()) {
	a.op("TESTQ CX, CX")
	a.op("JEQ done")
	a.label("loop")
	step()
	a.op("ADDQ $64, SI")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.label("done")
	a.ret()
}

package main

// roofs are loops that do nothing but what they measure.
func roofs(a *asm) {
	a.text("peakBF16x512", 0, "does n rounds of 24 VDPBF16PS on registers.", "n")
	a.peak("VPXORD", "Z", 24, func(i int) { a.dp(i, 30, 31) })
	a.text("peakF32x512", 0, "does n rounds of 24 FMAs of 16 lanes on registers.", "n")
	a.peak("VPXORD", "Z", 24, func(i int) { a.op("VFMADD231PS Z31, Z30, Z%d", i) })
	a.text("peakF32x256", 0, "does n rounds of 12 FMAs of 8 lanes on registers.", "n")
	a.peak("VPXOR", "Y", 12, func(i int) { a.op("VFMADD231PS Y15, Y14, Y%d", i) })

	a.text("readLine", 0, "reads n blocks of 512 bytes, one after another.", "x unsafe.Pointer", "n")
	a.op("VPXOR Y0, Y0, Y0")
	a.label("loop")
	for at := 0; at < 512; at += 32 {
		if at%64 == 0 {
			a.op("PREFETCHT1 %d(SI)", 4096+at)
		}
		a.op("VPOR %d(SI), Y0, Y0", at)
	}
	a.op("ADDQ $512, SI")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()

	a.text("readStreams", 0, "reads 64·n bytes of each of eight streams that begin step\nbytes apart.",
		"x unsafe.Pointer", "step", "n")
	a.op("LEAQ (R8)(R8*2), R11")
	a.op("MOVQ R8, R10")
	a.op("MOVQ SI, BX")
	a.op("LEAQ (BX)(R8*4), R9")
	a.op("VPXOR Y0, Y0, Y0")
	a.label("loop")
	for i := range 8 {
		from := row(i)
		a.op("PREFETCHT1 %d%s", fetch, from)
		a.op("VPOR %s, Y0, Y0", from)
		a.op("VPOR 32%s, Y0, Y0", from)
	}
	a.op("ADDQ $64, BX")
	a.op("ADDQ $64, R9")
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

func (a *asm) peak(xor, r string, n int, op func(int)) {
	for i := range n {
		a.op("%s %s%d, %s%d, %s%d", xor, r, i, r, i, r, i)
	}
	x, w := 30, 31
	if r == "Y" {
		x, w = 14, 15
	}
	// 1 and −1/2 in both formats: sums stay finite.
	a.op("MOVL $0x3f803f80, AX")
	a.op("MOVL $0xbf00bf00, BX")
	a.op("VMOVD AX, X0")
	a.op("VMOVD BX, X1")
	a.op("VPBROADCASTD X0, %s%d", r, x)
	a.op("VPBROADCASTD X1, %s%d", r, w)
	a.label("loop")
	for i := range n {
		op(i)
	}
	a.op("DECQ CX")
	a.op("JNE loop")
	a.ret()
}

package main

// reductions go through a row in 16 lanes, which y points to: they go on with
// what is there. n counts 16 elements in both widths.
var reductions = []struct {
	name, doc string
	write     func(a *asm, w width)
}{
	{"sum", "adds a to the lanes y.", sumLanes},
	{"maxOf", "is y = max(y, a) in each lane, NaN if either is.", maxLanes},
}

// reduction is the assembly function of a row of reductions.
func (a *asm) reduction(w width, name, doc string, write func(*asm, width)) {
	e := elem{in: []operand{bits32}}
	a.text(name+"x"+w.name, 0, doc, e.params(w)...)
	write(a, w)
	a.ret()
}

// halves are the registers that hold 16 lanes, and their offsets in memory.
func (w width) halves() int { return 64 / w.bytes }

func sumLanes(a *asm, w width) {
	a.lanes(w, "VMOVUPS %d(DI), %s%d")
	a.each(w, func(last bool) {
		for h := range w.halves() {
			if last {
				a.op("VMOVUPS.Z (SI), K7, Z4")
				a.op("VADDPS Z4, Z0, Z0")
				continue
			}
			a.op("VADDPS %d(SI), %s%d, %s%d", 32*h, w.reg, h, w.reg, h)
		}
	}, func() { a.op("ADDQ $64, SI") })
	a.lanes(w, "VMOVUPS %[2]s%[3]d, %[1]d(DI)")
}

// lanes writes op for each register of 16 lanes.
func (a *asm) lanes(w width, op string) {
	for h := range w.halves() {
		a.op(op, 32*h, w.reg, h)
	}
}

// maxLanes keeps the maxima in registers 0 and 1 and notes NaNs elsewhere: in
// K2, or registers 2 and 3. Otherwise it is as extreme.
func maxLanes(a *asm, w width) {
	a.lanes(w, "VMOVUPS %d(DI), %s%d")
	for h := range w.halves() {
		if w.bytes == 64 {
			a.op("VCMPPS $3, Z0, Z0, K2")
		} else {
			a.op("VCMPPS $3, Y%d, Y%d, Y%d", h, h, 2+h)
		}
	}
	a.each(w, func(last bool) {
		if w.bytes == 64 {
			mask := ""
			if last {
				a.op("VMOVUPS.Z (SI), K7, Z4")
				mask = "K7, "
			} else {
				a.op("VMOVUPS (SI), Z4")
			}
			a.op("VCMPPS $3, Z4, Z4, K1")
			a.op("KORW K1, K2, K2")
			a.op("VMAXPS Z4, Z0, Z5")
			a.op("VMAXPS Z0, Z4, Z6")
			a.op("VANDPS Z5, Z6, %sZ0", mask)
			return
		}
		for h := range w.halves() {
			a.op("VMOVUPS %d(SI), Y4", 32*h)
			a.op("VCMPPS $3, Y4, Y4, Y5")
			a.op("VORPS Y5, Y%d, Y%d", 2+h, 2+h)
			a.op("VMAXPS Y4, Y%d, Y5", h)
			a.op("VMAXPS Y%d, Y4, Y6", h)
			a.op("VANDPS Y5, Y6, Y%d", h)
		}
	}, func() { a.op("ADDQ $64, SI") })
	if w.bytes == 64 {
		a.op("VMOVUPS nan<>(SB), K2, Z0")
	} else {
		a.op("VMOVUPS nan<>(SB), Y4")
		for h := range w.halves() {
			a.op("VBLENDVPS Y%d, Y4, Y%d, Y%d", 2+h, h, h)
		}
	}
	a.lanes(w, "VMOVUPS %[2]s%[3]d, %[1]d(DI)")
}

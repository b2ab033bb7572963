package main

// constants of elem_amd64.s, each repeated over 64 bytes.
var constants = []struct {
	name string
	bits uint32
}{
	{"lo", 0xc2d00000},    // −104
	{"hi", 0x42b20000},    // 89
	{"magic", 0x4b400000}, // 3·2²²: adding it rounds to an integer
	{"log2e", 0x3fb8aa3b},
	{"ln2hi", 0x3f317218},
	{"ln2lo", 0xb102e308},
	{"c2", 0x3efffffe},
	{"c3", 0x3e2aaa49},
	{"c4", 0x3d2aac79},
	{"c5", 0x3c091d10},
	{"c6", 0x3ab511f0},
	{"one", 0x3f800000},
	{"bias", 127},
	{"sign", 0x80000000},
	{"nan", 0x7fc00000},
	{"inf", 0xff800000}, // −∞
	{"half", 0x7fff},
	{"int1", 1},
	{"bytes1", 0x01010101},
	{"quiet", 0x400000},
}

func exp(a *asm, w width) {
	a.exp(w)
	a.quiet(w, 3, 4)
}

func sigmoid(a *asm, w width) {
	a.gate(w, false)
	a.quiet(w, 3, 4)
}

func silu(a *asm, w width) {
	a.gate(w, true)
	a.quiet(w, 3, 4)
}

// exp leaves the exponential of register 0 in register 3; see expOf in Go. It
// uses registers 0 … 4.
func (a *asm) exp(w width) {
	const x, t, n, q, z = 0, 1, 2, 3, 4
	a.c(w, "VMOVUPS", "lo", t)
	a.r(w, "VMAXPS", x, t, x) // a NaN in x stays
	a.c(w, "VMOVUPS", "hi", t)
	a.r(w, "VMINPS", x, t, x)
	a.c(w, "VMOVUPS", "magic", t)
	a.c(w, "VFMADD231PS", "log2e", x, t)
	a.c(w, "VSUBPS", "magic", t, n)
	a.c(w, "VFNMADD231PS", "ln2hi", n, x)
	a.c(w, "VFNMADD231PS", "ln2lo", n, x)
	a.c(w, "VMOVUPS", "c6", q)
	for _, c := range []string{"c5", "c4", "c3", "c2"} {
		a.c(w, "VFMADD213PS", c, x, q)
	}
	a.r(w, "VMULPS", x, x, z)
	a.r(w, "VFMADD213PS", x, z, q)
	a.c(w, "VADDPS", "one", q, q)
	a.c(w, "VPSUBD", "magic", t, t)
	a.op("VPSRAD $1, %s%d, %s%d", w.reg, t, w.reg, n)
	a.r(w, "VPSUBD", n, t, t)
	for _, r := range []int{n, t} {
		a.c(w, "VPADDD", "bias", r, r)
		a.op("VPSLLD $23, %s%d, %s%d", w.reg, r, w.reg, r)
		a.r(w, "VMULPS", r, q, q)
	}
}

// gate leaves the sigmoid of register 0, times it for silu, in register 3.
func (a *asm) gate(w width, silu bool) {
	const keep = 5
	a.r(w, "VMOVAPS", 0, keep)
	a.c(w, w.pick("VPOR", "VPORD"), "sign", 0, 0)
	a.exp(w)
	a.c(w, "VADDPS", "one", 3, 1)
	a.c(w, "VMOVUPS", "one", 2)
	if w.bytes == 64 {
		a.op("VPMOVD2M Z%d, K1", keep)
		a.op("VMOVAPS Z3, K1, Z2")
	} else {
		a.op("VBLENDVPS Y%d, Y3, Y2, Y2", keep)
	}
	if silu {
		a.r(w, "VMULPS", keep, 2, 2)
	}
	a.r(w, "VDIVPS", 1, 2, 3)
}

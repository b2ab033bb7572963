package main

import "fmt"

// Elementwise functions exist in both widths from one description. They do n
// whole vectors and, in 512 bits, the elements of the mask tail after them.

// width is a register width.
type width struct {
	reg   string // prefix of its registers
	bytes int
	name  string
}

var widths = []width{{"Z", 64, "512"}, {"Y", 32, "256"}}

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
	{"half", 0x7fff},
	{"int1", 1},
	{"quiet", 0x400000},
}

func elems(a *asm) {
	for _, c := range constants {
		a.WriteString("\n")
		for at := 0; at < 64; at += 8 {
			fmt.Fprintf(a, "DATA %s<>+%d(SB)/8, $0x%08x%08x\n", c.name, at, c.bits, c.bits)
		}
		fmt.Fprintf(a, "GLOBL %s<>(SB), RODATA|NOPTR, $64\n", c.name)
	}
	for _, w := range widths {
		a.widen(w)
		a.narrow(w)
		a.axpy(w)
		for _, f := range []string{"exp", "sigmoid", "silu"} {
			a.unary(w, f)
		}
	}
}

// each writes the loop: step handles one vector, masked by K7 if last is set.
func (a *asm) each(w width, in, out int, step func(last bool)) {
	a.op("TESTQ CX, CX")
	a.op("JEQ last")
	a.label("loop")
	step(false)
	a.op("ADDQ $%d, SI", in)
	a.op("ADDQ $%d, DI", out)
	a.op("DECQ CX")
	a.op("JNE loop")
	a.label("last")
	if w.bytes == 64 {
		a.op("TESTQ R9, R9")
		a.op("JEQ done")
		a.op("KMOVQ R9, K7")
		step(true)
		a.label("done")
	}
	a.ret()
}

// params are those of an elementwise function.
func (w width) params(p ...string) []string {
	if w.bytes == 64 {
		return append(p, "n", "tail")
	}
	return append(p, "n")
}

// load and store move a vector of f32, masked by K7 if last is set.
func (a *asm) load(w width, from string, r int, last bool) {
	if last {
		a.op("VMOVUPS.Z %s, K7, %s%d", from, w.reg, r)
		return
	}
	a.op("VMOVUPS %s, %s%d", from, w.reg, r)
}

func (a *asm) store(w width, r int, to string, last bool) {
	if last {
		a.op("VMOVUPS %s%d, K7, %s", w.reg, r, to)
		return
	}
	a.op("VMOVUPS %s%d, %s", w.reg, r, to)
}

// c writes op with a constant as its first source.
func (a *asm) c(w width, op, name string, regs ...int) {
	s := fmt.Sprintf("%s %s<>(SB)", op, name)
	for _, r := range regs {
		s += fmt.Sprintf(", %s%d", w.reg, r)
	}
	a.op("%s", s)
}

// r writes op on registers.
func (a *asm) r(w width, op string, regs ...int) {
	for i, r := range regs {
		op += fmt.Sprintf("%s%s%d", [2]string{" ", ", "}[min(i, 1)], w.reg, r)
	}
	a.op("%s", op)
}

func (w width) and() string { return [2]string{"VPAND", "VPANDD"}[w.bytes/64] }

func (a *asm) widen(w width) {
	a.text("widenx"+w.name, 0, "widens bf16.", w.params("y unsafe.Pointer", "x unsafe.Pointer")...)
	a.each(w, w.bytes/2, w.bytes, func(last bool) {
		if last {
			a.op("VPMOVZXWD.Z (SI), K7, Z0")
		} else {
			a.op("VPMOVZXWD (SI), %s0", w.reg)
		}
		a.op("VPSLLD $16, %s0, %s0", w.reg, w.reg)
		a.store(w, 0, "(DI)", last)
	})
}

// narrow rounds as package dtype does: to nearest even, denormals included,
// with NaNs made quiet.
func (a *asm) narrow(w width) {
	a.text("narrowx"+w.name, 0, "rounds to bf16.", w.params("y unsafe.Pointer", "x unsafe.Pointer")...)
	a.each(w, w.bytes, w.bytes/2, func(last bool) {
		a.load(w, "(SI)", 0, last)
		a.op("VPSRLD $16, %s0, %s1", w.reg, w.reg)
		a.c(w, w.and(), "int1", 1, 1)
		a.c(w, "VPADDD", "half", 1, 1)
		a.r(w, "VPADDD", 0, 1, 1)
		if w.bytes == 64 {
			a.op("VCMPPS $3, Z0, Z0, K1")
			a.c(w, "VPORD", "quiet", 0, 2)
			a.op("VMOVDQA32 Z2, K1, Z1")
			a.op("VPSRLD $16, Z1, Z1")
			if last {
				a.op("VPMOVDW Z1, K7, (DI)")
			} else {
				a.op("VPMOVDW Z1, (DI)")
			}
			return
		}
		a.op("VCMPPS $3, Y0, Y0, Y3")
		a.c(w, "VPOR", "quiet", 0, 2)
		a.op("VBLENDVPS Y3, Y2, Y1, Y1")
		a.op("VPSRLD $16, Y1, Y1")
		a.op("VEXTRACTI128 $1, Y1, X2")
		a.op("VPACKUSDW X2, X1, X1")
		a.op("VMOVDQU X1, (DI)")
	})
}

func (a *asm) axpy(w width) {
	p := []string{"y unsafe.Pointer", "x unsafe.Pointer", "v unsafe.Pointer"}
	a.text("axpyx"+w.name, 0, "is y += *v · x with one rounding.", w.params(p...)...)
	a.op("VBROADCASTSS (BX), %s1", w.reg)
	a.each(w, w.bytes, w.bytes, func(last bool) {
		a.load(w, "(SI)", 0, last)
		a.load(w, "(DI)", 2, last)
		a.r(w, "VFMADD213PS", 2, 1, 0)
		a.quiet(w, 0, 2)
		a.store(w, 0, "(DI)", last)
	})
}

// quiet replaces NaNs in register r by the one NaN.
func (a *asm) quiet(w width, r, tmp int) {
	if w.bytes == 64 {
		a.op("VCMPPS $3, Z%d, Z%d, K1", r, r)
		a.op("VMOVUPS nan<>(SB), K1, Z%d", r)
		return
	}
	a.op("VCMPPS $3, Y%d, Y%d, Y%d", r, r, tmp)
	a.c(w, "VMOVUPS", "nan", tmp+1)
	a.op("VBLENDVPS Y%d, Y%d, Y%d, Y%d", tmp, tmp+1, r, r)
}

func (a *asm) unary(w width, f string) {
	doc := map[string]string{"exp": "is y = eˣ.", "sigmoid": "is y = 1/(1 + e⁻ˣ).", "silu": "is y = x/(1 + e⁻ˣ)."}[f]
	a.text(f+"x"+w.name, 0, doc, w.params("y unsafe.Pointer", "x unsafe.Pointer")...)
	a.each(w, w.bytes, w.bytes, func(last bool) {
		a.load(w, "(SI)", 0, last)
		if f == "exp" {
			a.exp(w)
		} else {
			a.gate(w, f == "silu")
		}
		a.quiet(w, 3, 4)
		a.store(w, 3, "(DI)", last)
	})
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
	a.c(w, [2]string{"VPOR", "VPORD"}[w.bytes/64], "sign", 0, 0)
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

package main

import "fmt"

// op is a row of the table of elementwise functions.
type op struct {
	name   string
	scalar string // the form whose last operand is one element for all, or ""
	is     string // the result
	y      operand
	in     []operand
	body   func(a *asm, w width)
}

func f32s(n int) []operand { return []operand{bits32, bits32, bits32}[:n] }

// ops are all elementwise functions.
var ops = []op{
	{"Widen", "", "the f32 of bf16 a", bits32, []operand{bits16}, widen},
	{"Narrow", "", "a rounded to bf16", bits16, f32s(1), narrow},
	{"Exp", "", "eᵃ", bits32, f32s(1), exp},
	{"Sigmoid", "", "1/(1 + e⁻ᵃ)", bits32, f32s(1), sigmoid},
	{"Silu", "", "a/(1 + e⁻ᵃ)", bits32, f32s(1), silu},

	{"Add", "AddS", "a + b", bits32, f32s(2), float("VADDPS")},
	{"Sub", "SubS", "a − b", bits32, f32s(2), float("VSUBPS")},
	{"Mul", "MulS", "a · b", bits32, f32s(2), float("VMULPS")},
	{"Div", "DivS", "a / b", bits32, f32s(2), float("VDIVPS")},
	{"Max", "MaxS", "max(a, b), NaN if either is", bits32, f32s(2), extreme("VMAXPS", "VANDPS")},
	{"Min", "MinS", "min(a, b), NaN if either is", bits32, f32s(2), extreme("VMINPS", "VORPS")},
	{"", "Axpy", "a + c·b with one rounding", bits32, f32s(3), axpy},

	{"AddI32", "AddI32S", "a + b", bits32, f32s(2), integer("VPADDD")},
	{"SubI32", "SubI32S", "a − b", bits32, f32s(2), integer("VPSUBD")},
	{"MaxI32", "MaxI32S", "max(a, b)", bits32, f32s(2), integer("VPMAXSD")},
	{"MinI32", "MinI32S", "min(a, b)", bits32, f32s(2), integer("VPMINSD")},
	{"LessI32", "LessI32S", "a < b", byte8, f32s(2), compare(1, "VPCMPGTD", 0, 1, false)},
	{"LessEqualI32", "LessEqualI32S", "a ≤ b", byte8, f32s(2), compare(2, "VPCMPGTD", 1, 0, true)},
	{"EqualI32", "EqualI32S", "a = b", byte8, f32s(2), compare(0, "VPCMPEQD", 0, 1, false)},

	{"And8", "", "a ∧ b of truth values", byte8, []operand{byte8, byte8}, and8},
	{"Select32", "Select32S", "b where a is not zero, else c", bits32, []operand{byte8, bits32, bits32}, choose("D")},
	{"Select16", "Select16S", "b where a is not zero, else c", bits16, []operand{byte8, bits16, bits16}, choose("W")},
}

// forms are the functions of the rows.
func forms() []elem {
	var all []elem
	for _, o := range ops {
		doc := "is y = " + o.is
		if o.name != "" {
			all = append(all, elem{o.name, doc + ".", o.y.size, o.in, o.body})
		}
		if o.scalar != "" {
			in := append([]operand(nil), o.in...)
			last := len(in) - 1
			in[last].scalar = true
			all = append(all, elem{o.scalar, fmt.Sprintf("%s; %c is one element.", doc, 'a'+last), o.y.size, in, o.body})
		}
	}
	return all
}

func widen(a *asm, w width) { a.op("VPSLLD $16, %s0, %s3", w.reg, w.reg) }

// narrow rounds as package dtype does: to nearest even, denormals included,
// with NaNs made quiet.
func narrow(a *asm, w width) {
	a.op("VPSRLD $16, %s0, %s3", w.reg, w.reg)
	a.c(w, w.pick("VPAND", "VPANDD"), "int1", 3, 3)
	a.c(w, "VPADDD", "half", 3, 3)
	a.r(w, "VPADDD", 0, 3, 3)
	a.c(w, w.pick("VPOR", "VPORD"), "quiet", 0, 4)
	if w.bytes == 64 {
		a.op("VCMPPS $3, Z0, Z0, K1")
		a.op("VMOVDQA32 Z4, K1, Z3")
	} else {
		a.op("VCMPPS $3, Y0, Y0, Y5")
		a.op("VBLENDVPS Y5, Y4, Y3, Y3")
	}
	a.op("VPSRLD $16, %s3, %s3", w.reg, w.reg)
}

func float(name string) func(*asm, width) {
	return func(a *asm, w width) {
		a.r(w, name, 1, 0, 3)
		a.quiet(w, 3, 4)
	}
}

// extreme is the larger or smaller one. The instruction returns its second
// operand if both are zeros, so that the results of both orders differ in the
// sign of a zero only, which join settles.
func extreme(name, join string) func(*asm, width) {
	return func(a *asm, w width) {
		a.r(w, name, 1, 0, 3)
		a.r(w, name, 0, 1, 4)
		a.r(w, join, 4, 3, 3)
		a.unordered(w, 0, 1, 3, 4)
	}
}

func axpy(a *asm, w width) {
	a.r(w, "VMOVAPS", 0, 3)
	a.r(w, "VFMADD231PS", 2, 1, 3)
	a.quiet(w, 3, 4)
}

func integer(name string) func(*asm, width) {
	return func(a *asm, w width) { a.r(w, name, 1, 0, 3) }
}

// compare is a predicate. In 512 bits it has a number; in 256, it is an
// instruction with its operands in some order, or what that is not.
func compare(number int, name string, x, y int, not bool) func(*asm, width) {
	return func(a *asm, w width) {
		if w.bytes == 64 {
			a.op("VPCMPD $%d, Z1, Z0, K1", number)
			a.op("VMOVDQU32.Z int1<>(SB), K1, Z3")
			return
		}
		a.r(w, name, x, y, 3)
		if not {
			a.c(w, "VPANDN", "int1", 3, 3)
		} else {
			a.c(w, "VPAND", "int1", 3, 3)
		}
	}
}

func and8(a *asm, w width) {
	if w.bytes == 64 {
		a.op("VPTESTMB Z0, Z0, K1")
		a.op("VPTESTMB Z1, Z1, K1, K1")
		a.op("VMOVDQU8.Z bytes1<>(SB), K1, Z3")
		return
	}
	a.op("VPXOR Y4, Y4, Y4")
	a.op("VPCMPEQB Y4, Y0, Y3")
	a.op("VPCMPEQB Y4, Y1, Y5")
	a.op("VPOR Y3, Y5, Y3")
	a.c(w, "VPANDN", "bytes1", 3, 3)
}

func choose(size string) func(*asm, width) {
	return func(a *asm, w width) {
		if w.bytes == 64 {
			a.op("VPTESTM%s Z0, Z0, K1", size)
			a.op("VPBLENDM%s Z1, Z2, K1, Z3", size)
			return
		}
		a.op("VPXOR Y4, Y4, Y4")
		a.op("VPCMPEQ%s Y4, Y0, Y4", size)
		a.op("VPBLENDVB Y4, Y2, Y1, Y3")
	}
}

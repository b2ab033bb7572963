package main

import (
	"fmt"
	"strings"
)

// Elementwise functions exist in both widths, from one row of a table each. They
// do n whole vectors and, in 512 bits, the elements of the mask tail after them.

// width is a register width.
type width struct {
	reg   string // prefix of its registers
	bytes int
	name  string
}

var widths = []width{{"Z", 64, "512"}, {"Y", 32, "256"}}

// pick is the one for w of an instruction's names in 256 and 512 bits.
func (w width) pick(name256, name512 string) string {
	if w.bytes == 64 {
		return name512
	}
	return name256
}

// operand is an argument of an elementwise function.
type operand struct {
	size   int  // bytes an element
	scalar bool // one element for all
}

var byte8, bits16, bits32 = operand{size: 1}, operand{size: 2}, operand{size: 4}

// elem is an elementwise function in one of its forms.
type elem struct {
	name string
	doc  string
	y    int       // bytes of an element of the result
	in   []operand // a, b and c
	body func(a *asm, w width)
}

// lane is the bytes of a register an element takes: the widest operand's size.
// Others are extended by zeros, and truncated when they are stored.
func (e *elem) lane() int {
	n := e.y
	for _, o := range e.in {
		n = max(n, o.size)
	}
	return n
}

// asm is the name of the assembly function.
func (e *elem) asm(w width) string { return strings.ToLower(e.name[:1]) + e.name[1:] + "x" + w.name }

// pointers are the registers of a, b and c.
var pointers = []string{"SI", "BX", "R8"}

// params are the function's parameters.
func (e *elem) params(w width) []string {
	p := []string{"y unsafe.Pointer"}
	for i := range e.in {
		p = append(p, string(rune('a'+i))+" unsafe.Pointer")
	}
	if w.bytes == 64 {
		return append(p, "n", "tail")
	}
	return append(p, "n")
}

// elementwise writes the function of e: body finds operand i in register i,
// which it must not change if it is a scalar, and leaves the result in register
// 3. Registers from 4 on are free, and so are K1 and K2.
func (a *asm) elementwise(w width, e *elem) {
	a.text(e.asm(w), 0, e.doc, e.params(w)...)
	lane := e.lane()
	for i, o := range e.in {
		if o.scalar {
			a.op("%s (%s), %s%d", map[int]string{2: "VPBROADCASTW", 4: "VBROADCASTSS"}[o.size], pointers[i], w.reg, i)
		}
	}
	lanes := w.bytes / lane
	a.each(w, func(last bool) {
		for i, o := range e.in {
			if !o.scalar {
				a.load(w, o.size, lane, pointers[i], i, last)
			}
		}
		e.body(a, w)
		a.store(w, e.y, lane, 3, last)
	}, func() {
		for i, o := range e.in {
			if !o.scalar {
				a.op("ADDQ $%d, %s", lanes*o.size, pointers[i])
			}
		}
		a.op("ADDQ $%d, DI", lanes*e.y)
	})
	a.ret()
}

// each writes the loop: step handles one vector, masked by K7 if last is set,
// and next advances.
func (a *asm) each(w width, step func(last bool), next func()) {
	a.op("TESTQ CX, CX")
	a.op("JEQ last")
	a.label("loop")
	step(false)
	next()
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
}

// load fills register r with elements of size bytes, each in a lane of its own.
func (a *asm) load(w width, size, lane int, from string, r int, last bool) {
	name := map[[2]int]string{
		{1, 1}: w.pick("VMOVDQU", "VMOVDQU8"), {2, 2}: w.pick("VMOVDQU", "VMOVDQU16"), {4, 4}: "VMOVUPS",
		{1, 2}: "VPMOVZXBW", {1, 4}: "VPMOVZXBD", {2, 4}: "VPMOVZXWD",
	}[[2]int{size, lane}]
	if last {
		a.op("%s.Z (%s), K7, %s%d", name, from, w.reg, r)
		return
	}
	a.op("%s (%s), %s%d", name, from, w.reg, r)
}

// store is the reverse of load; it changes register r and those after it.
func (a *asm) store(w width, size, lane, r int, last bool) {
	name := map[[2]int]string{
		{1, 1}: w.pick("VMOVDQU", "VMOVDQU8"), {2, 2}: w.pick("VMOVDQU", "VMOVDQU16"), {4, 4}: "VMOVUPS",
		{1, 4}: "VPMOVDB", {2, 4}: "VPMOVDW",
	}[[2]int{size, lane}]
	switch {
	case last:
		a.op("%s Z%d, K7, (DI)", name, r)
	case w.bytes == 64 || size == lane:
		a.op("%s %s%d, (DI)", name, w.reg, r)
	default:
		a.op("VEXTRACTI128 $1, Y%d, X%d", r, r+1)
		a.op("VPACKUSDW X%d, X%d, X%d", r+1, r, r)
		if size == 2 {
			a.op("VMOVDQU X%d, (DI)", r)
			return
		}
		a.op("VPACKUSWB X%d, X%d, X%d", r, r, r)
		a.op("VMOVQ X%d, (DI)", r)
	}
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

// quiet replaces NaNs in register r by the one NaN. In 256 bits it uses tmp and
// the register after it.
func (a *asm) quiet(w width, r, tmp int) { a.unordered(w, r, r, r, tmp) }

// unordered makes register r NaN where x or y is.
func (a *asm) unordered(w width, x, y, r, tmp int) {
	if w.bytes == 64 {
		a.op("VCMPPS $3, Z%d, Z%d, K1", x, y)
		a.op("VMOVUPS nan<>(SB), K1, Z%d", r)
		return
	}
	a.op("VCMPPS $3, Y%d, Y%d, Y%d", x, y, tmp)
	a.c(w, "VMOVUPS", "nan", tmp+1)
	a.op("VBLENDVPS Y%d, Y%d, Y%d, Y%d", tmp, tmp+1, r, r)
}

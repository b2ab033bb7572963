package main

import (
	"fmt"
	"go/format"
	"strings"
)

// elems writes all elementwise functions and reductions.
func elems(a *asm) {
	for _, c := range constants {
		a.WriteString("\n")
		for at := 0; at < 64; at += 8 {
			fmt.Fprintf(a, "DATA %s<>+%d(SB)/8, $0x%08x%08x\n", c.name, at, c.bits, c.bits)
		}
		fmt.Fprintf(a, "GLOBL %s<>(SB), RODATA|NOPTR, $64\n", c.name)
	}
	for _, w := range widths {
		for _, e := range forms() {
			a.elementwise(w, &e)
		}
		for _, r := range reductions {
			a.reduction(w, r.name, r.doc, r.write)
		}
	}
}

// elemNames is the Go file with the functions' numbers.
func elemNames() []byte {
	var b strings.Builder
	b.WriteString(header + "package kern\n\n// elem is an elementwise function.\ntype elem uint8\n\nconst (\n")
	for i, e := range forms() {
		fmt.Fprintf(&b, "\top%s", e.name)
		if i == 0 {
			b.WriteString(" elem = iota")
		}
		b.WriteString("\n")
	}
	b.WriteString(")\n")
	return formatted(b.String())
}

// elemCalls is the Go file that calls the functions by their numbers.
func elemCalls() []byte {
	var b strings.Builder
	b.WriteString(header + "package kern\n\nimport \"unsafe\"\n\n")
	b.WriteString("// elemSizes are the bytes by which each function's operands advance an element,\n")
	b.WriteString("// and the elements of a vector of 64 bytes.\n")
	b.WriteString("var elemSizes = [...]struct{ y, a, b, c, lanes int }{\n")
	for _, e := range forms() {
		var step [3]int
		for i, o := range e.in {
			if !o.scalar {
				step[i] = o.size
			}
		}
		fmt.Fprintf(&b, "\top%s: {%d, %d, %d, %d, %d},\n", e.name, e.y, step[0], step[1], step[2], 64/e.lane())
	}
	b.WriteString("}\n")
	for _, w := range widths {
		sig, args := "n int", "n"
		if w.bytes == 64 {
			sig, args = "n, tail int", "n, tail"
		}
		fmt.Fprintf(&b, "\n// call%s calls a function in %s bits.\n", w.name, w.name)
		fmt.Fprintf(&b, "func call%s(f elem, y, a, b, c unsafe.Pointer, %s) {\n\tswitch f {\n", w.name, sig)
		for _, e := range forms() {
			in := strings.Join([]string{"a", "b", "c"}[:len(e.in)], ", ")
			fmt.Fprintf(&b, "\tcase op%s:\n\t\t%s(y, %s, %s)\n", e.name, e.asm(w), in, args)
		}
		b.WriteString("\t}\n}\n")
	}
	return formatted(b.String())
}

func formatted(src string) []byte {
	out, err := format.Source([]byte(src))
	if err != nil {
		panic(err) // the generator's own text
	}
	return out
}

package main

import "fmt"

// regs numbers the general registers as instructions encode them.
var regs = map[string]int{
	"AX": 0, "CX": 1, "DX": 2, "BX": 3, "SP": 4, "BP": 5, "SI": 6, "DI": 7,
	"R8": 8, "R9": 9, "R10": 10, "R11": 11, "R12": 12, "R13": 13, "R14": 14, "R15": 15,
}

// mem is a memory operand: disp + base + index·scale. With bcast it is one
// 32-bit element, repeated in all lanes.
type mem struct {
	base, index string
	scale       int
	disp        int
	bcast       bool
}

func (m mem) String() string {
	s := ""
	if m.disp != 0 {
		s = fmt.Sprint(m.disp)
	}
	s += "(" + m.base + ")"
	if m.index != "" {
		s += fmt.Sprintf("(%s*%d)", m.index, m.scale)
	}
	if m.bcast {
		s += "{1to16}"
	}
	return s
}

// VDPBF16PS in 512 bits: EVEX.512.F3.0F38.W0 52 /r.
//
//	62 | R̅X̅B̅R̅'0mmm | W v̅v̅v̅v̅ 1pp | z L'L b V̅' aaa | 52 | ModRM [SIB] [disp]
//
// dst and src1 are numbers of Z registers; src2 is the number of one or a mem.
func vdpbf16ps(dst, src1 int, src2 any) []byte {
	const (
		map0F38 = 2
		ppF3    = 2
		len512  = 2
	)
	inv := func(v, bit int) byte { return byte(^v>>bit) & 1 }
	p0 := inv(dst, 3)<<7 | inv(dst, 4)<<4 | map0F38
	p1 := byte(^src1&15)<<3 | 1<<2 | ppF3
	p2 := byte(len512<<5) | inv(src1, 4)<<3
	reg := byte(dst&7) << 3
	switch s := src2.(type) {
	case int:
		p0 |= inv(s, 4)<<6 | inv(s, 3)<<5
		return []byte{0x62, p0, p1, p2, 0x52, 0xc0 | reg | byte(s&7)}
	case mem:
		if s.bcast {
			p2 |= 1 << 4
		}
		base, index := regs[s.base], 4 // index 4 stands for none
		if s.index != "" {
			index = regs[s.index]
		}
		p0 |= inv(index, 3)<<6 | inv(base, 3)<<5
		return append([]byte{0x62, p0, p1, p2, 0x52}, address(reg, base, index, s)...)
	}
	panic(fmt.Sprintf("operand %T", src2))
}

// address encodes ModRM, SIB and displacement. An 8-bit displacement counts
// whole operands: 64 bytes, or 4 with bcast.
func address(reg byte, base, index int, m mem) []byte {
	unit := 64
	if m.bcast {
		unit = 4
	}
	mod, disp := byte(2), []byte{byte(m.disp), byte(m.disp >> 8), byte(m.disp >> 16), byte(m.disp >> 24)}
	switch q := m.disp / unit; {
	case m.disp == 0 && base&7 != 5:
		mod, disp = 0, nil
	case m.disp%unit == 0 && q >= -128 && q < 128:
		mod, disp = 1, []byte{byte(q)}
	}
	if index == 4 && base&7 != 4 {
		return append([]byte{mod<<6 | reg | byte(base&7)}, disp...)
	}
	ss := map[int]byte{0: 0, 1: 0, 2: 1, 4: 2, 8: 3}[m.scale]
	return append([]byte{mod<<6 | reg | 4, ss<<6 | byte(index&7)<<3 | byte(base&7)}, disp...)
}

// dp writes acc += src1 · src2 for bf16 pairs.
func (a *asm) dp(acc, src1 int, src2 any) {
	name := fmt.Sprint(src2)
	if r, ok := src2.(int); ok {
		name = fmt.Sprintf("Z%d", r)
	}
	a.data(vdpbf16ps(acc, src1, src2), fmt.Sprintf("VDPBF16PS %s, Z%d, Z%d", name, src1, acc))
}

package main

import "fmt"

// few are the shapes of tiles for few rows of x: as many rows of w, each a
// stream, as there are registers for.
var few = []struct{ rows, streams int }{{2, 8}, {3, 8}, {3, 6}, {4, 6}}

func fews512(a *asm) {
	for _, k := range []kind{bf16, f32} {
		few512(a, k)
	}
}

// few512 multiplies a panel of x by six or eight rows of w. Two vectors of each
// row are a step, of which it fetches one: the processor fetches lines in pairs,
// and can have few fetches that it is told of in flight.
func few512(a *asm, k kind) {
	a.text(fmt.Sprintf("few%sx512", k), 0,
		"multiplies a panel of two to four rows of x by six or eight\nrows of w.", "t *tile")
	for _, f := range [][2]string{{"a", "SI"}, {"b", "BX"}, {"y", "DI"}, {"vecs", "CX"}, {"ldb", "R10"}, {"cols", "AX"}} {
		a.op("MOVQ tile_%s(DX), %s", f[0], f[1])
	}
	a.op("KMOVD tile_tail(DX), K1")
	a.op("LEAQ (R10)(R10*2), R11")
	a.op("LEAQ (BX)(R10*4), R9")
	a.op("MOVQ tile_ahead(DX), R12")
	a.op("LEAQ (R9)(R12*1), R13")
	a.op("ADDQ BX, R12")
	a.op("IMUL3Q $10, AX, AX")
	a.op("ADDQ tile_rows(DX), AX")
	for _, f := range few[1:] {
		a.op("CMPQ AX, $%d", 10*f.streams+f.rows)
		a.op("JEQ tile%d", 10*f.streams+f.rows)
	}
	for i, f := range few {
		if i > 0 {
			a.label("tile%d", 10*f.streams+f.rows)
		}
		a.fewTile(k, f.rows, f.streams)
	}
}

// fewTile keeps the sums of row i and stream j in register i·streams + j.
func (a *asm) fewTile(k kind, m, streams int) {
	id := 10*streams + m
	a.clear512(m * streams)
	a.op("SUBQ $2, CX")
	a.op("JLT odd%d", id)
	a.label("loop%d", id)
	a.fewStep(k, m, streams, 0, false)
	a.fewStep(k, m, streams, 1, false)
	a.fewNext(m, 2)
	a.op("SUBQ $2, CX")
	a.op("JGE loop%d", id)
	a.label("odd%d", id)
	a.op("CMPQ CX, $-1")
	a.op("JNE last%d", id)
	a.fewStep(k, m, streams, 0, false)
	a.fewNext(m, 1)
	a.label("last%d", id)
	a.op("KTESTD K1, K1")
	a.op("JEQ done%d", id)
	a.fewStep(k, m, streams, 0, true)
	a.label("done%d", id)
	a.fewSums(m, streams)
	a.ret()
}

// fewNext advances by vecs vectors.
func (a *asm) fewNext(m, vecs int) {
	a.op("ADDQ $%d, SI", 64*m*vecs)
	for _, r := range []string{"BX", "R9", "R12", "R13"} {
		a.op("ADDQ $%d, %s", 64*vecs, r)
	}
}

// fewStep multiplies vector v of each row.
func (a *asm) fewStep(k kind, m, streams, v int, last bool) {
	x, w := m*streams, 31
	for i := range m {
		a.op("VMOVUPS %d(SI), Z%d", 64*(v*m+i), x+i)
	}
	for j := range streams {
		if !last && (v+j)%2 == 0 {
			a.op("PREFETCHT1 %d%s", 64*v, rowOf("R12", "R13", j))
		}
		from := row(j)
		from.disp = 64 * v
		a.load512(from.String(), w, last)
		for i := range m {
			a.mac(k, i*streams+j, x+i, w)
		}
	}
}

// fewGroups are the sums in the order they are stored in: four at a time, of one
// row or, of its last two streams, of two.
func fewGroups(m, streams int) [][cols][2]int {
	var all [][cols][2]int
	for i := range m {
		for j := 0; j+cols <= streams; j += cols {
			all = append(all, [cols][2]int{{i, j}, {i, j + 1}, {i, j + 2}, {i, j + 3}})
		}
	}
	for i := 0; i < m && streams%cols != 0; i += 2 {
		j, next := streams-2, min(i+1, m-1)
		all = append(all, [cols][2]int{{i, j}, {i, j + 1}, {next, j}, {next, j + 1}})
	}
	return all
}

// fewSums adds the lanes and the sums of the chunks before. They are stored in
// sums, and in y after the last chunk.
func (a *asm) fewSums(m, streams int) {
	id := 10*streams + m
	base := [...]string{"DI", "SI", "BX", "R9"}
	a.op("MOVQ tile_ldy(DX), AX")
	for i := 1; i < m; i++ {
		a.op("LEAQ (%s)(AX*1), %s", base[i-1], base[i])
	}
	a.op("MOVQ tile_ldc(DX), R10")
	a.op("LEAQ (R10)(R10*2), R11")
	a.op("MOVQ tile_sums(DX), R8")
	a.op("MOVL tile_last(DX), CX")
	a.op("KMOVW tile_keep(DX), K2")
	a.op("MOVL $0x7fc00000, AX")
	a.op("VPBROADCASTD AX, X31")
	for g, sums := range fewGroups(m, streams) {
		var z [cols]int
		for n, at := range sums {
			z[n] = at[0]*streams + at[1]
		}
		a.foldOf("Z", z, 24, 27)
		a.op("VEXTRACTF64X4 $1, Z24, Y25")
		a.op("VADDPS Y25, Y24, Y24")
		a.op("VEXTRACTF32X4 $1, Y24, X25")
		a.op("VADDPS X25, X24, X24")
		a.op("VMOVUPS.Z %d(R8), K2, X25", 16*g)
		a.op("VADDPS X25, X24, X24")
		a.op("VCMPPS $3, X24, X24, K1")
		a.op("VMOVAPS X31, K1, X24")
		a.op("VMOVUPS X24, %d(R8)", 16*g)
		a.op("TESTL CX, CX")
		a.op("JEQ more%d", 10*id+g)
		for n, at := range sums {
			if n < 2 || at != sums[n-2] {
				a.scatter(base[at[0]], at[1], n)
			}
		}
		a.label("more%d", 10*id+g)
	}
}

// scatter stores element n of X24 in column j of the row of y at base.
func (a *asm) scatter(base string, j, n int) {
	if j >= cols {
		a.op("LEAQ (%s)(R10*4), AX", base)
		base = "AX"
	}
	to := "(" + base + ")" + quad[j%cols]
	if n == 0 {
		a.op("VMOVSS X24, %s", to)
	} else {
		a.op("VEXTRACTPS $%d, X24, %s", n, to)
	}
}

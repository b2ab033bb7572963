package kern

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
)

// Shapes that are cut into several blocks of x and several groups of chunks.
func TestBlocks(t *testing.T) {
	for _, sh := range [][3]int{{300, 13, 5000}, {130, 9, 2100}, {40, 21, 9000}, {500, 5, 1023}, {97, 4, 4097}, {700, 20, 100}, {80, 17, 512}, {16, 9, 9000}} {
		m, n, k := sh[0], sh[1], sh[2]
		t.Run(fmt.Sprint(sh), func(t *testing.T) {
			t.Parallel()
			p := newProblem(rand.New(rand.NewPCG(3, uint64(k))), false, m, n, k)
			for _, s := range tiers()[1:] {
				need := max(s.ScratchBF16(m, k), s.ScratchF32(m, k))
				p.run(t, s, n+1, make([]byte, need))
			}
		})
	}
}

func TestPlanCoversRows(t *testing.T) {
	for _, s := range tiers()[1:] {
		for _, f := range []format{s.bf16(), s.f32()} {
			for m := 2; m < 400; m++ {
				p := product{format: f, plan: f.plan(m, 6000), m: m}
				if p.block < 1 || p.chunks < 1 || p.first(0) != 0 || p.first(p.panels) != m {
					t.Fatal(m, p.plan)
				}
				for i := range p.panels {
					if r := p.first(i+1) - p.first(i); r < 2 || r > f.rows {
						t.Fatalf("%d rows: panel %d has %d", m, i, r)
					}
				}
			}
		}
	}
}

// No extent: nothing is written, or zeros.
func TestEmpty(t *testing.T) {
	for _, s := range tiers() {
		y := []float32{canary, canary, canary, canary}
		s.GemmBF16(y, 2, nil, 0, nil, 0, 0, 2, 0, nil)
		s.GemmF32(y, 2, nil, 1, []float32{1, 2}, 1, 0, 2, 1, nil)
		s.GemmBF16(y, 0, make([]uint16, 5), 5, nil, 5, 1, 0, 5, nil)
		if y[0] != canary {
			t.Fatal("written", y)
		}
		s.MulF32(y, 2, nil, 3, make([]float32, 6), 2, 0, 2, 3)
		if y[0] != canary {
			t.Fatal("written", y)
		}
		s.GemmBF16(y[:3], 2, nil, 3, nil, 3, 2, 1, 0, nil)
		s.GemmF32(y[3:], 1, nil, 0, nil, 0, 1, 1, 0, nil)
		if y[0] != 0 || y[1] != canary || y[2] != 0 || y[3] != 0 {
			t.Fatal(y)
		}
		y[0], y[2] = canary, canary
		s.MulBF16(y[:3], 2, nil, 3, nil, 3, 2, 1, 0)
		if y[0] != 0 || y[1] != canary || y[2] != 0 || y[3] != 0 {
			t.Fatal(y)
		}
	}
}

// A short slice is a panic, not a stray access.
func TestChecks(t *testing.T) {
	s := Best()
	if s.Tier() == Scalar {
		t.Skip("no scratch")
	}
	for name, f := range map[string]func(){
		"x":       func() { s.GemmBF16(make([]float32, 2), 2, make([]uint16, 3), 4, make([]uint16, 8), 4, 1, 2, 4, nil) },
		"w":       func() { s.GemmF32(make([]float32, 2), 2, make([]float32, 4), 4, make([]float32, 7), 4, 1, 2, 4, nil) },
		"y":       func() { s.GemmF32(make([]float32, 1), 2, make([]float32, 4), 4, make([]float32, 8), 4, 1, 2, 4, nil) },
		"gemm y":  func() { s.GemmF32(make([]float32, 4), 3, make([]float32, 8), 4, make([]float32, 8), 4, 2, 2, 4, nil) },
		"scratch": func() { s.GemmF32(make([]float32, 4), 2, make([]float32, 8), 4, make([]float32, 8), 4, 2, 2, 4, nil) },
		"stride":  func() { s.GemmF32(make([]float32, 2), 2, make([]float32, 4), 4, make([]float32, 8), -4, 1, 2, 4, nil) },
		"mul w":   func() { s.MulF32(make([]float32, 4), 2, make([]float32, 8), 4, make([]float32, 9), 3, 2, 2, 4) },
		"mul x":   func() { s.MulBF16(make([]float32, 4), 2, make([]uint16, 8), 5, make([]uint16, 9), 2, 2, 2, 4) },
		"dot":     func() { s.DotF32(make([]float32, 4), make([]float32, 3)) },
		"add":     func() { s.Add(make([]float32, 3), make([]float32, 4), make([]float32, 4)) },
		"select":  func() { s.Select32(make([]uint32, 4), make([]uint8, 4), make([]uint32, 4), make([]uint32, 3)) },
		"extent":  func() { s.GemmF32(make([]float32, 4), 4, nil, 0, nil, 0, 1, 4, -1, nil) },
		"overlap": func() { s.GemmF32(make([]float32, 9), 1, make([]float32, 8), 4, make([]float32, 8), 4, 2, 2, 4, nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// Ranges of rows, computed by any number of threads, are the whole product.
func TestRanges(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	for _, m := range []int{1, 2, 17} {
		const n, k = 203, 777
		p := newProblem(r, false, m, n, k)
		for _, s := range tiers()[1:] {
			for _, threads := range []int{1, 2, 3, 7} {
				y := make([]float32, m*n)
				var wg sync.WaitGroup
				for i := range threads {
					wg.Go(func() {
						n0, n1 := split(n, threads, i)
						s.GemmBF16(y[n0:], n, p.xh, p.ldx, p.wh[n0*p.ldw:], p.ldw, m, n1-n0, k, make([]byte, s.ScratchBF16(m, k)))
					})
				}
				wg.Wait()
				for i, v := range y {
					if math.Float32bits(v) != math.Float32bits(p.bf16[i]) {
						t.Fatalf("%v, %d threads: %d is %x, want %x", s.Tier(), threads, i, v, p.bf16[i])
					}
				}
			}
		}
	}
}

func TestSplit(t *testing.T) {
	for n := range 100 {
		for parts := 1; parts < 9; parts++ {
			at := 0
			for i := range parts {
				n0, n1 := split(n, parts, i)
				if n0 != at || n1 < n0 || (n1 < n && n1%splitRows != 0) {
					t.Fatal(n, parts, i, n0, n1)
				}
				at = n1
			}
			if at != n {
				t.Fatal(n, parts, at)
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	const m, n, k = 9, 21, 333
	p := newProblem(rand.New(rand.NewPCG(5, 5)), false, m, n, k)
	y, h := make([]float32, m*n), make([]uint16, m*n)
	b, i := make([]uint8, m*n), make([]int32, m*n)
	for _, s := range tiers() {
		scratch := make([]byte, max(s.ScratchBF16(m, k), s.ScratchF32(m, k)))
		for name, f := range map[string]func(){
			"a row":    func() { s.GemmBF16(y, n, p.xh, p.ldx, p.wh, p.ldw, 1, n, k, nil) },
			"GemmBF16": func() { s.GemmBF16(y, n, p.xh, p.ldx, p.wh, p.ldw, m, n, k, scratch) },
			"GemmF32":  func() { s.GemmF32(y, n, p.x, p.ldx, p.w, p.ldw, m, n, k, scratch) },
			"Widen":    func() { s.Widen(y, h) },
			"Narrow":   func() { s.Narrow(h, y) },
			"Axpy":     func() { s.Axpy(y, 0.5, y) },
			"Exp":      func() { s.Exp(y, y) },
			"SiLU":     func() { s.SiLU(y, y) },
			"Dot":      func() { y[0] = s.DotF32(p.x, p.x) },
			"MulF32":   func() { s.MulF32(y, n, p.x, 0, p.x, 0, m, n, 9) },
			"MulBF16":  func() { s.MulBF16(y, n, p.xh, 0, p.xh, 0, m, n, 9) },
			"Add":      func() { s.Add(y, y, y) },
			"MaxS":     func() { s.MaxS(y, y, 1) },
			"Sum":      func() { y[0] = s.Sum(y) },
			"MaxOf":    func() { y[0] = s.MaxOf(y) },
			"Less":     func() { s.LessI32S(b, i, 3) },
			"And":      func() { s.And8(b, b, b) },
			"Select":   func() { s.Select16S(h, b, h, 1) },
		} {
			if n := testing.AllocsPerRun(20, f); n != 0 {
				t.Errorf("%v %s: %v allocations", s.Tier(), name, n)
			}
		}
	}
}

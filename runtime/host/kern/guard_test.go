//go:build linux

package kern

import (
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// fence is memory between two pages that cannot be accessed.
type fence struct{ mem []byte }

func newFence(t *testing.T, size int) *fence {
	page := os.Getpagesize()
	size = (size + page - 1) / page * page
	mem, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(mem)) })
	require.NoError(t, syscall.Mprotect(mem[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(mem[page+size:], syscall.PROT_NONE))
	return &fence{mem[page : page+size]}
}

// atEdge returns n elements that end at the second page, or begin after the
// first one.
func atEdge[T any](f *fence, n int, end bool) []T {
	var v T
	at := 0
	if end {
		at = len(f.mem) - n*int(unsafe.Sizeof(v))
	}
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&f.mem[at])), n)
}

// Every operand touches a page that cannot be accessed; an access outside of
// the slices ends the test.
func TestGuards(t *testing.T) {
	const maxM, maxN, maxK, gap = 30, 70, 2300, 5
	fx, fw := newFence(t, 4*maxM*(maxK+gap)), newFence(t, 4*maxN*(maxK+gap))
	fy, fs := newFence(t, 4*maxM*(maxN+2)), newFence(t, 1<<20)
	r := rand.New(rand.NewPCG(6, 6))
	for range 3000 {
		m, n, k := 1+r.IntN(maxM), 1+r.IntN(maxN), 1+r.IntN(130)
		if r.IntN(4) == 0 {
			m, n, k = 1+r.IntN(17), 1+r.IntN(20), 1+r.IntN(maxK)
		}
		ldx, ldy := k+r.IntN(gap), n+r.IntN(3)
		end := r.IntN(2) == 0
		y := atEdge[float32](fy, span(m, ldy, n), end)
		x, xh := atEdge[float32](fx, span(m, ldx, k), end), atEdge[uint16](fx, span(m, ldx, k), end)
		ldw := k + r.IntN(gap)
		w, wh := atEdge[float32](fw, span(n, ldw, k), end), atEdge[uint16](fw, span(n, ldw, k), end)
		ldv := n + r.IntN(gap)
		v, vh := atEdge[float32](fw, span(k, ldv, n), end), atEdge[uint16](fw, span(k, ldv, n), end)
		for _, s := range tiers()[1:] {
			s.GemmBF16(y, ldy, xh, ldx, wh, ldw, m, n, k, atEdge[byte](fs, s.ScratchBF16(m, k), end))
			s.GemmF32(y, ldy, x, ldx, w, ldw, m, n, k, atEdge[byte](fs, s.ScratchF32(m, k), end))
			s.GemmBF16(y[:n], ldy, xh[:k], ldx, wh, ldw, 1, n, k, nil)
			s.GemmF32(y[len(y)-n:], ldy, x[(m-1)*ldx:], ldx, w, ldw, 1, n, k, nil)
			s.MulBF16(y, ldy, xh, ldx, vh, ldv, m, n, k)
			s.MulF32(y, ldy, x, ldx, v, ldv, m, n, k)
		}
	}
}

func TestElementwiseGuards(t *testing.T) {
	fy, fc := newFence(t, 1<<16), newFence(t, 1<<16)
	fa, fb := newFence(t, 1<<16), newFence(t, 1<<16)
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 1500 {
		n := i % 140
		if i%50 == 0 {
			n = 1 + r.IntN(1<<14)
		}
		end := i%2 == 0
		x, y := atEdge[float32](fa, n, end), atEdge[float32](fy, n, end)
		hx, hy := atEdge[uint16](fa, n, end), atEdge[uint16](fy, n, end)
		for _, s := range tiers()[1:] {
			s.Widen(y, hx)
			s.Narrow(hy, x)
			s.Exp(y, x)
			s.Sigmoid(y, x)
			s.SiLU(y, x)
			s.DotF32(x, y)
			s.Sum(x)
			if n > 0 {
				s.MaxOf(x)
			}
			atEdges(s, floatOps, n, end, fy, fc, fa, fb)
			atEdges(s, intOps, n, end, fy, fc, fa, fb)
			atEdges(s, predicates, n, end, fy, fc, fa, fb)
			atEdges(s, truths, n, end, fy, fc, fa, fb)
			atEdges(s, selects32, n, end, fy, fc, fa, fb)
			atEdges(s, selects16, n, end, fy, fc, fa, fb)
		}
	}
}

func atEdges[Y, A, B any](s Kernels, all []choice[Y, A, B], n int, end bool, y, cond, a, b *fence) {
	for _, c := range all {
		c.run(s, atEdge[Y](y, n, end), atEdge[uint8](cond, n, end), atEdge[A](a, n, end), atEdge[B](b, n, end))
	}
}

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
	const maxM, maxN, maxK = 14, 20, 2300
	fx, fw := newFence(t, 4*maxM*maxK), newFence(t, 4*maxN*maxK)
	fy, fs := newFence(t, 4*maxM*(maxN+2)), newFence(t, 1<<20)
	r := rand.New(rand.NewPCG(6, 6))
	for range 2500 {
		m, n, k := 1+r.IntN(maxM), 1+r.IntN(maxN), 1+r.IntN(130)
		if r.IntN(4) == 0 {
			k = 1 + r.IntN(maxK)
		}
		ldy := n + r.IntN(3)
		end := r.IntN(2) == 0
		y := atEdge[float32](fy, (m-1)*ldy+n, end)
		x, w := atEdge[float32](fx, m*k, end), atEdge[float32](fw, n*k, end)
		xh, wh := atEdge[uint16](fx, m*k, end), atEdge[uint16](fw, n*k, end)
		for _, s := range tiers()[1:] {
			s.GemmBF16(y, ldy, xh, k, wh, k, m, n, k, atEdge[byte](fs, s.ScratchBF16(m, k), end))
			s.GemmF32(y, ldy, x, k, w, k, m, n, k, atEdge[byte](fs, s.ScratchF32(m, k), end))
			s.GemvBF16(y[:n], xh[:k], wh, k, n, k)
			s.GemvF32(y[len(y)-n:], x[(m-1)*k:], w, k, n, k)
		}
	}
}

func TestElementwiseGuards(t *testing.T) {
	fx, fy := newFence(t, 1<<16), newFence(t, 1<<16)
	r := rand.New(rand.NewPCG(7, 7))
	for i := range 1500 {
		n := i % 70
		if i%50 == 0 {
			n = 1 + r.IntN(1<<14)
		}
		end := i%2 == 0
		x, y := atEdge[float32](fx, n, end), atEdge[float32](fy, n, end)
		h := atEdge[uint16](fx, n, end)
		hy := atEdge[uint16](fy, n, end)
		for _, s := range tiers()[1:] {
			s.Widen(y, h)
			s.Narrow(hy, x)
			s.Axpy(y, 2, x)
			s.Exp(y, x)
			s.Sigmoid(y, x)
			s.SiLU(y, x)
			s.DotF32(x, y)
		}
	}
}

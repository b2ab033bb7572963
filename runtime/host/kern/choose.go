package kern

import "unsafe"

// Functions that choose move bits unchanged, whatever type they are of.

// Select32 is y = a where cond is not 0, else b. It takes as many elements as
// cond has.
func (s Kernels) Select32(y []uint32, cond []uint8, a, b []uint32) {
	pick(y, cond, a, b, s.each(opSelect32, len(cond), ptr(y[:len(cond)]), ptr(cond), ptr(a[:len(cond)]), ptr(b[:len(cond)])))
}

// Select16 is Select32 for elements of 16 bits.
func (s Kernels) Select16(y []uint16, cond []uint8, a, b []uint16) {
	pick(y, cond, a, b, s.each(opSelect16, len(cond), ptr(y[:len(cond)]), ptr(cond), ptr(a[:len(cond)]), ptr(b[:len(cond)])))
}

// Select32S is y = a where cond is not 0, else b.
func (s Kernels) Select32S(y []uint32, cond []uint8, a []uint32, b uint32) {
	pickS(y, cond, a, b, s.each(opSelect32S, len(cond), ptr(y[:len(cond)]), ptr(cond), ptr(a[:len(cond)]), unsafe.Pointer(&b)))
}

// Select16S is Select32S for elements of 16 bits.
func (s Kernels) Select16S(y []uint16, cond []uint8, a []uint16, b uint16) {
	pickS(y, cond, a, b, s.each(opSelect16S, len(cond), ptr(y[:len(cond)]), ptr(cond), ptr(a[:len(cond)]), unsafe.Pointer(&b)))
}

// pick and pickS are the law from element i on.
func pick[T any](y []T, cond []uint8, a, b []T, i int) {
	for ; i < len(cond); i++ {
		if cond[i] != 0 {
			y[i] = a[i]
		} else {
			y[i] = b[i]
		}
	}
}

func pickS[T any](y []T, cond []uint8, a []T, b T, i int) {
	for ; i < len(cond); i++ {
		if cond[i] != 0 {
			y[i] = a[i]
		} else {
			y[i] = b
		}
	}
}

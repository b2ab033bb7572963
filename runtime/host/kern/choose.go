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

// Select32c is y = a where cond is not 0, else b.
func (s Kernels) Select32c(y []uint32, cond []uint8, a []uint32, b uint32) {
	pick1(y, cond, a, b, s.each(opSelect32c, len(cond), ptr(y[:len(cond)]), ptr(cond), ptr(a[:len(cond)]), unsafe.Pointer(&b)))
}

// Select16c is Select32c for elements of 16 bits.
func (s Kernels) Select16c(y []uint16, cond []uint8, a []uint16, b uint16) {
	pick1(y, cond, a, b, s.each(opSelect16c, len(cond), ptr(y[:len(cond)]), ptr(cond), ptr(a[:len(cond)]), unsafe.Pointer(&b)))
}

// pick and pick1 are the law from element i on.
func pick[T any](y []T, cond []uint8, a, b []T, i int) {
	for ; i < len(cond); i++ {
		if cond[i] != 0 {
			y[i] = a[i]
		} else {
			y[i] = b[i]
		}
	}
}

func pick1[T any](y []T, cond []uint8, a []T, b T, i int) {
	for ; i < len(cond); i++ {
		if cond[i] != 0 {
			y[i] = a[i]
		} else {
			y[i] = b
		}
	}
}

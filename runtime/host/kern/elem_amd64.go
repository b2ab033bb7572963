package kern

import "unsafe"

// elemBlock is the number of elements done at a time: assembly cannot be
// preempted.
const elemBlock = 8192

// The methods here do the elements their tier has vectors for and return how
// many those are: all where there are masks.

// each calls f for n elements of y, a, b and c; what f has no use for is nil.
func (s Kernels) each(f elem, n int, y, a, b, c unsafe.Pointer) int {
	if s.tier == Scalar {
		return 0
	}
	step := &elemSizes[f]
	if s.tier == AVX2 {
		n &^= step.lanes/2 - 1
	}
	for i := 0; i < n; i += elemBlock {
		part := min(elemBlock, n-i)
		y, a := unsafe.Add(y, i*step.y), unsafe.Add(a, i*step.a)
		b, c := unsafe.Add(b, i*step.b), unsafe.Add(c, i*step.c)
		if s.tier == AVX2 {
			call256(f, y, a, b, c, part/(step.lanes/2))
			continue
		}
		call512(f, y, a, b, c, part/step.lanes, 1<<(part%step.lanes)-1)
	}
	return n
}

// addLanes adds x to the lanes.
func (s Kernels) addLanes(y *[lanes]float32, x []float32) int {
	n := s.whole(len(x))
	for i := 0; i < n; i += elemBlock {
		part := min(elemBlock, n-i)
		if s.tier == AVX2 {
			sumx256(unsafe.Pointer(y), unsafe.Pointer(&x[i]), part/lanes)
			continue
		}
		sumx512(unsafe.Pointer(y), unsafe.Pointer(&x[i]), part/lanes, 1<<(part%lanes)-1)
	}
	return n
}

// maxLanes is the maxima of the lanes and x.
func (s Kernels) maxLanes(y *[lanes]float32, x []float32) int {
	n := s.whole(len(x))
	for i := 0; i < n; i += elemBlock {
		part := min(elemBlock, n-i)
		if s.tier == AVX2 {
			maxOfx256(unsafe.Pointer(y), unsafe.Pointer(&x[i]), part/lanes)
			continue
		}
		maxOfx512(unsafe.Pointer(y), unsafe.Pointer(&x[i]), part/lanes, 1<<(part%lanes)-1)
	}
	return n
}

// whole is how many of n elements the tier goes through by lanes.
func (s Kernels) whole(n int) int {
	switch s.tier {
	case Scalar:
		return 0
	case AVX2:
		return n &^ (lanes - 1)
	}
	return n
}

package kern

import "unsafe"

func readInLine(buf []byte) {
	if best == Scalar {
		goRead(buf)
		return
	}
	readLine(unsafe.Pointer(&buf[0]), len(buf)/512)
}

func readInStreams(buf []byte) {
	if best == Scalar {
		goRead(buf)
		return
	}
	readStreams(unsafe.Pointer(&buf[0]), len(buf)/8, len(buf)/8/vector)
}

// peakLoop runs a register-only loop.
func peakLoop(a arith, rounds int) {
	switch a {
	case dot512:
		peakBF16x512(rounds)
	case fma512:
		peakF32x512(rounds)
	case fma256:
		peakF32x256(rounds)
	default:
		goPeak(rounds)
	}
}

// peakOps are the operations of one round.
func peakOps(a arith) float64 {
	switch a {
	case dot512:
		return 24 * 64
	case fma512:
		return 24 * 32
	case fma256:
		return 12 * 16
	}
	return goPeakOps
}

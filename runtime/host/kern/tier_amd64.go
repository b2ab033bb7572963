package kern

import "golang.org/x/sys/cpu"

// best is the highest tier of this processor.
var best = func() Tier {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA:
		return Scalar
	case !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512DQ || !x.HasAVX512VL:
		return AVX2
	case !x.HasAVX512BF16:
		return AVX512
	}
	return AVX512BF16
}()

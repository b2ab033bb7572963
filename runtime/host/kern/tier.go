package kern

import (
	"fmt"
	"os"
	"strings"
)

// Tier is a family of kernels for processors with the same instructions. Each
// one needs everything the tiers before it need.
type Tier uint8

// The tiers, slowest first.
const (
	Scalar     Tier = iota // Go; the law itself
	AVX2                   // AVX2 and FMA; bf16 is widened
	AVX512                 // AVX-512 F, BW, DQ and VL; bf16 is widened
	AVX512BF16             // AVX512 and VDPBF16PS
)

var tierNames = [...]string{"scalar", "avx2", "avx512", "avx512bf16"}

// String is the name that Select takes.
func (t Tier) String() string {
	if int(t) < len(tierNames) {
		return tierNames[t]
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// Env is the environment variable that overrides the choice of kernels.
const Env = "QUILL_KERNELS"

// Kernels are the kernels of one tier that this processor can run. The zero
// value is the scalar tier.
type Kernels struct{ tier Tier }

// Tier is the tier of the kernels.
func (s Kernels) Tier() Tier { return s.tier }

// Best are the fastest kernels of this processor.
func Best() Kernels { return Kernels{best} }

// Select returns the kernels of the named tier; the empty name means Best.
func Select(name string) (Kernels, error) {
	if name == "" {
		return Best(), nil
	}
	for t, n := range tierNames {
		if n != name {
			continue
		}
		if Tier(t) > best {
			return Kernels{}, fmt.Errorf("this processor cannot run %s kernels; its best are %s", name, best)
		}
		return Kernels{Tier(t)}, nil
	}
	return Kernels{}, fmt.Errorf("unknown kernels %q; there are %s", name, strings.Join(tierNames[:], ", "))
}

// FromEnv selects the kernels named by the variable Env, or Best.
func FromEnv() (Kernels, error) {
	s, err := Select(os.Getenv(Env))
	if err != nil {
		return s, fmt.Errorf("%s: %w", Env, err)
	}
	return s, nil
}

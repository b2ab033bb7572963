package kern

import (
	"math/rand/v2"
	"testing"
)

// FuzzProducts compares all tiers with the law.
func FuzzProducts(f *testing.F) {
	f.Add(uint64(1), uint8(3), uint8(5), uint16(70))
	f.Add(uint64(2), uint8(13), uint8(4), uint16(2049))
	f.Fuzz(func(t *testing.T, seed uint64, m, n uint8, k uint16) {
		p := newProblem(rand.New(rand.NewPCG(seed, 0)), 1+int(m%16), 1+int(n%24), int(k%4200))
		scratch := make([]byte, 1<<20)
		p.oracle(t)
		for _, s := range tiers() {
			p.run(t, s, p.n+int(seed%3), scratch)
		}
	})
}

package kern

import (
	"math/rand/v2"
	"testing"
)

// FuzzProducts compares all tiers with the law.
func FuzzProducts(f *testing.F) {
	f.Add(uint64(1), uint8(3), uint8(5), uint16(70))
	f.Add(uint64(3), uint8(30), uint8(40), uint16(128))
	f.Add(uint64(2), uint8(13), uint8(4), uint16(2049))
	f.Fuzz(func(t *testing.T, seed uint64, m, n uint8, k uint16) {
		r := rand.New(rand.NewPCG(seed, 0))
		scratch := make([]byte, 1<<20)
		for _, ordered := range []bool{false, true} {
			p := newProblem(r, ordered, 1+int(m%40), 1+int(n%80), int(k%4200))
			p.oracle(t)
			for _, s := range tiers() {
				p.run(t, s, p.n+int(seed%3), scratch)
			}
		}
	})
}

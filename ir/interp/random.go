package interp

import (
	"math/rand/v2"

	"quill/recipes/dtype"
)

// Random makes a tensor that depends on the seed alone: floats are normal with
// variance 1, i8 are predicates, other integers lie anywhere in their range.
func Random(seed uint64, t dtype.Type, shape ...int64) *Tensor {
	if t == dtype.I8 {
		return RandomInts(seed, t, 0, 2, shape...)
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	x := Zeros(t, shape...)
	for i := range x.F {
		x.F[i] = round(t, rnd.NormFloat64())
	}
	for i := range x.I {
		x.I[i] = wrap(t, int64(rnd.Uint64()))
	}
	return x
}

// RandomInts makes a tensor of integers from lo to hi−1 that depends on the
// seed alone.
func RandomInts(seed uint64, t dtype.Type, lo, hi int64, shape ...int64) *Tensor {
	rnd := rand.New(rand.NewPCG(seed, 1))
	x := Zeros(t, shape...)
	for i := range x.I {
		x.I[i] = wrap(t, lo+rnd.Int64N(max(hi-lo, 1)))
	}
	return x
}

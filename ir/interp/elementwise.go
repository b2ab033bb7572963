package interp

import (
	"math"

	"quill/recipes/dtype"
)

// constOp fills shape [1].
func constOp(a attrs, _ []*Tensor) ([]*Tensor, error) {
	t, err := Scalar(a.dtype(), a.op.Attr("value").Float)
	return []*Tensor{t}, err
}

func iota32(a attrs, _ []*Tensor) ([]*Tensor, error) {
	n, err := a.size("size")
	if err != nil {
		return nil, err
	}
	y := Zeros(dtype.I32, n)
	for i := range y.I {
		y.I[i] = int64(i)
	}
	return one(y)
}

// arithmetic is an op on two numbers of one type. Floats are rounded once,
// integers wrap; i is nil where there is no such op on integers.
func arithmetic(f func(x, y float64) float64, i func(x, y int64) int64) func(attrs, []*Tensor) ([]*Tensor, error) {
	return func(_ attrs, in []*Tensor) ([]*Tensor, error) {
		shape, err := joinShapes(in[0].Shape, in[1].Shape)
		if err != nil {
			return nil, err
		}
		x, y, z := spread(in[0], shape), spread(in[1], shape), Zeros(in[0].DType, shape...)
		for k := range z.F {
			z.F[k] = round(z.DType, f(float64(x.F[k]), float64(y.F[k])))
		}
		for k := range z.I {
			z.I[k] = wrap(z.DType, i(x.I[k], y.I[k]))
		}
		return one(z)
	}
}

// compare is a predicate of two numbers or predicates.
func compare(f func(x, y float64) bool, i func(x, y int64) bool) func(attrs, []*Tensor) ([]*Tensor, error) {
	return func(_ attrs, in []*Tensor) ([]*Tensor, error) {
		shape, err := joinShapes(in[0].Shape, in[1].Shape)
		if err != nil {
			return nil, err
		}
		x, y, z := spread(in[0], shape), spread(in[1], shape), Zeros(dtype.I8, shape...)
		for k := range z.I {
			if x.DType.IsFloat() {
				z.I[k] = truth(f(float64(x.F[k]), float64(y.F[k])))
			} else {
				z.I[k] = truth(i(x.I[k], y.I[k]))
			}
		}
		return one(z)
	}
}

// truth is the element of a predicate.
func truth(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// selectOp moves the chosen element; the other is not looked at.
func selectOp(_ attrs, in []*Tensor) ([]*Tensor, error) {
	shape, err := joinShapes(in[0].Shape, in[1].Shape, in[2].Shape)
	if err != nil {
		return nil, err
	}
	cond, a, b := spread(in[0], shape), spread(in[1], shape), spread(in[2], shape)
	z := Zeros(a.DType, shape...)
	for k, c := range cond.I {
		from := b
		if c != 0 {
			from = a
		}
		if z.DType.IsFloat() {
			z.F[k] = from.F[k]
		} else {
			z.I[k] = from.I[k]
		}
	}
	return one(z)
}

// unary is an op on one number; i is nil where there is none on integers.
func unary(f func(float64) float64, i func(int64) int64) func(attrs, []*Tensor) ([]*Tensor, error) {
	return func(_ attrs, in []*Tensor) ([]*Tensor, error) {
		x, y := in[0], Zeros(in[0].DType, in[0].Shape...)
		for k := range y.F {
			y.F[k] = round(y.DType, f(float64(x.F[k])))
		}
		for k := range y.I {
			y.I[k] = wrap(y.DType, i(x.I[k]))
		}
		return one(y)
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// silu is x · sigmoid(x) taken literally: NaN at −∞.
func silu(x float64) float64 { return x * sigmoid(x) }

// logsigmoid is −softplus(−x) = min(x, 0) − log(1 + exp(−|x|)), which neither
// overflows nor loses small results.
func logsigmoid(x float64) float64 { return min(x, 0) - math.Log1p(math.Exp(-math.Abs(x))) }

func castOp(a attrs, in []*Tensor) ([]*Tensor, error) { return one(Cast(in[0], a.dtype())) }

// Cast converts elements to another type. Floats are rounded to nearest even;
// integers become floats by way of f32, as everything does; floats become
// integers towards zero, clamped to the range, NaN 0; integers keep their low
// bits.
func Cast(x *Tensor, to dtype.Type) *Tensor {
	if x.DType == to {
		return x
	}
	y := Zeros(to, x.Shape...)
	for i := range x.Len() {
		switch {
		case x.DType.IsFloat() && to.IsFloat():
			y.F[i] = round(to, float64(x.F[i]))
		case x.DType.IsFloat():
			y.I[i] = truncate(to, float64(x.F[i]))
		case to == dtype.BF16:
			y.F[i] = dtype.RoundBF16(float32(x.I[i]))
		case to == dtype.F32:
			y.F[i] = float32(x.I[i])
		default:
			y.I[i] = wrap(to, x.I[i])
		}
	}
	return y
}

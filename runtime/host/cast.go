package host

import (
	"math"

	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// cast builds a conversion of dense tensors.
func cast[S, D any](from, to dtype.Type, convert func(k kern.Kernels) func(y []D, x []S)) func(*node) (kernel, error) {
	return func(n *node) (kernel, error) {
		x, y := &n.in[0], &n.out[0]
		if err := n.typed(x, from); err != nil {
			return nil, err
		}
		if err := n.typed(y, to); err != nil {
			return nil, err
		}
		if err := n.shaped(y, x.dims); err != nil {
			return nil, err
		}
		n.rows = func(n *node) operation { return mapRows(convert(n.kernels)) }
		return nil, nil
	}
}

// plain is a function that is the same in every tier.
func plain[F any](f F) func(kern.Kernels) F { return func(kern.Kernels) F { return f } }

func i32ToF32(y []float32, x []int32) {
	for i, v := range x[:len(y)] {
		y[i] = float32(v)
	}
}

// f32ToI32 truncates toward zero. What has no i32 is clamped and NaN is 0, so
// that the result does not depend on the processor.
func f32ToI32(y []int32, x []float32) {
	for i, v := range x[:len(y)] {
		switch {
		case v != v:
			y[i] = 0
		case v >= 1<<31:
			y[i] = math.MaxInt32
		case v < -1<<31:
			y[i] = math.MinInt32
		default:
			y[i] = int32(v)
		}
	}
}

// i32ToI8 keeps the low byte.
func i32ToI8(y []int8, x []int32) {
	for i, v := range x[:len(y)] {
		y[i] = int8(v)
	}
}

func i8ToI32(y []int32, x []int8) {
	for i, v := range x[:len(y)] {
		y[i] = int32(v)
	}
}

package interp

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"quill/recipes/dtype"
)

// Tensor is a concrete value of one rank, row-major. Tensors are never changed
// once made, and may share memory: do not write to those that Run was given or
// has returned.
type Tensor struct {
	DType dtype.Type
	Shape []int64
	// F holds the elements of bf16 and f32, each exactly representable in the
	// type.
	F []float32
	// I holds the elements of integer types, each within the type's range.
	I []int64
}

// Zeros makes a tensor of zeros.
func Zeros(t dtype.Type, shape ...int64) *Tensor {
	x := &Tensor{DType: t, Shape: slices.Clone(shape)}
	n := product(shape)
	if t.IsFloat() {
		x.F = make([]float32, n)
	} else {
		x.I = make([]int64, n)
	}
	return x
}

// Scalar makes a tensor of shape [1].
func Scalar(t dtype.Type, v float64) (*Tensor, error) { return constant(t, v, []int64{1}) }

// FromF32 makes an f32 tensor.
func FromF32(shape []int64, v ...float32) *Tensor {
	return &Tensor{DType: dtype.F32, Shape: slices.Clone(shape), F: slices.Clone(v)}
}

// FromBF16 makes a bf16 tensor of rounded values.
func FromBF16(shape []int64, v ...float32) *Tensor {
	x := &Tensor{DType: dtype.BF16, Shape: slices.Clone(shape), F: slices.Clone(v)}
	for i, f := range x.F {
		x.F[i] = dtype.RoundBF16(f)
	}
	return x
}

// FromI32 makes an i32 tensor.
func FromI32(shape []int64, v ...int32) *Tensor {
	x := &Tensor{DType: dtype.I32, Shape: slices.Clone(shape), I: make([]int64, len(v))}
	for i, n := range v {
		x.I[i] = int64(n)
	}
	return x
}

// Len is the number of elements.
func (t *Tensor) Len() int {
	if t.DType.IsFloat() {
		return len(t.F)
	}
	return len(t.I)
}

// Reshape is a view of the same elements in another shape.
func (t *Tensor) Reshape(shape ...int64) (*Tensor, error) {
	if slices.ContainsFunc(shape, func(d int64) bool { return d < 0 }) || product(shape) != t.Len() {
		return nil, fmt.Errorf("%d elements do not fit the shape %v", t.Len(), shape)
	}
	return &Tensor{DType: t.DType, Shape: slices.Clone(shape), F: t.F, I: t.I}, nil
}

// Check reports what makes t malformed: a wrong number of elements or an
// element that its type does not have.
func (t *Tensor) Check() error {
	if t.DType.Size() == 0 {
		return fmt.Errorf("the tensor has no element type")
	}
	for i, d := range t.Shape {
		if d < 0 {
			return fmt.Errorf("axis %d has size %d", i, d)
		}
	}
	if want := product(t.Shape); t.Len() != want {
		return fmt.Errorf("the tensor has %d elements, its shape %v wants %d", t.Len(), t.Shape, want)
	}
	if t.DType.IsFloat() && t.I != nil || t.DType.IsInt() && t.F != nil {
		return fmt.Errorf("the tensor has elements of another type than %s", t.DType)
	}
	if t.DType == dtype.BF16 {
		for i, f := range t.F {
			if r := dtype.RoundBF16(f); r != f && f == f {
				return fmt.Errorf("element %v is %v, which is no bf16", Place(t.Shape, i), f)
			}
		}
	}
	for i, n := range t.I {
		if wrap(t.DType, n) != n {
			return fmt.Errorf("element %v is %d, which is no %s", Place(t.Shape, i), n, t.DType)
		}
	}
	return nil
}

// String shows type and elements, shortened.
func (t *Tensor) String() string {
	const most = 16
	var b strings.Builder
	fmt.Fprintf(&b, "%s%v{", t.DType, t.Shape)
	for i := range t.Len() {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == most {
			fmt.Fprintf(&b, "… %d more", t.Len()-most)
			break
		}
		b.WriteString(t.element(i))
	}
	return b.String() + "}"
}

func (t *Tensor) element(i int) string {
	if t.DType.IsFloat() {
		return fmt.Sprint(t.F[i])
	}
	return fmt.Sprint(t.I[i])
}

// round is the rounding of every float result: to float32, then to the type.
func round(t dtype.Type, v float64) float32 {
	f := float32(v)
	if t == dtype.BF16 {
		f = dtype.RoundBF16(f)
	}
	return f
}

// wrap keeps the low bits of an integer that its type has.
func wrap(t dtype.Type, v int64) int64 {
	switch t {
	case dtype.I8:
		return int64(int8(v))
	case dtype.U8:
		return int64(uint8(v))
	case dtype.I32:
		return int64(int32(v))
	}
	return v
}

// constant fills a tensor with a value, which must be one of the type's if it
// is an integer, and is rounded otherwise.
func constant(t dtype.Type, v float64, shape []int64) (*Tensor, error) {
	x := Zeros(t, shape...)
	if t.IsFloat() {
		for i := range x.F {
			x.F[i] = round(t, v)
		}
		return x, nil
	}
	n := truncate(t, v)
	if float64(n) != v {
		return nil, fmt.Errorf("%v is no %s", v, t)
	}
	for i := range x.I {
		x.I[i] = n
	}
	return x, nil
}

// truncate converts a float to an integer type: towards zero, clamped to the
// type's range, NaN to 0.
func truncate(t dtype.Type, v float64) int64 {
	lo, hi := intRange(t)
	switch {
	case v != v:
		return 0
	case v <= float64(lo):
		return lo
	case v >= float64(hi): // for i64 hi rounds up to 2^63, which does not fit
		return hi
	}
	return int64(v)
}

// intRange is the range of an integer type.
func intRange(t dtype.Type) (lo, hi int64) {
	switch t {
	case dtype.I8:
		return math.MinInt8, math.MaxInt8
	case dtype.U8:
		return 0, math.MaxUint8
	case dtype.I32:
		return math.MinInt32, math.MaxInt32
	}
	return math.MinInt64, math.MaxInt64
}

package interp

import "fmt"

// Layout ops move elements and never round.

func reshape(a attrs, in []*Tensor) ([]*Tensor, error) {
	shape, err := a.shape()
	if err != nil {
		return nil, err
	}
	y, err := in[0].Reshape(shape...)
	return []*Tensor{y}, err
}

// transpose makes axis i of the result axis perm[i] of x.
func transpose(a attrs, in []*Tensor) ([]*Tensor, error) {
	return one(permute(in[0], a.op.Ints("perm")))
}

func permute(x *Tensor, perm []int64) *Tensor {
	st := strides(x.Shape)
	shape, stride := make([]int64, len(perm)), make([]int, len(perm))
	for i, p := range perm {
		shape[i], stride[i] = x.Shape[p], st[p]
	}
	return pick(x, shape, walk(shape, 0, stride))
}

func broadcast(a attrs, in []*Tensor) ([]*Tensor, error) {
	shape, err := a.shape()
	if err != nil {
		return nil, err
	}
	for i, d := range in[0].Shape {
		if d != 1 && d != shape[i] {
			return nil, fmt.Errorf("shape %v cannot become %v", in[0].Shape, shape)
		}
	}
	return one(spread(in[0], shape))
}

func sliceOp(a attrs, in []*Tensor) ([]*Tensor, error) {
	start, err := a.size("start")
	if err != nil {
		return nil, err
	}
	stop, err := a.size("stop")
	if err != nil {
		return nil, err
	}
	y, err := cut(in[0], a.axis(), start, stop)
	return []*Tensor{y}, err
}

// cut takes elements start … stop−1 of one axis.
func cut(x *Tensor, axis int, start, stop int64) (*Tensor, error) {
	if start < 0 || stop < start || stop > x.Shape[axis] {
		return nil, fmt.Errorf("elements [%d, %d) are outside axis %d of size %d", start, stop, axis, x.Shape[axis])
	}
	st := strides(x.Shape)
	shape := withAxis(x.Shape, axis, stop-start)
	return pick(x, shape, walk(shape, int(start)*st[axis], st)), nil
}

func concat(a attrs, in []*Tensor) ([]*Tensor, error) { return one(join(in, a.axis())) }

// join puts tensors of one type behind each other along an axis.
func join(xs []*Tensor, axis int) *Tensor {
	total := int64(0)
	for _, x := range xs {
		total += x.Shape[axis]
	}
	y := Zeros(xs[0].DType, withAxis(xs[0].Shape, axis, total)...)
	st := strides(y.Shape)
	at := 0
	for _, x := range xs {
		for i, o := range walk(x.Shape, at*st[axis], st) {
			if x.DType.IsFloat() {
				y.F[o] = x.F[i]
			} else {
				y.I[o] = x.I[i]
			}
		}
		at += int(x.Shape[axis])
	}
	return y
}

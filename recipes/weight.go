package recipes

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// FillWeight writes the slot that w describes for one of tp ranks. dst is the
// slot, little-endian; t is the checkpoint tensor, nil for a constant. BF16 and
// F32 convert into each other, to nearest with ties to even; other types are
// copied only.
func FillWeight(dst []byte, w *Weight, t *safetensors.Tensor, rank, tp int) error {
	r, err := NewWeightReader(w, t, rank, tp)
	if err != nil {
		return err
	}
	if int64(len(dst)) != r.left {
		return w.fail(fmt.Errorf("%d bytes for a slot of %s %v", len(dst), shapeText(w.Shape), w.DType), rank, tp)
	}
	if len(dst) > 0 {
		_, err = r.Read(dst)
	}
	return err
}

// Copies is the number of different contents that the slot has over tp ranks:
// rank r has content number floor(r*Copies/tp).
func (w *Weight) Copies(tp int) int {
	switch {
	case w.Tensor != "":
		return w.Ways
	case w.Step != 0:
		return tp
	}
	return 1
}

// Direct returns the bytes of a checkpoint tensor that are the slot of one of
// tp ranks as they lie, and whether there are such: one run, of the slot's
// type, that begins at a multiple of the element's size. If so for one rank,
// then for all. The slots of a run must lie together, so none of them is.
func (w *Weight) Direct(t *safetensors.Tensor, rank, tp int) ([]byte, bool) {
	r, err := NewWeightReader(w, t, rank, tp)
	if err != nil || w.Tensor == "" || !w.LiesIn(r.from, t.Shape, tp) {
		return nil, false // a constant needs no tensor
	}
	size := int64(r.to.Size())
	data := r.src[r.v.base*size:][:r.left:r.left]
	if uintptr(unsafe.Pointer(unsafe.SliceData(data)))%uintptr(size) != 0 {
		return nil, false
	}
	return data, true
}

// LiesIn is what Direct finds of a tensor of which type and shape are known, but not
// where its data begins.
func (w *Weight) LiesIn(from dtype.Type, shape []int64, tp int) bool {
	if w.Tensor == "" || w.Part > 0 || w.DType != from || w.computed() {
		return false
	}
	v, err := w.view(shape, 0, tp)
	if err != nil {
		return false
	}
	v.merge()
	return len(v.dims) == 1 && v.strides[0] == 1
}

// fail says which slot of which rank err is about.
func (w *Weight) fail(err error, rank, tp int) error {
	return fmt.Errorf("weight %s, rank %d of %d: %w", w.what(), rank, tp, err)
}

// view is a part of a tensor in a chosen order of axes. Strides and base count
// elements of the tensor.
type view struct {
	dims, strides []int64
	base          int64
}

// view is what a rank takes of a checkpoint tensor of the given shape.
func (w *Weight) view(shape []int64, rank, tp int) (view, error) {
	if len(w.Reshape) > 0 {
		n, ok := elems(w.Reshape)
		if have, _ := elems(shape); !ok || n != have {
			return view{}, fmt.Errorf("cannot reshape %s to %s", shapeText(shape), shapeText(w.Reshape))
		}
		shape = w.Reshape
	}
	v := view{dims: slices.Clone(shape), strides: rowMajor(shape)}
	if len(w.Perm) > 0 {
		if !isPermutation(w.Perm, len(shape)) {
			return view{}, fmt.Errorf("%v is no order of the %d axes of %s", w.Perm, len(shape), shapeText(shape))
		}
		plain := v
		v = view{dims: make([]int64, len(shape)), strides: make([]int64, len(shape))}
		for i, p := range w.Perm {
			v.dims[i], v.strides[i] = plain.dims[p], plain.strides[p]
		}
	}
	if err := v.take(w.Rows); err != nil {
		return view{}, err
	}
	if err := v.slice(w, rank, tp); err != nil {
		return view{}, err
	}
	if !slices.Equal(v.dims, w.Shape) {
		return view{}, fmt.Errorf("the part has shape %s, the slot %s", shapeText(v.dims), shapeText(w.Shape))
	}
	return v, nil
}

// computed reports whether the slot has other numbers than the tensor.
func (w *Weight) computed() bool { return w.Times != 0 || w.Plus != 0 }

// take narrows v to some rows of axis 0.
func (v *view) take(rows []int64) error {
	if len(rows) == 0 {
		return nil
	}
	if len(rows) != 2 || len(v.dims) == 0 || rows[0] < 0 || rows[1] <= rows[0] || rows[1] > v.dims[0] {
		return fmt.Errorf("rows %v of a view of shape %s", rows, shapeText(v.dims))
	}
	v.dims[0] = rows[1] - rows[0]
	v.base += rows[0] * v.strides[0]
	return nil
}

// slice narrows v to the rank's part.
func (v *view) slice(w *Weight, rank, tp int) error {
	if w.Ways < 1 || w.Ways > tp {
		return fmt.Errorf("%d parts for %d ranks", w.Ways, tp)
	}
	if w.Ways == 1 {
		return nil
	}
	if w.Axis < 0 || w.Axis >= len(v.dims) || v.dims[w.Axis]%int64(w.Ways) != 0 {
		return fmt.Errorf("cannot cut axis %d of %s into %d parts", w.Axis, shapeText(v.dims), w.Ways)
	}
	v.dims[w.Axis] /= int64(w.Ways)
	v.base += int64(rank*w.Ways/tp) * v.dims[w.Axis] * v.strides[w.Axis]
	return nil
}

func rowMajor(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= shape[i]
	}
	return strides
}

func isPermutation(perm []int, n int) bool {
	seen := make([]bool, n)
	for _, p := range perm {
		if p < 0 || p >= n || seen[p] {
			return false
		}
		seen[p] = true
	}
	return len(perm) == n
}

// merge drops axes of one element and joins axes that lie contiguous, so that a
// copy moves runs as long as possible. At least one axis remains.
func (v *view) merge() {
	dims, strides := v.dims[:0:0], v.strides[:0:0]
	for i, d := range v.dims {
		last := len(dims) - 1
		switch {
		case d == 1:
		case last >= 0 && strides[last] == d*v.strides[i]:
			dims[last] *= d
			strides[last] = v.strides[i]
		default:
			dims, strides = append(dims, d), append(strides, v.strides[i])
		}
	}
	if len(dims) == 0 {
		dims, strides = []int64{1}, []int64{1}
	}
	v.dims, v.strides = dims, strides
}

// moveRun fills dst with every stride-th element of src.
func moveRun(dst []byte, to dtype.Type, src []byte, from dtype.Type, stride int64) {
	le := binary.LittleEndian
	size := int64(from.Size())
	step := stride * size
	switch {
	case to == from && stride == 1:
		copy(dst, src)
	case to == from:
		for at := int64(0); len(dst) > 0; at += step {
			copy(dst[:size], src[at:at+size])
			dst = dst[size:]
		}
	case to == dtype.F32:
		for at := int64(0); len(dst) > 0; at += step {
			le.PutUint32(dst, uint32(le.Uint16(src[at:]))<<16)
			dst = dst[4:]
		}
	default:
		for at := int64(0); len(dst) > 0; at += step {
			le.PutUint16(dst, dtype.ToBF16(math.Float32frombits(le.Uint32(src[at:]))))
			dst = dst[2:]
		}
	}
}

// compute does with the elements of dst what w says.
func (w *Weight) compute(dst []byte) {
	le := binary.LittleEndian
	size := w.DType.Size()
	for ; len(dst) > 0; dst = dst[size:] {
		var v float32
		if w.DType == dtype.F32 {
			v = math.Float32frombits(le.Uint32(dst))
		} else {
			v = dtype.FromBF16(le.Uint16(dst))
		}
		if w.Times != 0 {
			v = w.round(v * float32(w.Times))
		}
		if w.Plus != 0 {
			v = w.round(v + float32(w.Plus))
		}
		if w.DType == dtype.F32 {
			le.PutUint32(dst, math.Float32bits(v))
		} else {
			le.PutUint16(dst, dtype.ToBF16(v))
		}
	}
}

func (w *Weight) round(v float32) float32 {
	if w.DType == dtype.BF16 {
		return dtype.RoundBF16(v)
	}
	return v
}

// checkComputed checks the numbers that elements are multiplied by and that are added.
func (w *Weight) checkComputed() error {
	for _, n := range []float64{w.Times, w.Plus} {
		switch {
		case n == 0:
		case !w.DType.IsFloat():
			return fmt.Errorf("times and plus are for floats, not for %v", w.DType)
		case float32(n) == 0 || !dtype.F32.Holds(n):
			return fmt.Errorf("%v is 0 or infinite in f32", n)
		}
	}
	return nil
}

// constant is the element of a constant slot on one rank, in the low bytes.
func (w *Weight) constant(rank int) (uint64, error) {
	v := w.Fill
	if w.Step != 0 { // −0 + 0 is 0
		v += float64(rank) * w.Step
	}
	if !w.DType.Holds(v) {
		return 0, fmt.Errorf("constant %v is no %v", v, w.DType)
	}
	switch w.DType {
	case dtype.F32:
		return uint64(math.Float32bits(float32(v))), nil
	case dtype.BF16:
		return uint64(dtype.ToBF16(float32(v))), nil
	}
	return uint64(int64(v)), nil
}

// checkConstant checks that every rank's value fits the type.
func (w *Weight) checkConstant(ranks int) error {
	for rank := range ranks {
		if _, err := w.constant(rank); err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	return nil
}

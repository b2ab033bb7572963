package recipes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"quill/recipes/dtype"
	"quill/recipes/safetensors"
)

// WeightReader reads one slot of one rank from its first byte to its last, so
// that a slot of any size can be filled through a small buffer.
type WeightReader struct {
	left int64 // bytes of the slot that follow
	to   dtype.Type

	// A slot of a tensor: src seen as v, innermost axis last.
	src      []byte
	from     dtype.Type
	v        view
	at       []int64          // odometer of the outer axes
	run, col int64            // element of src that the innermost axis begins with; next one of that axis
	lo, hi   int64            // bytes of src that the last Read read
	compute  func(dst []byte) // nil where elements stay what they are

	elem []byte // element of a constant, nil otherwise
}

// NewWeightReader reads the slot that w describes for one of tp ranks. t is the
// checkpoint tensor, nil for a constant; its Data must stay until the last
// Read. Conversions are those of FillWeight.
func NewWeightReader(w *Weight, t *safetensors.Tensor, rank, tp int) (*WeightReader, error) {
	r, err := newWeightReader(w, t, rank, tp)
	if err != nil {
		return nil, w.fail(err, rank, tp)
	}
	return r, nil
}

func newWeightReader(w *Weight, t *safetensors.Tensor, rank, tp int) (*WeightReader, error) {
	n, ok := elems(w.Shape)
	if !ok {
		return nil, fmt.Errorf("shape %s", shapeText(w.Shape))
	}
	if rank < 0 || rank >= tp {
		return nil, errors.New("no such rank")
	}
	r := &WeightReader{left: n * int64(w.DType.Size()), to: w.DType}
	if w.Tensor == "" {
		v, err := w.constant(rank)
		r.elem = binary.LittleEndian.AppendUint64(nil, v)[:w.DType.Size()]
		return r, err
	}
	if t == nil {
		return nil, errors.New("the checkpoint tensor is missing")
	}
	if r.from, ok = t.Type(); !ok || r.from != w.DType && !(r.from.IsFloat() && w.DType.IsFloat()) {
		return nil, fmt.Errorf("cannot make %v of %s", w.DType, t.DType)
	}
	var err error
	if err = w.checkComputed(); err != nil {
		return nil, err
	}
	if w.computed() {
		r.compute = w.compute
	}
	if n, ok := elems(t.Shape); !ok || n*int64(r.from.Size()) != int64(len(t.Data)) {
		return nil, fmt.Errorf("%d bytes for a tensor of shape %s", len(t.Data), shapeText(t.Shape))
	}
	if r.v, err = w.view(t.Shape, rank, tp); err != nil {
		return nil, err
	}
	r.v.merge()
	r.src, r.run, r.at = t.Data, r.v.base, make([]int64, len(r.v.dims)-1)
	return r, nil
}

// Read fills dst with the next bytes of the slot, as far as it has whole
// elements: it returns less than dst holds only at the end, or if dst is no
// multiple of the element's size.
func (r *WeightReader) Read(dst []byte) (int, error) {
	size := int64(r.to.Size())
	n := min(int64(len(dst)), r.left) / size * size
	switch {
	case n == 0 && r.left == 0:
		return 0, io.EOF
	case n == 0:
		return 0, io.ErrShortBuffer
	}
	r.left -= n
	if dst = dst[:n]; r.elem == nil {
		r.move(dst)
		if r.compute != nil {
			r.compute(dst)
		}
		return int(n), nil
	}
	for ; len(dst) > 0; dst = dst[size:] {
		copy(dst, r.elem)
	}
	return int(n), nil
}

// Source is the part of the tensor's Data that the last Read read from, nil for
// a constant. Where a slot takes the tensor out of order, it has more than was
// read.
func (r *WeightReader) Source() []byte { return r.src[r.lo:r.hi] }

// move fills dst, whole elements of which there are enough.
func (r *WeightReader) move(dst []byte) {
	last := len(r.v.dims) - 1
	n, stride := r.v.dims[last], r.v.strides[last]
	to, from := int64(r.to.Size()), int64(r.from.Size())
	r.lo, r.hi = int64(len(r.src)), 0
	for len(dst) > 0 {
		k := min(n-r.col, int64(len(dst))/to)
		first := (r.run + r.col*stride) * from
		moveRun(dst[:k*to], r.to, r.src[first:], r.from, stride)
		r.lo, r.hi = min(r.lo, first), max(r.hi, first+((k-1)*stride+1)*from)
		dst = dst[k*to:]
		if r.col += k; r.col == n {
			r.col = 0
			r.next()
		}
	}
}

// next turns the odometer.
func (r *WeightReader) next() {
	for i := len(r.at) - 1; i >= 0; i-- {
		r.at[i]++
		r.run += r.v.strides[i]
		if r.at[i] < r.v.dims[i] {
			return
		}
		r.run -= r.at[i] * r.v.strides[i]
		r.at[i] = 0
	}
}

package host

import (
	"fmt"
	"math"
	"slices"

	"quill/recipes/dtype"
)

// insertion is the largest k that topk keeps in order as it goes; beyond it,
// sorting the whole line is faster.
const insertion = 64

// buildTopk selects by integer keys that carry the whole order: smaller is
// better, and the index in the low half decides between equal values.
func buildTopk(n *node) (kernel, error) {
	x, values, indices := &n.in[0], &n.out[0], &n.out[1]
	if err := n.typed(x, numTypes...); err != nil {
		return nil, err
	}
	if err := n.typed(values, x.dt); err != nil {
		return nil, err
	}
	if err := n.typed(indices, dtype.I32); err != nil {
		return nil, err
	}
	axis, err := n.axis("axis", x)
	if err != nil {
		return nil, err
	}
	k64, _ := n.params.Int("bsw")
	if k64 > int64(x.dims[axis]) || x.dims[axis] > math.MaxInt32 {
		return nil, n.bad("parameter bsw", "value", k64, fmt.Sprintf("at most dim %d of %s with dims %v", axis, x.label, x.dims))
	}
	k := int(k64)
	want := slices.Clone(x.dims)
	want[axis] = k
	for _, o := range []*operand{values, indices} {
		if err := n.shaped(o, want); err != nil {
			return nil, err
		}
	}
	inner, length, outer := x.split(axis)
	t := &top{dt: x.dt, k: k, inner: inner, length: length}
	t.keys = n.reserveOwn(8 * t.keep())
	lines := inner * outer
	if k == 0 {
		lines = 0
	} else if axis == 0 {
		n.rows = func(*node) operation { return operation{tmp: 8 * t.keep(), run: t.rows} }
	}
	return kernel{shared(lines, 4*length, t.lines)}, nil
}

// top selects k elements of each line along an axis: length elements that are
// inner apart.
type top struct {
	dt               dtype.Type
	k, inner, length int
	keys             region // of a thread
}

// keep is the number of keys that are kept of a line.
func (t *top) keep() int {
	if t.k <= insertion {
		return t.k
	}
	return t.length
}

func (t *top) lines(m *mem, from, to int) error {
	keys, indices := as[uint64](t.keys.of(m.own)), as[int32](m.out[1])
	for line := from; line < to; line++ {
		o, i := line/t.inner, line%t.inner
		at := o*t.length*t.inner + i
		t.line(keys, m.in[0], at, m.out[0], indices, o*t.k*t.inner+i)
	}
	return nil
}

// rows is the operation on rows.
func (t *top) rows(tile *tile, o *operation) error {
	values, indices, x := tile.lanes[o.out[0]], tile.lanes[o.out[1]], tile.lanes[o.in[0]]
	keys := tmpOf[uint64](tile, 0, t.keep())
	for r := range tile.rows {
		line, best := elems[byte](x.row(r), t.length*t.dt.Size()), elems[byte](values.row(r), t.k*t.dt.Size())
		t.line(keys, line, 0, best, rowOf[int32](&indices, r), 0)
	}
	return nil
}

// line writes the k best of the line at at of x to the one at to.
func (t *top) line(keys []uint64, x []byte, at int, values []byte, indices []int32, to int) {
	if t.k <= insertion {
		insertKeys(keys, x, t.dt, at, t.inner, t.length)
	} else {
		for j := range keys {
			keys[j] = key(x, t.dt, at+j*t.inner)<<32 | uint64(j)
		}
		slices.Sort(keys)
	}
	for j := range t.k {
		from := int32(keys[j])
		indices[to+j*t.inner] = from
		moveElem(values, x, t.dt, to+j*t.inner, at+int(from)*t.inner)
	}
}

// insertKeys leaves the smallest len(keys) keys of a line in order.
func insertKeys(keys []uint64, m []byte, dt dtype.Type, at, stride, length int) {
	for j := range length {
		v := key(m, dt, at+j*stride)<<32 | uint64(j)
		n := min(j, len(keys))
		if n == len(keys) {
			if v > keys[n-1] {
				continue
			}
			n--
		}
		for ; n > 0 && keys[n-1] > v; n-- {
			keys[n] = keys[n-1]
		}
		keys[n] = v
	}
}

// key maps an element to 32 bits that descend with its value: NaN first, then
// from the largest to the smallest; equal values have equal keys.
func key(m []byte, dt dtype.Type, i int) uint64 {
	var v float32
	switch dt {
	case dtype.I32:
		return uint64(^(uint32(as[int32](m)[i]) ^ 1<<31))
	case dtype.BF16:
		v = dtype.FromBF16(as[uint16](m)[i])
	default:
		v = as[float32](m)[i]
	}
	if v != v {
		return 0
	}
	if v == 0 {
		v = 0 // both zeros are equal
	}
	// Bits of positive floats ascend with the value, of negative ones descend.
	b := math.Float32bits(v)
	if b>>31 == 1 {
		return uint64(b)
	}
	return uint64(^(b | 1<<31))
}

// moveElem copies one element bit for bit.
func moveElem(dst, src []byte, dt dtype.Type, to, from int) {
	if dt == dtype.BF16 {
		as[uint16](dst)[to] = as[uint16](src)[from]
		return
	}
	as[uint32](dst)[to] = as[uint32](src)[from]
}

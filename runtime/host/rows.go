package host

import (
	"math"
	"unsafe"

	"quill/runtime/host/kern"
)

// rowsKernel executes a group, tile by tile. Tiles are along the first axis;
// each thread takes some of them.
type rowsKernel struct {
	kernels kern.Kernels
	axes    []int
	height  int // rows of a tile
	every   int // rows that a matrix serves if others follow, else 0
	ops     []operation
	values  []rowsValue
	spots   []rowsSpot
	buffers []int // offsets in the thread's memory
	tmp     region
	own     int // bytes of a thread
	span    *span
}

// rowsValue is where the rows of a value are: at a spot, in a buffer of the
// thread, or some bytes into another value.
type rowsValue struct {
	n, size      int
	spot, buffer int // or none
	base, at     int
	keys         bool // a span restricts it
}

// rowsSpot is rows in an operand of the unit, strides bytes apart along each
// axis.
type rowsSpot struct {
	operand int
	out     bool
	at      int
	strides []int
	picks   []rowsPick
	ld      int // of a matrix: bytes between its rows
	// Of matrices: each serves so many rows, and the next one is so many bytes on;
	// 0 if one serves all.
	every, step int
	// Of a matrix in pieces: rows of each, and their number. The first pick says where
	// they are.
	piece, pieces int
}

// rowsPick adds stride times an element of an index operand, that of the place along
// axes.
type rowsPick struct {
	along           []pickStep
	operand, stride int
	indices
}

// pickStep is how far apart in an index the places along an axis are.
type pickStep struct{ axis, step int }

// rows is the number of rows of a value.
func (k *rowsKernel) rows() int { return product(k.axes) }

// stage shares the tiles.
func (k *rowsKernel) stage() stage {
	tiles := (k.axes[0] + k.height - 1) / k.height
	for _, n := range k.axes[1:] {
		tiles *= n
	}
	cost := 0
	for i := range k.ops {
		o := &k.ops[i]
		n := k.values[o.out[0]].n
		for _, x := range o.in {
			n = max(n, k.values[x].n)
		}
		if p := o.product; p != nil {
			n = p.n * p.k / 8
		}
		cost += k.height * n
	}
	return shared(tiles, cost, k.run)
}

// run executes tiles from … to−1.
func (k *rowsKernel) run(m *mem, from, to int) error {
	t := &m.tile
	t.kernels, t.tmp, t.mem = k.kernels, k.tmp.of(m.own), m
	t.lanes = t.backing[:len(k.values)]
	for u := from; u < to; u++ {
		if err := k.tile(t, u); err != nil {
			return err
		}
	}
	return nil
}

// tile executes one tile; if keys that a span left out matter, again with all.
func (k *rowsKernel) tile(t *tile, u int) error {
	if err := k.position(t, u); err != nil {
		return err
	}
	t.least = float32(math.Inf(-1))
	if k.span != nil && k.restrict(t) {
		err := k.execute(t)
		if err != errHidden {
			return err
		}
		if err := k.position(t, u); err != nil {
			return err
		}
		t.least = float32(math.Inf(-1))
	}
	return k.execute(t)
}

func (k *rowsKernel) execute(t *tile) error {
	for i := range k.ops {
		if err := k.ops[i].run(t, &k.ops[i]); err != nil {
			return err
		}
	}
	return nil
}

// position sets the lanes of tile u.
func (k *rowsKernel) position(t *tile, u int) error {
	var at [maxAxes]int
	tiles := (k.axes[0] + k.height - 1) / k.height
	at[0] = u % tiles * k.height
	u /= tiles
	for a := 1; a < len(k.axes); a++ {
		at[a] = u % k.axes[a]
		u /= k.axes[a]
	}
	t.rows = min(k.height, k.axes[0]-at[0])
	for i := range k.values {
		v := &k.values[i]
		l := &t.lanes[i]
		l.n = v.n
		switch {
		case v.spot != none:
			if err := k.spots[v.spot].lane(t.mem, l, &at); err != nil {
				return err
			}
		case v.buffer != none:
			l.p, l.stride = unsafe.Pointer(&t.mem.own[k.buffers[v.buffer]]), v.n*v.size
		default:
			b := &t.lanes[v.base]
			l.p, l.stride = unsafe.Add(b.p, v.at), b.stride
		}
	}
	return nil
}

// maxAxes is more than the axes of a group: the last one, firstOnly, is of one
// element.
const (
	maxAxes   = 32
	firstOnly = maxAxes - 1
)

// lane sets where the rows at a place along the axes begin.
func (s *rowsSpot) lane(m *mem, l *lane, at *[maxAxes]int) error {
	x := m.in
	if s.out {
		x = m.out
	}
	off := s.at
	for a, stride := range s.strides {
		off += at[a] * stride
	}
	l.picks = nil
	for i := range s.picks {
		p := &s.picks[i]
		place := 0
		for _, x := range p.along {
			place += at[x.axis] * x.step
		}
		picks := as[int32](m.in[p.operand])[place:]
		if i == 0 && s.pieces != 0 {
			l.picks = picks[:s.pieces]
			if err := p.check(l.picks); err != nil {
				return err
			}
			l.apart, l.each, l.skip = p.stride, s.piece, 0
			continue
		}
		if err := p.check(picks[:1]); err != nil {
			return err
		}
		off += int(picks[0]) * p.stride
	}
	if s.every != 0 {
		off += at[0] / s.every * s.step
	}
	l.p, l.stride = unsafe.Pointer(&x[s.operand][off]), s.strides[0]
	if s.ld != 0 {
		l.stride, l.every, l.step = s.ld, s.every, s.step
	}
	return nil
}

package host

import (
	"context"
	"fmt"
	"slices"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// Collective moves arena ranges between all ranks. An all_reduce adds in rank
// order in f32 (i32 for integers) and rounds once, so that every rank receives
// the same bits.
func (d *Device) Collective(ctx context.Context, c *recipes.Collective) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	defer d.mu.Unlock()
	in, out, err := d.ranges(c)
	if err != nil {
		return err
	}
	for r := range d.ranks {
		d.ins[r], d.outs[r] = d.arena(r, c.In, in), d.arena(r, c.Out, out)
	}
	if c.Kind == recipes.AllReduce {
		d.reducer.sum(c.DType, d.outs, d.ins)
		return nil
	}
	for _, y := range d.outs {
		for from, x := range d.ins {
			copy(y[int64(from)*in:], x)
		}
	}
	return nil
}

// ranges checks a collective and returns the bytes of its input and output.
func (d *Device) ranges(c *recipes.Collective) (in, out int64, err error) {
	fail := func(format string, args ...any) (int64, int64, error) {
		return 0, 0, fmt.Errorf("collective %s %q: %s", c.Kind, c.Label, fmt.Sprintf(format, args...))
	}
	size := int64(c.DType.Size())
	if size == 0 {
		return fail("no element type")
	}
	if c.Count < 0 || c.Count > maxBuffer {
		return fail("%d elements", c.Count)
	}
	in = c.Count * size
	out = in
	switch c.Kind {
	case recipes.AllReduce:
		if c.DType != dtype.F32 && c.DType != dtype.BF16 && c.DType != dtype.I32 {
			return fail("type %v, want bf16, f32 or i32", c.DType)
		}
	case recipes.AllGather:
		out = in * int64(len(d.ranks))
	default:
		return fail("unknown kind")
	}
	arena := d.sizes[recipes.Arena]
	for _, r := range []struct {
		name      string
		at, bytes int64
	}{{"input", c.In, in}, {"output", c.Out, out}} {
		if r.at < 0 || r.bytes > arena || r.at > arena-r.bytes {
			return fail("%s of %d bytes at byte %d of the arena with %d bytes", r.name, r.bytes, r.at, arena)
		}
		if r.at%size != 0 {
			return fail("%s at byte %d, want a multiple of %d", r.name, r.at, size)
		}
	}
	// The same range is in place; a partial overlap has no meaning.
	if overlap(c.In, in, c.Out, out) && (c.In != c.Out || in != out) {
		return fail("input at byte %d and output at byte %d overlap", c.In, c.Out)
	}
	return in, out, nil
}

func (d *Device) arena(r int, at, bytes int64) []byte {
	return d.ranks[r].buffers[recipes.Arena][at : at+bytes]
}

// Reducer adds what ranks have as an all_reduce of [Device.Collective] does, for ranks
// that are not of one device. It is for one goroutine at a time.
type Reducer struct {
	kernels kern.Kernels
	// acc is the accumulator; wide holds a rank's widened values, then the rounded sums.
	acc, wide []byte
}

// NewReducer makes a reducer with the kernels that New would choose.
func NewReducer() (*Reducer, error) {
	kernels, err := kern.FromEnv()
	if err != nil {
		return nil, err
	}
	return newReducer(kernels), nil
}

func newReducer(k kern.Kernels) *Reducer {
	return &Reducer{k, alloc(4 * chunk), alloc(4 * chunk)}
}

// Sum adds the ranks' ins, in that order, to every one of outs: bf16, f32 or i32, all of
// one size, aligned to elements. Outs may be the ins.
func (r *Reducer) Sum(t dtype.Type, outs, ins [][]byte) error {
	if t != dtype.F32 && t != dtype.BF16 && t != dtype.I32 {
		return fmt.Errorf("a sum of type %v, want bf16, f32 or i32", t)
	}
	for _, b := range slices.Concat(outs, ins) {
		if len(b) != len(ins[0]) || len(b)%t.Size() != 0 {
			return fmt.Errorf("a sum of %d bytes and of %d, want equal multiples of %d", len(ins[0]), len(b), t.Size())
		}
	}
	r.sum(t, outs, ins)
	return nil
}

func (r *Reducer) sum(t dtype.Type, outs, ins [][]byte) {
	switch {
	case len(ins) == 1: // a sum of one is its bits
		for _, y := range outs {
			copy(y, ins[0])
		}
	case t == dtype.I32:
		reduceRanks(r, outs, ins, kern.Kernels.AddI32)
	case t == dtype.BF16:
		r.bf16(outs, ins)
	default:
		reduceRanks(r, outs, ins, kern.Kernels.Add)
	}
}

// reduceRanks adds f32 or i32 a chunk at a time. A chunk is read on all ranks
// before it is written on any, which makes the reduction in place safe.
func reduceRanks[T number](r *Reducer, outs, ins [][]byte, add func(k kern.Kernels, y, a, b []T)) {
	acc := as[T](r.acc)
	for at, end := 0, len(ins[0]); at < end; at += 4 * chunk {
		to := min(at+4*chunk, end)
		y := acc[:(to-at)/4]
		for k, in := range ins {
			if x := as[T](in[at:to]); k == 0 {
				copy(y, x)
			} else {
				add(r.kernels, y, y, x)
			}
		}
		for _, out := range outs {
			copy(as[T](out[at:to]), y)
		}
	}
}

// bf16 is reduceRanks for bf16.
func (r *Reducer) bf16(outs, ins [][]byte) {
	for at, end := 0, len(ins[0]); at < end; at += 2 * chunk {
		to := min(at+2*chunk, end)
		n := (to - at) / 2
		y, wide, half := as[float32](r.acc)[:n], as[float32](r.wide)[:n], as[uint16](r.wide)[:n]
		for k, in := range ins {
			x := as[uint16](in[at:to])
			if k == 0 {
				r.kernels.Widen(y, x)
				continue
			}
			r.kernels.Widen(wide, x)
			r.kernels.Add(y, y, wide)
		}
		r.kernels.Narrow(half, y)
		for _, out := range outs {
			copy(as[uint16](out[at:to]), half)
		}
	}
}

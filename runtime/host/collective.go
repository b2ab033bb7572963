package host

import (
	"context"
	"fmt"

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
	switch {
	case c.Kind == recipes.AllGather:
		for to := range d.ranks {
			y := d.arena(to, c.Out, out)
			for from := range d.ranks {
				copy(y[int64(from)*in:], d.arena(from, c.In, in))
			}
		}
	case len(d.ranks) == 1:
		copy(d.arena(0, c.Out, out), d.arena(0, c.In, in)) // a sum of one is its bits
	case c.DType == dtype.I32:
		reduceRanks(d, c, kern.Kernels.AddI32)
	case c.DType == dtype.BF16:
		d.reduceBF16(c)
	default:
		reduceRanks(d, c, kern.Kernels.Add)
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

// reduceRanks adds f32 or i32 a chunk at a time. A chunk is read on all ranks
// before it is written on any, which makes the reduction in place safe.
func reduceRanks[T number](d *Device, c *recipes.Collective, add func(k kern.Kernels, y, a, b []T)) {
	acc := as[T](d.acc)
	for at := int64(0); at < c.Count; at += chunk {
		n := min(chunk, c.Count-at)
		y := acc[:n]
		for r := range d.ranks {
			x := as[T](d.arena(r, c.In+4*at, 4*n))
			if r == 0 {
				copy(y, x)
			} else {
				add(d.kernels, y, y, x)
			}
		}
		for r := range d.ranks {
			copy(as[T](d.arena(r, c.Out+4*at, 4*n)), y)
		}
	}
}

// reduceBF16 is reduceRanks for bf16.
func (d *Device) reduceBF16(c *recipes.Collective) {
	for at := int64(0); at < c.Count; at += chunk {
		n := min(chunk, c.Count-at)
		y, wide, half := as[float32](d.acc)[:n], as[float32](d.result)[:n], as[uint16](d.result)[:n]
		for r := range d.ranks {
			x := as[uint16](d.arena(r, c.In+2*at, 2*n))
			if r == 0 {
				d.kernels.Widen(y, x)
				continue
			}
			d.kernels.Widen(wide, x)
			d.kernels.Add(y, y, wide)
		}
		d.kernels.Narrow(half, y)
		for r := range d.ranks {
			copy(as[uint16](d.arena(r, c.Out+2*at, 2*n)), half)
		}
	}
}

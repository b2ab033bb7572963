package host

import (
	"math"
	"slices"

	"quill/recipes/dtype"
)

// buildRMSNorm normalizes rows of the fastest dim.
func buildRMSNorm(n *node) (runFunc, error) {
	x, gamma, y, inv := &n.in[0], &n.in[1], &n.out[0], &n.out[1]
	if err := n.same(x, gamma, y); err != nil {
		return nil, err
	}
	if err := n.typed(inv, dtype.F32); err != nil {
		return nil, err
	}
	if err := n.ranked(x, 1, maxRank); err != nil {
		return nil, err
	}
	if err := n.shaped(gamma, x.dims[:1]); err != nil {
		return nil, err
	}
	if err := n.shaped(y, x.dims); err != nil {
		return nil, err
	}
	want := slices.Clone(x.dims)
	want[0] = 1
	if err := n.shaped(inv, want); err != nil {
		return nil, err
	}
	eps, _ := n.params.FloatOf("eps")
	size, rows := x.dims[0], product(x.dims[1:])
	wide := x.wide()
	var line, factors region
	if wide {
		line, factors = n.reserve(4*size), n.reserve(4*size)
	}
	return func(m *mem) error {
		inv := as[float32](m.out[1])
		gamma := floats(m.in[1], wide, 0, size, factors.f32(m.scratch))
		for r := range rows {
			x := floats(m.in[0], wide, r*size, size, line.f32(m.scratch))
			mean := dot(x, x) / float32(size)
			scale := 1 / float32(math.Sqrt(float64(mean+eps)))
			inv[r] = scale
			if !wide {
				y := as[float32](m.out[0])[r*size : (r+1)*size]
				for i, v := range x {
					y[i] = float32(v*scale) * gamma[i]
				}
				continue
			}
			for i, v := range x {
				x[i] = dtype.RoundBF16(v*scale) * gamma[i]
			}
			narrow(as[uint16](m.out[0])[r*size:(r+1)*size], x)
		}
		return nil
	}, nil
}

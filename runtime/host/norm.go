package host

import (
	"slices"

	"quill/recipes/dtype"
)

// buildRMSNorm normalizes rows of the fastest dim.
func buildRMSNorm(n *node) (kernel, error) {
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
	n.rows = func(n *node) operation { return normedRows(n.kernels, x.bf16(), x.dims[0], eps) }
	return nil, nil
}

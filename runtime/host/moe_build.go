package host

import (
	"fmt"

	"quill/recipes/dtype"
)

func buildMoE(n *node) (kernel, error) {
	g, err := n.mixture()
	if err != nil {
		return nil, err
	}
	g.reserve(n)
	n.later, n.experts = 3, g.read
	n.expertBytes = int64(g.size() * 3 * g.hidden * g.width)
	n.expertFlops = 2 * 3 * int64(g.hidden*g.width) * int64(g.tokens*g.k)
	return g.stages(n.threads), nil
}

// mixture checks the operands of a mixture of experts.
func (n *node) mixture() (*moe, error) {
	x, table, weights, y := &n.in[0], &n.in[1], &n.in[2], &n.out[0]
	if err := n.same(x, weights, y); err != nil {
		return nil, err
	}
	if err := n.typed(table, dtype.I32); err != nil {
		return nil, err
	}
	for _, o := range []*operand{x, table} {
		if err := n.ranked(o, 2, 2); err != nil {
			return nil, err
		}
	}
	low, _ := n.params.Int("experts_min")
	high, _ := n.params.Int("experts_max")
	experts := (len(n.in) - 3) / 2
	if high-low+1 != int64(experts) || len(n.in) != 3+2*experts {
		return nil, n.bad("operands", "number", len(n.in), 3+2*(high-low+1))
	}
	g := &moe{
		arithmetic: arithmetic{n.kernels, x.bf16()},
		hidden:     x.dims[0], tokens: x.dims[1], k: table.dims[0],
		first: int(low), experts: experts,
	}
	for _, o := range []*operand{table, weights} {
		if err := n.shaped(o, []int{g.k, g.tokens}); err != nil {
			return nil, err
		}
	}
	if err := n.shaped(y, x.dims); err != nil {
		return nil, err
	}
	down := &n.in[g.downOf(0)]
	if err := n.ranked(down, 2, 2); err != nil {
		return nil, err
	}
	g.width = down.dims[0]
	if most := maxBuffer / g.size() / max(1, g.width); g.tokens*g.k > most {
		return nil, n.bad(table.label, "elements", g.tokens*g.k, fmt.Sprintf("at most %d for activations of %d elements", most, g.width))
	}
	for i := range n.in[3:] {
		o, want := &n.in[3+i], []int{g.hidden, 2 * g.width}
		if i >= experts {
			want = []int{g.width, g.hidden}
		}
		if err := n.same(o); err != nil {
			return nil, err
		}
		if err := n.shaped(o, want); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// floatAt reads one f32 or bf16 element as f32.
func floatAt(m []byte, bf16 bool, i int) float32 {
	if bf16 {
		return dtype.FromBF16(as[uint16](m)[i])
	}
	return as[float32](m)[i]
}

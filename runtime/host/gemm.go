package host

import "quill/recipes/dtype"

// matrices checks the two fastest dims and the types of a product.
func (n *node) matrices() (g matmul, err error) {
	a, b, c := &n.in[0], &n.in[1], &n.out[0]
	if err := n.typed(a, floatTypes...); err != nil {
		return g, err
	}
	if err := n.typed(b, a.dt); err != nil {
		return g, err
	}
	if c.dt != dtype.F32 {
		if err := n.typed(c, a.dt); err != nil {
			return g, err
		}
	}
	flag := func(name string) bool { v, _ := n.params.Int(name); return v == 1 }
	g.transA, g.transB = flag("transpose_a"), flag("transpose_b")
	g.k, g.m = a.dims[0], a.dims[1]
	if g.transA {
		g.k, g.m = g.m, g.k
	}
	g.n = b.dims[0]
	want := []int{g.n, g.k}
	if g.transB {
		g.n = b.dims[1]
		want = []int{g.k, g.n}
	}
	if b.dims[0] != want[0] || b.dims[1] != want[1] {
		return g, n.bad(b.label, "dims", b.dims, append(want, b.dims[2:]...))
	}
	return g, nil
}

func buildGemm(n *node) (kernel, error) {
	for _, o := range []*operand{&n.in[0], &n.in[1]} {
		if err := n.ranked(o, 2, 2); err != nil {
			return nil, err
		}
	}
	g, err := n.matrices()
	if err != nil {
		return nil, err
	}
	if err := n.shaped(&n.out[0], []int{g.n, g.m}); err != nil {
		return nil, err
	}
	return n.multiply(g, nil), nil
}

// buildBatchGemm walks the slow dims of the result; an operand with 1 there
// is reused.
func buildBatchGemm(n *node) (kernel, error) {
	a, b := &n.in[0], &n.in[1]
	for _, o := range []*operand{a, b} {
		if err := n.ranked(o, 3, 5); err != nil {
			return nil, err
		}
	}
	if err := n.ranked(b, len(a.dims), len(a.dims)); err != nil {
		return nil, err
	}
	g, err := n.matrices()
	if err != nil {
		return nil, err
	}
	var dims []int
	for i := 2; i < len(a.dims); i++ {
		d := a.dims[i]
		if d == 1 {
			d = b.dims[i]
		}
		if b.dims[i] != 1 && b.dims[i] != d {
			return nil, n.bad(b.label, "dims", b.dims, "slow dims equal to those of "+a.label+" or 1")
		}
		dims = append(dims, d)
	}
	if err := n.shaped(&n.out[0], append([]int{g.n, g.m}, dims...)); err != nil {
		return nil, err
	}
	if y := &n.out[0]; !g.transA && a.elems > 0 && b.elems > 0 {
		n.rows = func(*node) operation {
			return operation{product: &multiply{n: g.n, k: g.k, transposed: g.transB, wide: a.wide(), wideY: y.wide()}}
		}
	}
	return n.multiply(g, dims), nil
}

// multiply makes the kernel of products that were checked.
func (n *node) multiply(g matmul, dims []int) kernel {
	a, b, c := &n.in[0], &n.in[1], &n.out[0]
	n.weightBytes = int64(b.elems * b.dt.Size())
	n.flops = 2 * int64(c.elems) * int64(g.k)
	stepA, stepB := batchStrides(a.dims, dims), batchStrides(b.dims, dims)
	// Fast dims that share a B are only more rows.
	for len(dims) > 0 && !g.transA && b.dims[len(b.dims)-len(dims)] == 1 {
		g.m *= dims[0]
		dims, stepA, stepB = dims[1:], stepA[1:], stepB[1:]
	}
	p := &batch{matmul: newMatmul(n, g), dims: dims, stepA: stepA, stepB: stepB}
	return kernel{p.stage(n.threads)}
}

// batchStrides are the strides of the slow dims; 0 where the operand has 1.
func batchStrides(dims, batch []int) []int {
	s := dense(dims)[2:]
	for i := range batch {
		if dims[2+i] == 1 {
			s[i] = 0
		}
	}
	return s
}

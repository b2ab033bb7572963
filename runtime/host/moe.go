package host

import "quill/recipes/dtype"

// moeRows is the number of tokens of one expert that are computed at a time.
const moeRows = 64

// moe is the mixture of experts of T tokens: for each expert in ascending
// order, the tokens routed to it are gathered, computed as rows of one product,
// and added to their sums.
type moe struct {
	tokens, hidden, width, k int // width is an expert's F
	first, experts           int
	wide                     bool

	order, start         region // pairs (token, choice) by expert
	sum                  region // f32 [T, H]
	rows, gate, out, buf region // blocks of hidden rows, [g; u], tiles, widened weights
}

func buildMoE(n *node) (runFunc, error) {
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
		hidden: x.dims[0], tokens: x.dims[1], k: table.dims[0],
		first: int(low), experts: experts, wide: x.wide(),
	}
	if err := n.shaped(table, []int{g.k, g.tokens}); err != nil {
		return nil, err
	}
	if err := n.shaped(weights, []int{g.k, g.tokens}); err != nil {
		return nil, err
	}
	if err := n.shaped(y, x.dims); err != nil {
		return nil, err
	}
	down := &n.in[3+experts]
	if err := n.ranked(down, 2, 2); err != nil {
		return nil, err
	}
	g.width = down.dims[0]
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
	pairs := g.tokens * g.k
	rows := min(moeRows, pairs)
	g.order = n.reserve(4 * pairs)
	g.start = n.reserve(4 * (experts + 1))
	g.sum = n.reserve(4 * g.tokens * g.hidden)
	g.rows = n.reserve(4 * rows * g.hidden)
	g.gate = n.reserve(4 * rows * 2 * g.width)
	g.out = n.reserve(4 * rows * blockCols)
	if g.wide {
		g.buf = n.reserve(4 * blockCols * max(g.hidden, g.width))
	}
	return g.run, nil
}

func (g *moe) run(m *mem) error {
	order, start := g.order.i32(m.scratch), g.start.i32(m.scratch)
	g.route(order, start, as[int32](m.in[1]))
	sum := g.sum.f32(m.scratch)
	clear(sum)
	for e := range g.experts {
		for at, end := start[e], start[e+1]; at < end; at += moeRows {
			g.expert(m, sum, order[at:min(at+moeRows, end)], m.in[3+e], m.in[3+g.experts+e])
		}
	}
	store(m.out[0], g.wide, 0, sum)
	return nil
}

// route sorts the pairs by expert, keeping their order within one. Pairs of
// expert e end up in order[start[e]:start[e+1]].
func (g *moe) route(order, start []int32, table []int32) {
	clear(start)
	for _, v := range table {
		if e := int(v) - g.first; e >= 0 && e < g.experts {
			start[e]++
		}
	}
	total := int32(0)
	for e, c := range start {
		start[e] = total + c // the end of e; filling from behind makes it the start
		total += c
	}
	for i := len(table) - 1; i >= 0; i-- {
		if e := int(table[i]) - g.first; e >= 0 && e < g.experts {
			start[e]--
			order[start[e]] = int32(i)
		}
	}
}

// expert adds one expert's weighted outputs of some pairs to the sums.
func (g *moe) expert(m *mem, sum []float32, pairs []int32, up, down []byte) {
	h, f, n := g.hidden, g.width, len(pairs)
	rows, gate := g.rows.f32(m.scratch), g.gate.f32(m.scratch)
	out, buf := g.out.f32(m.scratch), g.buf.f32(m.scratch)
	for i, p := range pairs {
		at := int(p) / g.k * h
		row := rows[i*h : (i+1)*h]
		copy(row, floats(m.in[0], g.wide, at, h, row))
	}
	for n0 := 0; n0 < 2*f; n0 += blockCols {
		cols := min(blockCols, 2*f-n0)
		tile := out[:n*cols]
		dotBlock(tile, rows, up, g.wide, n0*h, n, cols, h, buf)
		for i := range n {
			for j, v := range tile[i*cols : (i+1)*cols] {
				gate[i*2*f+n0+j] = round(v, g.wide)
			}
		}
	}
	// The activations overwrite the front of the gates: row i ends where the
	// gates of row i begin or before.
	act := gate[:n*f]
	for i := range n {
		for j := range f {
			v, u := gate[i*2*f+j], gate[i*2*f+f+j]
			act[i*f+j] = round(float32(silu(float64(v)))*u, g.wide)
		}
	}
	for n0 := 0; n0 < h; n0 += blockCols {
		cols := min(blockCols, h-n0)
		tile := out[:n*cols]
		dotBlock(tile, act, down, g.wide, n0*f, n, cols, f, buf)
		for i, p := range pairs {
			w := floatAt(m.in[2], g.wide, int(p))
			to := sum[int(p)/g.k*h+n0:][:cols]
			for j, v := range tile[i*cols : (i+1)*cols] {
				to[j] += float32(w * round(v, g.wide))
			}
		}
	}
}

// floatAt reads one f32 or bf16 element as f32.
func floatAt(m []byte, wide bool, i int) float32 {
	if wide {
		return dtype.FromBF16(as[uint16](m)[i])
	}
	return as[float32](m)[i]
}

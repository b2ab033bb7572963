package host

// moe is the mixture of experts of T tokens, in three stages. Pairs (token,
// choice) are sorted by expert, and each chosen expert's tokens are rows of two
// products:
//
//	route     order, start: the pairs of each expert; chosen: which have some
//	gateUp    act [pairs, F] = silu(g) ∘ u, divided by columns of the chosen experts
//	down      y [T, H] = Σ weight · w3 · act, divided by columns of H
//
// So the weights of a chosen expert are read once, and of others never.
type moe struct {
	arithmetic
	tokens, hidden, width, k int // width is an expert's F
	first, experts           int

	rows              int // tokens of an expert that are computed at a time
	upCols, downCols  int // columns at a time: of g and of u, of y
	order, start      region
	chosen, count     region // experts that are chosen, ascending, and their number
	ends              region // of the work on each chosen expert
	act               region
	gathered, sum     region // of a thread: rows of x, f32 [T, downCols]
	block, half, work region // of a thread: products, their bf16, kern's scratch
}

const (
	// moeElems bounds a block of products, moeSums the sums of all tokens that a
	// thread works on: smaller ones stay in a nearer cache, larger ones read the
	// activations less often.
	moeElems = 1 << 16
	moeSums  = 1 << 19
	// shares is how finely the work on the chosen experts, which is known only
	// when it is done, is divided.
	shares = 1 << 12
)

// reserve plans the blocks and reserves their memory.
func (g *moe) reserve(n *node) {
	pairs := g.tokens * g.k
	chosen := min(g.experts, pairs)
	g.rows = max(1, min(pairs, blockRows))
	g.upCols = max(strip, min(g.width, moeElems/g.rows/2/strip*strip))
	g.downCols = max(strip, min(g.hidden, moeElems/g.rows/strip*strip, moeSums/max(1, g.tokens)/strip*strip))
	g.order = n.reserve(4 * pairs)
	g.start = n.reserve(4 * (g.experts + 1))
	g.chosen, g.count = n.reserve(4*chosen), n.reserve(4)
	g.ends = n.reserve(8 * chosen)
	g.act = n.reserve(g.size() * pairs * g.width)
	if g.rows > 1 {
		g.gathered = n.reserveOwn(g.size() * g.rows * g.hidden)
	}
	block := g.rows * max(2*g.upCols, g.downCols)
	g.block = n.reserveOwn(4 * block)
	g.work = n.reserveOwn(max(g.dotsScratch(g.rows, g.hidden), g.dotsScratch(g.rows, g.width)))
	if g.bf16 {
		g.half = n.reserveOwn(2 * block)
		g.sum = n.reserveOwn(4 * g.tokens * g.downCols)
	}
}

// stages are the kernel. How much the experts cost depends on how many are
// chosen; each choice of another one is assumed.
func (g *moe) stages(threads int) kernel {
	pairs := g.tokens * g.k
	cost := g.hidden * g.width * (pairs + streamed*min(pairs, g.experts)) / macs
	blocks := (g.hidden + strip - 1) / strip
	up := stage{shares, max(1, min(threads, 2*cost/worthwhile)), g.gateUp}
	return kernel{
		{1, 1, g.route},
		up,
		shared(blocks, cost/max(1, blocks), g.down),
	}
}

// read is the number of experts whose weights were read.
func (g *moe) read(m *mem) int { return int(g.count.i32(m.scratch)[0]) }

// route sorts the pairs by expert, keeping their order within one: those of
// expert e end up in order[start[e]:start[e+1]].
func (g *moe) route(m *mem, _, _ int) error {
	order, start := g.order.i32(m.scratch), g.start.i32(m.scratch)
	table := as[int32](m.in[1])
	clear(start)
	for _, v := range table {
		if e := int(v) - g.first; e >= 0 && e < g.experts {
			start[e]++
		}
	}
	g.choose(m, start)
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
	return nil
}

// choose lists the experts that have pairs and adds up the work on them. It
// asks for their weights before anything waits for them.
func (g *moe) choose(m *mem, pairs []int32) {
	chosen, ends := g.chosen.i32(m.scratch), as[int64](g.ends.of(m.scratch))
	count, end := 0, int64(0)
	for e, n := range pairs {
		if n == 0 {
			continue
		}
		end += g.strips() * work(n)
		chosen[count], ends[count] = int32(e), end
		count++
		if m.device.ahead {
			readAhead(m.operand(g.up(e)))
			readAhead(m.operand(g.downOf(e)))
		}
	}
	g.count.i32(m.scratch)[0] = int32(count)
}

// up and downOf are the operands of expert e.
func (g *moe) up(e int) int     { return 3 + e }
func (g *moe) downOf(e int) int { return 3 + g.experts + e }

// strips are those of the columns of g.
func (g *moe) strips() int64 { return int64(g.width+strip-1) / strip }

// work is what a strip of an expert with so many pairs costs.
func work(pairs int32) int64 { return int64(pairs) + streamed }

// routed is an expert's part of a stage.
func (g *moe) routed(m *mem, e int32) (start int, pairs []int32) {
	from, to := g.start.i32(m.scratch)[e], g.start.i32(m.scratch)[e+1]
	return int(from), g.order.i32(m.scratch)[from:to]
}

// gateUp computes the activations of a share of the work.
func (g *moe) gateUp(m *mem, from, to int) error {
	count := g.read(m)
	chosen, ends := g.chosen.i32(m.scratch)[:count], as[int64](g.ends.of(m.scratch))[:count]
	begin := int64(0)
	for i, e := range chosen {
		_, pairs := g.routed(m, e)
		each := work(int32(len(pairs)))
		f0 := g.column(begin, each, ends, from)
		if f1 := g.column(begin, each, ends, to); f0 < f1 {
			g.activate(m, e, f0, f1)
		}
		begin = ends[i]
	}
	return nil
}

// column is the first column of an expert that is not in the shares before a
// share; the work on it begins at begin, and a strip is each of it.
func (g *moe) column(begin, each int64, ends []int64, share int) int {
	done := int64(share)*ends[len(ends)-1]/shares - begin
	strips := min(max((done+each-1)/each, 0), g.strips())
	return min(int(strips)*strip, g.width)
}

// activate computes columns f0 … f1−1 of the activations of an expert's tokens.
func (g *moe) activate(m *mem, e int32, f0, f1 int) {
	w := matrix{m.operand(g.up(int(e))), 0, g.hidden}
	start, pairs := g.routed(m, e)
	for i := 0; i < len(pairs); i += g.rows {
		pairs := pairs[i:min(i+g.rows, len(pairs))]
		x := g.gather(m, pairs)
		for f := f0; f < f1; f += g.upCols {
			g.activateBlock(m, x, w, start+i, len(pairs), f, min(g.upCols, f1-f))
		}
	}
}

// gather makes rows of the tokens of some pairs.
func (g *moe) gather(m *mem, pairs []int32) matrix {
	if len(pairs) == 1 {
		return matrix{m.in[0], int(pairs[0]) / g.k * g.hidden, g.hidden}
	}
	row := g.size() * g.hidden
	to := g.gathered.of(m.own)
	for i, p := range pairs {
		copy(to[i*row:(i+1)*row], m.in[0][int(p)/g.k*row:])
	}
	return matrix{to, 0, g.hidden}
}

// activateBlock computes cols columns from f of rows of act, from row at.
func (g *moe) activateBlock(m *mem, x, w matrix, at, rows, f, cols int) {
	block := g.block.f32(m.own)[:rows*2*cols]
	scratch := g.work.of(m.own)
	if cols == g.width {
		g.dots(block, 2*cols, x, w, rows, 2*cols, g.hidden, scratch)
	} else {
		g.dots(block, 2*cols, x, w.from(f, 0), rows, cols, g.hidden, scratch)
		g.dots(block[cols:], 2*cols, x, w.from(g.width+f, 0), rows, cols, g.hidden, scratch)
	}
	g.round(block, as[uint16](g.half.of(m.own)))
	act := g.act.of(m.scratch)
	for i := range rows {
		gate, up := block[2*i*cols:][:cols], block[(2*i+1)*cols:][:cols]
		g.SiLU(gate, gate)
		g.Mul(gate, gate, up)
		g.store(act, (at+i)*g.width+f, gate)
	}
}

// down computes strips of columns of the result.
func (g *moe) down(m *mem, from, to int) error {
	end := min(to*strip, g.hidden)
	for h := from * strip; h < end; h += g.downCols {
		g.downBlock(m, h, min(g.downCols, end-h))
	}
	return nil
}

// downBlock computes cols columns from h. f32 is summed in the result itself.
func (g *moe) downBlock(m *mem, h, cols int) {
	sum, ld := g.sum.f32(m.own), cols
	if !g.bf16 {
		sum, ld = as[float32](m.out[0]), g.hidden
		if len(sum) > 0 {
			sum = sum[h:]
		}
	}
	for t := range g.tokens {
		clear(sum[t*ld:][:cols])
	}
	for _, e := range g.chosen.i32(m.scratch)[:g.read(m)] {
		g.addExpert(m, sum, ld, e, h, cols)
	}
	if g.bf16 {
		for t := range g.tokens {
			g.store(m.out[0], t*g.hidden+h, sum[t*ld:][:cols])
		}
	}
}

// addExpert adds an expert's weighted outputs to the sums.
func (g *moe) addExpert(m *mem, sum []float32, ld int, e int32, h, cols int) {
	w := matrix{m.operand(g.downOf(int(e))), h * g.width, g.width}
	start, pairs := g.routed(m, e)
	for i := 0; i < len(pairs); i += g.rows {
		pairs := pairs[i:min(i+g.rows, len(pairs))]
		block := g.block.f32(m.own)[:len(pairs)*cols]
		act := matrix{g.act.of(m.scratch), (start + i) * g.width, g.width}
		g.dots(block, cols, act, w, len(pairs), cols, g.width, g.work.of(m.own))
		g.round(block, as[uint16](g.half.of(m.own)))
		for i, p := range pairs {
			g.Axpy(sum[int(p)/g.k*ld:][:cols], floatAt(m.in[2], g.bf16, int(p)), block[i*cols:][:cols])
		}
	}
}

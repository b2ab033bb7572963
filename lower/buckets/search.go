package buckets

import (
	"math"
	"slices"
)

// option is a pair of lists with the number of their buckets.
type option struct {
	a, b  []int
	count int
	cost  float64
}

// best is the cheapest choice of lists with at most o.most buckets, which are
// enough for the fewest.
func (o *optimizer) best() lists {
	size := min(o.most, maxList)
	o.sumWeights()
	prefill := o.cheapest(o.firstQueries(size), o.firstContexts(size), o.prefillCount, o.prefillCost)
	decode := o.cheapest(o.seqs.split(size), o.refs.split(size), o.decodeCount, func(seqs, refs []int) float64 {
		return o.seqs.cost(seqs) + o.refs.cost(refs)
	})
	var p, d *option
	least := math.Inf(1)
	for n, x := range prefill {
		if y := decode[o.most-n]; x != nil && y != nil && x.cost+y.cost < least {
			p, d, least = x, y, x.cost+y.cost
		}
	}
	if p == nil {
		return o.few // no other
	}
	room := o.most - d.count
	for {
		better := o.improve(p, room)
		if better == nil {
			return lists{p.a, p.b, d.a, d.b}
		}
		p = better
	}
}

// cheapest is for each number of buckets up to most the cheapest pair of lists
// with no more, nil if there is none.
func (o *optimizer) cheapest(as, bs [][]int, count func(a, b []int) int, cost func(a, b []int) float64) []*option {
	best := make([]*option, o.most+1)
	for _, a := range as {
		for _, b := range bs {
			if a == nil || b == nil || len(a)*len(b) > 4*o.most {
				continue
			}
			n := count(a, b)
			if n > o.most {
				continue
			}
			if c := cost(a, b); best[n] == nil || c < best[n].cost {
				best[n] = &option{a, b, n, c}
			}
		}
	}
	for n := 1; n < len(best); n++ {
		if less := best[n-1]; less != nil && (best[n] == nil || less.cost <= best[n].cost) {
			best[n] = less
		}
	}
	return best
}

// firstQueries are lists for when contexts have no padding, firstContexts the
// other way about.
func (o *optimizer) firstQueries(most int) [][]int {
	o.weighQueries(o.contexts.values)
	return o.queries.split(most)
}

func (o *optimizer) firstContexts(most int) [][]int {
	o.weighContexts(o.queries.values)
	return o.contexts.split(most)
}

// improve finds a better list for one size of prefill given the other's, nil if
// there is none within room.
func (o *optimizer) improve(p *option, room int) *option {
	o.weighQueries(p.b)
	queries := o.queries.split(len(p.a))[len(p.a)]
	o.weighContexts(queries)
	contexts := o.contexts.split(len(p.b))[len(p.b)]
	better := &option{queries, contexts, o.prefillCount(queries, contexts), o.prefillCost(queries, contexts)}
	if better.count > room || better.cost >= p.cost*(1-1e-9) {
		return nil
	}
	return better
}

// weighQueries sets what queries cost with a list of contexts.
func (o *optimizer) weighQueries(contexts []int) {
	key, row := float64(o.costs.Key), float64(o.costs.Row)
	for i, weights := range o.weights {
		o.queries.squared[i], o.queries.linear[i] = 0, 0
		for j, w := range weights {
			c := contexts[cell(contexts, o.contexts.values[j])]
			o.queries.squared[i] += w * key
			o.queries.linear[i] += w * (row + key*float64(c*o.l.block))
		}
	}
}

// weighContexts sets what contexts cost with a list of queries.
func (o *optimizer) weighContexts(queries []int) {
	clear(o.contexts.linear)
	for i, row := range o.weights {
		q := queries[cell(queries, o.queries.values[i])]
		for j, w := range row {
			o.contexts.linear[j] += w * float64(o.costs.Key) * float64(q*o.l.block)
		}
	}
}

// sumWeights sums weights over the first cells of both sizes.
func (o *optimizer) sumWeights() {
	o.area = make([][]float64, len(o.weights)+1)
	o.area[0] = make([]float64, len(o.contexts.values)+1)
	for i, row := range o.weights {
		o.area[i+1] = sums(row)
		for j, above := range o.area[i] {
			o.area[i+1][j] += above
		}
	}
}

// prefillCost is the objective's part of prefill.
func (o *optimizer) prefillCost(queries, contexts []int) float64 {
	sum, first := 0., 0
	for _, q := range queries {
		end := cell(o.queries.values, q) + 1
		from := 0
		for _, c := range contexts {
			to := cell(o.contexts.values, c) + 1
			w := o.area[end][to] - o.area[first][to] - o.area[end][from] + o.area[first][from]
			sum += w * float64(q) * (float64(o.costs.Row) + float64(o.costs.Key)*float64(q+c*o.l.block))
			from = to
		}
		first = end
	}
	return sum
}

// prefillCount is how many buckets lists make, those of l.prefill.
func (o *optimizer) prefillCount(queries, contexts []int) int {
	n, before := 0, 0
	for _, q := range queries {
		n += cell(contexts[:len(contexts)-1], o.l.context(before+1)) + 1
		before = q
	}
	return n
}

// decodeCount is how many buckets lists make, those of l.raised and the logits.
func (o *optimizer) decodeCount(seqs, refs []int) int {
	n, before := 0, 0
	for _, s := range seqs {
		n++ // the most it has
		if most := o.l.most(s); s < most {
			n += cell(refs, most) - cell(refs, s+1)
			if cell(refs, before+1) < cell(refs, s+1) {
				n++ // as many as sequences
			}
		}
		before = s
	}
	if !slices.Contains(seqs, 1) {
		n++
	}
	return n + len(seqs)
}

package buckets

import (
	"slices"

	"quill/recipes"
)

// maxList bounds each list of Optimal, and with it the time to find it.
const maxList = 512

// optimal makes a list for each of the four sizes and pairs them.
//
//   - padding alone: the fewest values of each size that bound its padding.
//   - otherwise: the lists that pad least, over all admissible shapes, with at most
//     so many buckets, among those that keep the bound. The means of attention
//     area and of block references count alike, that of sequences half: a step
//     reads its weights for however many.
//   - with a trace: those that are cheapest on its steps, at the costs that the
//     runtime selects by.
//
// A list by itself is exactly the best of its length. The two of decode are
// independent of each other. The two of prefill are not: each is the best with the
// other, which may be short of the best pair. A chunk without history always has
// buckets of its own, since it is another graph, and so has a single sequence:
// experts of a padding row are read.
//
// Values of queries are multiples of the block size and the longest chunk, unless
// padding needs others. Where a size has many values, neighbours that differ by
// less than a part in 128 are not told apart, but for what a trace has and for the
// fewest.
func (l *limits) optimal(s *Spec, k *recipes.Costs) ([]recipes.Bucket, error) {
	ratio := s.Padding
	if ratio == 0 {
		ratio = paddingOptimal
	}
	few, ok := l.fewest(ratio)
	if !ok {
		return nil, keyError("buckets.padding", "bounding each size by %g needs more than %d values of one: raise it", ratio, maxList)
	}
	if n, most := len(few.buckets(l)), min(s.most(), maxOptimal); n > most {
		return nil, keyError("buckets", "strategy optimal needs %d buckets to pad no size by more than %g (padding), and may make %d (most): raise one of them",
			n, ratio, most)
	}
	if s.Padding > 0 && s.Most == 0 && s.Trace == nil {
		return few.buckets(l), nil
	}
	o := optimizer{l: l, few: few, ratio: ratio, most: min(s.most(), maxOptimal), costs: *k}
	if s.Trace != nil {
		shapes, err := l.trace(s.Trace)
		if err != nil {
			return nil, err
		}
		o.weighTrace(shapes)
	} else {
		o.weighAll()
	}
	best := o.best()
	return best.buckets(l), nil
}

// lists are the values of the four sizes.
type lists struct{ queries, contexts, seqs, refs []int }

// buckets pairs them. A list of contexts or references is cut off where a query or
// a number of sequences has no more; that value takes its place.
func (s *lists) buckets(l *limits) []recipes.Bucket {
	bs := append(l.prefill(s.queries, s.contexts, false), l.raised(s.seqs, s.refs)...)
	bs = append(bs, logits(bs)...)
	slices.SortFunc(bs, compare)
	return slices.Compact(bs)
}

// raised is decode, with as many references as sequences where lists have fewer,
// for steps with fewer sequences than the bucket.
func (l *limits) raised(seqs, refs []int) []recipes.Bucket {
	var bs []recipes.Bucket
	before := 0
	for _, s := range seqs {
		for _, n := range refs {
			if n > before {
				bs = append(bs, recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: min(max(n, s), l.most(s))})
			}
		}
		before = s
	}
	slices.SortFunc(bs, compare)
	return slices.Compact(bs)
}

// fewest are the shortest lists that bound padding.
func (l *limits) fewest(ratio float64) (lists, bool) {
	var s lists
	var ok [4]bool
	s.queries, ok[0] = fewest(1, l.chunk, l.granule(), ratio, maxList)
	s.contexts, ok[1] = fewest(0, l.contexts, 0, ratio, maxList)
	s.seqs, ok[2] = []int{1}, true
	if l.seqs > 1 {
		s.seqs, ok[2] = fewest(2, l.seqs, 1, ratio, maxList)
		s.seqs = append([]int{1}, s.seqs...)
	}
	s.refs, ok[3] = fewest(1, l.most(l.seqs), 1, ratio, maxList)
	return s, ok == [4]bool{true, true, true, true}
}

// optimizer searches lists. Sizes of shapes are taken by the cell of candidates
// that they are in.
type optimizer struct {
	l     *limits
	few   lists // the shortest within ratio
	ratio float64
	most  int
	costs recipes.Costs // of the objective

	queries, contexts, seqs, refs axis
	// weights are those of prefill shapes by cells of queries and contexts.
	weights [][]float64
	area    [][]float64 // their sums over the first cells of each
}

// weighAll makes the objective the means of ratios over all admissible shapes.
func (o *optimizer) weighAll() {
	o.costs = recipes.Costs{Key: 1}
	l := o.l
	o.axes(candidates(l.granule(), l.chunk, l.granule()), candidates(0, l.contexts, 1), candidates(1, l.seqs, 1), candidates(1, l.most(l.seqs), 1))
	total := 0.
	for i := range o.contexts.values {
		least := o.contexts.least(i)
		middle := (least + o.contexts.values[i]) / 2 // cells are so narrow that it stands for all
		for j := range o.queries.values {
			first, last := o.queries.least(j), min(o.queries.values[j], l.query(middle))
			if first > last {
				break
			}
			n := float64(o.contexts.values[i] - least + 1)
			o.weights[j][i] = n * l.inverseArea(first, last, middle)
			total += n * float64(last-first+1)
		}
	}
	for _, row := range o.weights {
		for i := range row {
			row[i] /= total
		}
	}
	o.weighDecode()
}

func (o *optimizer) weighDecode() {
	total := 0.
	for i := range o.seqs.values {
		for s := o.seqs.least(i); s <= o.seqs.values[i]; s++ {
			most := o.l.most(s)
			n := float64(most - s + 1)
			total += n
			o.seqs.linear[i] += n / float64(s) / 2
			for j := range o.refs.values {
				if first, last := max(s, o.refs.least(j)), min(most, o.refs.values[j]); first <= last {
					o.refs.linear[j] += inverse(first, last)
				}
			}
		}
	}
	for _, vs := range [][]float64{o.seqs.linear, o.refs.linear} {
		for i := range vs {
			vs[i] /= total
		}
	}
}

// weighTrace makes the objective the costs of a trace's steps.
func (o *optimizer) weighTrace(shapes map[recipes.Bucket]int64) {
	var had lists
	l := o.l
	for b := range shapes {
		if b.Phase == recipes.Prefill {
			had.queries = append(had.queries, min(ceilDiv(b.Query, l.granule())*l.granule(), l.chunk))
			had.contexts = append(had.contexts, b.Blocks)
		} else {
			had.seqs = append(had.seqs, b.Seqs)
			had.refs = append(had.refs, b.Blocks)
		}
	}
	o.axes(sample(had.queries, l.chunk), sample(had.contexts, l.contexts), sample(had.seqs, l.seqs), sample(had.refs, l.most(l.seqs)))
	for b, n := range shapes {
		count := float64(n)
		if b.Phase == recipes.Prefill {
			o.weights[cell(o.queries.values, b.Query)][cell(o.contexts.values, b.Blocks)] += count
			continue
		}
		s := cell(o.seqs.values, b.Seqs)
		o.seqs.linear[s] += count * float64(o.costs.Row)
		o.seqs.padding[s] += count * float64(o.costs.Pad)
		o.refs.linear[cell(o.refs.values, b.Blocks)] += count * float64(o.costs.Block)
	}
}

// sample are values that were seen and the largest there can be, no more than some
// thousand.
func sample(vs []int, hi int) []int {
	vs = rising(append(vs, hi))
	for len(vs) > 4*maxList {
		var half []int
		for i := len(vs) - 1; i >= 0; i -= 2 {
			half = append(half, vs[i])
		}
		vs = rising(half)
	}
	return vs
}

func cell(values []int, v int) int {
	i, _ := slices.BinarySearch(values, v)
	return i
}

// axes sets what lists may have, which include the shortest lists so that these can be
// found.
func (o *optimizer) axes(queries, contexts, seqs, refs []int) {
	axis := func(vs, few []int, first, granule int) axis {
		vs = rising(append(vs, few...))
		n := len(vs)
		return axis{
			values: vs, first: first, granule: granule, ratio: o.ratio,
			squared: make([]float64, n), linear: make([]float64, n), padding: make([]float64, n),
		}
	}
	o.queries = axis(queries, o.few.queries, 1, o.l.granule())
	o.contexts = axis(contexts, append(o.few.contexts, 0), 0, 0)
	o.contexts.alone = true
	o.seqs = axis(seqs, append(o.few.seqs, 1), 1, 1)
	o.seqs.alone = true
	o.refs = axis(refs, o.few.refs, 1, 1)
	o.weights = make([][]float64, len(o.queries.values))
	for i := range o.weights {
		o.weights[i] = make([]float64, len(o.contexts.values))
	}
}

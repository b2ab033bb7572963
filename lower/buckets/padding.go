package buckets

import (
	"math"
	"slices"

	"quill/recipes"
)

// Padding is how much larger a size of the selected bucket is than that of the
// step, over all admissible shapes of a phase that have a bucket, each counted
// once. Chunks shorter than a block, or than max_batched_tokens if that is less,
// count as if they had its length: no list has buckets for them, but a file's.
type Padding struct {
	Phase recipes.Phase `json:"phase"`
	// Size is tokens, area (query tokens times keys, of history and chunk, in whole
	// blocks of history), blocks (references), sequences or rows.
	Size  string  `json:"size"`
	Mean  float64 `json:"mean"`
	Worst float64 `json:"worst"`
	// Need is a shape that is padded worst, Bucket what it gets.
	Need   recipes.Bucket `json:"need"`
	Bucket recipes.Bucket `json:"bucket"`
	// Shapes is how many were counted.
	Shapes int64 `json:"shapes"`
}

// add adds shapes of which the least is need, which all get the same bucket. sum
// is that of need's ratio over them.
func (p *Padding) add(shapes int64, sum, worst float64, need, bucket recipes.Bucket) {
	p.Shapes += shapes
	p.Mean += sum
	if worst > p.Worst {
		p.Worst, p.Need, p.Bucket = worst, need, bucket
	}
}

// padding sums over cells of shapes between two sizes that buckets have: all of a
// cell get the same bucket, and the least of them pads worst. In a cell sizes of
// steps are in the denominator only, so their sums are those of 1/n.
func padding(l *limits, bs []recipes.Bucket, sel *recipes.Selector) []Padding {
	m := meter{l, bs, sel}
	out := append(m.prefill(), m.decode()...)
	out = append(out, m.logits())
	for i := range out {
		if p := &out[i]; p.Shapes > 0 {
			p.Mean /= float64(p.Shapes)
		}
	}
	return out
}

type meter struct {
	*limits
	buckets []recipes.Bucket
	sel     *recipes.Selector
}

func (m *meter) pick(need recipes.Bucket) (recipes.Bucket, bool) {
	i := m.sel.Select(need)
	if i < 0 {
		return need, false
	}
	return m.buckets[i], true
}

// ends are the sizes that buckets of a phase have, ascending.
func (m *meter) ends(phase recipes.Phase, size func(recipes.Bucket) int) []int {
	var vs []int
	for _, b := range m.buckets {
		if b.Phase == phase {
			vs = append(vs, size(b))
		}
	}
	return rising(vs)
}

func (m *meter) prefill() []Padding {
	tokens := Padding{Phase: recipes.Prefill, Size: "tokens"}
	area := Padding{Phase: recipes.Prefill, Size: "area"}
	queries := m.ends(recipes.Prefill, func(b recipes.Bucket) int { return b.Query })
	contexts := m.ends(recipes.Prefill, func(b recipes.Bucket) int { return b.Blocks })
	firstContext := 0
	for _, end := range contexts {
		firstQuery := 1
		for _, q := range queries {
			need := recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: firstQuery, Blocks: firstContext}
			if b, ok := m.pick(need); ok {
				m.prefillCell(&tokens, &area, need, q, end, b)
			}
			firstQuery = q + 1
		}
		firstContext = end + 1
	}
	return []Padding{tokens, area}
}

// prefillCell adds the shapes from need to (q, c), as far as they are admissible.
func (m *meter) prefillCell(tokens, area *Padding, need recipes.Bucket, q, c int, b recipes.Bucket) {
	bucketArea := float64(b.Query) * float64(b.Query+b.Blocks*m.block)
	for blocks := need.Blocks; blocks <= min(c, m.contexts); blocks++ {
		first, last := need.Query, min(q, m.query(blocks))
		if first > last {
			break
		}
		least := need
		least.Blocks = blocks
		shapes, query := int64(last-first+1), float64(max(first, m.granule()))
		tokens.add(shapes, float64(b.Query)*m.inverseQuery(first, last), float64(b.Query)/query, least, b)
		area.add(shapes, bucketArea*m.inverseArea(first, last, blocks), bucketArea/(query*(query+float64(blocks*m.block))), least, b)
	}
}

// inverseQuery is Σ 1/q over chunks, the short ones counted as a granule.
func (l *limits) inverseQuery(first, last int) float64 {
	short, g := l.short(first, last)
	return float64(short)/float64(g) + inverse(first+short, last)
}

// inverseArea is Σ 1/(q·(q + keys)) over chunks behind so many blocks, the short
// ones counted as a granule.
func (l *limits) inverseArea(first, last, blocks int) float64 {
	short, g := l.short(first, last)
	keys := blocks * l.block
	sum := float64(short) / (float64(g) * float64(g+keys))
	first += short
	if keys == 0 {
		for q := first; q <= last; q++ {
			sum += 1 / (float64(q) * float64(q))
		}
		return sum
	}
	return sum + (inverse(first, last)-inverse(first+keys, last+keys))/float64(keys)
}

// short is how many of the chunks are shorter than a granule.
func (l *limits) short(first, last int) (n, granule int) {
	g := l.granule()
	return max(0, min(last, g-1)-first+1), g
}

func (m *meter) decode() []Padding {
	blocks := Padding{Phase: recipes.Decode, Size: "blocks"}
	seqs := Padding{Phase: recipes.Decode, Size: "sequences"}
	ends := m.ends(recipes.Decode, func(b recipes.Bucket) int { return b.Blocks })
	for s := 1; s <= m.seqs; s++ {
		i, _ := slices.BinarySearch(ends, s)
		first := s
		for _, end := range ends[i:] {
			last := min(end, m.most(s))
			need := recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: first}
			b, ok := m.pick(need)
			if first > last || !ok {
				break
			}
			shapes, n, rows := int64(last-first+1), float64(b.Blocks), float64(b.Seqs)/float64(s)
			blocks.add(shapes, n*inverse(first, last), n/float64(first), need, b)
			seqs.add(shapes, rows*float64(shapes), rows, need, b)
			first = last + 1
		}
	}
	return []Padding{blocks, seqs}
}

func (m *meter) logits() Padding {
	p := Padding{Phase: recipes.Logits, Size: "rows"}
	for s := 1; s <= m.seqs; s++ {
		need := recipes.Bucket{Phase: recipes.Logits, Seqs: s}
		if b, ok := m.pick(need); ok {
			r := float64(b.Seqs) / float64(s)
			p.add(1, r, r, need, b)
		}
	}
	return p
}

// inverse is Σ 1/n for n from first to last, which is at least first − 1 ≥ 0.
func inverse(first, last int) float64 {
	sum := 0.
	for ; first <= last && first < 32; first++ {
		sum += 1 / float64(first)
	}
	if first > last {
		return sum
	}
	// The logarithm of a quotient keeps the digits that the difference of two would lose.
	a, b := float64(first)-0.5, float64(last)+0.5
	return sum + math.Log1p((b-a)/a) + halves(b) - halves(a)
}

// halves is ψ(x + 1/2) − ln x, whose series in 1/x² is good to 1e-16 from 31 on.
func halves(x float64) float64 {
	y := 1 / (x * x)
	return y * (1./24 - y*(7./960-y*(31./8064-y*127./30720)))
}

package buckets

import (
	"math"
	"math/bits"
	"slices"

	"quill/recipes"
)

// exp are vllm-gaudi's lists. The end of the list of contexts is replaced for
// each query, by what a full bucket leaves room for in theirs (compat) and by
// what the shortest chunk does that needs the bucket in ours.
func (l *limits) exp(compat bool) []recipes.Bucket {
	queries := curve(l.granule(), l.granule(), l.chunk, max(log2Ceil(l.chunk), 1))
	end := (l.length - queries[0]) / l.block
	if l.length >= 8192 {
		end = (l.length - l.chunk) / l.block
	}
	end = min(max(end, 1), l.contexts)
	contexts := curve(0, 1, end, log2Ceil(end)+1)
	most := l.most(l.seqs)
	points := log2Ceil(most) + 1
	if clamp := 3 * l.pool; most > clamp {
		points += log2Ceil(ceilDiv(most, clamp)) + 1
	}
	bs := l.prefill(queries, contexts[:len(contexts)-1], compat)
	return append(bs, l.decode(curve(1, 2, l.seqs, log2Ceil(l.seqs)+1), curve(1, l.seqs, most, points))...)
}

// curve is vllm-gaudi's exponential list: points values from lo to hi on an
// exponential, rounded up to multiples of step, without duplicates. A lo of 0
// or 1 is kept beside a curve that starts at step.
func curve(lo, step, hi, points int) []int {
	start := lo
	var vs []int
	if lo <= 1 {
		vs = append(vs, lo)
		start = step
	}
	for i := range points {
		v := float64(hi)
		if i < points-1 {
			v = float64(start) * math.Pow(float64(hi)/float64(start), float64(i)/float64(points-1))
		}
		vs = append(vs, min(ceilDiv(int(math.Ceil(v-1e-9)), step)*step, max(hi, lo)))
	}
	if vs[len(vs)-1] < hi {
		vs = append(vs, hi)
	}
	slices.Sort(vs)
	return slices.Compact(vs)
}

func log2Ceil(n int) int { return bits.Len(uint(max(n, 1) - 1)) }

// linear are multiples of a step: a block of query tokens, a block of context, 32
// sequences, as many references as a block has tokens; below a step powers of two.
func (l *limits) linear(s *Spec) ([]recipes.Bucket, error) {
	return l.stepped(s, 32, 1, func(vs []int, _ int) []int { return vs })
}

// pad are multiples of steps, 2 sequences, without those that the bounds on
// padding do not need.
func (l *limits) pad(s *Spec) ([]recipes.Bucket, error) {
	ratio := s.Padding
	if ratio == 0 {
		ratio = paddingPad
	}
	return l.stepped(s, 2, l.block, func(vs []int, allowed int) []int { return thin(vs, ratio, allowed) })
}

// stepped makes a list of multiples for each size, of which keep leaves some:
// padding of up to allowed is no reason for a bucket more.
func (l *limits) stepped(s *Spec, seqStep, firstRefs int, keep func(vs []int, allowed int) []int) ([]recipes.Bucket, error) {
	refs := l.most(l.seqs)
	var made [4][]int
	for i, f := range []struct{ lo, step, hi, allowed int }{
		{l.granule(), l.granule(), l.chunk, ceilDiv(l.chunk, 4)},
		{0, 1, l.contexts, ceilDiv(l.chunk, l.block)},
		{1, seqStep, l.seqs, ceilDiv(l.seqs, 4)},
		{firstRefs, l.block, refs, ceilDiv(refs, 4)},
	} {
		if n := f.hi / f.step; n > MaxBuckets {
			return nil, tooMany(s, int64(n))
		}
		made[i] = keep(ramp(f.lo, f.step, f.hi), f.allowed)
	}
	if n := len(made[0])*len(made[1]) + len(made[2])*len(made[3]); n > 2*MaxBuckets {
		return nil, tooMany(s, int64(n)/2) // what cannot be needed is left out, but that is less than half
	}
	contexts := made[1]
	return append(l.prefill(made[0], contexts[:len(contexts)-1], false), l.decode(made[2], made[3])...), nil
}

// ramp are lo and its doubles below step, multiples of step, and hi.
func ramp(lo, step, hi int) []int {
	var vs []int
	for v := lo; v < step && v < hi; v = max(2*v, 1) {
		vs = append(vs, v)
	}
	for v := step; v < hi; v += step {
		vs = append(vs, v)
	}
	return append(vs, hi)
}

// thin leaves values out of an ascending list while what comes between two that
// are kept is padded by no more than the ratio, and by no more than allowed.
// Multiples of allowed and the ends stay.
func thin(vs []int, ratio float64, allowed int) []int {
	kept := vs[:1:1]
	for i := 1; i < len(vs); i++ {
		last := kept[len(kept)-1]
		if i == len(vs)-1 || vs[i]%allowed == 0 || !within(vs[i+1], last+1, ratio) || vs[i+1]-last-1 > allowed {
			kept = append(kept, vs[i])
		}
	}
	return kept
}

// within reports whether a bucket pads a need by no more than the ratio.
func within(bucket, need int, ratio float64) bool {
	return float64(bucket) <= ratio*float64(need)*(1+1e-12)
}

// prefill pairs queries with contexts, which end below the longest history. It is
// replaced for each query by the longest that a step has which needs the bucket:
// its chunk is longer than the bucket before it. With compat it is what a full
// bucket leaves room for, and contexts beyond it stay.
func (l *limits) prefill(queries, contexts []int, compat bool) []recipes.Bucket {
	var bs []recipes.Bucket
	before := 0
	for _, q := range queries {
		edge := l.context(before + 1)
		if compat {
			edge = (l.length - q) / l.block
		}
		for _, c := range contexts {
			if c < edge || compat && c <= l.contexts {
				bs = append(bs, recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: q, Blocks: c})
			}
		}
		bs = append(bs, recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: q, Blocks: edge})
		before = q
	}
	return bs
}

// decode pairs numbers of sequences with numbers of references, which end with
// the most that a step has. Each sequence has a block and no more than perSeq.
func (l *limits) decode(seqs, refs []int) []recipes.Bucket {
	var bs []recipes.Bucket
	for _, s := range seqs {
		for _, n := range refs {
			if n = min(n, l.most(s)); n >= s {
				bs = append(bs, recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: n})
			}
		}
	}
	return bs
}

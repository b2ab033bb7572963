package buckets

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"quill/recipes"
)

// Coverage says which admissible shapes of a phase no bucket covers. It counts
// every one of them.
type Coverage struct {
	Phase  recipes.Phase `json:"phase"`
	Shapes int64         `json:"shapes"` // that are admissible
	Holes  int64         `json:"holes"`  // of these, without a bucket
	Share  float64       `json:"share"`  // holes / shapes
	// First are the first holes, in order of the last size, at most MaxHoles.
	First []Hole `json:"first,omitempty"`
}

// MaxHoles bounds Coverage.First.
const MaxHoles = 8

// Hole are shapes without a bucket that differ in one size: chunks of From.Query
// to To.Query tokens behind the same history, or From.Blocks to To.Blocks
// references of so many sequences.
type Hole struct {
	From recipes.Bucket `json:"from"`
	To   recipes.Bucket `json:"to"`
	// Tokens are the lengths of the history, of prefill.
	Tokens *[2]int `json:"tokens,omitempty"`
}

// String spells shapes as buckets are spelled, with the tokens they mean.
func (h Hole) String() string {
	span := func(a, b int) string {
		if a == b {
			return fmt.Sprint(a)
		}
		return fmt.Sprintf("%d..%d", a, b)
	}
	switch h.From.Phase {
	case recipes.Prefill:
		return fmt.Sprintf("prefill/q=%s,c=%d (%s tokens after %s)", span(h.From.Query, h.To.Query), h.From.Blocks,
			span(h.From.Query, h.To.Query), span(h.Tokens[0], h.Tokens[1]))
	case recipes.Decode:
		return fmt.Sprintf("decode/b=%d,n=%s", h.From.Seqs, span(h.From.Blocks, h.To.Blocks))
	}
	return fmt.Sprintf("logits/r=%s", span(h.From.Seqs, h.To.Seqs))
}

// Covered is what [Set.Covered] says of any list of buckets for the steps that a
// deployment admits; sharing is that of [Spec].
func Covered(bs []recipes.Bucket, d recipes.Deployment, sharing int) error {
	l := newLimits(d, sharing)
	if l.most(l.seqs) > maxRefs {
		return keyError("buckets.sharing", "%d sequences have more references than %d", l.seqs, maxRefs)
	}
	return (&Set{Coverage: coverage(l, bs)}).Covered()
}

// Covered reports holes: how many, which share of the admissible shapes, and the
// first of each phase.
func (s *Set) Covered() error {
	var text strings.Builder
	for i := range s.Coverage {
		c := &s.Coverage[i]
		if c.Holes == 0 {
			continue
		}
		fmt.Fprintf(&text, "\n  %s: no bucket covers %d of %d admissible shapes, %.2g %%:", c.Phase, c.Holes, c.Shapes, 100*c.Share)
		listed := int64(0)
		for _, h := range c.First {
			fmt.Fprintf(&text, "\n    %v", h)
			listed += h.shapes()
		}
		if rest := c.Holes - listed; rest > 0 {
			fmt.Fprintf(&text, "\n    and %d more", rest)
		}
	}
	if text.Len() == 0 {
		return nil
	}
	return errors.New("the buckets leave holes" + text.String())
}

func (h Hole) shapes() int64 {
	return int64(h.To.Query-h.From.Query) + int64(h.To.Blocks-h.From.Blocks) + int64(h.To.Seqs-h.From.Seqs) + 1
}

// coverage compares what is admissible with what buckets cover, phase by phase.
// Both have less of anything with what they have, so one number says all of a
// history or of a number of sequences: the longest chunk, the most references.
func coverage(l *limits, bs []recipes.Bucket) []Coverage {
	prefill := Coverage{Phase: recipes.Prefill}
	longest := reach(bs, recipes.Prefill, func(b recipes.Bucket) (at, reach int) { return b.Blocks, b.Query })
	for c := range l.contexts + 1 {
		from := recipes.Bucket{Phase: recipes.Prefill, Seqs: 1, Query: longest.from(c) + 1, Blocks: c}
		to := from
		to.Query = l.query(c)
		h := Hole{From: from, To: to}
		if from.Query <= to.Query {
			h.Tokens = l.history(c, from.Query)
		}
		prefill.add(1, to.Query, h)
	}
	decode := Coverage{Phase: recipes.Decode}
	most := reach(bs, recipes.Decode, func(b recipes.Bucket) (at, reach int) { return b.Seqs, b.Blocks })
	for s := 1; s <= l.seqs; s++ {
		from := recipes.Bucket{Phase: recipes.Decode, Seqs: s, Blocks: max(most.from(s)+1, s)}
		to := from
		to.Blocks = l.most(s)
		decode.add(s, to.Blocks, Hole{From: from, To: to})
	}
	logits := Coverage{Phase: recipes.Logits}
	rows := 0
	for _, b := range bs {
		if b.Phase == recipes.Logits {
			rows = max(rows, b.Seqs)
		}
	}
	logits.add(1, l.seqs, Hole{From: recipes.Bucket{Phase: recipes.Logits, Seqs: rows + 1}, To: recipes.Bucket{Phase: recipes.Logits, Seqs: l.seqs}})
	out := []Coverage{prefill, decode, logits}
	for i := range out {
		out[i].Share = float64(out[i].Holes) / float64(out[i].Shapes)
	}
	return out
}

// add counts admissible shapes, first to last, and the hole in them, which is none
// if it ends before it begins.
func (c *Coverage) add(first, last int, h Hole) {
	c.Shapes += int64(last - first + 1)
	n := h.shapes()
	if n < 1 {
		return
	}
	c.Holes += n
	if len(c.First) < MaxHoles {
		c.First = append(c.First, h)
	}
}

// history are the lengths in tokens of a history of so many blocks before a chunk
// of so many tokens.
func (l *limits) history(blocks, query int) *[2]int {
	if blocks == 0 {
		return &[2]int{0, 0}
	}
	return &[2]int{(blocks-1)*l.block + 1, min(blocks*l.block, l.length-query)}
}

// stair is what buckets reach in one size, for those that have at least so much
// of another.
type stair struct{ at, reach []int }

func reach(bs []recipes.Bucket, phase recipes.Phase, sizes func(recipes.Bucket) (at, reach int)) stair {
	most := map[int]int{}
	for _, b := range bs {
		if b.Phase == phase {
			at, r := sizes(b)
			most[at] = max(most[at], r)
		}
	}
	var s stair
	for at := range most {
		s.at = append(s.at, at)
	}
	slices.Sort(s.at)
	s.reach = make([]int, len(s.at))
	best := 0
	for i := len(s.at) - 1; i >= 0; i-- {
		best = max(best, most[s.at[i]])
		s.reach[i] = best
	}
	return s
}

// from is the reach of buckets that have at least so much, 0 without any.
func (s stair) from(at int) int {
	i, _ := slices.BinarySearch(s.at, at)
	if i == len(s.at) {
		return 0
	}
	return s.reach[i]
}

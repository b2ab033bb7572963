// Package buckets chooses the shapes that a deployment is compiled for, proves
// that they cover every step the deployment admits, and says what they pad.
//
//	limits, strategy ─→ lists ─→ buckets ─→ coverage, padding
//	                      ↑                     ↑
//	             file, trace of steps    recipes.Selector, which the runtime has too
//
// A prefill bucket is (query tokens, context blocks), a decode bucket (sequences,
// block references), a logits bucket rows. Only layers that attend to everything
// need the second size; what else a bucket executes is that of its first one.
//
// Admissible are
//
//	prefill  q ≥ 1 tokens after p ≥ 0 with p + q ≤ max_model_len and q ≤
//	         max_batched_tokens; p tokens are ceil(p / block_size) blocks
//	decode   s from 1 to max_num_seqs sequences of 1 to ceil(max_model_len /
//	         block_size) blocks each, and no more than sharing · kv_blocks
//	         references together, if sharing is given
//	logits   1 to max_num_seqs rows
//
// All of these sets are staircases: a shape with less of anything that can be had
// less of is one, too. So is what a list of buckets covers. Their differences and
// sums over them need one step for each length of history or number of
// sequences, not one for each shape.
package buckets

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"quill/recipes"
)

// Strategies by name.
const (
	Exp       = "exp"        // vllm-gaudi's exponential lists, with an edge that leaves no hole
	ExpCompat = "exp-compat" // exactly theirs
	Pad       = "pad"        // their padding-aware lists: multiples of a step, thinned while padding stays in bounds
	Linear    = "linear"     // multiples of a step
	File      = "file"       // listed by the user
	Optimal   = "optimal"    // fewest for a bound on padding, least padding for a number, or cheapest for a trace
)

// Strategies lists them as messages do.
const Strategies = "exp, exp-compat, pad, linear, file, optimal"

// Bounds on what may be asked for.
const (
	MaxBuckets = 1 << 16 // Spec.Most; Optimal makes no more than maxOptimal
	MaxPadding = 1 << 16 // Spec.Padding
	MaxSharing = 1 << 12 // Spec.Sharing
	maxOptimal = 1 << 12
	maxRefs    = 1 << 26 // block references of a bundle's bucket
)

// What holds for numbers of a Spec that are 0.
const (
	mostDefault    = 2048
	mostOptimal    = 400 // unless fewest for a padding are asked for
	paddingOptimal = 2
	paddingPad     = 4. / 3
)

// Spec says which buckets to make.
type Spec struct {
	Strategy string
	// Most is the number of buckets that is not exceeded; 0 is a default.
	Most int
	// Padding bounds what Pad and Optimal pad each size by, bucket / need, from 1;
	// 0 is a default.
	Padding float64
	// Sharing is how many sequences refer to a block of the pool on average, at
	// most; 0 is no bound.
	Sharing int
	// List is the text of File, Trace that of a trace for Optimal; nil is none.
	List, Trace *Text
}

// Text is a file's.
type Text struct {
	Path string
	Src  []byte
}

// Set is a list of buckets and what is known of it.
type Set struct {
	// Buckets are those of prefill, of decode and of logits, in order of size.
	Buckets  []recipes.Bucket `json:"buckets"`
	Coverage []Coverage       `json:"coverage"`
	Padding  []Padding        `json:"padding"`
}

// Error is a fault of the deployment with the key that it is about.
type Error struct {
	Key string // "buckets.most"
	Msg string
}

func (e *Error) Error() string { return e.Key + ": " + e.Msg }

func keyError(key, format string, args ...any) error {
	return &Error{key, fmt.Sprintf(format, args...)}
}

// Make makes the buckets of a deployment that was checked, whose sizes cost k. A
// list may leave holes: see Set.Covered. Errors are *Error, or of a file and then
// begin with its path and line.
func Make(s Spec, d recipes.Deployment, k recipes.Costs) (*Set, error) {
	l := newLimits(d, s.Sharing)
	if l.most(l.seqs) > maxRefs {
		return nil, keyError("buckets.sharing", "%d sequences of up to %d blocks have %d references, more than %d: lower max_num_seqs, or say how many sequences share a block at most",
			l.seqs, l.perSeq, l.most(l.seqs), maxRefs)
	}
	bs, err := choose(&s, l, &k)
	if err != nil {
		return nil, err
	}
	bs = append(bs, logits(bs)...)
	slices.SortFunc(bs, compare)
	bs = slices.Compact(bs)
	if most := s.most(); len(bs) > most {
		return nil, tooMany(&s, int64(len(bs)))
	}
	for _, b := range bs {
		if !k.Hold(b, d.BlockSize) {
			return nil, keyError("max_batched_tokens", "what %s costs is more than 64 bits count: lower max_batched_tokens or max_model_len", b)
		}
	}
	sel := recipes.NewSelector(&k, d.BlockSize, bs)
	return &Set{Buckets: bs, Coverage: coverage(l, bs), Padding: padding(l, bs, sel)}, nil
}

func (s *Spec) most() int {
	switch {
	case s.Most > 0:
		return s.Most
	case s.Strategy == Optimal && (s.Padding == 0 || s.Trace != nil):
		return mostOptimal
	}
	return mostDefault
}

func tooMany(s *Spec, n int64) error {
	limit := fmt.Sprintf("the limit %d", s.most())
	if s.Most == 0 {
		limit += ", the default"
	}
	return keyError("buckets.most", "strategy %s makes %d buckets or more, which is above %s: raise it, or take strategy exp or optimal, which need few", s.Strategy, n, limit)
}

// choose makes the buckets of prefill and decode.
func choose(s *Spec, l *limits, k *recipes.Costs) ([]recipes.Bucket, error) {
	switch s.Strategy {
	case Exp:
		return l.exp(false), nil
	case ExpCompat:
		return l.exp(true), nil
	case Linear:
		return l.linear(s)
	case Pad:
		return l.pad(s)
	case File:
		return l.file(s.List)
	case Optimal:
		return l.optimal(s, k)
	}
	return nil, keyError("buckets.strategy", "%q is not one of %s", s.Strategy, Strategies)
}

// logits projects one row a prefill and one a decoding sequence.
func logits(bs []recipes.Bucket) []recipes.Bucket {
	out := []recipes.Bucket{{Phase: recipes.Logits, Seqs: 1}}
	for _, b := range bs {
		if b.Phase == recipes.Decode {
			out = append(out, recipes.Bucket{Phase: recipes.Logits, Seqs: b.Seqs})
		}
	}
	return out
}

func compare(a, b recipes.Bucket) int {
	order := []recipes.Phase{recipes.Prefill, recipes.Decode, recipes.Logits}
	return cmp.Or(cmp.Compare(slices.Index(order, a.Phase), slices.Index(order, b.Phase)),
		cmp.Compare(a.Seqs, b.Seqs), cmp.Compare(a.Query, b.Query), cmp.Compare(a.Blocks, b.Blocks))
}

// limits are those of a deployment's steps.
type limits struct {
	block    int // tokens of a block
	length   int // tokens of a sequence
	chunk    int // tokens of a prefill step
	contexts int // blocks of the longest history of a prefill step
	seqs     int // sequences of a decode step
	perSeq   int // blocks of a sequence
	pool     int // blocks of the cache
	refs     int // references of a decode step, whatever the number of sequences
}

func newLimits(d recipes.Deployment, sharing int) *limits {
	l := &limits{
		block: d.BlockSize, length: d.MaxModelLen, chunk: min(d.MaxBatchedTokens, d.MaxModelLen),
		contexts: ceilDiv(d.MaxModelLen-1, d.BlockSize), perSeq: ceilDiv(d.MaxModelLen, d.BlockSize), pool: d.KVBlocks,
		seqs: d.MaxNumSeqs, refs: math.MaxInt,
	}
	if sharing > 0 {
		l.refs = sharing * d.KVBlocks
		l.seqs = min(l.seqs, l.refs) // each has a block
	}
	return l
}

// query is the longest chunk after so many blocks of history, which must be
// no more than l.contexts. It is at least 1.
func (l *limits) query(blocks int) int {
	history := 0
	if blocks > 0 {
		history = (blocks-1)*l.block + 1 // the shortest of so many blocks
	}
	return min(l.chunk, l.length-history)
}

// context is how many blocks of history a chunk of so many tokens can have.
func (l *limits) context(query int) int { return ceilDiv(l.length-query, l.block) }

// most is how many references so many sequences can have.
func (l *limits) most(seqs int) int { return min(seqs*l.perSeq, l.refs) }

// granule is the shortest chunk that counts: shorter ones are padded to it by
// all strategies but File, and count as if they had its length.
func (l *limits) granule() int { return min(l.block, l.chunk) }

func ceilDiv(a, b int) int { return (a + b - 1) / b }

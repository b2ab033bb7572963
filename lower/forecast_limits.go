package lower

import (
	"context"
	"fmt"
	"math"
	"sort"

	"quill/recipes"
)

// Largest is the largest value of a key with which a deployment fits.
type Largest struct {
	// Value is 0 if none does.
	Value int `json:"value"`
	// Bytes is what a rank then needs, of the precision that needs most.
	Bytes int64 `json:"bytes"`
	// Next says why the next larger value does not do.
	Next string `json:"next"`
}

// variant is a deployment with another value of a key.
type variant struct {
	value int
	dep   *Deployment
}

// search finds the largest of the variants 1, 2, … that does.
type search struct {
	*forecaster
	ctx  context.Context
	make func(i int) variant
	// attempt says why a variant does not do, or what it needs.
	attempt func(i int, d *Deployment) (bytes int64, why string, err error)
	// bound says why there are no variants from a number on.
	bound string
	// rests are the bytes of a rank beside the pool, by variant that was compiled and
	// precision. They guess those of others.
	rests map[int][]int64
	// states are those of each precision.
	states [][]cacheState
	// weights are a lower bound of those of each precision.
	weights []int64
}

// limits finds the largest pool and the longest request. b is the deployment as it was
// compiled, all its buckets.
func (s *forecaster) limits(ctx context.Context, d *Deployment, b *recipes.Bundle, all []recipes.Bucket, f *Forecast) error {
	s.known = map[string][]int64{}
	of := search{forecaster: s, ctx: ctx}
	var rests []int64
	for i := range b.Sets {
		states, err := s.states(d, b.Sets[i].Info.Precision)
		if err != nil {
			return err
		}
		g := newFootprint(&b.Sets[i].Info)
		rests = append(rests, g.bytes-g.pool())
		of.states = append(of.states, states)
		// What lies beside tensors of the checkpoint, constants and copies, may be less
		// in another deployment; it is far less than a part of 64.
		of.weights = append(of.weights, g.set.Bytes[recipes.Weights]/64*63)
	}
	s.known[decidedBy(d, s.deciding(d, all))] = rests
	var err error
	if f.LargestPool, err = of.pool(d, rests); err != nil {
		return err
	}
	f.LongestRequest, err = of.length(d, rests)
	return err
}

// decidedBy names what the memory of a rank beside its pool depends on, of the variants
// of one deployment.
func decidedBy(d *Deployment, deciding []recipes.Bucket) string {
	return fmt.Sprint(d.MaxModelLen, d.MaxBatchedTokens, deciding)
}

// pool searches among pools, from the least that holds a longest request on.
func (s search) pool(d *Deployment, rests []int64) (Largest, error) {
	m := d.manifest()
	least := m.BlocksFor(d.MaxModelLen)
	with := func(blocks int) *Deployment {
		e := *d
		e.KVBlocks = blocks
		return &e
	}
	n := sort.Search(math.MaxInt32, func(i int) bool {
		s.bound = refused(with(least+i), s.forecaster)
		return s.bound != ""
	})
	s.bound = refused(with(least+n), s.forecaster)
	s.make = func(i int) variant { return variant{least + i - 1, with(least + i - 1)} }
	s.rests, s.attempt = map[int][]int64{d.KVBlocks - least + 1: rests}, s.compiled
	return s.largest(n)
}

// length searches among requests of whole blocks, and the longest there may be.
func (s search) length(d *Deployment, rests []int64) (Largest, error) {
	most := sort.Search(s.cfg.MaxLen, func(i int) bool { return refused(d.ofLength(i+1), s.forecaster) != "" })
	s.bound = refused(d.ofLength(most+1), s.forecaster)
	s.make = func(i int) variant {
		n := min(i*d.BlockSize, most)
		return variant{n, d.ofLength(n)}
	}
	at := ceilDiv(d.MaxModelLen, d.BlockSize)
	s.rests, s.attempt = map[int][]int64{at: rests}, s.compiled
	l, err := s.largest(ceilDiv(most, d.BlockSize))
	if err != nil || l.Value >= d.MaxModelLen {
		return l, err
	}
	// A request that is no whole number of blocks may fit where whole ones do not.
	if bytes := s.needs(d, rests); bytes <= s.limit {
		l.Value, l.Bytes = d.MaxModelLen, bytes
	}
	return l, nil
}

// ofLength is the deployment with another longest request, as the file would have it.
func (d *Deployment) ofLength(tokens int) *Deployment {
	e := *d
	e.MaxModelLen, e.MaxBatchedTokens = tokens, min(d.chunk, tokens)
	if !d.has("kv_blocks") {
		e.KVBlocks = e.MaxNumSeqs * ceilDiv(tokens, e.BlockSize)
	}
	return &e
}

// refused says why there is no such deployment, whatever its memory.
func refused(d *Deployment, s *forecaster) string {
	m := d.manifest()
	err := m.Check()
	if err == nil {
		err = s.cfg.Check(d.options(d.Precisions()[0]))
	}
	if err != nil {
		return firstLine(err)
	}
	return ""
}

// needs is what the precision that needs most does, with so much beside its pool.
func (s *search) needs(d *Deployment, rests []int64) (most int64) {
	for i, rest := range rests {
		most = max(most, rest+poolBytes(s.states[i], d.KVBlocks))
	}
	return most
}

// largest finds i from 1 to n such that variant i does and i + 1 does not. It tries where
// what it knows of others says that this is, and halves what is left if that does not help.
func (s *search) largest(n int) (l Largest, err error) {
	yes, no := 0, n+1
	l.Next = s.bound
	for tries := 1; no-yes > 1; tries++ {
		i := yes + (no-yes)/2
		if tries%3 != 0 {
			i = min(max(s.guess(yes, no), yes+1), no-1)
		}
		v := s.make(i)
		bytes, why, err := s.attempt(i, v.dep)
		switch {
		case err != nil:
			return l, err
		case why != "":
			no, l.Next = i, why
		default:
			yes, l.Value, l.Bytes = i, v.value, bytes
		}
	}
	return l, nil
}

// guess is the largest variant between two that should do.
func (s *search) guess(yes, no int) int {
	return yes + sort.Search(no-yes-1, func(j int) bool {
		i := yes + 1 + j
		return s.needs(s.make(i).dep, s.expect(i)) > s.limit
	})
}

// expect interpolates what a variant needs beside its pool between the nearest that were
// compiled, or takes it for the same as in the only one.
func (s *search) expect(i int) []int64 {
	a, b := 0, 0 // the nearest ones, 0 is none
	away := func(j int) int { return max(i-j, j-i) }
	for j := range s.rests {
		switch {
		case a == 0 || away(j) < away(a) || away(j) == away(a) && j < a:
			a, b = j, a
		case b == 0 || away(j) < away(b) || away(j) == away(b) && j < b:
			b = j
		}
	}
	list := append([]int64{}, s.rests[a]...)
	if b != 0 {
		for p := range list {
			list[p] += int64(float64(list[p]-s.rests[b][p]) / float64(a-b) * float64(i-a))
		}
	}
	return list
}

// compiled attempts a variant by compiling the buckets that decide.
func (s *search) compiled(i int, d *Deployment) (bytes int64, why string, err error) {
	if over := s.needs(d, s.weights) - s.limit; over > 0 {
		return 0, tooMuch("weights and pool alone need", over), nil
	}
	all, err := d.covering(s.cfg)
	if err != nil {
		return 0, firstLine(err), nil
	}
	rests, err := s.rest(d, s.deciding(d, all))
	if s.ctx.Err() != nil {
		return 0, "", s.ctx.Err()
	}
	if err != nil {
		return 0, firstLine(err), nil
	}
	s.rests[i] = rests
	if bytes = s.needs(d, rests); bytes > s.limit {
		return 0, tooMuch("a rank would need", bytes-s.limit), nil
	}
	return bytes, "", nil
}

// tooMuch says by how much what is needed is too much.
func tooMuch(what string, over int64) string {
	return fmt.Sprintf("%s %s more than there is", what, exactBytes(over))
}

// rest is what buckets of a deployment need beside the pool, by precision.
func (s *search) rest(d *Deployment, list []recipes.Bucket) ([]int64, error) {
	key := decidedBy(d, list)
	if rests, ok := s.known[key]; ok {
		return rests, nil
	}
	b, err := s.compile(s.ctx, d, list)
	if err != nil {
		return nil, err
	}
	var rests []int64
	for i := range b.Sets {
		g := newFootprint(&b.Sets[i].Info)
		rests = append(rests, g.bytes-g.pool())
	}
	s.known[key] = rests
	return rests, nil
}

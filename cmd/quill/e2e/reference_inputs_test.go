package e2e

import (
	"math"

	"github.com/stretchr/testify/require"
)

// The inputs of a step, written from the comments in ir/inkling and not from
// the runtime, so that the two can disagree.

// zero and trash are the reserved blocks.
func (r *reference) zero() int32  { return int32(r.opt.Blocks) }
func (r *reference) trash() int32 { return int32(r.opt.Blocks + 1) }

// release takes all blocks back, in another order: neighbours are never meant.
func (r *reference) release() {
	r.free = r.free[:0]
	for _, b := range r.rng.Perm(r.opt.Blocks) {
		r.free = append(r.free, int32(b))
	}
}

// newText reserves blocks for a sequence.
func (r *reference) newText(maxTokens int) *text {
	n := (maxTokens + r.opt.BlockSize - 1) / r.opt.BlockSize
	require.GreaterOrEqual(r.t, len(r.free), n, "free blocks")
	s := &text{table: r.free[:n]}
	r.free = r.free[n:]
	return s
}

// block is the block that holds a position; before the first one it is the zero
// block.
func (r *reference) block(s *text, pos int) int32 {
	if pos < 0 {
		return r.zero()
	}
	return s.table[pos/r.opt.BlockSize]
}

func (r *reference) slot(s *text, pos int) int32 {
	b := r.opt.BlockSize
	return r.block(s, pos)*int32(b) + int32(pos%b)
}

func (r *reference) trashSlot(i int) int32 {
	b := r.opt.BlockSize
	return r.trash()*int32(b) + int32(i%b)
}

// history is the number of blocks that hold tokens.
func (r *reference) history(s *text) int { return (s.n + r.opt.BlockSize - 1) / r.opt.BlockSize }

// prefill feeds a chunk in a bucket of q rows and c blocks of history and
// returns the logits of its tokens.
func (r *reference) prefill(s *text, tokens []int32, q, c int) [][]float32 {
	b := r.opt.BlockSize
	in := map[string][]int32{"q_len": {int32(len(tokens))}, "conv_read": {r.block(s, s.n-1)}}
	for i := range q {
		token, pos, slot := int32(0), int32(0), r.trashSlot(i)
		if i < len(tokens) {
			token, pos, slot = tokens[i], int32(s.n+i), r.slot(s, s.n+i)
		}
		in["tokens"], in["positions"], in["slots"] = append(in["tokens"], token), append(in["positions"], pos), append(in["slots"], slot)
	}
	last := s.n + len(tokens) - 1
	for w := range (q+b-2)/b + 1 {
		row, take := r.trash(), 0
		if first := (s.n/b + w) * b; first <= last {
			newest := min(first+b-1, last)
			row, take = r.block(s, newest), 1+newest-s.n
		}
		in["conv_rows"], in["conv_take"] = append(in["conv_rows"], row), append(in["conv_take"], int32(take))
	}
	env := map[string]int64{"q": int64(q)}
	if c > 0 {
		pad := c - r.history(s)
		for i := range c {
			block := r.zero()
			if i >= pad {
				block = s.table[i-pad]
			}
			in["ctx_blocks"] = append(in["ctx_blocks"], block)
		}
		in["ctx_len"], in["ctx_start"] = []int32{int32(s.n)}, []int32{int32(-pad * b)}
		// The blocks that hold a window without its last token, however it lies.
		k := min(c, max(1, 1+(r.cfg.Window-2+b-1)/b))
		in["window_blocks"], in["window_start"] = in["ctx_blocks"][c-k:], []int32{int32((c - k - pad) * b)}
		env["c"] = int64(c)
	}
	r.keep(r.run(r.cfg.PrefillFamily(c, b), env, in, len(tokens)))
	s.n += len(tokens)
	return r.logits(len(tokens))
}

// decode feeds a token each in a bucket of rows rows and refs references and
// returns the logits of each.
func (r *reference) decode(ss []*text, tokens []int32, rows, refs int) [][]float32 {
	b := r.opt.BlockSize
	in := map[string][]int32{}
	add := func(name string, v int32) { in[name] = append(in[name], v) }
	each := min(refs, 1+(r.cfg.Window-1+b-1)/b) // blocks that a window lies in, however it does
	for i := range rows {
		for w := range each {
			first := math.MaxInt32 - b // beyond any position
			if i < len(ss) {
				if at := max(0, ss[i].n/b+1-each) + w; at*b <= ss[i].n {
					first = at * b
				}
			}
			if add("window_start", int32(first)); first < r.opt.MaxModelLen {
				add("window_blocks", r.block(ss[i], first))
			} else {
				add("window_blocks", r.zero())
			}
		}
		if i >= len(ss) {
			add("tokens", 0)
			add("positions", 0)
			add("slots", r.trashSlot(i))
			add("conv_read", r.zero())
			add("conv_write", r.trash())
			continue
		}
		s := ss[i]
		add("tokens", tokens[i])
		add("positions", int32(s.n))
		add("slots", r.slot(s, s.n))
		add("conv_read", r.block(s, s.n-1))
		add("conv_write", r.block(s, s.n))
		for first := 0; first <= s.n; first += b {
			add("blocks", r.block(s, first))
			add("owners", int32(i))
			add("ref_start", int32(first))
		}
	}
	for len(in["blocks"]) < refs {
		add("blocks", r.zero())
		add("owners", 0)
		add("ref_start", math.MaxInt32-int32(b)) // beyond any position
	}
	require.Len(r.t, in["blocks"], refs, "the bucket is too small")
	for _, s := range ss {
		s.n++
	}
	env := map[string]int64{"s": int64(rows), "n": int64(refs)}
	r.keep(r.run(r.cfg.DecodeFamily(rows, refs, b), env, in, len(ss)))
	return r.logits(len(ss))
}

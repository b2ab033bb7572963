package inkling

import (
	"math/rand/v2"

	"quill/ir"
)

// RandomStep makes those inputs of a step that only mean something together, as a
// host could make them: positions and lists of blocks, by name. They depend on the
// seed alone. A prefill chunk fills its bucket; a decode step may have padding. It
// is nil for a module that is no such step, and has no inputs that the module does
// not name. With them a module computes the same before and after passes that rely
// on what lists of blocks mean.
func RandomStep(m *ir.Module, base map[string]int64, seed uint64) (map[string][]int32, error) {
	env, err := m.Env(base)
	if err != nil {
		return nil, err
	}
	s := step{rng: rand.New(rand.NewPCG(seed, 2)), sizes: map[string]int{}, in: map[string][]int32{}}
	for _, p := range m.Entry().Params {
		if p.Kind != ir.Host || p.Value.Type.Rank() != 1 {
			continue
		}
		n, err := p.Value.Type.Shape[0].Eval(env)
		if err != nil {
			return nil, err
		}
		s.sizes[p.Name] = int(n)
	}
	if err := s.cache(m, env); err != nil {
		return nil, err
	}
	switch {
	case s.sizes["positions"] == 0:
		return nil, nil
	case s.sizes["q_len"] > 0 && s.sizes["ctx_blocks"] == 0:
		s.chunk(0)
	case s.block == 0:
		return nil, nil
	case s.sizes["ctx_blocks"] > 0:
		s.prefill()
	case s.sizes["blocks"] > 0:
		s.decode()
	default:
		return nil, nil
	}
	for name := range s.in {
		if _, ok := s.sizes[name]; !ok {
			delete(s.in, name)
		}
	}
	return s.in, nil
}

// step is a step being made.
type step struct {
	rng   *rand.Rand
	block int
	pool  []int // blocks, in random order
	taken int
	sizes map[string]int // of inputs
	in    map[string][]int32
}

// cache learns the size of blocks and pool from any op that reads them.
func (s *step) cache(m *ir.Module, env map[string]int64) error {
	for _, f := range m.Funcs {
		for _, o := range f.Ops {
			if o.Name() != "kv_read" {
				continue
			}
			slots, err := o.Args[0].Type.Shape[0].Eval(env)
			s.block = int(o.Int("block_size"))
			s.pool = s.rng.Perm(int(slots) / s.block)
			return err
		}
	}
	return nil
}

// zero is the block that padding reads.
func (s *step) zero() int32 { return int32(s.pool[0]) }

// next is a block; if a step has more than the pool, it takes some twice.
func (s *step) next() int32 {
	s.taken++
	return int32(s.pool[s.taken%len(s.pool)])
}

func (s *step) add(name string, v int) { s.in[name] = append(s.in[name], int32(v)) }

// chunk is a full chunk behind a history.
func (s *step) chunk(length int) {
	for i := range s.sizes["positions"] {
		s.add("positions", length+i)
	}
	s.add("q_len", s.sizes["positions"])
}

func (s *step) prefill() {
	c := s.sizes["ctx_blocks"]
	pad := s.rng.IntN(c + 1)
	length := 0
	if pad < c {
		length = (c-pad)*s.block - s.rng.IntN(s.block)
	}
	s.chunk(length)
	s.add("ctx_len", length)
	s.add("ctx_start", -pad*s.block)
	for i := range c {
		if i < pad {
			s.add("ctx_blocks", int(s.zero()))
		} else {
			s.add("ctx_blocks", int(s.next()))
		}
	}
	if k := s.sizes["window_blocks"]; k > 0 {
		s.in["window_blocks"] = s.in["ctx_blocks"][c-k:]
		s.add("window_start", (c-k-pad)*s.block)
	}
}

func (s *step) decode() {
	rows, n := s.sizes["positions"], s.sizes["blocks"]
	real := 1 + s.rng.IntN(min(rows, n))
	counts := make([]int, real) // blocks of each sequence
	for i := range counts {
		counts[i] = 1
	}
	for range s.rng.IntN(n - real + 1) {
		counts[s.rng.IntN(real)]++
	}
	w := s.sizes["window_blocks"] / rows // newest blocks of a sequence in its window
	for row, count := range counts {
		s.add("positions", count*s.block-1-s.rng.IntN(s.block))
		for i := range count {
			block := int(s.next())
			s.reference(block, row, i)
			if i >= count-w {
				s.inWindow(block, i)
			}
		}
		for range w - count {
			s.inWindow(int(s.zero()), beyond/s.block)
		}
	}
	for range rows - real {
		s.add("positions", 0)
	}
	for len(s.in["blocks"]) < n {
		s.reference(int(s.zero()), 0, beyond/s.block)
	}
	for len(s.in["window_blocks"]) < w*rows {
		s.inWindow(int(s.zero()), beyond/s.block)
	}
}

// beyond is a position that none reaches.
const beyond = 1 << 30

// reference adds a reference to the i-th block of a row.
func (s *step) reference(block, row, i int) {
	s.add("blocks", block)
	s.add("owners", row)
	s.add("ref_start", i*s.block)
}

// inWindow adds a block to the window of a row.
func (s *step) inWindow(block, i int) {
	s.add("window_blocks", block)
	s.add("window_start", i*s.block)
}

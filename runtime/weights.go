package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"quill/recipes"
	"quill/recipes/safetensors"
	"quill/runtime/host"
)

// weights are the weights of all ranks in memory that the host addresses. Where
// a slot lies is decided slot by slot:
//
//	it is in a packed file              → there, mapped
//	the checkpoint has it as it is      → there, mapped
//	neither                             → copied to memory of its own
//
// What is mapped is page cache: it takes no memory that others could not have,
// and need not fit.
type weights struct {
	set     *recipes.Set
	tp      int
	ckpt    *safetensors.Checkpoint // nil where packed weights make it needless
	packing *recipes.Packing
	image   *pages // what packing lays out: a packed file behind its header, or memory
	start   int64  // of the image in these pages
	spans   [][]host.Span
	memory  Memory
	regions []region
	ahead   bool
}

// Memory is what an opened bundle takes, in bytes over all ranks.
type Memory struct {
	// Buffers are the device's buffers, without weights.
	Buffers int64 `json:"buffers"`
	// Copied are weights in memory of their own.
	Copied int64 `json:"copied"`
	// Mapped are weights that stay in files, each byte of them once. They are
	// page cache, so they may exceed the memory of the machine.
	Mapped int64 `json:"mapped"`
}

// Memory is what the session takes on the CPU device; zero on others.
func (s *Session) Memory() Memory {
	if d, ok := s.dev.(*HostDevice); ok && d.weights != nil {
		return d.weights.memory
	}
	return Memory{}
}

// region is a range of mapped weights that is used in one way.
type region struct {
	data   []byte
	expert bool
}

// Close unmaps everything.
func (w *weights) Close() error {
	var errs []error
	if w.image != nil {
		errs = append(errs, w.image.Close())
	}
	if w.ckpt != nil {
		errs = append(errs, w.ckpt.Close())
	}
	w.spans, w.regions = nil, nil
	return errors.Join(errs...)
}

// measure says what the weights and the other buffers will take.
func (w *weights) measure(packed bool) {
	for b, n := range w.set.Info.Bytes {
		if b != recipes.Weights {
			w.memory.Buffers += n * int64(w.tp)
		}
	}
	if packed {
		w.memory.Mapped = w.packing.Bytes
	} else {
		w.memory.Copied = w.packing.Bytes
	}
	for _, s := range recipes.SlotsByOffset(w.set.Weights) {
		if !w.packing.Holds(s) {
			w.memory.Mapped += s.Bytes() * int64(s.Copies(w.tp))
		}
	}
}

// lay makes the spans of every rank.
func (w *weights) lay() error {
	for rank := range w.tp {
		var spans []host.Span
		for i := range w.packing.Runs {
			r := &w.packing.Runs[i]
			at := w.start + r.CopyAt(rank, w.tp)
			spans = append(spans, host.Span{Offset: r.Offset, Data: w.image.data[at : at+r.Bytes : at+r.Bytes], Mapped: w.image.mapped})
		}
		for _, s := range recipes.SlotsByOffset(w.set.Weights) {
			if w.packing.Holds(s) {
				continue
			}
			data, err := w.direct(s, rank)
			if err != nil {
				return err
			}
			spans = append(spans, host.Span{Offset: s.Offset, Data: data, Mapped: true})
		}
		slices.SortFunc(spans, func(a, b host.Span) int { return cmp.Compare(a.Offset, b.Offset) })
		w.spans = append(w.spans, spans)
	}
	return nil
}

// direct is a slot that the checkpoint has as it is.
func (w *weights) direct(s *recipes.Weight, rank int) ([]byte, error) {
	if w.ckpt != nil {
		if t, ok := w.ckpt.Tensor(s.Tensor); ok {
			if data, ok := s.Direct(&t, rank, w.tp); ok {
				return data, nil
			}
		}
	}
	return nil, fmt.Errorf("the packed weights lack %q, which the checkpoint does not have as it is: pack them again", s.Tensor)
}

// divide finds out how each mapped slot is used. Experts differ from all else:
// a step needs few of them.
func (w *weights) divide(expert map[int64]bool) {
	for _, s := range recipes.SlotsByOffset(w.set.Weights) {
		if w.packing.Holds(s) && !w.image.mapped {
			continue
		}
		copies := s.Copies(w.tp)
		for c := range copies {
			rank := (c*w.tp + copies - 1) / copies // the first that has content c
			w.regions = append(w.regions, region{w.find(s, rank), expert[s.Offset]})
		}
	}
}

// find is the memory of a slot of a rank.
func (w *weights) find(s *recipes.Weight, rank int) []byte {
	spans := w.spans[rank]
	i, found := slices.BinarySearchFunc(spans, s.Offset, func(p host.Span, at int64) int { return cmp.Compare(p.Offset, at) })
	if !found {
		i--
	}
	return spans[i].Data[s.Offset-spans[i].Offset:][:s.Bytes()]
}

// load copies what must be copied and has the system read what every step
// needs.
func (w *weights) load(ctx context.Context, available int64, progress func(done, total int64)) error {
	wanted := w.advise(available)
	m := meter{report: progress}
	for _, data := range wanted {
		m.total += int64(len(data))
	}
	var pieces []recipes.Piece
	if !w.image.mapped {
		pieces = w.packing.Pieces(w.set.Weights, w.tp)
	}
	f := filler{ckpt: w.ckpt, tp: w.tp, pieces: pieces, meter: &m, put: func(p *recipes.Piece, at int64, data []byte) error {
		copy(w.image.data[p.At+at:], data)
		return nil
	}}
	if err := f.run(ctx); err != nil {
		return err
	}
	return prefetch(ctx, wanted, &m)
}

// advise says how mapped weights will be used, and returns those that are worth
// reading before the first step. If not everything fits the available memory,
// experts are read one by one, when they are chosen: what the system would read
// around them would only push others out.
func (w *weights) advise(available int64) [][]byte {
	var wanted [][]byte
	size := int64(0)
	for _, r := range w.regions {
		switch {
		case !r.expert:
			wanted = append(wanted, r.data)
			size += int64(len(r.data))
		case w.ahead:
			advise(r.data, random)
		}
	}
	if available > 0 && size+w.memory.Buffers+w.memory.Copied > available {
		return nil // the last would push the first out
	}
	return wanted
}

// exceeds reports whether the weights and the buffers are more than the
// available memory; false if that is not known.
func (m *Memory) exceeds(available int64) bool {
	return available > 0 && m.Buffers+m.Copied+m.Mapped > available
}

// prefetchStep is how many bytes the system is asked for at a time, which may
// take as long as reading them.
const prefetchStep = 32 << 20

func prefetch(ctx context.Context, wanted [][]byte, m *meter) error {
	for _, data := range wanted {
		for len(data) > 0 {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("load weights: %w", err)
			}
			n := min(len(data), prefetchStep)
			advise(data[:n], willNeed)
			m.add(int64(n))
			data = data[n:]
		}
	}
	return nil
}

package recipes

import (
	"cmp"
	"fmt"
	"slices"
)

// PackAlign is what copies of runs are aligned to in an image, in bytes: a page
// of memory on most machines.
const PackAlign = 4096

// Run is a range of the weights buffer that is packed: neighbouring slots of
// which equally many ranks have their own content.
//
//	weights buffer of a rank   ··[ run 0 ]····[ run 1 ]··
//	image                      [run 0, copy 0][run 0, copy 1] … [run 1, copy 0] …
type Run struct {
	Offset int64 `json:"offset"` // bytes from the start of the weights buffer
	Bytes  int64 `json:"bytes"`
	// Copies is the number of different contents: rank r of tp has content
	// floor(r*Copies/tp).
	Copies int `json:"copies"`
	// At is where the first copy begins in the image; the others follow it, each
	// aligned to PackAlign.
	At int64 `json:"at"`
}

// CopyAt is where in the image the content of one of tp ranks begins.
func (r *Run) CopyAt(rank, tp int) int64 { return r.copyAt(rank * r.Copies / tp) }

func (r *Run) copyAt(i int) int64 { return r.At + int64(i)*padded(r.Bytes) }

func padded(n int64) int64 { return (n + PackAlign - 1) &^ (PackAlign - 1) }

// Packing is how slots of the weights buffers of all ranks lie in one image.
// Ranks with the same content share it.
type Packing struct {
	Bytes int64 // of the image
	Runs  []Run // sorted by offset
}

// Piece is a slot of a rank in an image. It stands for all ranks that share it.
type Piece struct {
	Weight *Weight
	Rank   int
	At     int64 // byte of the image
}

// NewPacking packs, for tp ranks, the slots for which packed is true. It is a
// function of these slots alone. Runs of slots must be packed.
func NewPacking(weights []Weight, tp int, packed func(*Weight) bool) *Packing {
	p := &Packing{}
	var last *Run // that the next slot may still join
	slots := SlotsByOffset(weights)
	for i, w := range slots {
		if !packed(w) {
			last = nil
			continue
		}
		copies := runCopies(slots[i:], tp)
		if w.Part > 1 && last != nil {
			copies = last.Copies
		}
		if last == nil || last.Copies != copies || w.Offset-(last.Offset+last.Bytes) >= PackAlign {
			p.Runs = append(p.Runs, Run{Offset: w.Offset, Copies: copies})
			last = &p.Runs[len(p.Runs)-1]
		}
		last.Bytes = w.Offset + w.Bytes() - last.Offset
	}
	for i := range p.Runs {
		r := &p.Runs[i]
		r.At = p.Bytes
		p.Bytes = r.copyAt(r.Copies)
	}
	return p
}

// runCopies is the number of different contents that the first slot, and those that it
// begins a run with, have together over tp ranks.
func runCopies(slots []*Weight, tp int) int {
	copies := slots[0].Copies(tp)
	if slots[0].Part != 1 {
		return copies
	}
	for _, w := range slots[1:] {
		if w.Part < 2 {
			break
		}
		switch n := w.Copies(tp); {
		case copies%n == 0: // which of these a rank has says which of those
		case n%copies == 0:
			copies = n
		default:
			copies = tp
		}
	}
	return copies
}

// SlotsByOffset sorts slots by their place in the weights buffer, without those
// that are empty and those that share their bytes with another, which then
// means the same.
func SlotsByOffset(weights []Weight) []*Weight {
	var slots []*Weight
	for i := range weights {
		if weights[i].Bytes() > 0 {
			slots = append(slots, &weights[i])
		}
	}
	slices.SortStableFunc(slots, func(a, b *Weight) int { return cmp.Compare(a.Offset, b.Offset) })
	return slices.CompactFunc(slots, func(a, b *Weight) bool { return a.Offset == b.Offset })
}

// Holds reports whether the bytes of a slot are packed.
func (p *Packing) Holds(w *Weight) bool {
	r := p.run(w.Offset)
	return r != nil && w.Offset+w.Bytes() <= r.Offset+r.Bytes
}

// run is the last run that begins at or before an offset of the buffer.
func (p *Packing) run(offset int64) *Run {
	i, found := slices.BinarySearchFunc(p.Runs, offset, func(r Run, offset int64) int { return cmp.Compare(r.Offset, offset) })
	if found {
		return &p.Runs[i]
	}
	if i == 0 {
		return nil
	}
	return &p.Runs[i-1]
}

// Pieces lists what fills the image, in its order. Bytes between pieces are 0.
func (p *Packing) Pieces(weights []Weight, tp int) []Piece {
	var pieces []Piece
	slots := SlotsByOffset(weights)
	for i := range p.Runs {
		r := &p.Runs[i]
		first, _ := slices.BinarySearchFunc(slots, r.Offset, func(w *Weight, at int64) int { return cmp.Compare(w.Offset, at) })
		for c := range r.Copies {
			rank := (c*tp + r.Copies - 1) / r.Copies // the first that has content c
			for _, w := range slots[first:] {
				if w.Offset >= r.Offset+r.Bytes {
					break
				}
				pieces = append(pieces, Piece{w, rank, r.copyAt(c) + w.Offset - r.Offset})
			}
		}
	}
	return pieces
}

// check compares the packing with what these weights would be packed to: a
// packing from a file must not lead outside of it or have ranks share what is
// not the same.
func (p *Packing) check(weights []Weight, tp int) error {
	if want := NewPacking(weights, tp, p.Holds); want.Bytes != p.Bytes || !slices.Equal(want.Runs, p.Runs) {
		return fmt.Errorf("its %d ranges in %d bytes do not hold whole slots of the weights map", len(p.Runs), p.Bytes)
	}
	return nil
}

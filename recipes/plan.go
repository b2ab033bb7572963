package recipes

import (
	"fmt"

	"quill/recipes/dtype"
)

// Buffer names one of the device buffers that every rank allocates before
// serving.
type Buffer string

const (
	// Weights holds the rank's weights and constants; read only.
	Weights Buffer = "weights"
	// KV holds the paged key and value cache of all layers.
	KV Buffer = "kv"
	// Conv holds the rows of the short convolutions, one row a block.
	Conv Buffer = "conv"
	// Arena holds a step's inputs and what crosses its launches; its content is
	// undefined between plans.
	Arena Buffer = "arena"
	// Carry holds what one plan leaves for the next (the final hidden rows).
	Carry Buffer = "carry"
)

// Buffers lists all device buffers in a fixed order.
func Buffers() []Buffer { return []Buffer{Weights, KV, Conv, Arena, Carry} }

// Plan is what one bucket executes: its steps in order. Every rank executes
// the same plan.
type Plan struct {
	Bucket  Bucket
	Family  string
	Inputs  []IO
	Outputs []IO
	Steps   []Step
	// ArenaBytes is what the plan needs of the arena, inputs and outputs included.
	ArenaBytes int64
	// LayerBytes are the last ones of ArenaBytes, for values of several layers that a
	// step keeps at once: all else does not grow with the number of layers. Decoding
	// has the history of all short convolutions there, their sums over it and their
	// new rows.
	LayerBytes int64
	// WorkspaceBytes is the largest workspace of its recipes as PlaceWorkspace places
	// them. Launches follow each other, so they use one. It is no buffer that sections
	// bind to, and what a device places by its own units may be more or less.
	WorkspaceBytes int64
	// CarryBytes is what the plan leaves for the next one, or finds of the one before.
	CarryBytes int64
}

// IO is a tensor that the runtime writes before or reads after a plan, at a
// byte offset of the arena. Dims are fastest first.
type IO struct {
	Name   string
	DType  dtype.Type
	Dims   []int64
	Offset int64
}

// Elems is the number of elements.
func (io *IO) Elems() int64 {
	n := int64(1)
	for _, d := range io.Dims {
		n *= d
	}
	return n
}

// Bytes is the size of the tensor.
func (io *IO) Bytes() int64 { return io.Elems() * int64(io.DType.Size()) }

// Step is either a launch or a collective.
type Step struct {
	Launch     *Launch
	Collective *Collective
}

// What names a step for people: launch "layer 3 attention".
func (s *Step) What() string {
	if s.Launch != nil {
		return fmt.Sprintf("launch %q", s.Launch.Label)
	}
	return fmt.Sprintf("%s %q", s.Collective.Kind, s.Collective.Label)
}

// Launch runs a recipe with one address per section, in the order of the
// recipe's sections.
type Launch struct {
	Recipe   Hash
	Bindings []Binding
	// Label says what the launch is, for traces and errors: "layer 3 attention".
	Label string
	// Break says why the launch is not one with the launch before it, where no
	// collective is between them.
	Break string
}

// Binding is a byte offset in one of the rank's buffers.
type Binding struct {
	Buffer Buffer
	Offset int64
}

// CollectiveKind is the kind of a collective.
type CollectiveKind string

const (
	// AllReduce sums In over all ranks into Out (in place where they are equal).
	AllReduce CollectiveKind = "all_reduce"
	// AllGather concatenates In of all ranks in rank order into Out.
	AllGather CollectiveKind = "all_gather"
)

// Collective moves Count elements a rank between arena ranges of all ranks.
type Collective struct {
	Kind  CollectiveKind
	DType dtype.Type
	Count int64 // elements each rank contributes
	In    int64 // byte offset in the arena
	Out   int64
	Label string
}

// Weight says what fills one slot of a rank's weights buffer: a part of a
// checkpoint tensor, or a constant.
type Weight struct {
	// Tensor is the checkpoint tensor; "" for a constant.
	Tensor string `json:"tensor,omitempty"`
	// Reshape and Perm view the checkpoint tensor (row-major) before slicing:
	// it is reshaped to Reshape, then axis i of the result is axis Perm[i].
	// Empty means as it is.
	Reshape []int64 `json:"reshape,omitempty"`
	Perm    []int   `json:"perm,omitempty"`
	// Rows, if not empty, are the first of axis 0 that is taken of that view, and the one
	// after the last.
	Rows []int64 `json:"rows,omitempty"`
	// Times, if not 0, multiplies every element, and then Plus is added, each in f32 and
	// rounded to DType, which the elements have before.
	Times float64 `json:"times,omitempty"`
	Plus  float64 `json:"plus,omitempty"`
	// Rank r of tp takes part floor(r*Ways/tp) of Ways equal parts along Axis
	// of the view. Ways 1 takes all of it.
	Axis int `json:"axis,omitempty"`
	Ways int `json:"ways"`
	// Fill and Step make a constant: every element is Fill + r*Step on rank r.
	Fill float64 `json:"fill"` // never left out: −0 is not 0
	Step float64 `json:"step,omitempty"`

	DType  dtype.Type `json:"dtype"` // as stored in the buffer
	Shape  []int64    `json:"shape"` // the rank's part, row-major
	Offset int64      `json:"offset"`
	// Part numbers, from 1, the slots of a run: they lie behind each other without a
	// gap, and nodes read them as one tensor. 0 is a slot by itself.
	Part int `json:"part,omitempty"`
}

// Bytes is the size of the slot.
func (w *Weight) Bytes() int64 {
	n := int64(w.DType.Size())
	for _, d := range w.Shape {
		n *= d
	}
	return n
}

// Phase is what a bucket executes.
type Phase string

const (
	// Prefill runs a chunk of one sequence.
	Prefill Phase = "prefill"
	// Decode runs one token of each of several sequences.
	Decode Phase = "decode"
	// Logits projects chosen rows of the carried hidden state.
	Logits Phase = "logits"
)

// Bucket is the concrete size of a plan. Prefill: Query tokens (one sequence)
// after Blocks blocks of history. Decode: Seqs sequences with Blocks block
// references in total. Logits: Seqs rows.
type Bucket struct {
	Phase  Phase `json:"phase"`
	Seqs   int   `json:"seqs,omitempty"`
	Query  int   `json:"query,omitempty"`
	Blocks int   `json:"blocks,omitempty"`
}

// String spells a bucket as commands take it: prefill/q=128,c=4,
// decode/b=1,n=16, logits/r=4.
func (b Bucket) String() string {
	switch b.Phase {
	case Prefill:
		return fmt.Sprintf("prefill/q=%d,c=%d", b.Query, b.Blocks)
	case Decode:
		return fmt.Sprintf("decode/b=%d,n=%d", b.Seqs, b.Blocks)
	case Logits:
		return fmt.Sprintf("logits/r=%d", b.Seqs)
	}
	return fmt.Sprintf("%s/?", b.Phase)
}

// ParseBucket reads what [Bucket.String] writes.
func ParseBucket(s string) (Bucket, error) {
	for _, p := range []struct {
		phase  Phase
		format string
		sizes  func(b *Bucket) []any
	}{
		{Prefill, "prefill/q=%d,c=%d", func(b *Bucket) []any { return []any{&b.Query, &b.Blocks} }},
		{Decode, "decode/b=%d,n=%d", func(b *Bucket) []any { return []any{&b.Seqs, &b.Blocks} }},
		{Logits, "logits/r=%d", func(b *Bucket) []any { return []any{&b.Seqs} }},
	} {
		b := Bucket{Phase: p.phase}
		if n, _ := fmt.Sscanf(s, p.format, p.sizes(&b)...); n > 0 && b.String() == s {
			return b, b.check()
		}
	}
	return Bucket{}, fmt.Errorf("%q is no bucket: want prefill/q=Q,c=C, decode/b=B,n=N or logits/r=R", s)
}

// Covers reports whether a bucket can execute the need.
func (b Bucket) Covers(need Bucket) bool {
	return b.Phase == need.Phase && b.Seqs >= need.Seqs && b.Query >= need.Query && b.Blocks >= need.Blocks
}

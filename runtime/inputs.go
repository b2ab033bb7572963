package runtime

import (
	"encoding/binary"

	"quill/recipes"
)

// input identifies an input tensor of a plan.
type input uint8

const (
	inTokens input = iota
	inPositions
	inSlots
	inQLen
	inConvRead
	inConvRows
	inConvTake
	inConvWrite
	inCtxLen
	inCtxBlocks
	inCtxStart
	inBlocks
	inOwners
	inRefStart
	inWindowBlocks
	inWindowStart
	inRows
	numInputs
)

// sizeFunc is the number of elements of an input at a bucket; 0 where the
// bucket has no such input.
type sizeFunc func(b recipes.Bucket, l *layout) int

func one(recipes.Bucket, *layout) int        { return 1 }
func query(b recipes.Bucket, _ *layout) int  { return b.Query }
func seqs(b recipes.Bucket, _ *layout) int   { return b.Seqs }
func blocks(b recipes.Bucket, _ *layout) int { return b.Blocks }

// history is one where a prefill bucket has history.
func history(b recipes.Bucket, _ *layout) int { return min(b.Blocks, 1) }

// touched is the largest number of blocks that a chunk lies in, whatever its
// alignment.
func touched(b recipes.Bucket, l *layout) int { return l.span(b.Query) }

// windowHistory is how many blocks of the history the windows of a chunk can reach:
// its first token is in its own window.
func windowHistory(b recipes.Bucket, l *layout) int {
	if l.window == 0 {
		return 0
	}
	return min(b.Blocks, l.span(max(l.window-1, 1)))
}

// windowListed is one where a bucket has a list of those blocks.
func windowListed(b recipes.Bucket, l *layout) int { return min(windowHistory(b, l), 1) }

// windowRefs is how many blocks of a sequence its window can reach, times the
// sequences. A single one may have all references.
func windowRefs(b recipes.Bucket, l *layout) int {
	if l.window == 0 {
		return 0
	}
	return b.Seqs * min(b.Blocks, l.span(l.window))
}

// inputTable lists all inputs: their names and their sizes in each phase. All
// of them are i32.
var inputTable = [numInputs]struct {
	name                    string
	prefill, decode, logits sizeFunc
}{
	inTokens:    {"tokens", query, seqs, nil},    // ids
	inPositions: {"positions", query, seqs, nil}, // in their sequence
	inSlots:     {"slots", query, seqs, nil},     // that the rows write
	inQLen:      {"q_len", one, nil, nil},        // tokens of the chunk
	inConvRead:  {"conv_read", one, seqs, nil},   // block of the position before
	inConvRows:  {"conv_rows", touched, nil, nil},
	inConvTake:  {"conv_take", touched, nil, nil}, // 1 + the chunk's newest token in that block
	inConvWrite: {"conv_write", nil, seqs, nil},   // block of the position
	inCtxLen:    {"ctx_len", history, nil, nil},   // tokens before the chunk
	inCtxBlocks: {"ctx_blocks", blocks, nil, nil}, // their blocks, at the right end
	inCtxStart:  {"ctx_start", history, nil, nil}, // position of the first listed slot
	inBlocks:    {"blocks", nil, blocks, nil},     // block references
	inOwners:    {"owners", nil, blocks, nil},     // their rows
	inRefStart:  {"ref_start", nil, blocks, nil},  // position of their first slot
	inRows:      {"rows", nil, nil, seqs},         // of the carried hidden state
	// The same as ctx_blocks and ctx_start of blocks that windows reach; in decode
	// steps equally many blocks of each sequence and the positions of their first slots.
	inWindowBlocks: {"window_blocks", windowHistory, windowRefs, nil},
	inWindowStart:  {"window_start", windowListed, windowRefs, nil},
}

// inputOf finds an input by name and its size at the bucket; ok is false if the
// bucket has no such input.
func inputOf(name string, b recipes.Bucket, l *layout) (id input, size int, ok bool) {
	for id := range numInputs {
		row := &inputTable[id]
		if row.name != name {
			continue
		}
		f := map[recipes.Phase]sizeFunc{recipes.Prefill: row.prefill, recipes.Decode: row.decode, recipes.Logits: row.logits}[b.Phase]
		if f == nil {
			return 0, 0, false
		}
		size := f(b, l)
		return id, size, size > 0
	}
	return 0, 0, false
}

// ints is an i32 tensor as the device holds it, little-endian. A plan that does
// not take an input has it with no elements, so filling it does nothing.
type ints []byte

func (x ints) len() int { return len(x) / 4 }

func (x ints) set(i int, v int32) { binary.LittleEndian.PutUint32(x[4*i:], uint32(v)) }

func (x ints) at(i int) int32 { return int32(binary.LittleEndian.Uint32(x[4*i:])) }

// inputSet holds the inputs of one plan.
type inputSet [numInputs]ints

// beyond is the first position of padding references: no position reaches it,
// so every slot of them is masked.
const beyond = 1 << 30

// layout is what inputs depend on besides the step.
type layout struct {
	block       int   // tokens of a block
	window      int   // tokens that layers with a window see, 0 when there are none
	zero, trash int32 // the reserved blocks
	pad         int32 // token id of padding rows
}

// slot is where a position of a sequence with the given block table lies.
func (l *layout) slot(table []int32, pos int) int32 {
	return table[pos/l.block]*int32(l.block) + int32(pos%l.block)
}

// trashSlot is where padding row i writes. Rows cycle through the block: the
// device does not define which of two writes to one slot wins.
func (l *layout) trashSlot(i int) int32 {
	return l.trash*int32(l.block) + int32(i%l.block)
}

// before is the block that holds position pos−1.
func (l *layout) before(table []int32, pos int) int32 {
	if pos == 0 {
		return l.zero
	}
	return table[(pos-1)/l.block]
}

// blocksFor is the number of blocks that n tokens lie in.
func (l *layout) blocksFor(n int) int { return (n + l.block - 1) / l.block }

// span is the largest number of blocks that n tokens in a row lie in, whatever
// their alignment.
func (l *layout) span(n int) int { return (n+l.block-2)/l.block + 1 }

// prefill fills the inputs for a chunk that begins at position start.
func (l *layout) prefill(in *inputSet, table []int32, start int, tokens []int32) {
	n := len(tokens)
	for i := range in[inTokens].len() {
		in[inTokens].set(i, l.token(tokens, i))
	}
	for i := range in[inPositions].len() {
		pos := 0
		if i < n {
			pos = start + i
		}
		in[inPositions].set(i, int32(pos))
	}
	for i := range in[inSlots].len() {
		slot := l.trashSlot(i)
		if i < n {
			slot = l.slot(table, start+i)
		}
		in[inSlots].set(i, slot)
	}
	setOne(in[inQLen], n)
	setOne(in[inConvRead], int(l.before(table, start)))
	l.convRows(in[inConvRows], in[inConvTake], table, start, start+n-1)
	l.history(in, table, start)
}

func setOne(x ints, v int) {
	if x.len() > 0 {
		x.set(0, int32(v))
	}
}

func (l *layout) token(tokens []int32, i int) int32 {
	if i < len(tokens) {
		return tokens[i]
	}
	return l.pad
}

// convRows lists the blocks that positions start … last lie in, each with the
// number of the chunk's tokens up to the newest one in it.
func (l *layout) convRows(rows, take ints, table []int32, start, last int) {
	for i := range max(rows.len(), take.len()) {
		block := start/l.block + i
		row, n := l.trash, 0
		if block <= last/l.block {
			row, n = table[block], min((block+1)*l.block-1, last)-start+1
		}
		if i < rows.len() {
			rows.set(i, row)
		}
		if i < take.len() {
			take.set(i, int32(n))
		}
	}
}

// history lists the blocks of the positions before start.
func (l *layout) history(in *inputSet, table []int32, start int) {
	setOne(in[inCtxLen], start)
	setOne(in[inCtxStart], l.newest(in[inCtxBlocks], table, start))
	setOne(in[inWindowStart], l.newest(in[inWindowBlocks], table, start))
}

// newest lists as many blocks of the positions before end as there is room for, the
// newest at the right end, and returns the position of the first listed slot.
func (l *layout) newest(list ints, table []int32, end int) int {
	skip := l.blocksFor(end) - list.len()
	for i := range list.len() {
		block := l.zero
		if i+skip >= 0 {
			block = table[i+skip]
		}
		list.set(i, block)
	}
	return skip * l.block
}

// decode fills the inputs for one token of each sequence. Padding rows differ in
// the slot they write only, so they choose the same experts: recipes.Costs counts
// on it.
func (l *layout) decode(in *inputSet, qs []*Sequence, tokens []int32) {
	for i := range in[inTokens].len() {
		in[inTokens].set(i, l.token(tokens, i))
	}
	for i := range in[inPositions].len() {
		pos := 0
		if i < len(qs) {
			pos = qs[i].n
		}
		in[inPositions].set(i, int32(pos))
	}
	for i := range in[inSlots].len() {
		slot := l.trashSlot(i)
		if i < len(qs) {
			slot = l.slot(qs[i].blocks, qs[i].n)
		}
		in[inSlots].set(i, slot)
	}
	for i := range in[inConvRead].len() {
		block := l.zero
		if i < len(qs) {
			block = l.before(qs[i].blocks, qs[i].n)
		}
		in[inConvRead].set(i, block)
	}
	for i := range in[inConvWrite].len() {
		block := l.trash
		if i < len(qs) {
			block = qs[i].blocks[qs[i].n/l.block]
		}
		in[inConvWrite].set(i, block)
	}
	l.references(in, qs)
	l.windows(in, qs)
}

// references lists the blocks of all sequences, the new token's included: sequences
// in row order, the blocks of each in ascending order of position.
func (l *layout) references(in *inputSet, qs []*Sequence) {
	i := 0
	list := func(block int32, row, start int) {
		if i < in[inBlocks].len() {
			in[inBlocks].set(i, block)
		}
		if i < in[inOwners].len() {
			in[inOwners].set(i, int32(row))
		}
		if i < in[inRefStart].len() {
			in[inRefStart].set(i, int32(start))
		}
		i++
	}
	for row, q := range qs {
		for at := range l.blocksFor(q.n + 1) {
			list(q.blocks[at], row, at*l.block)
		}
	}
	for i < max(in[inBlocks].len(), in[inOwners].len(), in[inRefStart].len()) {
		list(l.zero, 0, beyond)
	}
}

// windows lists by row the newest blocks of its sequence, the new token's the last,
// in ascending order of position, and behind them padding. A plan that reads them
// reads positions too, which say how many rows there are.
func (l *layout) windows(in *inputSet, qs []*Sequence) {
	blocks, starts := in[inWindowBlocks], in[inWindowStart]
	each := max(blocks.len(), starts.len()) / max(in[inPositions].len(), 1)
	for i := range max(blocks.len(), starts.len()) {
		block, start := l.zero, beyond
		if row := i / each; row < len(qs) {
			q := qs[row]
			have := l.blocksFor(q.n + 1)
			if at := max(have-each, 0) + i%each; at < have {
				block, start = q.blocks[at], at*l.block
			}
		}
		if i < blocks.len() {
			blocks.set(i, block)
		}
		if i < starts.len() {
			starts.set(i, int32(start))
		}
	}
}

// rows fills the input of a logits plan: n rows from first on.
func (l *layout) rows(in *inputSet, first, n int) {
	for i := range in[inRows].len() {
		row := 0
		if i < n {
			row = first + i
		}
		in[inRows].set(i, int32(row))
	}
}

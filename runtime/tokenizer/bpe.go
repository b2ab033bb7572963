package tokenizer

import "fmt"

// bpe holds what is needed to turn the bytes of a piece into ids.
type bpe struct {
	bytes [256]int32 // the id of each single byte
	// whole has the pieces that are one token whatever the merges would
	// make of them. It may be nil.
	whole  map[string]int32
	merges mergeTable
}

// newBPE makes a model from the tokens that text can become. A vocabulary
// without one of the 256 bytes is refused: text with that byte would have no
// ids.
func newBPE(tokens map[string]int32, wholeFirst bool, merges mergeTable) (*bpe, error) {
	m := &bpe{merges: merges}
	for b := range m.bytes {
		id, ok := tokens[string([]byte{byte(b)})]
		if !ok {
			return nil, fmt.Errorf("the vocabulary has no token for byte 0x%02x, so not all text could be encoded", b)
		}
		m.bytes[b] = id
	}
	if wholeFirst {
		m.whole = tokens
	}
	return m, nil
}

// A mergeTable says which neighbours may become one token.
type mergeTable interface {
	// find looks up two neighbouring tokens, by their ids or by the bytes
	// they have together.
	find(left, right int32, joined string) (merge, bool)
}

// A merge makes one token of two. Lower ranks go first.
type merge struct{ rank, id int32 }

// rankMerges is tiktoken's table: two tokens merge if their bytes together
// are a token, and the token's id is the rank.
type rankMerges map[string]int32

func (m rankMerges) find(_, _ int32, joined string) (merge, bool) {
	id, ok := m[joined]
	return merge{id, id}, ok
}

// pairMerges is a list of merges, by the ids of the two tokens.
type pairMerges map[[2]int32]merge

func (m pairMerges) find(left, right int32, _ string) (merge, bool) {
	found, ok := m[[2]int32{left, right}]
	return found, ok
}

// A merger merges the bytes of a piece. The tokens it has so far form a linked
// list and the possible merges a heap: a piece can be a whole document, where
// scanning the list for every merge would take hours.
type merger struct {
	nodes []node
	queue candidates
}

// A node is a token, found by the place of its first byte in the piece. next
// is the place of the following token, or of the end of the piece, or gone.
type node struct {
	prev, next int
	id         int32
}

const gone = -1

// appendIDs appends the ids of piece.
func (m *merger) appendIDs(ids []int32, model *bpe, piece string) []int32 {
	if id, ok := model.whole[piece]; ok {
		return append(ids, id)
	}
	m.start(model, piece)
	for len(m.queue) > 0 {
		m.apply(model, piece, m.queue.pop())
	}
	for i := 0; i < len(piece); i = m.nodes[i].next {
		ids = append(ids, m.nodes[i].id)
	}
	return ids
}

// start makes a token of every byte.
func (m *merger) start(model *bpe, piece string) {
	m.nodes = m.nodes[:0]
	for i := range len(piece) {
		m.nodes = append(m.nodes, node{prev: i - 1, next: i + 1, id: model.bytes[piece[i]]})
	}
	for i := range len(piece) {
		m.consider(model, piece, i)
	}
}

// consider queues the merge of the token at i with the one after it, if there
// is such a merge.
func (m *merger) consider(model *bpe, piece string, i int) {
	mid := m.nodes[i].next
	if mid == len(piece) {
		return
	}
	right := m.nodes[mid]
	if found, ok := model.merges.find(m.nodes[i].id, right.id, piece[i:right.next]); ok {
		m.queue.push(candidate{merge: found, start: i, end: right.next})
	}
}

// apply carries out a merge, unless one of its tokens has since become part
// of another. The outer bounds tell: boundaries only disappear, so if there
// are still two tokens between these bounds they are the same two.
func (m *merger) apply(model *bpe, piece string, c candidate) {
	left := &m.nodes[c.start]
	mid := left.next
	if mid == gone || mid == len(piece) || m.nodes[mid].next != c.end {
		return
	}
	m.nodes[mid].next = gone
	left.next, left.id = c.end, c.id
	if c.end < len(piece) {
		m.nodes[c.end].prev = c.start
	}
	if left.prev >= 0 {
		m.consider(model, piece, left.prev)
	}
	m.consider(model, piece, c.start)
}

// A candidate is a merge of the two tokens that lie between start and end.
type candidate struct {
	merge
	start, end int
}

// before orders by rank, then from left to right.
func (c candidate) before(o candidate) bool {
	if c.rank != o.rank {
		return c.rank < o.rank
	}
	return c.start < o.start
}

// candidates is a binary heap. container/heap would box every candidate.
type candidates []candidate

func (q *candidates) push(c candidate) {
	*q = append(*q, c)
	h := *q
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !c.before(h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = c
}

func (q *candidates) pop() candidate {
	h := *q
	top, c := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	*q = h
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].before(h[down]) {
			down++
		}
		if !h[down].before(c) {
			break
		}
		h[i] = h[down]
		i = down
	}
	if len(h) > 0 {
		h[i] = c
	}
	return top
}

package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// replacement stands in decoded text for what has no text of its own.
const replacement = string(utf8.RuneError)

// A Tokenizer converts between text and token ids. It never changes after
// loading and may be used by several goroutines at once.
type Tokenizer struct {
	source      string
	pieces      []string // the bytes of each id; "" where no token has the id
	model       *bpe
	split       splitter
	prefixSpace bool // start every stretch of text with a space

	text     []*markerSet // tokens found in any text, in order of precedence
	wire     []*markerSet // the same together with the control tokens
	specials map[string]int32
}

// newTokenizer puts the parts together. The bytes of the added tokens are
// already among pieces.
func newTokenizer(source string, pieces []string, model *bpe, split splitter, prefixSpace bool, added []addedToken) *Tokenizer {
	t := &Tokenizer{
		source:      source,
		pieces:      pieces,
		model:       model,
		split:       split,
		prefixSpace: prefixSpace,
		specials:    make(map[string]int32, len(added)),
	}
	for _, a := range added {
		t.specials[a.text] = a.id
	}
	t.wire = markerSets(added)
	t.text = markerSets(slices.DeleteFunc(slices.Clone(added), func(a addedToken) bool { return a.control }))
	return t
}

// Encode returns the ids of plain text. Control tokens spelled out in it, such
// as "<|end_message|>", are text like any other. Tokens that a tokenizer.json
// adds without calling them special are found in any text, as that format has
// it. Bytes that are not UTF-8 are kept.
func (t *Tokenizer) Encode(text string) []int32 {
	return t.encode(text, t.text)
}

// EncodeWithSpecials returns the ids of text in the wire format: control
// tokens spelled out in the text become their ids. Use it for prompts that
// were rendered, never for text from outside.
func (t *Tokenizer) EncodeWithSpecials(text string) []int32 {
	return t.encode(text, t.wire)
}

// encode looks for the tokens of the first set, and for those of the next
// sets between them.
func (t *Tokenizer) encode(text string, sets []*markerSet) []int32 {
	e := encoder{Tokenizer: t}
	e.segment(text, sets)
	return e.ids
}

// encoder is the state of one encoding. Its buffers serve all pieces of the
// text.
type encoder struct {
	*Tokenizer
	ids    []int32
	merger merger
}

func (e *encoder) segment(text string, sets []*markerSet) {
	if len(sets) == 0 {
		e.plain(text)
		return
	}
	for text != "" {
		start, end, id := sets[0].find(text)
		e.segment(text[:start], sets[1:])
		if end > start {
			e.ids = append(e.ids, id)
		}
		text = text[end:]
	}
}

func (e *encoder) plain(text string) {
	if text == "" {
		return
	}
	if e.prefixSpace && text[0] != ' ' {
		text = " " + text
	}
	for text != "" {
		n := e.split(text)
		e.ids = e.merger.appendIDs(e.ids, e.model, text[:n])
		text = text[n:]
	}
}

// Decode returns the text of ids. Control tokens are spelled out as
// "<|name|>". Bytes that are not UTF-8 become U+FFFD, one for each maximal
// broken sequence, and so does every id outside the vocabulary.
//
// Decode gives back what was encoded, with two exceptions: a tokenizer may put
// a space in front of the text, and a control token with two spellings is
// always written with the first.
func (t *Tokenizer) Decode(ids []int32) string {
	var raw []byte
	for _, id := range ids {
		raw = append(raw, t.piece(id)...)
	}
	if utf8.Valid(raw) {
		return string(raw)
	}
	text, _ := appendText(make([]byte, 0, len(raw)), raw, true)
	return string(text)
}

// piece returns the bytes of one token.
func (t *Tokenizer) piece(id int32) string {
	if id < 0 || int(id) >= len(t.pieces) || t.pieces[id] == "" {
		return replacement
	}
	return t.pieces[id]
}

// Special returns the id of a token that stands beside the text vocabulary,
// by its full spelling: "<|message_user|>".
func (t *Tokenizer) Special(name string) (int32, bool) {
	id, ok := t.specials[name]
	return id, ok
}

// VocabSize returns the number of ids: one more than the highest. A model's
// matrices may have more rows than that.
func (t *Tokenizer) VocabSize() int { return len(t.pieces) }

// Source says what was loaded and from where, for messages.
func (t *Tokenizer) Source() string { return t.source }

// isMarker reports whether s is spelled like a control token, "<|name|>".
// A name has a letter or digit. That keeps out runs of punctuation, which can
// be ordinary tokens of a rank file; the pattern such files are read with lets
// no piece go on after the letters to a second bracket.
func isMarker(s string) bool {
	name, opened := strings.CutPrefix(s, "<|")
	name, closed := strings.CutSuffix(name, "|>")
	if !opened || !closed {
		return false
	}
	alnum := false
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
			alnum = true
		case c <= ' ' || c == '|' || c == '<' || c == '>' || c >= 0x7f:
			return false
		}
	}
	return alnum
}

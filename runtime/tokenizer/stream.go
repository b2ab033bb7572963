package tokenizer

import "unicode/utf8"

// A Stream decodes ids one at a time. A token can hold part of a character;
// the stream keeps such bytes until the rest arrives, so every text it returns
// is valid UTF-8. All texts together, with the one from Flush, are what
// [Tokenizer.Decode] returns for all ids.
type Stream struct {
	t    *Tokenizer
	held []byte // the start of a character
}

// NewStream returns a stream with nothing in it.
func (t *Tokenizer) NewStream() *Stream { return &Stream{t: t} }

// Push takes the next id and returns the text that is now complete, which may
// be empty.
func (s *Stream) Push(id int32) string {
	piece := s.t.piece(id)
	if len(s.held) == 0 && utf8.ValidString(piece) {
		return piece
	}
	s.held = append(s.held, piece...)
	text, rest := appendText(nil, s.held, false)
	s.held = append(s.held[:0], rest...)
	return string(text)
}

// Flush returns U+FFFD for a character whose end did not come, and nothing
// otherwise. The stream is then as new.
func (s *Stream) Flush() string {
	text, _ := appendText(nil, s.held, true)
	s.held = s.held[:0]
	return string(text)
}

// appendText appends raw to dst as valid UTF-8, with U+FFFD for every maximal
// broken sequence. Unless raw is final, a character that may still be
// completed is left over.
func appendText(dst, raw []byte, final bool) (text, rest []byte) {
	for len(raw) > 0 {
		r, n := utf8.DecodeRune(raw)
		if r != utf8.RuneError || n > 1 {
			dst = append(dst, raw[:n]...)
			raw = raw[n:]
			continue
		}
		if !final && !utf8.FullRune(raw) {
			return dst, raw
		}
		dst = append(dst, replacement...)
		raw = raw[brokenLen(raw):]
	}
	return dst, nil
}

// brokenLen returns the length of the broken sequence raw starts with: the
// longest start of some character, or one byte.
func brokenLen(raw []byte) int {
	n := 1
	for n < len(raw) && !utf8.FullRune(raw[:n+1]) {
		n++
	}
	return n
}

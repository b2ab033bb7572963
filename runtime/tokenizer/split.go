package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A splitter returns the length of the first piece of a text that is not
// empty. It is never 0.
type splitter func(text string) int

// The split patterns this package knows, as they are spelled in files.
const (
	gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d` +
		`| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

	o200kPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
		`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// splitterFor returns the scanner that cuts text as the pattern does.
//
// Only known patterns are taken, not any expression: engines differ in what
// they make of the same expression, and a difference would change ids without
// a word. The scanners need no backtracking stack, which a general engine
// fills up on long runs of one kind of character.
func splitterFor(pattern string) (splitter, bool) {
	switch pattern {
	case gpt2Pattern:
		return gpt2Piece, true
	case o200kPattern:
		return o200kPiece, true
	}
	return nil, false
}

// wholePiece does not split.
func wholePiece(text string) int { return len(text) }

// gpt2Piece matches gpt2Pattern.
func gpt2Piece(text string) int {
	if n := contraction(text, false); n > 0 {
		return n
	}
	lead := leadingSpace(text)
	rest := text[lead:]
	switch c := firstClass(rest); {
	case c&letter != 0:
		return lead + span(rest, letter)
	case c&number != 0:
		return lead + span(rest, number)
	case c&space == 0:
		return lead + spanNot(rest, letter|number|space)
	}
	return blanks(text)
}

// o200kPiece matches o200kPattern.
func o200kPiece(text string) int {
	if n := o200kWord(text); n > 0 {
		return n
	}
	if firstClass(text)&number != 0 {
		return atMost(text, number, 3)
	}
	if n := o200kSymbols(text); n > 0 {
		return n
	}
	run := span(text, space)
	if i := strings.LastIndexAny(text[:run], "\r\n"); i >= 0 {
		return i + 1
	}
	return blanks(text)
}

// o200kWord matches the first two alternatives of o200kPattern, or returns 0.
// Each takes one character in front of the word if it can, and does without
// if the word then does not match.
func o200kWord(text string) int {
	lead := 0
	if r, size := utf8.DecodeRuneInString(text); classOf(r)&(letter|number|newline) == 0 {
		lead = size
	}
	for _, word := range [...]splitter{lowerWord, upperWord} {
		n := word(text[lead:])
		if n > 0 {
			n += lead
		} else if lead > 0 {
			n = word(text)
		}
		if n > 0 {
			return n + contraction(text[n:], true)
		}
	}
	return 0
}

// lowerWord matches upper* lower+. The two classes overlap, so if nothing
// lower follows the run of upper ones, the last of the run that is also lower
// ends the word.
func lowerWord(text string) int {
	run := span(text, upper)
	if n := span(text[run:], lower); n > 0 {
		return run + n
	}
	for run > 0 {
		r, size := utf8.DecodeLastRuneInString(text[:run])
		if classOf(r)&lower != 0 {
			return run
		}
		run -= size
	}
	return 0
}

// upperWord matches upper+ lower*.
func upperWord(text string) int {
	run := span(text, upper)
	if run == 0 {
		return 0
	}
	return run + span(text[run:], lower)
}

// o200kSymbols matches punctuation with a space before it and line ends or
// slashes after it, or returns 0.
func o200kSymbols(text string) int {
	n := leadingSpace(text)
	run := spanNot(text[n:], letter|number|space)
	if run == 0 {
		return 0
	}
	n += run
	for n < len(text) && strings.IndexByte("\r\n/", text[n]) >= 0 {
		n++
	}
	return n
}

// blanks matches \s+(?!\S)|\s+: all of a run of white space that ends the
// text, otherwise all but its last character, which goes with the word that
// follows, unless there is only that one.
func blanks(text string) int {
	run := span(text, space)
	if run == len(text) {
		return run
	}
	_, size := utf8.DecodeLastRuneInString(text[:run])
	if run > size {
		return run - size
	}
	return run
}

// contraction matches 's, 't, 're, 've, 'm, 'll or 'd, or returns 0.
func contraction(text string, anyCase bool) int {
	tail, ok := strings.CutPrefix(text, "'")
	if !ok {
		return 0
	}
	for _, end := range [...]string{"s", "t", "re", "ve", "m", "ll", "d"} {
		if strings.HasPrefix(tail, end) || anyCase && len(tail) >= len(end) && strings.EqualFold(tail[:len(end)], end) {
			return 1 + len(end)
		}
	}
	// The long s is the one letter outside ASCII that folds into one of these.
	if anyCase && strings.HasPrefix(tail, "ſ") {
		return 1 + len("ſ")
	}
	return 0
}

// leadingSpace returns 1 if text starts with a space and goes on.
func leadingSpace(text string) int {
	if len(text) > 1 && text[0] == ' ' {
		return 1
	}
	return 0
}

// A class is a set of properties of a character. The names are those the
// patterns' classes have here.
type class uint8

const (
	upper   class = 1 << iota // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	lower                     // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	letter                    // \p{L}
	number                    // \p{N}
	space                     // \s
	newline                   // [\r\n]
)

func classOf(r rune) class {
	if r < utf8.RuneSelf {
		return asciiClass(r)
	}
	switch {
	case unicode.In(r, unicode.Lo, unicode.Lm):
		return letter | upper | lower
	case unicode.Is(unicode.Ll, r):
		return letter | lower
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return letter | upper
	case unicode.Is(unicode.M, r):
		return upper | lower
	case unicode.Is(unicode.N, r):
		return number
	case unicode.Is(unicode.White_Space, r):
		return space
	}
	return 0
}

func asciiClass(r rune) class {
	switch {
	case 'a' <= r && r <= 'z':
		return letter | lower
	case 'A' <= r && r <= 'Z':
		return letter | upper
	case '0' <= r && r <= '9':
		return number
	case r == '\r' || r == '\n':
		return space | newline
	case r == ' ' || '\t' <= r && r <= '\r':
		return space
	}
	return 0
}

func firstClass(text string) class {
	r, _ := utf8.DecodeRuneInString(text)
	return classOf(r)
}

// span returns the length of the run of characters that have one of the
// properties in c.
func span(text string, c class) int {
	for i, r := range text {
		if classOf(r)&c == 0 {
			return i
		}
	}
	return len(text)
}

// spanNot returns the length of the run of characters that have none of the
// properties in c.
func spanNot(text string, c class) int {
	for i, r := range text {
		if classOf(r)&c != 0 {
			return i
		}
	}
	return len(text)
}

// atMost is span for the first few characters.
func atMost(text string, c class, count int) int {
	for i, r := range text {
		if count == 0 || classOf(r)&c == 0 {
			return i
		}
		count--
	}
	return len(text)
}

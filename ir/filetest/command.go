package filetest

import (
	"errors"
	"strings"
)

var (
	errEmptyCommand = errors.New("RUN needs a command")
	errOpenQuote    = errors.New("quote is not closed")
	errOpenNote     = errors.New("a note in parentheses must end the line; quote an argument that begins with '('")
)

// parseRun reads the text of a RUN directive.
func parseRun(d Directive) (Run, error) {
	words, err := splitWords(d.Text)
	if err != nil {
		return Run{}, d.syntaxError(0, "%v", err)
	}
	if len(words) == 0 || words[0] == "" {
		return Run{}, d.syntaxError(0, "%v", errEmptyCommand)
	}
	return Run{Line: d.Line, Text: d.Text, Name: words[0], Args: words[1:]}, nil
}

// splitWords splits a command line into words as a shell would, dropping the
// note at its end.
func splitWords(s string) ([]string, error) {
	var words []string
	for {
		s = strings.TrimLeft(s, blanks)
		if s == "" {
			return words, nil
		}
		if s[0] == '(' {
			return words, checkNote(s)
		}
		word, rest, err := nextWord(s)
		if err != nil {
			return nil, err
		}
		words = append(words, word)
		s = rest
	}
}

// checkNote makes sure that the note reaches to the end of the line, lest
// arguments after it be dropped.
func checkNote(s string) error {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
		if depth == 0 && i < len(s)-1 {
			return errOpenNote
		}
	}
	if depth != 0 {
		return errOpenNote
	}
	return nil
}

// nextWord reads one word, which may be made of several quoted and unquoted
// parts.
func nextWord(s string) (word, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case strings.IndexByte(blanks, c) >= 0:
			return b.String(), s[i:], nil
		case c == '\'' || c == '"':
			end, err := quoted(&b, s, i)
			if err != nil {
				return "", "", err
			}
			i = end
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), "", nil
}

// quoted appends the quoted text that opens at an offset, and returns the
// offset of the quote that closes it. Within double quotes a backslash quotes
// the quote and itself; before anything else it is kept, so that patterns need
// no doubling.
func quoted(b *strings.Builder, s string, open int) (int, error) {
	for i := open + 1; i < len(s); i++ {
		switch {
		case s[i] == s[open]:
			return i, nil
		case s[open] == '"' && s[i] == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\'):
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(s[i])
		}
	}
	return 0, errOpenQuote
}

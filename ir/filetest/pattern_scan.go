package filetest

import (
	"regexp"
	"strings"
)

// patternScanner splits the text of a CHECK directive into items.
type patternScanner struct {
	d       Directive
	items   []item
	defined map[string]bool
	pos     int
}

var (
	variableName = regexp.MustCompile(`^\$?[A-Za-z_][A-Za-z0-9_]*`)
	blankRun     = regexp.MustCompile(`[ \t\r]+`)
)

// canonical reduces every run of blanks to one space.
func canonical(s string) string { return blankRun.ReplaceAllString(s, " ") }

func (s *patternScanner) scan() error {
	for s.pos < len(s.d.Text) {
		if err := s.next(); err != nil {
			return err
		}
	}
	return nil
}

// next reads one item, or one byte of a literal.
func (s *patternScanner) next() error {
	rest := s.d.Text[s.pos:]
	switch {
	case strings.HasPrefix(rest, "{{"):
		return s.regex()
	case strings.HasPrefix(rest, "[[") && startsVariable(rest[2:]):
		return s.variable()
	}
	s.literal(rest[0])
	s.pos++
	return nil
}

// startsVariable keeps nested lists, such as [[1, 2], [3, 4]], literal.
func startsVariable(rest string) bool {
	return rest != "" && (variableName.MatchString(rest) || strings.IndexByte("$#@", rest[0]) >= 0)
}

// literal appends a byte to the literal text at the end of the items. A run of
// blanks becomes one space.
func (s *patternScanner) literal(c byte) {
	if strings.IndexByte(blanks, c) >= 0 {
		c = ' '
	}
	n := len(s.items)
	if n == 0 || s.items[n-1].kind != literalItem {
		s.items = append(s.items, item{kind: literalItem})
		n++
	}
	last := &s.items[n-1]
	if c == ' ' && strings.HasSuffix(last.text, " ") {
		return
	}
	last.text += string([]byte{c})
}

// regex reads {{regex}}.
func (s *patternScanner) regex() error {
	text, err := s.enclosed(s.pos+2, "}}")
	if err != nil {
		return err
	}
	s.items = append(s.items, item{kind: regexItem, text: text})
	return nil
}

// variable reads [[NAME]] or [[NAME:regex]].
func (s *patternScanner) variable() error {
	start := s.pos + 2
	name := variableName.FindString(s.d.Text[start:])
	if name == "" {
		return s.d.syntaxError(start, "a variable's name is a letter or '_' followed by letters, digits or '_', after '$' if it outlives labels")
	}
	rest := s.d.Text[start+len(name):]
	switch {
	case strings.HasPrefix(rest, "]]"):
		s.items = append(s.items, item{kind: useItem, name: name, back: s.defined[name]})
		s.pos = start + len(name) + 2
		return nil
	case !strings.HasPrefix(rest, ":"):
		return s.d.syntaxError(start+len(name), "expected ':' or ']]' after the variable's name")
	case s.defined[name]:
		return s.d.syntaxError(start, "the line defines %s twice", name)
	}
	text, err := s.enclosed(start+len(name)+1, "]]")
	if err != nil {
		return err
	}
	s.defined[name] = true
	s.items = append(s.items, item{kind: defineItem, name: name, text: text})
	return nil
}

// enclosed reads a regex up to the marker that closes it.
func (s *patternScanner) enclosed(start int, closing string) (string, error) {
	end := regexEnd(s.d.Text, start, closing)
	if end < 0 {
		return "", s.d.syntaxError(s.pos, "%q is not closed by %q", s.d.Text[s.pos:s.pos+2], closing)
	}
	text := canonical(s.d.Text[start:end])
	if text == "" {
		return "", s.d.syntaxError(start, "the regex is empty")
	}
	if _, err := regexp.Compile(text); err != nil {
		return "", s.d.syntaxError(start, "%v", err)
	}
	s.pos = end + len(closing)
	return text, nil
}

// regexEnd returns the offset of the marker that closes the regex starting at
// an offset, or -1. A marker does not count within a bracket expression or
// where its first brace ends a repetition: x{2}}} is x{2} and a marker.
func regexEnd(s string, start int, closing string) int {
	depth := 0
	for i := start; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case depth == 0 && strings.HasPrefix(s[i:], closing):
			return i
		case c == '{':
			depth++
		case c == '}' && depth > 0:
			depth--
		case c == '[':
			if i = classEnd(s, i); i < 0 {
				return -1
			}
		}
	}
	return -1
}

// classEnd returns the offset of the ']' that closes the bracket expression
// opening at an offset, or -1. A ']' that comes first belongs to it, as does
// one that closes a named class, as in [[:alpha:]].
func classEnd(s string, open int) int {
	i := open + 1
	if i < len(s) && s[i] == '^' {
		i++
	}
	for first := i; i < len(s); i++ {
		switch {
		case s[i] == '\\':
			i++
		case strings.HasPrefix(s[i:], "[:"):
			if n := strings.Index(s[i:], ":]"); n >= 0 {
				i += n + 1
			}
		case s[i] == ']' && i > first:
			return i
		}
	}
	return -1
}

package header

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/participle/v2/lexer"
)

// Error is what is wrong with a header, with its place.
type Error struct {
	File      string
	Line, Col int // from 1; 0 where no place is known
	Msg       string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Msg)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Col, e.Msg)
}

func errorAt(p lexer.Position, format string, args ...any) *Error {
	return &Error{p.Filename, p.Line, p.Column, fmt.Sprintf(format, args...)}
}

// source is a header that is preprocessed: text without comments, directives and lines
// that are switched off, which are blanks, so that places stay what they were.
type source struct {
	file   string
	text   []byte
	macros map[string]*macro
	// include gives the text of a file that is named, nil if there is none.
	include func(name string) []byte
	inner   []*source // those included, in order, with those that they include before them
	// on tells for each open #if whether its lines count, done whether a branch did, and
	// last whether its #else was there.
	on, done, last []bool
	opened         []lexer.Position
	expanded       int // macros so far
}

// macro is a macro with its place. The body of one like an object is evaluated where it
// is used; one like a function may only assert.
type macro struct {
	at       lexer.Position
	body     string
	function bool
}

var directive = regexp.MustCompile(`^[ \t]*#[ \t]*([a-z_]*)[ \t]*(.*?)[ \t\r]*$`)

// predefined are the macros that every header sees.
func predefined() map[string]*macro {
	return map[string]*macro{"__cplusplus": {body: "201703"}, "__x86_64__": {body: "1"}, "__linux__": {body: "1"}}
}

func preprocess(file string, src []byte, macros map[string]*macro, include func(string) []byte) (*source, error) {
	s := &source{file: file, text: slices.Clone(src), macros: macros, include: include}
	if err := s.blankComments(); err != nil {
		return nil, err
	}
	for at, line := 0, 1; at < len(s.text); {
		end := at             // of the line with those that continue it
		lines, begin := 1, at // begin is that of the last one
		for ; end < len(s.text); end++ {
			if s.text[end] != '\n' {
				continue
			}
			if line := bytes.TrimRight(s.text[begin:end], " \t\r"); !bytes.HasSuffix(line, []byte(`\`)) {
				break
			}
			lines, begin = lines+1, end+1
		}
		if err := s.line(s.text[at:end], lexer.Position{Filename: file, Offset: at, Line: line, Column: 1}); err != nil {
			return nil, err
		}
		at, line = end+1, line+lines
	}
	if n := len(s.opened); n > 0 {
		return nil, errorAt(s.opened[n-1], "this #if has no #endif")
	}
	return s, nil
}

func blank(b []byte) {
	for i, c := range b {
		if c != '\n' {
			b[i] = ' '
		}
	}
}

// blankComments makes blanks of comments, but not in strings and characters.
func (s *source) blankComments() error {
	b := s.text
	for i := 0; i < len(b); i++ {
		switch rest := string(b[i:min(i+2, len(b))]); {
		case rest == "//":
			end := i
			for end < len(b) && b[end] != '\n' {
				end++
			}
			blank(b[i:end])
			i = end
		case rest == "/*":
			n := bytes.Index(b[i+2:], []byte("*/"))
			if n < 0 {
				return errorAt(s.pos(i), "this comment does not end")
			}
			blank(b[i : i+n+4])
			i += n + 3
		case b[i] == '"' || b[i] == '\'' && (i == 0 || !isWord(b[i-1])): // not 1'000
			end := i + 1
			for end < len(b) && b[end] != b[i] && b[end] != '\n' {
				if b[end] == '\\' {
					end++
				}
				end++
			}
			i = end
		}
	}
	return nil
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func (s *source) pos(offset int) lexer.Position {
	before := string(s.text[:offset])
	line := strings.Count(before, "\n") + 1
	return lexer.Position{Filename: s.file, Offset: offset, Line: line, Column: offset - strings.LastIndexByte(before, '\n')}
}

// active reports whether lines count.
func (s *source) active() bool {
	for _, on := range s.on {
		if !on {
			return false
		}
	}
	return true
}

// line executes a directive, or blanks a line that does not count.
func (s *source) line(b []byte, at lexer.Position) error {
	joined := strings.ReplaceAll(strings.ReplaceAll(string(b), "\\\r\n", " "), "\\\n", " ")
	m := directive.FindStringSubmatch(joined)
	if m == nil {
		if !s.active() {
			blank(b)
		}
		return nil
	}
	at.Column += strings.IndexByte(joined, '#')
	blank(b)
	return s.directive(m[1], m[2], at)
}

func (s *source) directive(name, rest string, at lexer.Position) error {
	n := len(s.on) - 1
	switch name {
	case "if", "ifdef", "ifndef":
		cond := false
		if s.active() {
			var err error
			if cond, err = s.condition(name, rest, at); err != nil {
				return err
			}
		}
		s.on, s.done, s.last, s.opened = append(s.on, cond), append(s.done, cond), append(s.last, false), append(s.opened, at)
		return nil
	case "elif", "else":
		if n < 0 || s.last[n] {
			return errorAt(at, "#%s without #if", name)
		}
		s.on[n] = true // asks only for what is around it
		cond := !s.done[n] && s.active()
		if cond && name == "elif" {
			var err error
			if cond, err = s.condition("if", rest, at); err != nil {
				return err
			}
		}
		s.on[n], s.done[n], s.last[n] = cond, s.done[n] || cond, name == "else"
		return nil
	case "endif":
		if n < 0 {
			return errorAt(at, "#endif without #if")
		}
		s.on, s.done, s.last, s.opened = s.on[:n], s.done[:n], s.last[:n], s.opened[:n]
		return nil
	}
	if !s.active() {
		return nil
	}
	switch name {
	case "define":
		if !identifier.MatchString(rest) {
			return errorAt(at, "#define without a name")
		}
		s.define(rest, at)
	case "undef":
		delete(s.macros, rest)
	case "error":
		return errorAt(at, "#error %s", rest)
	case "pragma":
		if strings.HasPrefix(rest, "pack") {
			return errorAt(at, "#pragma pack is not supported: layouts are those of natural alignment")
		}
	case "include":
		return s.included(strings.Trim(rest, `"<>`), at)
	case "warning", "line", "":
	default:
		return errorAt(at, "unknown directive #%s", name)
	}
	return nil
}

func (s *source) define(text string, at lexer.Position) {
	name := identifier.FindString(text)
	m := &macro{at: at, body: text[len(name):]}
	if m.function = strings.HasPrefix(m.body, "("); m.function {
		m.body = m.body[parens([]byte(m.body)):]
	}
	m.body = strings.TrimSpace(m.body)
	s.macros[name] = m
}

// maxIncluded bounds how many files headers include.
const maxIncluded = 64

func (s *source) included(name string, at lexer.Position) error {
	text := s.include(name)
	if text == nil {
		return nil // what it would define is missed where it is needed
	}
	once := "#include " + name // each counts once, as if it had a guard
	if _, ok := s.macros[once]; ok {
		return nil
	}
	if s.macros[once] = (&macro{at: at}); len(s.macros) > 1<<16 || len(s.inner) > maxIncluded {
		return errorAt(at, "too many files are included")
	}
	in, err := preprocess(name, text, s.macros, s.include)
	if err != nil {
		return err
	}
	s.inner = append(append(s.inner, in.inner...), in)
	return nil
}

var (
	defined    = regexp.MustCompile(`\bdefined\s*(?:\(\s*([A-Za-z_]\w*)\s*\)|([A-Za-z_]\w*))`)
	word       = regexp.MustCompile(`\b[A-Za-z_]\w*\b`)
	attribute  = regexp.MustCompile(`\[\[[^\[\]]*\]\]`)
	identifier = regexp.MustCompile(`^[A-Za-z_]\w*`)
)

// condition evaluates that of an #if. Names that are no macros are 0.
func (s *source) condition(kind, rest string, at lexer.Position) (bool, error) {
	if kind != "if" {
		_, ok := s.macros[rest]
		return ok == (kind == "ifdef"), nil
	}
	digit := map[bool]string{true: "1", false: "0"}
	text := defined.ReplaceAllStringFunc(rest, func(m string) string {
		g := defined.FindStringSubmatch(m)
		_, ok := s.macros[g[1]+g[2]]
		return digit[ok]
	})
	names := constants{lookup: func(name string) (*number, error) {
		if m, ok := s.macros[name]; ok {
			return s.expand(m, nil)
		}
		return &number{}, nil
	}}
	v, err := names.text(text, at)
	if err != nil {
		return false, errorAt(at, "#if %s: %v", rest, err)
	}
	return v.truth(), nil
}

// maxExpanded bounds how often macros are evaluated.
const maxExpanded = 1 << 16

// expand evaluates a macro that stands for a number; seen are those around it.
func (s *source) expand(m *macro, seen []*macro) (*number, error) {
	if s.expanded++; s.expanded > maxExpanded {
		return nil, errors.New("macros expand to too much")
	}
	for _, o := range seen {
		if o == m {
			return nil, fmt.Errorf("the macro at line %d stands for itself", m.at.Line)
		}
	}
	names := constants{lookup: func(name string) (*number, error) {
		if inner, ok := s.macros[name]; ok {
			return s.expand(inner, append(seen, m))
		}
		return nil, fmt.Errorf("%s is not known", name)
	}}
	return names.text(m.body, m.at)
}

// tokens is the text without macros that stand for nothing or only assert. Those like
// functions that do more are left for the grammar to refuse; others must be expressions,
// since what is around their text could be read otherwise without it.
func (s *source) tokens() ([]byte, error) {
	b := slices.Clone(s.text)
	for _, at := range attribute.FindAllIndex(b, -1) {
		if !bytes.Contains(b[at[0]:at[1]], []byte("no_unique_address")) { // no other changes layouts
			blank(b[at[0]:at[1]])
		}
	}
	for _, at := range word.FindAllIndex(b, -1) {
		name := string(b[at[0]:at[1]])
		m, ok := s.macros[name]
		switch {
		case !ok:
		case m.body == "" || m.function && strings.HasPrefix(m.body, "static_assert"):
			end := at[1]
			if m.function {
				end += parens(b[end:])
			}
			blank(b[at[0]:end])
		case !m.function:
			if _, err := exprParser.ParseString(s.file, m.body); err != nil {
				return nil, errorAt(s.pos(at[0]), "macro %s stands for %q, which is no expression: such macros are not expanded", name, m.body)
			}
		}
	}
	return b, nil
}

// parens is the length of what is in parentheses, with blanks before it.
func parens(b []byte) int {
	depth := 0
	for i, c := range b {
		switch {
		case c == '(':
			depth++
		case c == ')' && depth > 1:
			depth--
		case c == ')' && depth == 1:
			return i + 1
		case depth == 0 && c != ' ' && c != '\t' && c != '\n' && c != '\r':
			return 0
		}
	}
	return 0
}

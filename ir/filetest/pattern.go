package filetest

import (
	"fmt"
	"regexp"
	"strings"
)

// pattern is the text of a CHECK directive, taken apart.
type pattern struct {
	Directive
	items []item
}

// itemKind says what a part of a pattern is.
type itemKind int

const (
	literalItem itemKind = iota
	regexItem
	defineItem
	useItem
)

// item is a part of a pattern.
type item struct {
	kind itemKind
	// text is the literal text or the regex.
	text string
	// name is the variable defined or used.
	name string
	// back is set on a use of a variable that the same line defines.
	back bool
}

// compile takes the text of a CHECK directive apart.
func compile(d Directive) (*pattern, error) {
	p := &pattern{Directive: d}
	s := patternScanner{d: d, defined: map[string]bool{}}
	if err := s.scan(); err != nil {
		return nil, err
	}
	p.items = s.items
	if err := p.validate(); err != nil {
		return nil, err
	}
	return p, nil
}

// validate refuses what only a look at the whole pattern shows.
func (p *pattern) validate() error {
	if p.Kind == KindCheckEmpty {
		if p.Text != "" {
			return p.syntaxError(0, "CHECK-EMPTY takes no text")
		}
		return nil
	}
	if p.Text == "" {
		return p.syntaxError(0, "%s needs a text", p.Name())
	}
	if p.Kind == KindCheckCount && (p.Count < 1 || p.Count > maxCount) {
		return p.syntaxError(0, "the count must be between 1 and %d", maxCount)
	}
	if p.Kind == KindCheckLabel && p.hasVariables() {
		return p.syntaxError(0, "CHECK-LABEL cannot hold variables")
	}
	// Each regex is valid by itself, but together they can be too large, and
	// the text between them may not be UTF-8.
	if _, err := p.program(bindings{}); err != nil {
		return p.syntaxError(0, "%v", err)
	}
	return nil
}

func (p *pattern) hasVariables() bool {
	for _, it := range p.items {
		if it.name != "" {
			return true
		}
	}
	return false
}

// undefined returns a variable that the pattern uses and nothing defines.
func (p *pattern) undefined(vars map[string]string) (string, bool) {
	for _, it := range p.items {
		if _, ok := vars[it.name]; it.kind == useItem && !it.back && !ok {
			return it.name, true
		}
	}
	return "", false
}

// bindings are the values of a pattern's variables. Outer values come from
// earlier lines. Inner ones are guesses at what this line defines, needed when
// the line also uses it.
type bindings struct{ outer, inner map[string]string }

// use returns the regex for a variable's value. What this line defines is any
// text as long as there is no guess.
func (b bindings) use(it item) string {
	if !it.back {
		return regexp.QuoteMeta(b.outer[it.name])
	}
	value, ok := b.inner[it.name]
	if !ok {
		return "(?s:.*)"
	}
	return regexp.QuoteMeta(value)
}

// program is a pattern ready to search a line.
type program struct {
	// atStart searches a line from its start.
	atStart *regexp.Regexp
	// after searches from some way into a line. It is given the character
	// before as well, so that ^ does not hold in the middle of a line and \b
	// sees what it stands between.
	after *regexp.Regexp
	// defines maps capture groups to the variables they define.
	defines map[string]string
}

// wholeGroup names the capture group of the match itself.
const wholeGroup = "quill_match"

// program translates the pattern to regular expressions.
func (p *pattern) program(b bindings) (*program, error) {
	var source strings.Builder
	defines := map[string]string{}
	for i, it := range p.items {
		switch it.kind {
		case literalItem:
			source.WriteString(regexp.QuoteMeta(it.text))
		case regexItem:
			fmt.Fprintf(&source, "(?:%s)", it.text)
		case useItem:
			source.WriteString(b.use(it))
		case defineItem:
			group := fmt.Sprintf("quill_%d", i)
			defines[group] = it.name
			text := it.text
			if value, ok := b.inner[it.name]; ok {
				text = regexp.QuoteMeta(value)
			}
			fmt.Fprintf(&source, "(?P<%s>%s)", group, text)
		}
	}
	return newProgram(source.String(), defines)
}

func newProgram(source string, defines map[string]string) (*program, error) {
	whole := fmt.Sprintf("(?P<%s>%s)", wholeGroup, source)
	atStart, err := regexp.Compile(whole)
	if err != nil {
		return nil, err
	}
	after, err := regexp.Compile(`^(?s:.)(?s:.*?)` + whole)
	if err != nil {
		return nil, err
	}
	return &program{atStart: atStart, after: after, defines: defines}, nil
}

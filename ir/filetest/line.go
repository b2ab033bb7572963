package filetest

import (
	"regexp"
	"strings"
)

// lineClass says what a line of a test file is.
type lineClass int

const (
	blankLine lineClass = iota
	sourceLine
	commentLine
	separatorLine
	outputLine
)

// line is a classified line of a test file.
type line struct {
	number int
	class  lineClass
	raw    string
	// comment is the comment's text without ';' and blanks around it, and col
	// the column where that text begins. On a line without a comment, col is 0.
	comment string
	col     int
}

var (
	separatorPattern = regexp.MustCompile(`^;[ \t]*-{5,}$`)
	// nearSeparator is a separator with too few dashes.
	nearSeparator = regexp.MustCompile(`^;[ \t]*-{3,4}$`)
)

const blanks = " \t\r"

// outputMark begins a line of an OUTPUT block.
const outputMark = ";|"

// classify finds out what a line is and where its comment begins.
func classify(number int, raw string) line {
	l := line{number: number, raw: raw}
	trimmed := strings.Trim(raw, blanks)
	switch {
	case trimmed == "":
		return l
	case separatorPattern.MatchString(trimmed):
		l.class = separatorLine
		return l
	case strings.HasPrefix(trimmed, outputMark):
		l.class = outputLine
		return l
	case trimmed[0] == ';':
		l.class = commentLine
		l.setComment(strings.IndexByte(raw, ';'))
		return l
	}
	l.class = sourceLine
	if at := commentStart(raw); at >= 0 {
		l.setComment(at)
	}
	return l
}

// setComment records the comment whose first ';' is at an offset of the line.
func (l *line) setComment(at int) {
	text := strings.TrimLeft(l.raw[at:], ";"+blanks)
	l.col = len(l.raw) - len(text) + 1
	l.comment = strings.TrimRight(text, blanks)
}

// commentStart returns the offset of the ';' that starts the line's comment,
// or -1. A ';' within a double-quoted string does not start one.
func commentStart(s string) int {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '\\' && quoted:
			i++
		case s[i] == ';' && !quoted:
			return i
		}
	}
	return -1
}

package filetest

import (
	"errors"
	"regexp"
	"strings"
)

// Parse reads a test file. Its error, if any, joins a [SyntaxError] for every
// mistake found.
func Parse(path, text string) (*File, error) {
	p := &parser{file: &File{Path: path, lines: strings.Split(text, "\n")}}
	p.open(1)
	for i, raw := range p.file.lines {
		p.line(classify(i+1, raw))
	}
	p.close(len(p.file.lines))
	if len(p.file.Cases) == 0 && len(p.errs) == 0 {
		p.fail(1, 1, "the file holds no case")
	}
	if err := errors.Join(p.errs...); err != nil {
		return nil, err
	}
	return p.file, nil
}

// parser splits a file into sections, each of which becomes a case.
type parser struct {
	file *File
	// runs are the commands of the file's header.
	runs []Run
	errs []error

	sec section
	// first is true within the first section, whose RUN lines are the file's.
	first bool
	begun bool
}

// section is the part of a file between two separators, as far as it was read.
type section struct {
	c    Case
	desc describer
	runs []Run
	// lastSource is the last line of source, 0 before the first.
	lastSource int
	// expects is set by any directive but RUN.
	expects bool
	// inOutput is set while the lines of an OUTPUT block are read.
	inOutput bool
	// waiting counts the ERROR lines at the end of c.Errors that refer to the
	// next line of source.
	waiting int
}

// fail records a mistake.
func (p *parser) fail(line, col int, msg string) {
	p.errs = append(p.errs, &SyntaxError{Path: p.file.Path, Line: line, Col: col, Msg: msg})
}

// check records a mistake if there is one.
func (p *parser) check(err error) {
	if err != nil {
		p.errs = append(p.errs, err)
	}
}

// open starts a section at a line.
func (p *parser) open(start int) {
	p.sec = section{c: Case{File: p.file.Path, StartLine: start}}
	p.first = !p.begun
	p.begun = true
}

// close ends the section whose last line is given.
func (p *parser) close(end int) {
	s := &p.sec
	if p.first {
		p.runs = s.runs
	}
	if s.lastSource == 0 {
		// Only a header, or a file that is empty altogether, goes without.
		if !p.first || s.expects {
			p.fail(s.c.StartLine, 1, "the case holds no source")
		}
		return
	}
	p.file.Cases = append(p.file.Cases, p.finish(end))
}

// finish completes the case of the current section.
func (p *parser) finish(end int) *Case {
	s := &p.sec
	c := s.c
	c.Src = strings.Join(p.file.lines[c.StartLine-1:end], "\n")
	if end < len(p.file.lines) {
		c.Src += "\n"
	}
	c.Runs = s.runs
	if len(c.Runs) == 0 {
		c.Runs = p.runs
	}
	for i := range s.waiting {
		c.Errors[len(c.Errors)-1-i].After = s.lastSource
	}
	c.Description = s.desc.sentence()
	c.Name = caseName(len(p.file.Cases)+1, c.Description)
	p.validate(&c)
	return &c
}

// line adds a line to the current section, or ends it.
func (p *parser) line(l line) {
	if l.class != outputLine {
		p.sec.inOutput = false
	}
	switch l.class {
	case blankLine:
		p.sec.desc.interrupt()
	case separatorLine:
		p.close(l.number - 1)
		p.open(l.number + 1)
	case outputLine:
		p.outputLine(l)
	case commentLine:
		p.comment(l)
	case sourceLine:
		p.source(l)
	}
}

// comment reads a line that is nothing but a comment.
func (p *parser) comment(l line) {
	h, ok := parseHeader(l.comment)
	if !ok {
		p.prose(l)
		return
	}
	p.sec.desc.interrupt()
	d := directive(p.file.Path, l, h)
	p.sec.expects = p.sec.expects || d.Kind != KindRunCommand
	switch {
	case d.Kind == KindError:
		p.expectError(d, h.col, 0)
		p.sec.waiting++
	case d.Kind == KindOutput:
		p.openOutput(l, d)
	default:
		p.add(d)
	}
}

// prose reads a comment that is not a directive, and makes sure that it was
// not meant to be one.
func (p *parser) prose(l line) {
	if nearSeparator.MatchString(strings.Trim(l.raw, blanks)) {
		p.fail(l.number, l.col, "a separator of cases has at least five dashes")
		return
	}
	if why := suspicion(l.comment); why != "" {
		p.fail(l.number, l.col, why)
		return
	}
	p.sec.desc.prose(l.comment)
}

// source reads a line of source and the comment at its end.
func (p *parser) source(l line) {
	s := &p.sec
	s.lastSource = l.number
	s.desc.source()
	for i := range s.waiting {
		s.c.Errors[len(s.c.Errors)-1-i].Target = l.number
	}
	s.waiting = 0
	p.trailing(l)
}

// errorStart matches where an ERROR begins within the comment of a line of
// source.
var errorStart = regexp.MustCompile(`(?:^|;)[ \t]*ERROR(?:@[1-9][0-9]{0,5})?:`)

// trailing reads the comment at the end of a line of source: any number of
// ERROR directives, after prose if there is some.
func (p *parser) trailing(l line) {
	starts := errorStart.FindAllStringIndex(l.comment, -1)
	prose := l.comment
	if len(starts) > 0 {
		prose = l.comment[:starts[0][0]]
	}
	p.trailingProse(l, prose)
	for i, start := range starts {
		end := len(l.comment)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		part := l
		part.comment = strings.TrimLeft(l.comment[start[0]:end], ";"+blanks)
		part.col += end - len(part.comment)
		part.comment = strings.TrimRight(part.comment, blanks)
		h, _ := parseHeader(part.comment)
		p.sec.expects = true
		p.expectError(directive(p.file.Path, part, h), h.col, l.number)
	}
}

// trailingProse refuses directives at the end of a line of source, where a
// reader would not look for them.
func (p *parser) trailingProse(l line, text string) {
	if h, ok := parseHeader(text); ok {
		p.fail(l.number, l.col, h.kind.String()+" must stand on a line of its own")
	} else if why := suspicion(text); why != "" {
		p.fail(l.number, l.col, why)
	}
}

// directive makes a directive of a comment and its header.
func directive(path string, l line, h header) Directive {
	text := strings.TrimLeft(l.comment[h.length:], blanks)
	return Directive{
		Kind: h.kind, Count: h.count, Text: text,
		File: path, Line: l.number, Col: l.col + len(l.comment) - len(text),
	}
}

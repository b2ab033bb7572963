package filetest

import (
	"errors"
	"maps"
	"strings"
)

// Check matches CHECK directives against a command's output, as the package
// comment describes. The error is nil if all hold. Otherwise it joins a
// [CheckError] for the first failure of each label's block, or the
// [SyntaxError]s of the directives.
func Check(directives []Directive, output string) error {
	patterns, err := compileAll(directives)
	if err != nil || len(patterns) == 0 {
		return err
	}
	if strings.TrimSpace(output) == "" {
		// CHECK-NOT would hold for a command that did nothing at all.
		return &CheckError{Directive: directives[0], Msg: "the output is empty"}
	}
	e := &engine{lines: canonicalLines(output), vars: map[string]string{}}
	blocks, err := e.partition(patterns)
	errs := []error{err}
	for _, b := range blocks {
		errs = append(errs, e.check(b))
	}
	return errors.Join(errs...)
}

// validateChecks finds the mistakes in directives that show without output.
func validateChecks(directives []Directive) error {
	_, err := compileAll(directives)
	return err
}

// compileAll compiles the directives in order.
func compileAll(directives []Directive) ([]*pattern, error) {
	var patterns []*pattern
	var errs []error
	placed := false // some line above says where the next one is
	for _, d := range directives {
		if !d.Kind.isCheck() {
			errs = append(errs, d.syntaxError(0, "%s is not matched against output", d.Name()))
			continue
		}
		if d.Kind.needsPrevious() && !placed {
			errs = append(errs, d.syntaxError(0, "%s needs a line above it that matches something", d.Name()))
			placed = true // one complaint will do
		}
		placed = placed || d.Kind != KindCheckNot
		p, err := compile(d)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		patterns = append(patterns, p)
	}
	return patterns, errors.Join(errs...)
}

// canonicalLines splits output into lines and reduces blanks.
func canonicalLines(output string) []string {
	lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(canonical(line), " ")
	}
	return lines
}

// engine matches patterns against lines of output.
type engine struct {
	lines []string
	vars  map[string]string
}

// point is a place in the output: a line from 0 and a byte offset within it.
type point struct{ line, col int }

func (p point) before(q point) bool {
	return p.line < q.line || p.line == q.line && p.col < q.col
}

// match is where a pattern matched.
type match struct {
	hit
	line int
}

func (m match) from() point { return point{m.line, m.start} }
func (m match) to() point   { return point{m.line, m.end} }

// eof is the end of the output.
func (e *engine) eof() point { return point{line: len(e.lines)} }

// block is a label's checks and the part of the output they see.
type block struct {
	checks   []*pattern
	from, to point
}

// partition locates the labels and splits checks and output at them. After a
// label that is not found no block can be delimited, so those before it are
// all it returns.
func (e *engine) partition(patterns []*pattern) ([]block, error) {
	var blocks []block
	current := block{}
	for _, p := range patterns {
		if p.Kind != KindCheckLabel {
			current.checks = append(current.checks, p)
			continue
		}
		m, err := e.locate(p, current.from, e.eof())
		if err != nil {
			return blocks, err
		}
		current.to = m.from()
		blocks = append(blocks, current)
		current = block{from: m.to()}
	}
	current.to = e.eof()
	return append(blocks, current), nil
}

// check matches the checks of a block in order. It stops at the first failure,
// after which the place of the others is unknown.
func (e *engine) check(b block) error {
	maps.DeleteFunc(e.vars, func(name, _ string) bool { return !strings.HasPrefix(name, "$") })
	at := b.from
	var nots []*pattern
	for rest := b.checks; len(rest) > 0; {
		if rest[0].Kind == KindCheckNot {
			nots = append(nots, rest[0])
			rest = rest[1:]
			continue
		}
		// What must not occur is judged by the variables above it.
		vars := maps.Clone(e.vars)
		n := groupLength(rest)
		first, last, err := e.step(rest[:n], at, b.to)
		if err != nil {
			return err
		}
		if err := e.absent(nots, vars, at, first); err != nil {
			return err
		}
		at, nots, rest = last, nil, rest[n:]
	}
	return e.absent(nots, e.vars, at, b.to)
}

// groupLength counts the patterns that are matched together: a run of
// CHECK-DAG, or one of anything else.
func groupLength(patterns []*pattern) int {
	n := 1
	for patterns[0].Kind == KindCheckDAG && n < len(patterns) && patterns[n].Kind == KindCheckDAG {
		n++
	}
	return n
}

// step matches a group and returns where its matches begin and end.
func (e *engine) step(group []*pattern, from, to point) (first, last point, err error) {
	p := group[0]
	var m match
	switch p.Kind {
	case KindCheckDAG:
		return e.dag(group, from, to)
	case KindCheckCount:
		return e.count(p, from, to)
	case KindCheckNext:
		m, err = e.next(p, from, to)
	case KindCheckSame:
		m, err = e.same(p, from, to)
	case KindCheckEmpty:
		m, err = e.empty(p, from, to)
	default:
		m, err = e.locate(p, from, to)
	}
	if err != nil {
		return point{}, point{}, err
	}
	maps.Copy(e.vars, m.defs)
	return m.from(), m.to(), nil
}

// prepare fills the pattern's variables in.
func (e *engine) prepare(p *pattern, vars map[string]string) (*finder, error) {
	if name, missing := p.undefined(vars); missing {
		return nil, &CheckError{Directive: p.Directive, Msg: "variable " + name + " is not defined here"}
	}
	f, err := newFinder(p, vars)
	if err != nil {
		return nil, p.syntaxError(0, "%v", err)
	}
	return f, nil
}

// visible returns the part of a line that lies before a point.
func (e *engine) visible(n int, to point) (text string, ok bool) {
	switch {
	case n < to.line:
		return e.lines[n], true
	case n == to.line && to.col > 0:
		return e.lines[n][:to.col], true
	}
	return "", false
}

// search finds the first match between two points.
func (e *engine) search(f *finder, from, to point) (match, bool) {
	for n := from.line; ; n++ {
		text, ok := e.visible(n, to)
		if !ok {
			return match{}, false
		}
		col := 0
		if n == from.line {
			col = from.col
		}
		if h, ok := f.find(text, col); ok {
			return match{hit: h, line: n}, true
		}
	}
}

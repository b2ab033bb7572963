package filetest

import (
	"fmt"
	"maps"
)

// locate matches a pattern that may be anywhere between two points.
func (e *engine) locate(p *pattern, from, to point) (match, error) {
	f, err := e.prepare(p, e.vars)
	if err != nil {
		return match{}, err
	}
	if m, ok := e.search(f, from, to); ok {
		return m, nil
	}
	return match{}, e.notFound(f, "not found", from, to)
}

// next matches CHECK-NEXT.
func (e *engine) next(p *pattern, from, to point) (match, error) {
	f, err := e.prepare(p, e.vars)
	if err != nil {
		return match{}, err
	}
	start := point{line: from.line + 1}
	if _, ok := e.visible(start.line, to); !ok {
		return match{}, e.noLine(f, from, to)
	}
	m, ok := e.search(f, start, to)
	if ok && m.line == start.line {
		return m, nil
	}
	failure := e.notFound(f, "not found on the next line", start, to)
	if same, found := e.search(f, from, start); found {
		failure.add(e.at(same, "it is on the same line as the previous match"))
	}
	if ok {
		failure.add(e.at(m, fmt.Sprintf("it is %d lines after the previous match", m.line-from.line)))
	}
	return match{}, failure
}

// same matches CHECK-SAME.
func (e *engine) same(p *pattern, from, to point) (match, error) {
	f, err := e.prepare(p, e.vars)
	if err != nil {
		return match{}, err
	}
	m, ok := e.search(f, from, to)
	if ok && m.line == from.line {
		return m, nil
	}
	failure := e.notFound(f, "not found on the line of the previous match", from, to)
	if ok {
		failure.add(e.at(m, "it is on a later line"))
	}
	return match{}, failure
}

// empty matches CHECK-EMPTY.
func (e *engine) empty(p *pattern, from, to point) (match, error) {
	n := from.line + 1
	text, ok := e.visible(n, to)
	if !ok {
		return match{}, e.noLine(&finder{p: p}, from, to)
	}
	if text != "" {
		failure := &CheckError{Directive: p.Directive, Msg: "the next line is not empty"}
		failure.add(e.at(match{hit: hit{end: len(text)}, line: n}, "it is"))
		return match{}, failure
	}
	return match{line: n}, nil
}

// noLine reports that there is no line after the previous match.
func (e *engine) noLine(f *finder, from, to point) *CheckError {
	msg := "there is no next line: the output ends here"
	if to.before(e.eof()) {
		msg = "there is no next line: the next label is here"
	}
	failure := &CheckError{Directive: f.p.Directive, Msg: msg}
	failure.add(e.at(match{hit: hit{start: from.col, end: from.col}, line: from.line}, "previous match ends"))
	return failure
}

// count matches CHECK-COUNT-n.
func (e *engine) count(p *pattern, from, to point) (first, last point, err error) {
	last = from
	for i := range p.Count {
		f, err := e.prepare(p, e.vars)
		if err != nil {
			return first, last, err
		}
		m, ok := e.search(f, last, to)
		if !ok {
			return first, last, e.notFound(f, fmt.Sprintf("found %d of %d", i, p.Count), last, to)
		}
		if i == 0 {
			first = m.from()
		}
		last = m.to()
		maps.Copy(e.vars, m.defs)
	}
	return first, last, nil
}

// dag matches a group of CHECK-DAG lines: each takes the first place that no
// line above it took.
func (e *engine) dag(group []*pattern, from, to point) (first, last point, err error) {
	var taken []match
	for _, p := range group {
		m, err := e.untaken(p, taken, from, to)
		if err != nil {
			return first, last, err
		}
		if len(taken) == 0 || m.from().before(first) {
			first = m.from()
		}
		if len(taken) == 0 || last.before(m.to()) {
			last = m.to()
		}
		taken = append(taken, m)
		maps.Copy(e.vars, m.defs)
	}
	return first, last, nil
}

// untaken finds the first match that overlaps none of those taken.
func (e *engine) untaken(p *pattern, taken []match, from, to point) (match, error) {
	f, err := e.prepare(p, e.vars)
	if err != nil {
		return match{}, err
	}
	var inTheWay *match
	for at := from; ; {
		m, ok := e.search(f, at, to)
		if !ok {
			failure := e.notFound(f, "not found", from, to)
			if inTheWay != nil {
				failure.add(e.at(*inTheWay, "this would match, but a CHECK-DAG line above took it"))
			}
			return match{}, failure
		}
		other, overlaps := overlapping(m, taken)
		if !overlaps {
			return m, nil
		}
		inTheWay = &m
		at = other.to()
	}
}

func overlapping(m match, taken []match) (match, bool) {
	for _, t := range taken {
		if m.line == t.line && m.start < t.end && t.start < m.end {
			return t, true
		}
	}
	return match{}, false
}

// absent makes sure that none of the patterns matches between two points.
func (e *engine) absent(nots []*pattern, vars map[string]string, from, to point) error {
	for _, p := range nots {
		f, err := e.prepare(p, vars)
		if err != nil {
			return err
		}
		// There is nothing between adjacent matches, not even an empty text.
		if !from.before(to) {
			continue
		}
		if m, ok := e.search(f, from, to); ok {
			failure := &CheckError{Directive: p.Directive, Msg: "found, but it must not be here"}
			failure.add(e.at(m, "found"))
			failure.addVariables(f)
			return failure
		}
	}
	return nil
}

package filetest

import (
	"fmt"
	"slices"
	"strings"
)

// CheckError is a CHECK directive that does not hold.
type CheckError struct {
	// Directive is what does not hold.
	Directive Directive
	// Msg says in what way.
	Msg string

	notes []string
}

// Error returns the place of the directive, the directive, and the places of
// the output that matter.
func (e *CheckError) Error() string {
	return fmt.Sprintf("%s:%d: %s", e.Directive.File, e.Directive.Line, e.detail())
}

// detail is the message without the place.
func (e *CheckError) detail() string {
	d := e.Directive
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", d.Name(), e.Msg)
	if d.Text != "" {
		fmt.Fprintf(&b, "\n  %s: %s", d.Name(), d.Text)
	}
	for _, n := range e.notes {
		b.WriteString("\n  " + n)
	}
	return b.String()
}

func (e *CheckError) add(note string) { e.notes = append(e.notes, note) }

// addVariables lists the values of the variables the pattern uses.
func (e *CheckError) addVariables(f *finder) {
	var names []string
	for _, it := range f.p.items {
		if it.kind == useItem && !it.back && !slices.Contains(names, it.name) {
			names = append(names, it.name)
		}
	}
	for _, name := range names {
		e.add(fmt.Sprintf("with %s = %q", name, f.vars[name]))
	}
}

// at describes a place of the output: its line, with a caret under the match.
func (e *engine) at(m match, what string) string {
	return fmt.Sprintf("output:%d:%d: %s\n%s", m.line+1, m.start+1, what, excerpt(e.lines[m.line], m.start, m.end))
}

// excerpt shows a line with a caret under a range of it.
func excerpt(line string, start, end int) string {
	width := len([]rune(line[start:end]))
	return fmt.Sprintf("    | %s\n    | %s^%s", line, pad(line[:start]), strings.Repeat("~", max(0, width-1)))
}

// pad returns white space as wide as a text, keeping its tabs.
func pad(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, text)
}

// notFound reports that a search between two points found nothing.
func (e *engine) notFound(f *finder, msg string, from, to point) *CheckError {
	failure := &CheckError{Directive: f.p.Directive, Msg: msg}
	failure.add(e.scanned(from, to))
	failure.addVariables(f)
	if m, ok := e.intended(f, from, to); ok {
		failure.add(e.at(m, "possible intended match"))
	}
	return failure
}

// scanned says where a search began, and where it ended if that was not the
// end of the output.
func (e *engine) scanned(from, to point) string {
	what := "scanning from here"
	if to.before(e.eof()) {
		what += fmt.Sprintf(" to the label on line %d", to.line+1)
	}
	return e.at(match{hit: hit{start: from.col, end: from.col}, line: from.line}, what)
}

// maxIntended bounds the lines compared to find what was meant.
const maxIntended = 500

// intended looks for the text most like the pattern.
func (e *engine) intended(f *finder, from, to point) (match, bool) {
	wanted := strings.TrimSpace(f.gist())
	best, bestDistance := match{}, len(wanted)/2
	for n := from.line; n < from.line+maxIntended; n++ {
		text, ok := e.visible(n, to)
		if !ok {
			break
		}
		col := 0
		if n == from.line {
			col = min(from.col, len(text))
		}
		distance, start, end := nearestSubstring(wanted, text[col:])
		if distance < bestDistance {
			bestDistance = distance
			best = match{hit: hit{start: col + start, end: col + end}, line: n}
		}
	}
	return best, bestDistance < len(wanted)/2
}

// gist is the pattern without what can match anything.
func (f *finder) gist() string {
	var b strings.Builder
	for _, it := range f.p.items {
		switch it.kind {
		case literalItem:
			b.WriteString(it.text)
		case useItem:
			b.WriteString(f.vars[it.name])
		}
	}
	return b.String()
}

// nearestSubstring finds the part of text with the smallest edit distance to
// wanted. A row of the table holds, for each end within text, the distance and
// where the part begins.
func nearestSubstring(wanted, text string) (distance, start, end int) {
	type cell struct{ distance, start int }
	prev := make([]cell, len(text)+1)
	for j := range prev {
		prev[j].start = j
	}
	for i := range len(wanted) {
		row := make([]cell, len(text)+1)
		row[0] = cell{distance: i + 1}
		for j := range len(text) {
			diagonal, up, left := prev[j], prev[j+1], row[j]
			if wanted[i] != text[j] {
				diagonal.distance++
			}
			up.distance++
			left.distance++
			best := diagonal
			for _, c := range []cell{up, left} {
				if c.distance < best.distance {
					best = c
				}
			}
			row[j+1] = best
		}
		prev = row
	}
	distance = len(wanted) + 1
	for j, c := range prev {
		if c.distance < distance {
			distance, start, end = c.distance, c.start, j
		}
	}
	return distance, start, end
}

package filetest

import (
	"maps"
	"regexp"
	"strings"
	"unicode/utf8"
)

// hit is a match within a line.
type hit struct {
	start, end int
	defs       map[string]string
}

// search finds the leftmost match in a line from an offset.
func (p *program) search(line string, from int) (hit, bool) {
	re, cut := p.atStart, 0
	if from > 0 {
		_, width := utf8.DecodeLastRuneInString(line[:from])
		re, cut = p.after, from-width
	}
	m := re.FindStringSubmatchIndex(line[cut:])
	if m == nil {
		return hit{}, false
	}
	span := func(group string) (start, end int) {
		i := 2 * re.SubexpIndex(group)
		return cut + m[i], cut + m[i+1]
	}
	h := hit{defs: map[string]string{}}
	h.start, h.end = span(wholeGroup)
	for group, name := range p.defines {
		start, end := span(group)
		h.defs[name] = line[start:end]
	}
	return h, true
}

// finder searches for a pattern with the variables as they are.
type finder struct {
	p    *pattern
	vars map[string]string
	// ready searches with all variables filled in, save those that the pattern
	// itself defines, which may be anything.
	ready *program
	// guesses are the definitions that the pattern uses itself.
	guesses []item
}

// newFinder prepares a search. All variables the pattern uses must be defined.
func newFinder(p *pattern, vars map[string]string) (*finder, error) {
	ready, err := p.program(bindings{outer: vars})
	return &finder{p: p, vars: vars, ready: ready, guesses: p.selfUses()}, err
}

// selfUses returns the definitions that the same pattern uses.
func (p *pattern) selfUses() []item {
	used := map[string]bool{}
	for _, it := range p.items {
		used[it.name] = used[it.name] || it.back
	}
	var defs []item
	for _, it := range p.items {
		if it.kind == defineItem && used[it.name] {
			defs = append(defs, it)
		}
	}
	return defs
}

// find returns the leftmost match in a line from an offset.
func (f *finder) find(line string, from int) (hit, bool) {
	h, ok := f.ready.search(line, from)
	if !ok || len(f.guesses) == 0 {
		return h, ok
	}
	return f.guess(line, from, map[string]string{})
}

// guess tries the values that the variables used on their own line could have,
// since Go's regular expressions have no back references. Of several matches
// the leftmost wins, then the one whose variable is longest, as it would with
// a greedy regex.
func (f *finder) guess(line string, from int, inner map[string]string) (hit, bool) {
	if len(inner) == len(f.guesses) {
		prog, err := f.p.program(bindings{outer: f.vars, inner: inner})
		if err != nil {
			return hit{}, false
		}
		return prog.search(line, from)
	}
	def := f.guesses[len(inner)]
	whole := regexp.MustCompile(`^(?:` + def.text + `)$`)
	var best hit
	found := false
	for _, value := range repeated(line[from:]) {
		if !whole.MatchString(value) {
			continue
		}
		next := maps.Clone(inner)
		next[def.name] = value
		h, ok := f.guess(line, from, next)
		if ok && (!found || h.start < best.start ||
			h.start == best.start && len(h.defs[def.name]) > len(best.defs[def.name])) {
			best, found = h, true
		}
	}
	return best, found
}

// repeated returns the texts that occur at least twice in a line without
// overlap: a variable that is defined and used on it must be one of them.
func repeated(line string) []string {
	values := []string{""}
	seen := map[string]bool{}
	for start := range len(line) {
		for end := start + 1; end <= len(line); end++ {
			text := line[start:end]
			if !strings.Contains(line[end:], text) {
				break
			}
			if !seen[text] {
				seen[text] = true
				values = append(values, text)
			}
		}
	}
	return values
}

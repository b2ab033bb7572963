package filetest

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	leadingWord = regexp.MustCompile(`^[A-Za-z0-9_-]+`)
	// checkLike matches what only a CHECK directive would look like in prose.
	checkLike = regexp.MustCompile(`^CHECK[-_@{0-9]`)
	// headLike matches what may stand before the colon of a misspelt
	// directive. Longer heads are sentences.
	headLike = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_ {}@-]{1,23}$`)
)

// suspicion says why a comment that is not a directive looks as if it was
// meant to be one, or returns "". It is deliberately wary: prose can be
// reworded, but a directive that is taken for prose checks nothing.
func suspicion(comment string) string {
	word := leadingWord.FindString(comment)
	if kind, _, ok := lookup(word); ok && kind != KindRunFunction {
		return fmt.Sprintf("%s must be followed directly by ':'", word)
	}
	head, _, found := strings.Cut(comment, ":")
	if !found || !headLike.MatchString(head) {
		head = word
		found = false
	}
	if checkLike.MatchString(comment) {
		return unknownDirective(head, closest(normalise(head), 3))
	}
	if !found {
		return ""
	}
	return misspelling(head)
}

// misspelling judges the words before a comment's first colon. Words in
// capitals are held to be directives if they are nearly one. Others must be one
// but for case and spacing, since "Errors:" is ordinary prose.
func misspelling(head string) string {
	norm := normalise(head)
	allowed := 0
	if head == strings.ToUpper(head) {
		allowed = allowedTypos(norm)
	}
	near := closest(norm, allowed)
	if near == "" {
		return ""
	}
	return unknownDirective(head, near)
}

func unknownDirective(head, near string) string {
	if near == "" {
		return fmt.Sprintf("unknown directive %q", head)
	}
	return fmt.Sprintf("unknown directive %q; did you mean %s?", head, near)
}

func normalise(head string) string {
	return strings.ToUpper(strings.NewReplacer(" ", "-", "_", "-").Replace(strings.TrimSpace(head)))
}

// allowedTypos keeps short words from being mistaken for each other: RNN is not
// a misspelt RUN.
func allowedTypos(word string) int {
	switch {
	case len(word) <= 3:
		return 0
	case len(word) <= 5:
		return 1
	default:
		return 2
	}
}

// closest returns the directive nearest to word within a number of typos.
func closest(word string, allowed int) string {
	if _, _, ok := lookup(word); ok {
		return word
	}
	best, bestDistance := "", allowed+1
	for kind := KindCheck; kind <= KindOutput; kind++ {
		name := kind.String()
		if kind == KindCheckCount {
			name = "CHECK-COUNT-n"
		}
		if d := typoDistance(word, name); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// typoDistance counts the insertions, deletions, substitutions and swaps of
// neighbours that turn a into b.
func typoDistance(a, b string) int {
	var before []int
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row := make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			row[j+1] = min(prev[j]+cost, prev[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}

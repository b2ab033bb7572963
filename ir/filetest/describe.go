package filetest

import (
	"fmt"
	"strings"
	"unicode"
)

// describer collects the paragraph that describes a case: the first run of
// prose comments above the source.
type describer struct {
	paragraph []string
	closed    bool
}

// prose adds a comment that is not a directive.
func (d *describer) prose(text string) {
	if d.closed {
		return
	}
	// A rule of dashes or equal signs is decoration.
	if !strings.ContainsFunc(text, unicode.IsLetter) {
		d.interrupt()
		return
	}
	d.paragraph = append(d.paragraph, text)
}

// interrupt ends the paragraph if it has begun.
func (d *describer) interrupt() {
	if len(d.paragraph) > 0 {
		d.closed = true
	}
}

// source ends the search for a paragraph: prose below the first line of source
// explains that source, not the case.
func (d *describer) source() { d.closed = true }

// restart forgets what was found, which was about something else.
func (d *describer) restart() { *d = describer{} }

// sentence returns the first sentence of the paragraph.
func (d *describer) sentence() string {
	text := strings.Join(strings.Fields(strings.Join(d.paragraph, " ")), " ")
	for i, r := range text {
		if strings.ContainsRune(".!?", r) && endsSentence(text[i+1:]) {
			return text[:i+1]
		}
	}
	return text
}

// endsSentence judges a full stop by what follows: "e.g. this" and "v1.2" go on.
func endsSentence(rest string) bool {
	if rest == "" {
		return true
	}
	after, spaced := strings.CutPrefix(rest, " ")
	return spaced && !unicode.IsLower([]rune(after)[0])
}

// maxNameRunes keeps subtest names readable in a terminal.
const maxNameRunes = 60

// caseName makes a subtest name of a case's number and description. The
// number keeps names distinct, and '/' would split the name in -run patterns.
func caseName(number int, description string) string {
	name := fmt.Sprintf("%02d", number)
	length := 0
	for _, word := range strings.Fields(strings.ReplaceAll(description, "/", "-")) {
		length += len([]rune(word)) + 1
		if length > maxNameRunes {
			break
		}
		name += "_" + word
	}
	return name
}

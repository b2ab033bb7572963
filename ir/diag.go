package ir

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
)

// Diag is one problem in an IR text or module.
type Diag struct {
	// Code is the violated invariant ("V07") or "syntax".
	Code string
	File string
	Pos  Pos
	// Where names the place in a module that was not read from a text.
	Where string
	Msg   string
	Notes []string
	Help  string

	line string // the source line
}

// Error writes file:line:col: error[code]: message, the source line with a
// caret, notes and the help line.
func (d *Diag) Error() string {
	var b strings.Builder
	if d.Pos.Line > 0 && d.File != "" {
		fmt.Fprintf(&b, "%s:%d:%d: ", d.File, d.Pos.Line, d.Pos.Col)
	} else if d.Where != "" {
		fmt.Fprintf(&b, "%s: ", d.Where)
	}
	fmt.Fprintf(&b, "error[%s]: %s", d.Code, d.Msg)
	if d.line != "" {
		num := fmt.Sprintf("%5d", d.Pos.Line)
		fmt.Fprintf(&b, "\n%s | %s\n%s | %s^", num, d.line, strings.Repeat(" ", len(num)), caretPad(d.line, d.Pos.Col))
	}
	for _, n := range d.Notes {
		fmt.Fprintf(&b, "\nnote: %s", n)
	}
	if d.Help != "" {
		fmt.Fprintf(&b, "\nhelp: %s", d.Help)
	}
	return b.String()
}

// caretPad is the white space under the line up to a column in bytes; tabs stay
// tabs and wide characters take two columns, so that the caret lines up.
func caretPad(line string, col int) string {
	var b strings.Builder
	for i, r := range line {
		switch {
		case i >= col-1:
			return b.String()
		case r == '\t':
			b.WriteByte('\t')
		default:
			b.WriteString(strings.Repeat(" ", widths.RuneWidth(r)))
		}
	}
	return b.String()
}

// widths takes characters of ambiguous width as narrow, whatever the locale.
var widths = runewidth.Condition{StrictEmojiNeutral: true}

// Diags are all problems found, in order of place.
type Diags []*Diag

// mostDiags is the number of diagnostics that are shown.
const mostDiags = 20

func (ds Diags) Error() string {
	var parts []string
	for i, d := range ds {
		if i == mostDiags {
			parts = append(parts, fmt.Sprintf("and %d more", len(ds)-mostDiags))
			break
		}
		parts = append(parts, d.Error())
	}
	return strings.Join(parts, "\n")
}

// sort puts diagnostics into the order of place; those without one keep theirs.
func (ds Diags) sort() {
	slices.SortStableFunc(ds, func(a, b *Diag) int {
		return cmp.Or(cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Pos.Col, b.Pos.Col))
	})
}

// withSource attaches file name and source lines to diagnostics.
func (ds Diags) withSource(file string, src []byte) {
	lines := strings.Split(string(src), "\n")
	for _, d := range ds {
		d.File = file
		if d.Pos.Line > 0 && d.Pos.Line <= len(lines) {
			d.line = strings.TrimSuffix(lines[d.Pos.Line-1], "\r")
		}
	}
}

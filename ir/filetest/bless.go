package filetest

import (
	"os"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
)

// BlessVariable is the environment variable that, set to 1, makes the runner
// rewrite OUTPUT blocks.
const BlessVariable = "QUILL_BLESS"

// compareBlock compares a command's output with the OUTPUT block.
func (e *evaluation) compareBlock(o *outcome) {
	block := e.c.Output
	if block == nil {
		return
	}
	got := outputLines(o.res.Output)
	want := block.Lines
	if e.bless {
		if e.blessed == nil {
			e.blessed = got
		}
		// A second command must still agree with the first.
		want = e.blessed
	}
	if slices.Equal(want, got) {
		return
	}
	changes := diff.Diff("OUTPUT", joinLines(want), o.run.Name, joinLines(got))
	e.fail(block.Line, 0, "the output differs\n%s  %s\n  set %s=1 to rewrite the block", changes, o.run, BlessVariable)
}

// outputLines splits output into lines; it never returns nil.
func outputLines(output string) []string {
	if output == "" {
		return []string{}
	}
	lines := strings.Split(strings.TrimSuffix(output, "\n"), "\n")
	for i, text := range lines {
		// A carriage return in a block belongs to the file, not to the text.
		lines[i] = strings.TrimSuffix(text, "\r")
	}
	return lines
}

func joinLines(lines []string) []byte {
	if len(lines) == 0 {
		return nil
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

// blessing is the new text of an OUTPUT block.
type blessing struct {
	block *OutputBlock
	lines []string
}

// rewritten returns the text of the file with its blocks replaced, which are
// given in the order of the file.
func (f *File) rewritten(blessings []blessing) string {
	lines := slices.Clone(f.lines)
	for _, b := range slices.Backward(blessings) {
		// The lines of a block follow its directive. Line numbers count from
		// 1, so the directive's number is the index of the first.
		start := b.block.Line
		lines = slices.Replace(lines, start, start+len(b.block.Lines), b.render()...)
	}
	return strings.Join(lines, "\n")
}

// render returns the new lines of the block as they stand in the file.
func (b blessing) render() []string {
	var lines []string
	for _, text := range b.lines {
		if text != "" {
			text = " " + text
		}
		lines = append(lines, b.block.indent+outputMark+text+b.block.lineEnd)
	}
	return lines
}

// save rewrites the file's blocks on disk. A file in which nothing changes is
// not touched.
func (f *File) save(blessings []blessing) (changed bool, err error) {
	text := f.rewritten(blessings)
	if text == strings.Join(f.lines, "\n") {
		return false, nil
	}
	info, err := os.Stat(f.Path)
	if err != nil {
		return false, err
	}
	return true, os.WriteFile(f.Path, []byte(text), info.Mode().Perm())
}

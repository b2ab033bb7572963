package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vbauerster/cupwriter"
)

// isTerminal reports whether a person watches what is written to w.
func isTerminal(w io.Writer) bool { return cupwriter.New(w, false).IsTerminal() }

// dim makes text stand back on terminals that show colours.
func dim(w io.Writer, text string) string {
	if !isTerminal(w) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return text
	}
	return "\x1b[2m" + text + "\x1b[0m"
}

// note tells the user something that is no error.
func note(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "quill: note: %s\n", fmt.Sprintf(format, args...))
}

// writeJSON writes one line of JSON.
func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// checkOutput reports early that a file cannot be written, or that it would
// replace a file that it is made from: one of the sources, or a file in one
// that is a directory.
func checkOutput(flag, path string, sources ...string) error {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s %s: directory %s does not exist", flag, path, dir)
	case err != nil:
		return fmt.Errorf("%s %s: %w", flag, path, err)
	case !info.IsDir():
		return fmt.Errorf("%s %s: %s is no directory", flag, path, dir)
	}
	out, err := os.Stat(path)
	if err != nil {
		return canCreate(flag, path)
	}
	if !out.Mode().IsRegular() {
		return fmt.Errorf("%s %s: this is no regular file, it will not be replaced", flag, path)
	}
	for _, source := range sources {
		in, err := os.Stat(source)
		if err != nil {
			continue // for those who read it to report
		}
		if os.SameFile(in, out) || in.IsDir() && holds(source, out) {
			return fmt.Errorf("%s %s: this would replace the input", flag, path)
		}
	}
	return nil
}

// canCreate tries to create a file, and leaves none.
func canCreate(flag, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".quill-*")
	if err != nil {
		return fmt.Errorf("%s %s: no file can be created there: %w", flag, path, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// holds reports whether a file other than a bundle is in a directory.
func holds(dir string, file os.FileInfo) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) == bundleExt {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && os.SameFile(info, file) {
			return true
		}
	}
	return false
}

// size spells a number of bytes for people.
func size(n int64) string {
	const k = 1024
	if n < k {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/k, 0
	for v >= k && unit < 4 {
		v /= k
		unit++
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[unit])
}

// count spells a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

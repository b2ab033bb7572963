package passes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"quill/ir"
)

// unified is what changed since a module had the text and the numbers given.
func unified(before string, numbers ir.Numbers, m *ir.Module) string {
	after := m.Number(numbers).Text(m)
	return string(diff.Diff("before", []byte(before), "after", []byte(after)))
}

// dump writes a module to the dump directory, if there is one.
func (m *Manager) dump(label string, number int, name string, mod *ir.Module) error {
	if m.cfg.DumpDir == "" {
		return nil
	}
	dir := m.cfg.DumpDir
	if label != "" {
		dir = filepath.Join(dir, filepath.FromSlash(label))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("dumping @%s: %w", mod.Name, err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%02d-%s.qir", number, name))
	if err := os.WriteFile(path, []byte(mod.String()), 0o644); err != nil {
		return fmt.Errorf("dumping @%s: %w", mod.Name, err)
	}
	return nil
}

// Reproducers is the directory for files that reproduce failures: that of dumps, or of
// temporary files.
func (m *Manager) Reproducers() string {
	if m.cfg.DumpDir != "" {
		return m.cfg.DumpDir
	}
	return os.TempDir()
}

// failed is the error of a pass, with a file that reproduces it: beside the dumps,
// or with temporary files.
func (r *run) failed(cause error) error {
	err := fmt.Errorf("%s: %w", r.where(), cause)
	path, werr := r.reproducer(r.m.Reproducers(), cause)
	if werr != nil {
		return fmt.Errorf("%w\nnote: there is no reproducer: %w", err, werr)
	}
	return fmt.Errorf("%w\nhelp: %s runs the pass alone on what it was given", err, r.command(path))
}

// command is the line that runs the step alone on a file.
func (r *run) command(path string) string {
	pipeline := r.step.String()
	if r.step.Pass.Stages == Bucket {
		pipeline = outline + "," + pipeline // does nothing but open the stage
	}
	words := []string{"quill opt", "--passes='" + pipeline + "'"}
	for _, p := range r.m.cfg.Params.Texts() {
		words = append(words, "--param "+p)
	}
	if r.m.left != nil && r.step.Pass.Optional {
		words = append(words, fmt.Sprintf("--rewrite-limit=%d", r.left))
	}
	return strings.Join(append(words, path), " ")
}

// reproducer writes the module before the step.
func (r *run) reproducer(dir string, cause error) (path string, err error) {
	f, err := os.CreateTemp(dir, fmt.Sprintf("quill-%s-%s-*.qir", r.step.Pass.Name, r.mod.Name))
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(cause.Error(), "\n")
	_, err = fmt.Fprintf(f, "; %s: %s\n; %s\n%s%s", r.where(), first, r.command(f.Name()), stackOf(cause), r.before)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return f.Name(), err
}

// stackOf is where a pass panicked, as a comment.
func stackOf(cause error) string {
	p, ok := errors.AsType[*panicError](cause)
	if !ok {
		return ""
	}
	return "; " + strings.ReplaceAll(strings.TrimSpace(string(p.stack)), "\n", "\n; ") + "\n"
}

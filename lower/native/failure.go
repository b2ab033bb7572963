package native

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"quill/recipes"
	"quill/recipes/dump"
)

// FailedError is that recipes were not compiled.
type FailedError struct {
	Failures []Failure // in the order of their first launch
	Total    int       // recipes that there were
}

// Failure is a recipe that was not compiled.
type Failure struct {
	Recipe  string   // its name and the beginning of its hash
	Buckets []string // that launch it, after their precision
	Label   string   // of its first launch
	Nodes   string   // how many of each GUID
	Tensors string   // of its sections, with types and dims
	Tries   int
	Err     error
	// Folder has what reproduces it, and Command is what compiles it alone. Fault is why
	// there is none.
	Folder, Command string
	Fault           error
}

func (e *FailedError) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d of %d recipes were not compiled by the vendor's compiler; those that were are kept for the next time", len(e.Failures), e.Total)
	for i := range e.Failures {
		s.WriteString("\n" + e.Failures[i].String())
	}
	return s.String()
}

// Unwrap are the errors of the recipes.
func (e *FailedError) Unwrap() []error {
	errs := make([]error, len(e.Failures))
	for i := range e.Failures {
		errs[i] = e.Failures[i].Err
	}
	return errs
}

func (f *Failure) String() string {
	const most = 3
	where := strings.Join(f.Buckets[:min(most, len(f.Buckets))], ", ")
	if more := len(f.Buckets) - most; more > 0 {
		where += fmt.Sprintf(" and %d more", more)
	}
	s := fmt.Sprintf("recipe %s, launched as %q in %s: %v", f.Recipe, f.Label, where, f.Err)
	if f.Tries > 1 {
		s += "; it was tried twice, the second time alone"
	}
	s += fmt.Sprintf("\n  nodes: %s\n  tensors: %s\n", f.Nodes, f.Tensors)
	if f.Fault != nil {
		return s + fmt.Sprintf("  what reproduces it could not be written: %v", f.Fault)
	}
	return s + fmt.Sprintf("  its graph is in %s; alone: %s", f.Folder, f.Command)
}

// failed is the error of jobs, with what reproduces them written.
func (r *run) failed(jobs []*job) error {
	e := &FailedError{Total: len(r.jobs)}
	for _, x := range jobs {
		f := Failure{Recipe: x.ID(), Nodes: nodesText(x.Recipe), Tensors: tensorsText(x.Recipe), Tries: x.tries, Err: x.err}
		for i, u := range x.Uses {
			if i == 0 {
				f.Label = u.Launch().Label
			}
			name := u.Set.Info.Precision + " " + u.Plan.Bucket.String()
			if !slices.Contains(f.Buckets, name) {
				f.Buckets = append(f.Buckets, name)
			}
		}
		f.Folder = filepath.Join(r.opt.Failures, x.ID())
		f.Command = r.command(f.Folder)
		f.Fault = r.reproducer(x, &f)
		e.Failures = append(e.Failures, f)
	}
	return e
}

// Files of a reproducer.
const (
	recipeFile  = "recipe"
	profileFile = "profile.json"
	graphFile   = "graph.json"
	reportFile  = "report.txt"
	processDir  = "process" // what the process printed, and the library's logs
)

// command compiles one recipe. Settings of the compiler are in the report.
func (c *Compiler) command(folder string) string {
	words := []string{"quill", WorkerCommand, filepath.Join(folder, recipeFile), "--profile", filepath.Join(folder, profileFile)}
	if c.opt.Synapse != "" {
		words = append(words, "--synapse", c.opt.Synapse)
	}
	for i, w := range words {
		words[i] = quote(w)
	}
	return strings.Join(words, " ")
}

func quote(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=,:@%+-") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// reproducer writes the recipe as this program and as the vendor's tools read it, a
// report, and what its process left.
func (r *run) reproducer(x *job, f *Failure) error {
	if r.opt.Failures == "" {
		return errors.New("no folder was named for it")
	}
	if err := os.MkdirAll(f.Folder, 0o777); err != nil {
		return err
	}
	profile, err := r.opt.Profile.Format()
	if err != nil {
		return err
	}
	report := fmt.Sprintf("%s\n\nbuckets: %s\ndriver: %s, library %s\nenvironment:\n  %s\n", f, strings.Join(f.Buckets, ", "),
		r.with.driver, r.with.library, strings.Join(r.with.variables, "\n  "))
	files := map[string][]byte{recipeFile: x.Recipe.Encode(), profileFile: profile, reportFile: []byte(report)}
	files[graphFile], err = (&dump.Listing{Name: x.ID(), Entries: []dump.Entry{x.Entry}}).JSON(r.opt.Profile)
	for name, data := range files {
		if data != nil { // a graph that cannot be written leaves the rest
			err = errors.Join(err, os.WriteFile(filepath.Join(f.Folder, name), data, 0o666))
		}
	}
	process := filepath.Join(f.Folder, processDir)
	err = errors.Join(err, os.RemoveAll(process)) // of an earlier failure
	if x.dir != "" {
		err = errors.Join(err, os.CopyFS(process, os.DirFS(x.dir)))
	}
	return err
}

// nodesText counts nodes by GUID.
func nodesText(r *recipes.Recipe) string {
	counts := map[string]int{}
	for i := range r.Nodes {
		counts[r.Nodes[i].GUID]++
	}
	var parts []string
	for _, guid := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[guid], guid))
	}
	return strings.Join(parts, ", ")
}

// tensorsText has the first tensors that a launch binds.
func tensorsText(r *recipes.Recipe) string {
	const most = 12
	var parts []string
	more := 0
	for i := range r.Tensors {
		t := &r.Tensors[i]
		switch {
		case t.Section == recipes.Workspace:
		case len(parts) == most:
			more++
		default:
			parts = append(parts, fmt.Sprintf("%s %s%v in %s", t.Name, t.DType, t.Dims, r.Sections[t.Section].Buffer))
		}
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}

package safetensors

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Checkpoint is an open directory of files. Its methods may be called
// concurrently, except Close.
type Checkpoint struct {
	dir      string
	files    []*File
	tensors  []Tensor // sorted by name
	metadata map[string]string
}

// OpenDir opens the files of a checkpoint: the shards that its index names, or
// model.safetensors if it has no index; and mtp.safetensors if it is there,
// whether or not the index names it. What is true of Open is true of each file.
//
// The index and the shards must agree: every file exists, every tensor is in
// the file that the index says and in no other, no shard has a tensor that the
// index leaves out, and total_size, if given, is the number of bytes of all
// tensors in the files that the index names. Other files are ignored.
//
// The error lists all problems of the directory, a line each, though not more
// than 20 of them, in an order that depends on nothing but the files.
func OpenDir(dir string) (*Checkpoint, error) {
	s := &survey{dir: dir, files: make(map[string]*File)}
	s.run()
	if len(s.problems) > 0 {
		for _, f := range s.files {
			_ = f.Close() // what is wrong is known already
		}
		return nil, &dirError{dir, s.problems}
	}
	return s.checkpoint(), nil
}

// Dir is the directory as it was given to OpenDir.
func (c *Checkpoint) Dir() string { return c.dir }

// Tensors are all tensors of all files, sorted by name; none after Close.
func (c *Checkpoint) Tensors() []Tensor { return slices.Clone(c.tensors) }

// Tensor is the tensor of that name, and whether there is one.
func (c *Checkpoint) Tensor(name string) (Tensor, bool) { return find(c.tensors, name) }

// Metadata is the free-form text of all files together, without the keys that
// two files give different values; nil if no file has any.
func (c *Checkpoint) Metadata() map[string]string { return maps.Clone(c.metadata) }

// Close unmaps all files. Data of the tensors must not be used any more.
// Further calls do nothing.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	c.files, c.tensors = nil, nil
	return errors.Join(errs...)
}

// survey opens and checks a directory.
type survey struct {
	dir      string
	index    *index   // nil if there is none
	named    []string // files of the index, sorted; model.safetensors without one
	extra    string   // mtp.safetensors if the index does not name it, else ""
	files    map[string]*File
	problems []error
}

func (s *survey) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Errorf(format, args...))
}

func (s *survey) run() {
	if !s.isDir() || !s.list() {
		return
	}
	for _, name := range s.names() {
		s.open(name)
	}
	s.checkTensors()
	s.checkTotal()
}

// isDir tells a wrong path from a directory that lacks a file.
func (s *survey) isDir() bool {
	info, err := os.Stat(s.dir)
	if err != nil {
		s.problem("%w", cause(err))
		return false
	}
	if !info.IsDir() {
		s.problem("this is no directory, expected one with %s or %s", indexName, singleName)
		return false
	}
	return true
}

// list finds out which files belong to the checkpoint.
func (s *survey) list() bool {
	ix, err := readIndex(s.dir)
	if err != nil {
		s.problem("%s: %w", indexName, err)
		return false
	}
	switch {
	case ix != nil:
		var bad []error
		s.index = ix
		s.named, bad = ix.fileNames()
		s.problems = append(s.problems, bad...)
	case s.exists(singleName):
		s.named = []string{singleName}
	default:
		s.problem("neither %s nor %s is there: download the checkpoint again%s", indexName, singleName, s.strays())
		return false
	}
	if s.exists(mtpName) && !slices.Contains(s.named, mtpName) {
		s.extra = mtpName
	}
	return true
}

// exists is true for a link to nowhere as well: that is a fault to report.
func (s *survey) exists(name string) bool {
	_, err := os.Lstat(filepath.Join(s.dir, name))
	return !errors.Is(err, fs.ErrNotExist)
}

// strays hints at shards whose index was not downloaded.
func (s *survey) strays() string {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return ""
	}
	n := 0
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".safetensors") {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (there are %d other .safetensors files; the index of shards is part of a checkpoint)", n)
}

// names are all files of the checkpoint, sorted.
func (s *survey) names() []string {
	names := slices.Clone(s.named)
	if s.extra != "" {
		names = append(names, s.extra)
	}
	slices.Sort(names)
	return names
}

// open opens one file.
func (s *survey) open(name string) {
	f, err := open(filepath.Join(s.dir, name))
	switch {
	case err == nil:
		s.files[name] = f
	case s.index != nil && name != s.extra && errors.Is(err, fs.ErrNotExist):
		s.problem("%s: the file is missing but %s says that it has %s: download it (%w)",
			label(name), indexName, tensorCount(s.index.counts()[name]), err)
	default:
		s.problem("%s: %w", label(name), err)
	}
}

// label is a file name for error texts: a name from an index can hold anything.
func label(name string) string {
	if q := quote(name); q != `"`+name+`"` {
		return q
	}
	return name
}

// checkTensors checks where each tensor is against where it should be.
func (s *survey) checkTensors() {
	owners := s.owners()
	names := slices.Collect(maps.Keys(owners))
	if s.index != nil {
		for name := range s.index.files {
			if _, ok := owners[name]; !ok {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	for _, name := range names {
		s.checkTensor(name, owners[name])
	}
}

// owners are the names of the files that hold each tensor, sorted.
func (s *survey) owners() map[string][]string {
	owners := make(map[string][]string)
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		for _, t := range s.files[file].tensors {
			owners[t.Name] = append(owners[t.Name], file)
		}
	}
	return owners
}

func (s *survey) checkTensor(name string, owners []string) {
	if len(owners) > 1 {
		s.problem("tensor %s: is in %s, expected in one file only", quote(name), labels(owners))
	}
	if s.index == nil {
		return
	}
	want, indexed := s.index.files[name]
	if !indexed {
		if len(owners) > 1 || owners[0] != s.extra {
			s.problem("tensor %s: is in %s but not in %s", quote(name), labels(owners), indexName)
		}
		return
	}
	if s.files[want] == nil || slices.Contains(owners, want) {
		return // there, or in a file that is a problem already
	}
	where := "no file has it"
	if len(owners) > 0 {
		where = "it is in " + labels(owners)
	}
	s.problem("tensor %s: expected in %s as %s says, but %s", quote(name), label(want), indexName, where)
}

func labels(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = label(name)
	}
	return strings.Join(out, " and ")
}

// checkTotal compares the sum of all bytes with the index. Without all files
// there is no sum to compare.
func (s *survey) checkTotal() {
	if s.index == nil || !s.index.hasTotal {
		return
	}
	sum := int64(0)
	for name := range s.index.counts() {
		f := s.files[name]
		if f == nil {
			return
		}
		for _, t := range f.tensors {
			sum += int64(len(t.Data))
		}
	}
	if sum != s.index.total {
		s.problem("%s: metadata.total_size is %d but the tensors of its files have %d bytes: index and shards are of different downloads",
			indexName, s.index.total, sum)
	}
}

// checkpoint is the result of a survey without problems.
func (s *survey) checkpoint() *Checkpoint {
	c := &Checkpoint{dir: s.dir}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[name]
		c.files = append(c.files, f)
		c.tensors = append(c.tensors, f.tensors...)
	}
	sortByName(c.tensors)
	c.metadata = mergeMetadata(c.files)
	return c
}

// mergeMetadata leaves out what files disagree on: to take the value of one of
// them would be to make a claim about the others.
func mergeMetadata(files []*File) map[string]string {
	var merged map[string]string
	disputed := make(map[string]bool)
	for _, f := range files {
		if merged == nil && f.metadata != nil {
			merged = make(map[string]string)
		}
		for key, v := range f.metadata {
			if old, ok := merged[key]; ok && old != v {
				disputed[key] = true
			}
			merged[key] = v
		}
	}
	maps.DeleteFunc(merged, func(key, _ string) bool { return disputed[key] })
	return merged
}

// maxProblems is how many lines an error has: a wrong index of a large model
// would have tens of thousands.
const maxProblems = 20

// dirError is all that is wrong with a directory.
type dirError struct {
	dir      string
	problems []error
}

func (e *dirError) Error() string {
	if len(e.problems) == 1 {
		return fmt.Sprintf("checkpoint %s: %v", e.dir, e.problems[0])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "checkpoint %s: %d problems:", e.dir, len(e.problems))
	for i, p := range e.problems {
		if i == maxProblems {
			fmt.Fprintf(&b, "\n  and %d more", len(e.problems)-maxProblems)
			break
		}
		fmt.Fprintf(&b, "\n  %v", p)
	}
	return b.String()
}

// Unwrap lets errors.Is find what the system said.
func (e *dirError) Unwrap() []error { return e.problems }

package native

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"quill/lower/synapse/compiler"
	"quill/recipes"
	"quill/recipes/dl"
	"quill/recipes/target"
)

// WorkerCommand is the argument with which this program is a process that compiles.
const WorkerCommand = "native-worker"

// askedVariable tells a process that somebody asks it: the files could be any otherwise.
const askedVariable = "QUILL_NATIVE_ASKED"

// Of all processes those that compile are the ones to kill when memory runs out: they are
// started again.
const (
	oomFile  = "/proc/self/oom_score_adj"
	oomScore = "500"
)

// Files of requests and answers in a process; the standard output belongs to the library.
const (
	requestsFile = 3
	answersFile  = 4
)

// Backend is what compiles in a process.
type Backend interface {
	// Load loads the library, and gives the version of the driver and the files of which
	// the compiler consists.
	Load(synapse string) (driver string, files []string, err error)
	// Compile writes the native form of a recipe to a file. Sizes are in bytes: the
	// workspace of a launch, and programs with their data.
	Compile(r *recipes.Recipe, p *target.Profile, out string) (workspace, programs int64, err error)
}

// Serve answers requests until there are no more, which ends the process even in the
// middle of a compile: whoever asked is gone. It returns if nobody ever asks.
func Serve(b Backend) error {
	if os.Getenv(askedVariable) == "" {
		return errors.New("nobody asks this process: quill compile --native starts it; with a recipe's file it compiles that one")
	}
	_ = os.WriteFile(oomFile, []byte(oomScore), 0o666) // not every system has it
	in, out := os.NewFile(requestsFile, "requests"), os.NewFile(answersFile, "answers")
	requests := make(chan request)
	go func() {
		for {
			var q request
			if err := receive(in, &q); err != nil {
				os.Exit(0)
			}
			requests <- q
		}
	}()
	s := server{backend: b}
	for q := range requests {
		if err := send(out, s.answer(&q)); err != nil {
			return err
		}
	}
	return nil
}

type server struct {
	backend Backend
	profile *target.Profile
}

func (s *server) answer(q *request) *answer {
	var a answer
	var err error
	if q.Recipe == nil {
		if s.profile, err = target.Parse(q.Profile); err == nil {
			a.Driver, a.Files, err = s.backend.Load(q.Synapse)
		}
	} else {
		var r *recipes.Recipe
		if r, err = recipes.DecodeRecipe(q.Recipe, recipes.Sum(q.Recipe)); err == nil {
			a.WorkspaceBytes, a.ProgramBytes, err = s.backend.Compile(r, s.profile, q.Out)
		}
	}
	if err != nil {
		return &answer{Error: err.Error()}
	}
	return &a
}

// Vendor is the vendor's library.
type Vendor struct {
	lib      *dl.Library
	compiler *compiler.Compiler
}

// Load loads the library and initialises it.
func (v *Vendor) Load(synapse string) (driver string, files []string, err error) {
	if v.lib, err = dl.OpenSynapse(synapse); err != nil {
		return "", nil, err
	}
	if v.compiler, err = compiler.Load(v.lib); err != nil {
		return "", nil, err
	}
	if driver, err = v.compiler.Version(); err != nil {
		return "", nil, err
	}
	files, err = loadedWith(v.lib.String())
	return driver, files, err
}

// Compile compiles a recipe and writes the result.
func (v *Vendor) Compile(r *recipes.Recipe, p *target.Profile, out string) (workspace, programs int64, err error) {
	v.lib.MarkLogs() // errors of other recipes are none of this one
	return v.compiler.Compile(r, p, out)
}

// loadedWith are the files of a library that this process loaded by that name, and of
// those that it loaded from its folder.
func loadedWith(name string) ([]string, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	defer f.Close() // it is only read
	files, err := mappedLibraries(f)
	if err != nil {
		return nil, err
	}
	is := func(path string) bool { return strings.HasPrefix(filepath.Base(path), name) }
	if strings.Contains(name, "/") {
		real, err := filepath.EvalSymlinks(name)
		if err == nil {
			real, err = filepath.Abs(real)
		}
		if err != nil {
			return nil, err
		}
		is = func(path string) bool { return path == real }
	}
	at := slices.IndexFunc(files, is)
	if at < 0 {
		return nil, fmt.Errorf("%s was loaded, and is not among the files that this process has mapped", name)
	}
	folder := filepath.Dir(files[at])
	return slices.DeleteFunc(files, func(path string) bool { return filepath.Dir(path) != folder }), nil
}

// mappedLibraries are the paths of shared libraries in a list of mappings, each once.
func mappedLibraries(maps io.Reader) ([]string, error) {
	var files []string
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		at := strings.IndexByte(lines.Text(), '/')
		if at < 0 {
			continue
		}
		path := lines.Text()[at:]
		if strings.Contains(filepath.Base(path), ".so") && !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	return files, lines.Err()
}

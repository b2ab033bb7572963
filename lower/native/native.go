// Package native has the vendor's compiler make native recipes of a bundle's recipes, in
// processes of their own:
//
//	bundle ─→ recipes ─→ store: made before ───────────────────────────┐
//	              └────→ Process ──request──→ Serve ─→ libSynapse.so   ├─→ recipes.Native
//	                        └──────←─answer, file──────────────────────┘
//
// The compiler is a large foreign program, which was seen to share state between
// threads: it may crash, hang, or take more memory than there is. In a process of its own
// that costs one recipe. A recipe that killed its process is tried once more with no other
// beside it, then it is at fault; the others go on.
//
// No device is needed, and this process never loads the library.
package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"quill/lower/synapse/compiler"
	"quill/recipes"
	"quill/recipes/store"
	"quill/recipes/target"
)

// DefaultDeadline is how long the compiler may take for a recipe if nothing else is said.
const DefaultDeadline = 10 * time.Minute

// Options is how recipes are compiled.
type Options struct {
	// Synapse is the path of the vendor's library; "" is that of $QUILL_SYNAPSE, or what
	// the dynamic linker finds.
	Synapse string
	Profile *target.Profile
	// Jobs is how many processes compile at once, 1 if it is 0.
	Jobs int
	// Deadline bounds the time for a recipe; 0 is DefaultDeadline.
	Deadline time.Duration
	// Store keeps results for the next time; nil keeps nothing.
	Store *store.Store
	// Progress, if it is not nil, is told of every recipe that is done. Calls do not
	// overlap.
	Progress func(Step)
	// Failures is the folder for what reproduces failures: one folder a recipe. It is made
	// when there are some.
	Failures string
	// Program makes the command of a process, which must call Serve; nil is this program
	// with the argument native-worker.
	Program func() *exec.Cmd
}

// Step is how far compiling is.
type Step struct {
	Done, Total int           // recipes
	Kept        int           // of Done, what the store had
	Running     int           // recipes that are being compiled
	What        string        // the recipe that was done last
	Took        time.Duration // by that one
	Slowest     string        // of all so far
	SlowestTook time.Duration
}

// Compiler is the vendor's compiler, as it is installed.
type Compiler struct {
	opt  Options
	with inputs // what results depend on beside the recipe
	dir  *folder
}

// Open asks the vendor's library who it is, in a process. Everything that is wrong with
// the installation is in the error.
func Open(ctx context.Context, opt Options) (*Compiler, error) {
	c, err := newCompiler(opt)
	if err != nil {
		return nil, err
	}
	err = errors.Join(c.library(ctx), compiler.CheckKernels())
	if err == nil {
		err = c.with.environment(os.Environ())
	}
	if err == nil {
		c.with.profile, err = opt.Profile.Hash()
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Driver is the version of the vendor's software that is installed. Of the options only
// Synapse, Profile, Deadline and Program count.
func Driver(ctx context.Context, opt Options) (string, error) {
	c, err := newCompiler(opt)
	if err != nil {
		return "", err
	}
	defer c.Close()
	err = c.library(ctx)
	return c.with.driver, err
}

func newCompiler(opt Options) (*Compiler, error) {
	opt.Jobs = max(opt.Jobs, 1)
	opt.Deadline = cmp.Or(opt.Deadline, DefaultDeadline)
	if opt.Program == nil {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("which program this is: %w", err)
		}
		opt.Program = func() *exec.Cmd { return exec.Command(self, WorkerCommand) }
	}
	dir, err := newFolder()
	if err != nil {
		return nil, fmt.Errorf("a folder for the vendor's compiler: %w", err)
	}
	return &Compiler{opt: opt, dir: dir}, nil
}

// library loads the library in a process, and identifies it.
func (c *Compiler) library(ctx context.Context) error {
	p, err := c.start(ctx, 0)
	if err != nil {
		return err
	}
	defer p.close()
	c.with.driver = p.hello.Driver
	c.with.library, err = hashFiles(p.hello.Files)
	return err
}

// Close removes what processes left.
func (c *Compiler) Close() { c.dir.close() }

// Compile makes the native recipes of a bundle. An error is that of ctx, a
// [FailedError], or one for which no recipe is to blame; what was made until then is in
// the store.
func (c *Compiler) Compile(ctx context.Context, b *recipes.Bundle) (*recipes.Native, error) {
	r := &run{Compiler: c, jobs: jobsOf(b), made: map[recipes.Hash]recipes.NativeRecipe{}}
	if err := c.encodes(r.jobs); err != nil {
		return nil, err
	}
	r.step.Total = len(r.jobs)
	if err := r.all(ctx); err != nil {
		return nil, err
	}
	return &recipes.Native{Driver: c.with.driver, Library: c.with.library, Environment: c.with.variables, Recipes: r.made}, nil
}

// Package compiler compiles recipes with the vendor's graph compiler, which is in
// libSynapse.so and needs no device.
//
//	Load ──→ Compiler ──Compile──→ file for the runtime
//	           recipe → graph of the library → compiled → serialized
//
// The library may compile several graphs at once, but parts of it were seen to share
// state between threads: processes are the safe way to compile in parallel.
package compiler

import (
	"fmt"
	"os"
	"strings"

	"quill/recipes/dl"
)

// Compiler is the library's part that compiles.
type Compiler struct {
	lib *dl.Library
	fn  functions
}

// Load binds the functions of the library and initialises it.
func Load(lib *dl.Library) (*Compiler, error) {
	c := &Compiler{lib: lib}
	if err := lib.Bind(&c.fn); err != nil {
		return nil, err
	}
	return c, lib.Start()
}

// Close ends the use of the library.
func (c *Compiler) Close() error { return c.lib.Stop() }

// Version is the version of the installed software: what is compiled needs the same one
// to run.
func (c *Compiler) Version() (string, error) { return c.lib.Version() }

func (c *Compiler) check(call string, s dl.Status, context string) error {
	if s == dl.Success {
		return nil
	}
	return c.lib.Fail(call, s, context)
}

// kernelPath is the variable with the kernel libraries, and maxKernels how many of them
// the compiler opens.
const (
	kernelPath = "GC_KERNEL_PATH"
	maxKernels = 15
)

// CheckKernels checks that the kernel libraries are where the graph compiler looks for
// them. Without them a graph for Gaudi 2 does not compile, with a status that has no
// reason: even one of the compiler's own nodes needs the kernel "nop".
func CheckKernels() error {
	const help = "help: set " + kernelPath + "=/usr/lib/habanalabs/libtpc_kernels.so, or where the kernel library of this release is"
	list := os.Getenv(kernelPath)
	if list == "" {
		return fmt.Errorf("%s is not set, so the graph compiler has no kernels; %s", kernelPath, help)
	}
	files := strings.Split(list, ":")
	if len(files) > maxKernels {
		return fmt.Errorf("%s names %d libraries, of which the graph compiler opens %d; help: leave out those that are not needed", kernelPath, len(files), maxKernels)
	}
	var missing []string
	for _, f := range files {
		switch st, err := os.Stat(f); {
		case f == "":
			missing = append(missing, "an empty name")
		case err != nil:
			missing = append(missing, err.Error())
		case !st.Mode().IsRegular():
			missing = append(missing, f+" is no file")
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s names kernel libraries that are not there: %s; %s", kernelPath, strings.Join(missing, ", "), help)
	}
	return nil
}

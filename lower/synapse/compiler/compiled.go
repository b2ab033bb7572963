package compiler

import (
	"fmt"

	"quill/recipes/dl"
)

// Compiled is a compiled recipe in the library's memory.
type Compiled struct {
	c      *Compiler
	handle dl.Handle
	name   string
}

// Compile compiles the graph, once. The name is for the library's logs and profiles.
// Where the library gives no reason for a failure, the error has the end of its logs,
// and says if kernel libraries are missing.
func (g *Graph) Compile(name string) (*Compiled, error) {
	if g.compiled {
		return nil, fmt.Errorf("recipe %s: its graph was compiled before, which the library does once", g.recipe)
	}
	g.compiled = true
	defer dl.Lock()()
	x := &Compiled{c: g.c, name: name}
	call, s, reason := "synGraphCompile", dl.Success, ""
	if g.c.fn.explains() {
		call = "synGraphCompileV2"
		s, reason = g.c.compileV2(&x.handle, g.handle, name)
	} else {
		s = g.c.fn.GraphCompile(&x.handle, g.handle, name, nil)
	}
	if s == dl.Success {
		return x, nil
	}
	err := g.c.lib.Fail(call, s, "recipe "+g.recipe)
	if reason != "" {
		err.Detail = "the library says: " + reason
	}
	if kernels := CheckKernels(); kernels != nil {
		if err.Detail != "" {
			err.Detail += "; "
		}
		err.Detail += kernels.Error()
	}
	return nil, err
}

// maxReason is the most bytes of a reason that are told.
const maxReason = 4096

// compileV2 compiles, and gives the reason if it fails.
func (c *Compiler) compileV2(recipe *dl.Handle, graph dl.Handle, name string) (s dl.Status, reason string) {
	var e dl.Handle
	s = c.fn.GraphCompileV2(recipe, graph, name, nil, &e)
	if e == 0 {
		return s, ""
	}
	defer func() { _ = c.fn.ErrorDestroy(e) }() // there is nothing to do about it
	var n uint64
	if s == dl.Success || c.fn.ErrorGetMessageLength(e, &n) != dl.Success {
		return s, ""
	}
	buf := make([]byte, min(n, maxReason)+1) // the length may be without the NUL
	if c.fn.ErrorGetMessage(e, &buf[0], uint64(len(buf))) != dl.Success {
		return s, ""
	}
	return s, dl.CString(buf)
}

// Destroy frees the graph with its tensors and sections. What was compiled of it stays.
func (g *Graph) Destroy() error {
	defer dl.Lock()()
	return g.c.check("synGraphDestroy", g.c.fn.GraphDestroy(g.handle), "recipe "+g.recipe)
}

// Serialize writes the recipe to a file, for runtimes of the same software version. The file holds
// the time of compiling: two of the same recipe differ in that and in a checksum.
func (x *Compiled) Serialize(path string) error {
	defer dl.Lock()()
	return x.c.check("synRecipeSerialize", x.c.fn.RecipeSerialize(x.handle, path), path)
}

// Sizes are the bytes of the workspace that each launch needs, and those that the
// runtime keeps on the device: programs and their data.
func (x *Compiled) Sizes() (workspace, programs uint64, err error) {
	defer dl.Lock()()
	ids := [...]uint32{workspaceSize, deviceMemorySize}
	var v [len(ids)]uint64
	s := x.c.fn.RecipeGetAttribute(&v[0], &ids[0], uint32(len(ids)), x.handle)
	return v[0], v[1], x.c.check("synRecipeGetAttribute", s, x.name)
}

// Destroy frees the recipe. Nothing of it may be used afterwards: the library does not
// notice.
func (x *Compiled) Destroy() error {
	defer dl.Lock()()
	return x.c.check("synRecipeDestroy", x.c.fn.RecipeDestroy(x.handle), x.name)
}

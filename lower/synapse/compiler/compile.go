package compiler

import (
	"errors"

	"quill/recipes"
	"quill/recipes/dl"
	"quill/recipes/target"
)

// Compile compiles a recipe, which must be legal for the profile, and writes it to a file
// for runtimes of the same software version. The file holds the time of compiling: two of
// the same recipe differ in that and in a checksum. The workspace is the bytes that each
// launch needs, and programs are those that the runtime keeps on the device: programs and
// their data.
//
// Errors name the recipe; those of its graph name node, GUID, operands and the model op, too.
// Where the library gives no reason why a graph does not compile, the error has the end of
// its logs, and says if kernel libraries are missing. Nothing stays in the library's memory.
func (c *Compiler) Compile(r *recipes.Recipe, p *target.Profile, path string) (workspace, programs int64, err error) {
	if err := p.CheckRecipe(r); err != nil {
		return 0, 0, err
	}
	defer dl.Lock()()
	graph, err := c.build(r, p)
	if err != nil {
		return 0, 0, err
	}
	name := "recipe " + r.Name
	made, err := c.compile(graph, r.Name)
	err = errors.Join(err, c.check("synGraphDestroy", c.fn.GraphDestroy(graph), name))
	if made == 0 {
		return 0, 0, err
	}
	if err == nil {
		err = c.check("synRecipeSerialize", c.fn.RecipeSerialize(made, path), name+": "+path)
	}
	ids := [...]uint32{workspaceSize, deviceMemorySize}
	var sizes [len(ids)]uint64
	err = errors.Join(err,
		c.check("synRecipeGetAttribute", c.fn.RecipeGetAttribute(&sizes[0], &ids[0], uint32(len(ids)), made), name),
		c.check("synRecipeDestroy", c.fn.RecipeDestroy(made), name))
	return int64(sizes[0]), int64(sizes[1]), err
}

// compile compiles a graph. The name is for the library's logs and profiles.
func (c *Compiler) compile(graph dl.Handle, name string) (recipe dl.Handle, err error) {
	call, s, reason := "synGraphCompile", dl.Success, ""
	if c.fn.explains() {
		call = "synGraphCompileV2"
		s, reason = c.compileV2(&recipe, graph, name)
	} else {
		s = c.fn.GraphCompile(&recipe, graph, name, nil)
	}
	if s == dl.Success {
		return recipe, nil
	}
	fault := c.lib.Fail(call, s, "recipe "+name)
	if reason != "" {
		fault.Detail = "the library says: " + reason
	}
	if kernels := CheckKernels(); kernels != nil {
		if fault.Detail != "" {
			fault.Detail += "; "
		}
		fault.Detail += kernels.Error()
	}
	return 0, fault
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

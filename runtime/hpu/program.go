//go:build linux

package hpu

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"quill/recipes"
	"quill/runtime/hpu/launch"
)

// program is a native recipe with its launch table: an entry a persistent tensor,
// which is filled once. From launch to launch only addresses of sections change.
type program struct {
	recipe   *launch.Recipe
	table    []launch.Binding
	sections []section
}

// section is what a launch table has of a section.
type section struct {
	base    uint64  // that the table has now
	entries []entry // of its tensors
}

type entry struct {
	index  int    // in the table
	offset uint64 // from the section's base
}

// load loads a native recipe and makes its launch table.
func (c *card) load(h recipes.Hash, r *recipes.Recipe, native []byte) error {
	f, err := spill(native)
	if err != nil {
		return err
	}
	defer f.Close() // the library has read it
	c.where.programs.Add(1)
	p := &program{sections: make([]section, len(r.Sections))}
	if p.recipe, err = c.rt.LoadRecipe(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), fmt.Sprintf("recipe %s-%.12s", r.Name, h)); err != nil {
		return err
	}
	c.undo = append(c.undo, p.recipe.Destroy)
	tensors, err := p.recipe.Tensors()
	if err != nil {
		return err
	}
	if err := p.fill(r, tensors); err != nil {
		return fmt.Errorf("the native recipe is not of this recipe: %w", err)
	}
	c.programs[h] = p
	return nil
}

// spill writes a recipe to a file, since the library reads nothing else. It has no name:
// however the process ends, nothing is left of it.
func spill(native []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("quill-recipe", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("recipe for the library: %w", err)
	}
	f := os.NewFile(uintptr(fd), "recipe for the library")
	if _, err = f.Write(native); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fill makes an entry of each persistent tensor that the library knows, and checks it
// against the recipe: name, type, dims, section and place.
func (p *program) fill(r *recipes.Recipe, tensors []launch.Tensor) error {
	byName := make(map[string]*recipes.Tensor)
	for _, i := range persistent(r) {
		byName[r.Tensors[i].Name] = &r.Tensors[i]
	}
	owner := make(map[uint32]int) // our section of the library's
	for _, t := range tensors {
		want := byName[t.Name]
		if want == nil {
			return fmt.Errorf("tensor %q is not in it, or there twice", t.Name)
		}
		delete(byName, t.Name)
		if t.DType != want.DType || !sameDims(t.Dims, want.Dims) || t.Offset != uint64(want.Offset) {
			return fmt.Errorf("tensor %q is %v %v at byte %d, want %v %v at byte %d", t.Name, t.DType, t.Dims, t.Offset, want.DType, want.Dims, want.Offset)
		}
		if s, ok := owner[t.Section]; ok && s != want.Section {
			return fmt.Errorf("tensor %q is in section %s, want %s", t.Name, r.Sections[s].Name, r.Sections[want.Section].Name)
		}
		owner[t.Section] = want.Section
		s := &p.sections[want.Section]
		s.entries = append(s.entries, entry{len(p.table), t.Offset})
		p.table = append(p.table, t.Bind(0))
	}
	for name := range byName {
		return fmt.Errorf("it has no tensor %q", name)
	}
	return nil
}

// persistent are the tensors that a native recipe must have: those of sections that a
// node reads or writes. The compiler drops what nothing touches.
func persistent(r *recipes.Recipe) []int {
	var all []int
	for i := range r.Nodes {
		all = append(append(all, r.Nodes[i].In...), r.Nodes[i].Out...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(t int) bool { return t == recipes.Absent || r.Tensors[t].Section == recipes.Workspace })
}

func sameDims(got []uint64, want []int64) bool {
	return slices.EqualFunc(got, want, func(g uint64, w int64) bool { return g == uint64(w) })
}

// launch runs a program with the bases of its sections. Only sections that have moved
// since its last launch are touched.
func (c *card) launch(p *program, bases []uint64) error {
	for i, base := range bases {
		s := &p.sections[i]
		if s.base == base {
			continue
		}
		s.base = base
		for _, e := range s.entries {
			p.table[e.index].Address = base + e.offset
		}
		c.moved.Add(1)
	}
	return c.stream.Launch(p.recipe, p.table, c.workspace)
}

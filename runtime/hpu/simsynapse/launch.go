package simsynapse

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"quill/recipes"
	"quill/runtime/host"
)

// LaunchTensor binds a tensor of a launch.
type LaunchTensor struct {
	Name    string
	Address uint64
	Type    int32
	Sizes   []uint64
	ID      uint64
}

// byName is the launch flag by which tensors are found by their names.
const byName = 1

// Launch is synLaunch. What is known of the real one is checked, and a little more: that
// every section lies in one allocation, and that the workspace lies apart.
func (l *Library) Launch(streamHandle Handle, tensors []LaunchTensor, workspace uint64, recipeHandle Handle, flags uint32) Status {
	a := args{"stream": streamHandle, "tensors": tensors, "workspace": workspace, "recipe": recipeHandle, "flags": flags}
	return l.do("synLaunch", a, func() Status {
		s, st := lookup(l, l.streams, streamHandle, "stream")
		if st != Success {
			return st
		}
		r, st := lookup(l, l.recipes, recipeHandle, "recipe")
		if st != Success {
			return st
		}
		if flags > byName {
			return l.refused(InvalidArgument, "launch flags %#x, want 0 or 1", flags)
		}
		c := launchCheck{l: l, r: r, o: &op{what: "launch of " + r.program.Name, recipe: r}}
		if st := c.bind(tensors, flags == byName); st != Success {
			return st
		}
		if st := c.apart(workspace); st != Success {
			return st
		}
		run, err := l.device.bound(r, c.bases)
		if err != nil {
			return l.refused(Fail, "launch: %v", err)
		}
		c.o.run = l.execute(r, run, workspace)
		s.enqueue(c.o)
		l.device.launches++
		return Success
	})
}

// execute is the work of a launch. The workspace loses what it held, as it does to a
// recipe's intermediate tensors.
func (l *Library) execute(r *recipe, run *host.Launch, workspace uint64) func() Status {
	var space []byte
	if n := r.file.Workspaces[0]; n > 0 && !l.config.NoPoison {
		space = l.device.bytes(workspace, n)
	}
	return func() Status {
		poison(space)
		if err := run.Run(context.Background()); err != nil {
			l.lose(DeviceReset, "launch: %v", err)
			return DeviceReset
		}
		return Success
	}
}

// launchCheck finds where a launch binds its sections.
type launchCheck struct {
	l     *Library
	r     *recipe
	o     *op
	given []bool   // by tensor
	known []bool   // by section: its base is
	bases []uint64 // by section
}

func (c *launchCheck) refused(st Status, format string, a ...any) Status {
	return c.l.refused(st, "launch of recipe %q: "+format, append([]any{c.r.program.Name}, a...)...)
}

func (c *launchCheck) bind(tensors []LaunchTensor, named bool) Status {
	sections := len(c.r.program.Sections)
	c.given = make([]bool, len(c.r.file.Tensors))
	c.known, c.bases = make([]bool, sections), make([]uint64, sections)
	for i := range tensors {
		x := &tensors[i]
		id := x.ID
		if named {
			if id = c.r.id(x.Name); id == InvalidID {
				return c.refused(InvalidArgument, "there is no persistent tensor %q", x.Name)
			}
		}
		if id == InvalidID {
			continue
		}
		if st := c.tensor(x, id); st != Success {
			return st
		}
	}
	for i, ok := range c.given {
		if !ok {
			return c.refused(InvalidArgument, "persistent tensor %q is not bound", c.r.file.Tensors[i].Name)
		}
	}
	for i := range c.r.file.Tensors {
		if t := &c.r.file.Tensors[i]; !c.known[t.Section-firstSection] {
			return c.refused(InvalidArgument, "no tensor of section %d has an address, %q is one", t.Section, t.Name)
		}
	}
	return Success
}

// tensor binds one tensor: an id is its number, with its type in the highest byte.
func (c *launchCheck) tensor(x *LaunchTensor, id uint64) Status {
	index, kind := id&(1<<56-1), int32(id>>56)
	if index >= uint64(len(c.r.file.Tensors)) {
		return c.refused(InvalidArgument, "tensor id %#x, there are %d tensors", id, len(c.r.file.Tensors))
	}
	t := &c.r.file.Tensors[index]
	if kind != int32(t.TensorType) || x.Type != int32(t.TensorType) {
		return c.refused(InvalidTensorProperties, "tensor %q has type %d (%d in its id), it was compiled as %d", t.Name, x.Type, kind, t.TensorType)
	}
	c.given[index] = true
	if x.Address == 0 {
		return Success // another tensor of the section says where it is
	}
	section, base := t.Section-firstSection, x.Address-t.Offset
	if c.known[section] && c.bases[section] != base {
		return c.refused(FailedSectionValidation, "tensor %q puts section %d at %#x, another one puts it at %#x", t.Name, t.Section, base, c.bases[section])
	}
	c.known[section], c.bases[section] = true, base
	return Success
}

// apart checks that sections lie in memory that is allocated and apart from each other, and
// so does the workspace.
func (c *launchCheck) apart(workspace uint64) Status {
	type span struct {
		lo, hi uint64
		what   string
	}
	var spans []span
	for i := range c.r.program.Sections {
		s := &c.r.program.Sections[i]
		if !c.known[i] || s.Size == 0 {
			continue
		}
		if _, st := c.l.deviceSide(c.o, c.bases[i], uint64(s.Size)); st != Success {
			return c.refused(st, "section %d with %d bytes is bound at %#x", firstSection+i, s.Size, c.bases[i])
		}
		spans = append(spans, span{c.bases[i], c.bases[i] + uint64(s.Size), s.Name})
	}
	if n := c.r.file.Workspaces[0]; n > 0 {
		if workspace%alignment != 0 {
			return c.refused(InvalidArgument, "workspace at %#x, want a multiple of %d", workspace, alignment)
		}
		if _, st := c.l.deviceSide(c.o, workspace, n); st != Success {
			return c.refused(st, "workspace of %d bytes at %#x", n, workspace)
		}
		spans = append(spans, span{workspace, workspace + n, "the workspace"})
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	for i := 1; i < len(spans); i++ {
		if a, b := spans[i-1], spans[i]; a.hi > b.lo {
			return c.refused(FailedSectionValidation, "%s is bound at %#x, inside %s at %#x to %#x", b.what, b.lo, a.what, a.lo, a.hi)
		}
	}
	return Success
}

// mostBound bounds how many addresses a recipe remembers.
const mostBound = 4096

// bound is a recipe at addresses of its sections: loaded once, and bound once for each list
// of addresses.
func (d *device) bound(r *recipe, bases []uint64) (*host.Launch, error) {
	if r.loaded == nil {
		p, err := d.host.Load(r.program)
		if err != nil {
			return nil, err
		}
		r.loaded, r.bound = p, map[string]*host.Launch{}
	}
	var key []byte
	bindings := make([]recipes.Binding, len(bases))
	for i, b := range bases {
		key = binary.LittleEndian.AppendUint64(key, b)
		bindings[i] = recipes.Binding{Buffer: recipes.Arena, Offset: int64(b - dramBase)}
	}
	if run, ok := r.bound[string(key)]; ok {
		return run, nil
	}
	run, err := d.host.Bind(r.loaded, bindings)
	if err != nil {
		return nil, err
	}
	if len(r.bound) >= mostBound {
		clear(r.bound)
	}
	r.bound[string(key)] = run
	return run, nil
}

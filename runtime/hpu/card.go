//go:build linux

package hpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"quill/recipes"
	"quill/recipes/dl"
	"quill/recipes/dtype"
	"quill/runtime/hpu/launch"
)

// card is the card of a rank with everything that replays need: memory, programs and
// plans. One goroutine uses it, but for done.
type card struct {
	rt     *launch.Runtime
	dev    *launch.Device
	stream *launch.Stream
	ranks  int
	comm   *launch.Comm // nil for one rank alone
	// undo releases what was acquired, the last first.
	undo []func() error
	// where tells the group what the card is at.
	where *place

	sizes     map[recipes.Buffer]int64
	base      map[recipes.Buffer]uint64
	workspace uint64
	programs  map[recipes.Hash]*program

	// marks are recorded behind every markEvery steps of a run, so that it can be told
	// how far a card is that hangs.
	marks    []*launch.Event
	recorded atomic.Int64 // marks of the present run
	moved    atomic.Int64 // sections whose address in a launch table was changed, since the start
}

const markEvery = 8

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

// acquire takes the card of a module, and waits for it if it is not free. Errors in
// the middle leave a card that release releases.
func (c *card) acquire(library string, module uint32, patience time.Duration) error {
	lib, err := dl.OpenSynapse(library)
	if err != nil {
		return err
	}
	if c.rt, err = launch.Load(lib); err != nil {
		return err
	}
	c.undo = append(c.undo, c.rt.Close)
	for end := time.Now().Add(patience); ; time.Sleep(time.Second / 2) {
		if c.dev, err = c.rt.Acquire(module); err == nil {
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	c.undo = append(c.undo, c.dev.Release)
	if c.stream, err = c.dev.NewStream(); err != nil {
		return err
	}
	c.undo = append(c.undo, c.stream.Destroy)
	return nil
}

// allocate takes memory for all buffers, zeroed, and the workspace of all programs.
func (c *card) allocate(sizes map[recipes.Buffer]int64) error {
	c.sizes = sizes
	c.base = make(map[recipes.Buffer]uint64)
	for _, b := range recipes.Buffers() {
		if sizes[b] == 0 {
			continue
		}
		addr, err := c.malloc(uint64(sizes[b]))
		if err != nil {
			return fmt.Errorf("buffer %s: %w", b, err)
		}
		c.base[b] = addr
		if err := c.clear(b); err != nil {
			return err
		}
	}
	need := uint64(0)
	for _, p := range c.programs {
		n, err := p.recipe.Workspace()
		if err != nil {
			return err
		}
		need = max(need, n)
	}
	if need > 0 {
		var err error
		if c.workspace, err = c.malloc(need); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
	}
	return c.stream.Synchronize()
}

func (c *card) malloc(n uint64) (uint64, error) {
	c.where.allocations.Add(1)
	addr, err := c.dev.Malloc(n)
	if err == nil {
		c.undo = append(c.undo, func() error { return c.dev.Free(addr) })
	}
	return addr, err
}

// clear zeroes a buffer.
func (c *card) clear(b recipes.Buffer) error {
	if c.sizes[b] == 0 {
		return nil
	}
	return c.stream.Memset(c.base[b], 0, uint64(c.sizes[b]))
}

// at is the address of a range of a buffer.
func (c *card) at(b recipes.Buffer, offset, n int64) (uint64, error) {
	if size := c.sizes[b]; offset < 0 || offset > size || n < 0 || n > size-offset {
		return 0, fmt.Errorf("%d bytes at byte %d of buffer %s, which has %d", n, offset, b, size)
	}
	return c.base[b] + uint64(offset), nil
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

// bound is a plan that is ready to run.
type bound struct {
	number int
	steps  []step
	stage  []move
	fetch  []move
}

// step is a launch or a collective.
type step struct {
	program *program
	bases   []uint64

	kind      recipes.CollectiveKind
	dtype     dtype.Type
	count     uint64
	send, out uint64
}

// move is a copy between shared memory and the card.
type move struct {
	host []byte
	addr uint64
}

// bind resolves the addresses of a plan.
func (c *card) bind(number int, p *recipes.Plan, all map[recipes.Hash]*recipes.Recipe) (*bound, error) {
	b := &bound{number: number, steps: make([]step, len(p.Steps))}
	for i := range p.Steps {
		var err error
		if l := p.Steps[i].Launch; l != nil {
			b.steps[i], err = c.bindLaunch(l, all[l.Recipe])
		} else {
			b.steps[i], err = c.bindCollective(p.Steps[i].Collective)
		}
		if err != nil {
			return nil, fmt.Errorf("step %d (%s): %w", i, p.Steps[i].What(), err)
		}
	}
	for len(c.marks) < len(p.Steps)/markEvery {
		c.where.allocations.Add(1)
		e, err := c.dev.NewEvent()
		if err != nil {
			return nil, err
		}
		c.undo = append(c.undo, e.Destroy)
		c.marks = append(c.marks, e)
	}
	return b, nil
}

func (c *card) bindLaunch(l *recipes.Launch, r *recipes.Recipe) (step, error) {
	s := step{program: c.programs[l.Recipe], bases: make([]uint64, len(l.Bindings))}
	if len(l.Bindings) != len(r.Sections) {
		return s, fmt.Errorf("recipe %s: %d bindings, want one for each of %d sections", r.Name, len(l.Bindings), len(r.Sections))
	}
	for i, at := range l.Bindings {
		want := &r.Sections[i]
		if at.Buffer != want.Buffer {
			return s, fmt.Errorf("recipe %s: section %s is bound to %s, want %s", r.Name, want.Name, at.Buffer, want.Buffer)
		}
		addr, err := c.at(at.Buffer, at.Offset, want.Size)
		if err != nil {
			return s, fmt.Errorf("recipe %s: section %s: %w", r.Name, want.Name, err)
		}
		s.bases[i] = addr
	}
	return s, nil
}

func (c *card) bindCollective(k *recipes.Collective) (step, error) {
	s := step{kind: k.Kind, dtype: k.DType, count: uint64(k.Count)}
	bytes := k.Count * int64(k.DType.Size())
	out := bytes
	switch k.Kind {
	case recipes.AllReduce:
	case recipes.AllGather:
		out *= int64(c.ranks)
	default:
		return s, errors.New("unknown kind of collective")
	}
	var err, err2 error
	s.send, err = c.at(recipes.Arena, k.In, bytes)
	s.out, err2 = c.at(recipes.Arena, k.Out, out)
	return s, errors.Join(err, err2)
}

// run executes a plan and waits for it.
func (c *card) run(b *bound) error {
	where := c.where
	where.runs.Add(1)
	where.plan.Store(int64(b.number))
	where.step.Store(0)
	c.recorded.Store(0)
	for i := range b.stage {
		if err := c.stream.CopyToDevice(b.stage[i].addr, b.stage[i].host); err != nil {
			return err
		}
	}
	for i := range b.steps {
		if err := c.step(&b.steps[i]); err != nil {
			return err
		}
		where.step.Store(int64(i + 1))
		if m := (i + 1) / markEvery; (i+1)%markEvery == 0 {
			if err := c.stream.Record(c.marks[m-1]); err != nil {
				return err
			}
			c.recorded.Store(int64(m))
		}
	}
	for i := range b.fetch {
		if err := c.stream.CopyToHost(b.fetch[i].host, b.fetch[i].addr); err != nil {
			return err
		}
	}
	where.waits.Store(1)
	err := c.stream.Synchronize()
	where.waits.Store(0)
	if err != nil && c.comm != nil {
		err = errors.Join(err, c.comm.AsyncError())
	}
	return err
}

func (c *card) step(s *step) error {
	bytes := s.count * uint64(s.dtype.Size())
	switch {
	case s.program != nil:
		return c.launch(s.program, s.bases)
	case c.comm == nil && s.send != s.out:
		return c.stream.CopyOnDevice(s.out, s.send, bytes)
	case c.comm == nil:
		return nil
	case s.kind == recipes.AllReduce:
		return c.comm.AllReduce(c.stream, s.send, s.out, s.count, s.dtype)
	default:
		return c.comm.AllGather(c.stream, s.send, s.out, s.count, s.dtype)
	}
}

// done is how many steps of the present run the card is known to have done. It may be
// called while run waits.
func (c *card) done() int {
	for m := int(c.recorded.Load()); m > 0; m-- {
		if ok, err := c.marks[m-1].Query(); ok && err == nil {
			return m * markEvery
		}
	}
	return 0
}

// release gives everything back, in the reverse order. It returns the first error.
func (c *card) release() error {
	c.recorded.Store(0) // nobody asks for marks that are gone
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if c.comm != nil {
		keep(c.comm.Finalize())
		keep(c.comm.Destroy())
		c.comm = nil
	}
	for _, undo := range slices.Backward(c.undo) {
		keep(undo())
	}
	c.undo = nil
	return first
}

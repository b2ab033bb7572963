package simsynapse

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"quill/recipes"
	"quill/recipes/native"
	"quill/runtime/host"
)

func (g *graph) byID(ids []uint64) ([]*node, error) {
	list := make([]*node, len(ids))
	for i, id := range ids {
		at, ok := slices.BinarySearchFunc(g.nodes, id, func(n *node, id uint64) int { return cmp.Compare(n.id, id) })
		if !ok {
			return nil, fmt.Errorf("the graph has no node %d", id)
		}
		list[i] = g.nodes[at]
	}
	return list, nil
}

// recipe is a compiled recipe: its file, and the program in it.
type recipe struct {
	file    *native.Recipe
	program *recipes.Recipe
	loaded  *host.Program // on the device that is acquired
	bound   map[string]*host.Launch
}

// firstSection is the number of the first section of the caller.
const firstSection = 4

// GraphCompile is synGraphCompile.
func (l *Library) GraphCompile(graph Handle, name string) (Handle, Status) {
	return call(l, "synGraphCompile", args{"graph": graph, "name": name}, func() (Handle, Status) {
		g, st := lookup(l, l.graphs, graph, "graph")
		if st != Success {
			return 0, st
		}
		r, err := l.compile(g, name)
		if err != nil {
			return 0, l.compilerRefused(Fail, "graph %q: %v", name, err)
		}
		h := l.handle()
		l.recipes[h] = r
		return h, Success
	})
}

// compile makes a recipe of a graph.
func (l *Library) compile(g *graph, name string) (*recipe, error) {
	if g.compiled {
		return nil, errors.New("it was compiled before")
	}
	g.compiled = true
	if g.device != gaudi2 {
		return nil, fmt.Errorf("it is for device type %d; only Gaudi 2 (%d) is simulated", g.device, gaudi2)
	}
	if !l.config.kernelLibrary() {
		return nil, errors.New("no library of kernels has nop: GC_KERNEL_PATH names no file that is there")
	}
	p, err := l.rebuild(g, name)
	if err != nil {
		return nil, err
	}
	if err := l.profile.CheckRecipe(p); err != nil {
		return nil, err
	}
	return &recipe{file: l.pack(p, l.consts(g)), program: p}, nil
}

// rebuild makes a program of what calls said. Nodes come in an order that respects operands
// and dependencies, and is otherwise that of their creation.
func (l *Library) rebuild(g *graph, name string) (*recipes.Recipe, error) {
	p := &recipes.Recipe{Name: name}
	index := map[*tensor]int{}
	sections := map[*section]int{}
	for _, h := range g.tensors {
		t := l.tensors[h]
		if t == nil || !t.locked {
			continue // destroyed, or no node uses it
		}
		at := recipes.Workspace
		if s := t.section; s != nil && s.persistent {
			var seen bool
			if at, seen = sections[s]; !seen {
				at = len(p.Sections)
				sections[s] = at
				p.Sections = append(p.Sections, recipes.Section{Name: fmt.Sprintf("section%d", firstSection+at), Buffer: recipes.Arena})
			}
			if t.name == "" {
				return nil, errors.New("a persistent tensor has no name")
			}
		}
		if t.dtype.Size() == 0 {
			return nil, fmt.Errorf("tensor %q has no data type", t.name)
		}
		x := recipes.Tensor{Name: cmp.Or(t.name, fmt.Sprintf("unnamed%d", len(p.Tensors))), DType: t.dtype, Dims: t.dims, Section: at}
		if at != recipes.Workspace {
			x.Offset = int64(t.offset)
			s := &p.Sections[at]
			s.Size = max(s.Size, x.Offset+x.Bytes())
		}
		index[t] = len(p.Tensors)
		p.Tensors = append(p.Tensors, x)
	}
	order, err := g.order()
	if err != nil {
		return nil, err
	}
	place := map[*node]int{}
	for i, n := range order {
		place[n] = i
		x := recipes.Node{Name: n.name, GUID: n.guid, Params: n.params}
		for _, t := range n.in {
			at := recipes.Absent
			if t != nil {
				at = index[t]
			}
			x.In = append(x.In, at)
		}
		for _, t := range n.out {
			x.Out = append(x.Out, index[t])
		}
		for _, m := range n.after {
			x.After = append(x.After, place[m])
		}
		slices.Sort(x.After)
		p.Nodes = append(p.Nodes, x)
	}
	return p, nil
}

// order sorts nodes.
func (g *graph) order() ([]*node, error) {
	const onPath, done = 1, 2
	state := map[*node]int{}
	var order []*node
	var visit func(n *node) error
	visit = func(n *node) error {
		switch state[n] {
		case done:
			return nil
		case onPath:
			return fmt.Errorf("node %q waits for itself", n.name)
		}
		state[n] = onPath
		var before []*node
		for _, t := range n.in {
			if t != nil && t.producer != nil {
				before = append(before, t.producer)
			}
		}
		for _, m := range append(before, n.after...) {
			if err := visit(m); err != nil {
				return err
			}
		}
		state[n] = done
		order = append(order, n)
		return nil
	}
	for _, n := range g.nodes {
		if err := visit(n); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// consts are the data of constant tensors, by name.
func (l *Library) consts(g *graph) map[string][]byte {
	list := map[string][]byte{}
	for _, h := range g.tensors {
		if t := l.tensors[h]; t != nil && t.section != nil && t.section.constant && t.host != nil {
			list[t.name] = t.host
		}
	}
	return list
}

// scratch is what the graph compiler takes of the workspace beside intermediate tensors.
const scratch = 256

// gaudi2 is the number of the device type.
const gaudi2 = 4

// pack writes a program as a file of the library: tensors, sections, workspaces and patch
// points as the real one does; commands are empty, and the program data is the program.
func (l *Library) pack(p *recipes.Recipe, consts map[string][]byte) *native.Recipe {
	f := &native.Recipe{
		Major: 1, Minor: 26, Name: p.Name, ProgramData: p.Encode(), Programs: [][]uint64{nil},
		Debug: native.Debug{Major: 1, Minor: 2},
		Conf: []native.Conf{
			{ID: native.ConfDeviceType, Value: gaudi2},
			{ID: native.ConfCompileTime, Value: uint64(time.Now().Unix())},
			{ID: native.ConfTPCMask, Value: tpcMask},
			{ID: native.ConfMMEs, Value: 2},
			{ID: native.ConfDMAMask, Value: 0x1f},
		},
		NopSection: 2, NopValid: 1, Sections: uint32(firstSection + len(p.Sections)),
	}
	written := map[int]bool{}
	for i := range p.Nodes {
		for _, t := range p.Nodes[i].Out {
			written[t] = true
		}
	}
	for _, i := range persistent(p) {
		t := &p.Tensors[i]
		x := native.Tensor{
			Name: t.Name, Section: uint16(firstSection + t.Section), Offset: uint64(t.Offset), Size: uint64(t.Bytes()), DType: l.numberOf(t.DType),
			Scale: 1, Rank: uint32(len(t.Dims)), Order: math.MaxUint32,
		}
		for k, d := range t.Dims[:min(len(t.Dims), len(x.Sizes))] {
			x.Sizes[k] = uint64(d)
		}
		for k := range x.Permutation {
			x.Permutation[k] = uint8(k)
		}
		if !written[i] {
			x.IsInput = 1
		}
		f.Tensors = append(f.Tensors, x)
		if data, ok := consts[t.Name]; ok {
			f.ConstSections = append(f.ConstSections, native.ConstSection{Size: uint64(len(data)), Section: x.Section, HasData: true, Data: data})
		}
	}
	f.ProgramBlobs = []native.ProgramBlob{{Size: uint64(len(f.ProgramData)), Section: 1}}
	packNodes(f, p)
	code := uint64(recipes.Align(int64(len(f.Execution) + len(f.Patching))))
	f.Workspaces = []uint64{uint64(p.PlaceWorkspace().Bytes) + scratch, uint64(len(f.ProgramData)), code}
	return f
}

// packNodes gives each node a blob, and one with a place for the address of each operand in
// a section.
func packNodes(f *native.Recipe, p *recipes.Recipe) {
	const command = 16
	sections := map[uint16][]uint32{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		f.Programs[0] = append(f.Programs[0], uint64(len(f.Blobs)))
		f.Blobs = append(f.Blobs, native.Blob{Kind: native.ExecutionBlob, Size: command, Offset: uint64(len(f.Execution))})
		f.Execution = append(f.Execution, make([]byte, command)...)
		patching := native.Blob{Kind: native.PatchingBlob, Offset: uint64(len(f.Patching))}
		for _, t := range slices.Concat(n.In, n.Out) {
			if t == recipes.Absent || p.Tensors[t].Section == recipes.Workspace {
				continue
			}
			section := uint16(firstSection + p.Tensors[t].Section)
			blob := uint32(len(f.Blobs))
			f.PatchPoints = append(f.PatchPoints, native.PatchPoint{
				Type: native.DoubleWord, Blob: blob, Word: patching.Size / 4, Address: uint64(p.Tensors[t].Offset), Section: section, Node: uint32(i),
			})
			if list := sections[section]; len(list) == 0 || list[len(list)-1] != blob {
				sections[section] = append(list, blob)
			}
			patching.Size += 8
			f.Patching = append(f.Patching, make([]byte, 8)...)
		}
		if patching.Size > 0 {
			f.Programs[0] = append(f.Programs[0], uint64(len(f.Blobs)))
			f.Blobs = append(f.Blobs, patching)
		}
		f.Nodes = append(f.Nodes, native.NodeProgram{PatchPoints: uint32(len(f.PatchPoints)), Blobs: []uint32{uint32(len(f.Programs[0]))}})
	}
	for s := range p.Sections {
		id := uint16(firstSection + s)
		f.SectionBlobs = append(f.SectionBlobs, native.SectionBlobs{Section: id, Blobs: sections[id]})
	}
	f.Execute = []native.Job{{}}
	for engine := range uint8(3) {
		f.ArcJobs = append(f.ArcJobs, native.ArcJob{Engine: engine})
	}
}

// persistent are the tensors in sections, in the order in which nodes first use them, which
// is that of their launch ids.
func persistent(p *recipes.Recipe) []int {
	var list []int
	seen := map[int]bool{}
	for i := range p.Nodes {
		for _, t := range slices.Concat(p.Nodes[i].In, p.Nodes[i].Out) {
			if t != recipes.Absent && p.Tensors[t].Section != recipes.Workspace && !seen[t] {
				seen[t] = true
				list = append(list, t)
			}
		}
	}
	return list
}

// unpack reads a file that pack wrote.
func unpack(data []byte) (*recipe, error) {
	f, err := native.Decode(data)
	if _, checksum := errors.AsType[*native.ChecksumError](err); err != nil && !checksum {
		return nil, err // the library does not look at the checksum
	}
	p, err := recipes.DecodeRecipe(f.ProgramData, recipes.Sum(f.ProgramData))
	if err != nil {
		return nil, fmt.Errorf("the program is none of this library: %w", err)
	}
	if err := p.Check(); err != nil {
		return nil, err
	}
	order := persistent(p)
	if len(order) != len(f.Tensors) || len(f.Workspaces) == 0 {
		return nil, errors.New("the file's tensors are not those of its program")
	}
	for i, t := range order {
		if x, y := &f.Tensors[i], &p.Tensors[t]; x.Name != y.Name || int(x.Section) != firstSection+y.Section || x.Offset != uint64(y.Offset) || x.Size != uint64(y.Bytes()) {
			return nil, fmt.Errorf("the file's tensor %q is not that of its program", x.Name)
		}
	}
	return &recipe{file: f, program: p}, nil
}

// RecipeSerialize is synRecipeSerialize.
func (l *Library) RecipeSerialize(h Handle, path string) Status {
	return l.do("synRecipeSerialize", args{"recipe": h, "path": path}, func() Status {
		r, st := lookup(l, l.recipes, h, "recipe")
		if st != Success {
			return st
		}
		data, err := r.file.Encode()
		if err == nil {
			err = os.WriteFile(path, data, 0o666)
		}
		if err != nil {
			return l.refused(Fail, "recipe %q: %v", r.program.Name, err)
		}
		return Success
	})
}

// RecipeDeSerialize is synRecipeDeSerialize.
func (l *Library) RecipeDeSerialize(path string) (Handle, Status) {
	return call(l, "synRecipeDeSerialize", args{"path": path}, func() (Handle, Status) {
		data, err := os.ReadFile(path)
		if err != nil || len(data) == 0 {
			return 0, l.refused(WrongParamsFile, "recipe file %s is missing or empty", path)
		}
		r, err := unpack(data)
		if err != nil {
			return 0, l.refused(Fail, "recipe file %s: %v", path, err)
		}
		h := l.handle()
		l.recipes[h] = r
		return h, Success
	})
}

// RecipeDestroy is synRecipeDestroy. A second time is a success.
func (l *Library) RecipeDestroy(h Handle) Status {
	return l.do("synRecipeDestroy", args{"recipe": h}, func() Status {
		if l.gone[h] {
			return Success
		}
		r, st := lookup(l, l.recipes, h, "recipe")
		if st != Success {
			return st
		}
		for _, s := range l.streams {
			if s.uses(r) { // chosen: the real library leaves that to the caller
				return l.refused(Busy, "recipe %q is destroyed while a launch of it is pending", r.program.Name)
			}
		}
		delete(l.recipes, h)
		l.gone[h] = true
		return Success
	})
}

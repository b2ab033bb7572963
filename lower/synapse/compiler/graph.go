package compiler

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"quill/recipes"
	"quill/recipes/dl"
	"quill/recipes/target"
)

// GraphVersion names how Compile makes the graph of a recipe: what was compiled of another
// graph is of no use to it, so results are kept under this, too. It is a digest of the calls
// for some recipes; TestGraphVersion says what it must be. Where a change shows in none of
// its recipes, one that shows it must be added.
const GraphVersion = "68cde3f7415c61c0"

// build makes the graph of a recipe. If it cannot, none is left.
func (c *Compiler) build(r *recipes.Recipe, p *target.Profile) (graph dl.Handle, err error) {
	b := builder{c: c, r: r, p: p}
	if err := b.build(); err != nil {
		if b.graph != 0 {
			_ = c.fn.GraphDestroy(b.graph) // the first error is the one to tell
		}
		return 0, err
	}
	return b.graph, nil
}

// builder makes one graph. Handles are those of the library, by index of the recipe.
type builder struct {
	c        *Compiler
	r        *recipes.Recipe
	p        *target.Profile
	graph    dl.Handle
	sections []dl.Handle
	tensors  []dl.Handle
	nodes    []uint64 // ids are what the library gives: they need not begin at 0
}

// build keeps the order that the library wants: attributes while the graph is empty,
// properties of sections before a tensor is in them, those of tensors before a node has
// them.
func (b *builder) build() error {
	if err := b.check("synGraphCreate", b.c.fn.GraphCreate(&b.graph, deviceGaudi2), ""); err != nil {
		return err
	}
	// There is no backward pass: operands of products may differ in type then.
	id, on := uint32(attributeInference), uint64(1)
	if err := b.check("synGraphSetAttributes", b.c.fn.GraphSetAttributes(b.graph, &id, &on, 1), "inference"); err != nil {
		return err
	}
	b.sections = make([]dl.Handle, len(b.r.Sections))
	for i := range b.r.Sections {
		if err := b.section(i); err != nil {
			return err
		}
	}
	b.tensors = make([]dl.Handle, len(b.r.Tensors))
	for i, used := range b.used() {
		if !used {
			continue // the library knows a tensor by the nodes that have it
		}
		if err := b.tensor(i); err != nil {
			return err
		}
	}
	b.nodes = make([]uint64, len(b.r.Nodes))
	for i := range b.r.Nodes {
		if err := b.node(i); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) check(call string, s dl.Status, what string) error {
	if s == dl.Success {
		return nil
	}
	context := "recipe " + b.r.Name
	if what != "" {
		context += ": " + what
	}
	return b.c.lib.Fail(call, s, context)
}

// used tells which tensors nodes have.
func (b *builder) used() []bool {
	used := make([]bool, len(b.r.Tensors))
	for i := range b.r.Nodes {
		for _, list := range [][]int{b.r.Nodes[i].In, b.r.Nodes[i].Out} {
			for _, t := range list {
				if t != recipes.Absent {
					used[t] = true
				}
			}
		}
	}
	return used
}

// group is the section group of a buffer. A launch looks for addresses that changed by
// group, and the groups of buffers change at different times: weights and state by
// layer, the arena hardly. Group 0 is the library's default.
func group(buf recipes.Buffer) uint64 {
	return uint64(slices.Index(recipes.Buffers(), buf) + 1)
}

func (b *builder) section(i int) error {
	s := &b.r.Sections[i]
	what := "section " + s.Name
	fn := &b.c.fn
	if err := b.check("synSectionCreate", fn.SectionCreate(&b.sections[i], 0, b.graph), what); err != nil {
		return err
	}
	if err := b.check("synSectionSetPersistent", fn.SectionSetPersistent(b.sections[i], true), what); err != nil {
		return err
	}
	return b.check("synSectionSetGroup", fn.SectionSetGroup(b.sections[i], group(s.Buffer)), fmt.Sprintf("%s: group %d", what, group(s.Buffer)))
}

// tensor makes a tensor. Weights are bound at launch like everything else: their content
// is no part of what is compiled.
func (b *builder) tensor(i int) error {
	t := &b.r.Tensors[i]
	what := fmt.Sprintf("tensor %s %s%v", t.Name, t.DType, t.Dims)
	number, err := typeNumber(b.p, t)
	if err != nil {
		return fmt.Errorf("recipe %s: %w", b.r.Name, err)
	}
	g := geometry{dims: uint32(len(t.Dims))}
	for d, n := range t.Dims {
		g.sizes[d] = uint64(n)
	}
	fn, h := &b.c.fn, &b.tensors[i]
	if err := b.check("synTensorHandleCreate", fn.TensorHandleCreate(h, b.graph, dataTensor, t.Name), what); err != nil {
		return err
	}
	if err := b.check("synTensorSetGeometry", fn.TensorSetGeometry(*h, &g, geometryMax), what); err != nil {
		return err
	}
	if err := b.check("synTensorSetDeviceDataType", fn.TensorSetDeviceType(*h, number), what); err != nil {
		return err
	}
	if err := b.check("synTensorSetGeometry", fn.TensorSetGeometry(*h, &g, geometryMin), what); err != nil {
		return err
	}
	if t.Section == recipes.Workspace {
		return nil
	}
	where := fmt.Sprintf("%s at byte %d of section %s", what, t.Offset, b.r.Sections[t.Section].Name)
	return b.check("synTensorAssignToSection", fn.TensorAssignToSection(*h, b.sections[t.Section], uint64(t.Offset)), where)
}

// typeNumber is the number of a tensor's type in the C interface.
func typeNumber(p *target.Profile, t *recipes.Tensor) (uint32, error) {
	if len(t.Dims) < 1 || len(t.Dims) > maxDims {
		return 0, fmt.Errorf("tensor %s has %d dims, want 1 to %d", t.Name, len(t.Dims), maxDims)
	}
	i := slices.IndexFunc(p.Types, func(x target.Type) bool { return x.Suffix == t.DType.String() })
	if i < 0 {
		return 0, fmt.Errorf("tensor %s: profile %s has no type %s", t.Name, p.Name, t.DType)
	}
	return uint32(p.Types[i].Number), nil
}

func (b *builder) node(i int) error {
	n := &b.r.Nodes[i]
	params, err := b.p.EncodeNode(b.r, n)
	if err != nil {
		return err
	}
	in, out := b.operands(n.In), b.operands(n.Out)
	s := b.c.fn.NodeCreateWithID(b.graph, unsafe.SliceData(in), unsafe.SliceData(out), uint32(len(in)), uint32(len(out)),
		unsafe.SliceData(params), uint32(len(params)), n.GUID, n.Name, &b.nodes[i], nil, nil)
	if s != dl.Success {
		return b.check("synNodeCreateWithId", s, describe(b.r, n))
	}
	if len(n.After) == 0 {
		return nil
	}
	before := make([]uint64, len(n.After))
	for k, a := range n.After {
		before[k] = b.nodes[a]
	}
	if s := b.c.fn.NodeDependencySet(b.graph, &before[0], &b.nodes[i], uint32(len(before)), 1); s != dl.Success {
		return b.check("synNodeDependencySet", s, describe(b.r, n))
	}
	return nil
}

// operands are the handles of operands; one that is absent is NULL.
func (b *builder) operands(list []int) []dl.Handle {
	h := make([]dl.Handle, len(list))
	for i, t := range list {
		if t != recipes.Absent {
			h[i] = b.tensors[t]
		}
	}
	return h
}

// describe is a node with its operands, for errors.
func describe(r *recipes.Recipe, n *recipes.Node) string {
	var s strings.Builder
	fmt.Fprintf(&s, "node %s (%s", n.Name, n.GUID)
	if n.Origin != "" {
		s.WriteString(" of " + n.Origin)
	}
	s.WriteString(") reads " + tensorList(r, n.In) + ", gives " + tensorList(r, n.Out))
	if n.Params != nil {
		s.WriteString(", parameters " + n.Params.Struct)
	}
	return s.String()
}

// tensorList is a list of operands; one of many experts' matrices is cut short.
func tensorList(r *recipes.Recipe, list []int) string {
	const most = 8
	var texts []string
	for i, t := range list {
		switch {
		case i == most:
			return strings.Join(texts, ", ") + fmt.Sprintf(" and %d more", len(list)-most)
		case t == recipes.Absent:
			texts = append(texts, "nothing")
		default:
			texts = append(texts, fmt.Sprintf("%s %s%v", r.Tensors[t].Name, r.Tensors[t].DType, r.Tensors[t].Dims))
		}
	}
	if len(texts) == 0 {
		return "nothing"
	}
	return strings.Join(texts, ", ")
}

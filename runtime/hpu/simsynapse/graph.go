package simsynapse

import (
	"errors"
	"slices"

	"quill/recipes"
	"quill/recipes/dtype"
)

// MaxDims is the rank of structures of the C interface.
const MaxDims = 25

// graph is a graph that is built, or was compiled.
type graph struct {
	device   int32
	compiled bool
	names    map[string]Handle // of tensors
	sections []Handle
	tensors  []Handle
	nodes    []*node
	next     uint64 // id
}

type section struct {
	graph      *graph
	persistent bool
	constant   bool
	used       bool // a tensor was assigned
	destroyed  bool
}

type tensor struct {
	graph     *graph
	name      string
	kind      int32
	dtype     dtype.Type
	dims      []int64
	sized     bool
	section   *section
	offset    uint64
	host      []byte // constant data
	producer  *node
	locked    bool // a node uses it
	destroyed bool
}

func (t *tensor) elems() int64 {
	n := int64(1)
	for _, d := range t.dims {
		n *= d
	}
	return n
}

// node is one that was created: with the parameters that its bytes say.
type node struct {
	id      uint64
	name    string
	guid    string
	in, out []*tensor // nil where an operand is absent
	params  *recipes.Params
	after   []*node
}

func lookup[T any](l *Library, m map[Handle]*T, h Handle, what string) (*T, Status) {
	if x, ok := m[h]; ok {
		return x, Success
	}
	return nil, l.refused(InvalidArgument, "%s %#x is not there", what, uint64(h))
}

// GraphCreate is synGraphCreate, which takes any device type.
func (l *Library) GraphCreate(deviceType int32) (Handle, Status) {
	return call(l, "synGraphCreate", args{"device_type": deviceType}, func() (Handle, Status) {
		h := l.handle()
		l.graphs[h] = &graph{device: deviceType, names: map[string]Handle{}}
		return h, Success
	})
}

// GraphDestroy is synGraphDestroy: tensors and sections of the graph go with it.
func (l *Library) GraphDestroy(h Handle) Status {
	return l.do("synGraphDestroy", args{"graph": h}, func() Status {
		if l.gone[h] {
			return Success
		}
		g, st := lookup(l, l.graphs, h, "graph")
		if st != Success {
			return st
		}
		for _, t := range g.tensors {
			delete(l.tensors, t)
			l.gone[t] = true
		}
		for _, s := range g.sections {
			delete(l.sections, s)
			l.gone[s] = true
		}
		delete(l.graphs, h)
		l.gone[h] = true
		return Success
	})
}

// GraphDeviceType is synGraphGetDeviceType.
func (l *Library) GraphDeviceType(h Handle) (int32, Status) {
	return call(l, "synGraphGetDeviceType", args{"graph": h}, func() (int32, Status) {
		g, st := lookup(l, l.graphs, h, "graph")
		if st != Success {
			return 0, st
		}
		return g.device, Success
	})
}

// GraphSetAttributes is synGraphSetAttribute and synGraphSetAttributes: they change nothing
// here. Inference may be set while the graph is empty only.
func (l *Library) GraphSetAttributes(h Handle, attributes []int32, values []uint64) Status {
	return l.do("synGraphSetAttributes", args{"graph": h, "attributes": attributes, "values": values}, func() Status {
		g, st := lookup(l, l.graphs, h, "graph")
		if st != Success {
			return st
		}
		for _, a := range attributes {
			if a < 0 || a > 4 {
				return l.refused(InvalidArgument, "graph attribute %d, want 0 to 4", a)
			}
			if g.compiled || a == 0 && len(g.nodes) > 0 {
				return l.refused(Fail, "graph attribute %d is set too late", a)
			}
		}
		return Success
	})
}

// SectionCreate is synSectionCreate; a section is persistent unless that is changed.
func (l *Library) SectionCreate(graph Handle) (Handle, Status) {
	return call(l, "synSectionCreate", args{"graph": graph}, func() (Handle, Status) {
		g, st := lookup(l, l.graphs, graph, "graph")
		if st != Success {
			return 0, st
		}
		h := l.handle()
		l.sections[h] = &section{graph: g, persistent: true}
		g.sections = append(g.sections, h)
		return h, Success
	})
}

// SectionDestroy is synSectionDestroy. A second time is a success.
func (l *Library) SectionDestroy(h Handle) Status {
	return l.do("synSectionDestroy", args{"section": h}, func() Status {
		if l.gone[h] {
			return Success
		}
		s, st := lookup(l, l.sections, h, "section")
		if st == Success {
			s.destroyed = true
			delete(l.sections, h)
			l.gone[h] = true
		}
		return st
	})
}

// SectionSetPersistent is synSectionSetPersistent.
func (l *Library) SectionSetPersistent(h Handle, v bool) Status {
	return l.setSection("synSectionSetPersistent", h, v, func(s *section) { s.persistent = v })
}

// SectionSetConst is synSectionSetConst.
func (l *Library) SectionSetConst(h Handle, v bool) Status {
	return l.setSection("synSectionSetConst", h, v, func(s *section) { s.constant = v })
}

// SectionSetRMW is synSectionSetRMW; sections in the on-chip memory are not simulated.
func (l *Library) SectionSetRMW(h Handle, v bool) Status {
	if v {
		return l.Unsupported("synSectionSetRMW")
	}
	return l.setSection("synSectionSetRMW", h, v, func(*section) {})
}

// SectionSetGroup is synSectionSetGroup, which changes nothing here.
func (l *Library) SectionSetGroup(h Handle, group uint64) Status {
	if group > 255 {
		return l.do("synSectionSetGroup", args{"section": h, "value": group}, func() Status {
			return l.refused(InvalidArgument, "section group %d, want 0 to 255", group)
		})
	}
	return l.setSection("synSectionSetGroup", h, group, func(*section) {})
}

func (l *Library) setSection(name string, h Handle, v any, set func(*section)) Status {
	return l.do(name, args{"section": h, "value": v}, func() Status {
		s, st := lookup(l, l.sections, h, "section")
		if st != Success {
			return st
		}
		if s.used { // that it fails is known, the status is chosen
			return l.refused(Fail, "%s after a tensor was assigned to the section", name)
		}
		set(s)
		return Success
	})
}

// TensorHandleCreate is synTensorHandleCreate. A name that the graph has gives its tensor
// and 21. An empty name is taken, for any number of tensors.
func (l *Library) TensorHandleCreate(graph Handle, kind int32, name string) (h Handle, st Status) {
	type result struct{ Tensor Handle }
	r, st := call(l, "synTensorHandleCreate", args{"graph": graph, "type": kind, "name": name}, func() (result, Status) {
		g, st := lookup(l, l.graphs, graph, "graph")
		if st != Success {
			return result{}, st
		}
		if kind != 0 {
			return result{}, l.refused(Unsupported, "tensor %q of type %d: only data tensors (0) are simulated", name, kind)
		}
		if have, taken := g.names[name]; taken && name != "" {
			return result{have}, l.refused(NameIsAlreadyUsed, "tensor name %q", name)
		}
		h := l.handle()
		l.tensors[h] = &tensor{graph: g, name: name, kind: kind}
		g.names[name] = h
		g.tensors = append(g.tensors, h)
		g.next++ // tensors and nodes count together
		return result{h}, Success
	})
	return r.Tensor, st
}

// TensorDestroy is synTensorDestroy. A second time is a success.
func (l *Library) TensorDestroy(h Handle) Status {
	return l.do("synTensorDestroy", args{"tensor": h}, func() Status {
		if l.gone[h] {
			return Success
		}
		t, st := lookup(l, l.tensors, h, "tensor")
		if st == Success {
			t.destroyed = true
			delete(l.tensors, h)
			l.gone[h] = true
		}
		return st
	})
}

// setTensor changes a tensor that no node uses yet.
func (l *Library) setTensor(name string, h Handle, a args, set func(*tensor) Status) Status {
	a["tensor"] = h
	return l.do(name, a, func() Status {
		t, st := lookup(l, l.tensors, h, "tensor")
		if st != Success {
			return st
		}
		if t.locked {
			return l.refused(ObjectAlreadySet, "%s of tensor %q, which a node uses", name, t.name)
		}
		return set(t)
	})
}

// TensorSetGeometry is synTensorSetGeometry: sizes fastest first, of which rank count.
// Minimal sizes (type 0) must be those of the maximal ones, since only static graphs are
// simulated; type 2 sets the number of dims alone.
func (l *Library) TensorSetGeometry(h Handle, sizes []uint64, rank uint32, geometry int32) Status {
	used := sizes[:min(int(rank), len(sizes))]
	return l.setTensor("synTensorSetGeometry", h, args{"sizes": used, "dims": rank, "geometry": geometry}, func(t *tensor) Status {
		if rank > MaxDims {
			return l.refused(Fail, "tensor %q has %d dims, want at most %d", t.name, rank, MaxDims)
		}
		dims := make([]int64, rank)
		total := int64(1)
		for i := range dims {
			d := sizes[i]
			if d > 1<<46 || total != 0 && d != 0 && int64(d) > (1<<46)/total {
				return l.refused(InvalidArgument, "tensor %q has sizes %v, more than a device holds", t.name, used)
			}
			dims[i] = int64(d)
			total *= dims[i]
		}
		switch geometry {
		case 0:
			if t.sized && !slices.Equal(dims, t.dims) {
				return l.refused(Unsupported, "tensor %q has minimal sizes %v and maximal ones %v: dynamic shapes are not simulated", t.name, dims, t.dims)
			}
		case 1:
			t.dims, t.sized = dims, true
		case 2:
		default:
			return l.refused(InvalidArgument, "geometry type %d, want 0 to 2", geometry)
		}
		return Success
	})
}

// TensorSetDeviceDataType is synTensorSetDeviceDataType; the last one counts.
func (l *Library) TensorSetDeviceDataType(h Handle, dataType int32) Status {
	return l.setTensor("synTensorSetDeviceDataType", h, args{"data_type": dataType}, func(t *tensor) Status { return l.setType(t, dataType) })
}

func (l *Library) setType(t *tensor, number int32) Status {
	dt, ok := l.typeOf(number)
	if !ok {
		return l.refused(InvalidArgument, "tensor %q: data type %d is not one that is simulated", t.name, number)
	}
	t.dtype = dt
	return Success
}

// typeOf is an element type by its number.
func (l *Library) typeOf(number int32) (dtype.Type, bool) {
	for _, t := range l.profile.Types {
		if t.Number == int64(number) {
			return dtype.Parse(t.Suffix)
		}
	}
	return dtype.Invalid, false
}

// numberOf is the number of an element type.
func (l *Library) numberOf(t dtype.Type) uint32 {
	for _, x := range l.profile.Types {
		if x.Suffix == t.String() {
			return uint32(x.Number)
		}
	}
	return 0
}

// TensorSetDeviceFullLayout is synTensorSetDeviceFullLayout, of which strides must be 0.
func (l *Library) TensorSetDeviceFullLayout(h Handle, strides []uint32, dataType int32) Status {
	return l.setTensor("synTensorSetDeviceFullLayout", h, args{"strides": strides, "data_type": dataType}, func(t *tensor) Status {
		if slices.ContainsFunc(strides, func(s uint32) bool { return s != 0 }) {
			return l.refused(Unsupported, "tensor %q has strides, which only the compiler sets", t.name)
		}
		return l.setType(t, dataType)
	})
}

// TensorSetPermutation is synTensorSetPermutation: of persistent tensors, and only the one
// that changes nothing.
func (l *Library) TensorSetPermutation(h Handle, permutation []uint8) Status {
	return l.setTensor("synTensorSetPermutation", h, args{"permutation": permutation}, func(t *tensor) Status {
		if t.section == nil || !t.section.persistent {
			return l.refused(InvalidArgument, "permutation of tensor %q, which is not persistent", t.name)
		}
		for i, p := range permutation {
			if int(p) != i {
				return l.refused(Unsupported, "tensor %q has permutation %v: layouts are not simulated", t.name, permutation)
			}
		}
		return Success
	})
}

// TensorSetAllowPermutation is synTensorSetAllowPermutation: inputs and results keep their
// layout whatever it says.
func (l *Library) TensorSetAllowPermutation(h Handle, allow int8) Status {
	return l.setTensor("synTensorSetAllowPermutation", h, args{"allow": allow}, func(*tensor) Status { return Success })
}

// TensorSetExternal is synTensorSetExternal; signals from inside a graph are not simulated.
func (l *Library) TensorSetExternal(h Handle, external bool) Status {
	return l.setTensor("synTensorSetExternal", h, args{"external": external}, func(t *tensor) Status {
		if external {
			return l.refused(Unsupported, "tensor %q is external", t.name)
		}
		return Success
	})
}

// TensorSetHostPtr is synTensorSetHostPtr: the data of a constant, which is copied. It is
// for tensors of constant sections alone here.
func (l *Library) TensorSetHostPtr(h Handle, data []byte, dataType int32, copyData bool) Status {
	return l.setTensor("synTensorSetHostPtr", h, args{"data": data, "data_type": dataType, "copy": copyData}, func(t *tensor) Status {
		if !copyData {
			return l.refused(Unsupported, "host data of tensor %q without a copy", t.name)
		}
		t.host = slices.Clone(data)
		return Success
	})
}

// TensorAssignToSection is synTensorAssignToSection; the last one counts.
func (l *Library) TensorAssignToSection(h, sectionHandle Handle, offset uint64) Status {
	return l.setTensor("synTensorAssignToSection", h, args{"section": sectionHandle, "offset": offset}, func(t *tensor) Status {
		s, st := lookup(l, l.sections, sectionHandle, "section")
		switch {
		case st != Success:
			return st
		case s.graph != t.graph:
			return l.refused(InvalidArgument, "tensor %q is of another graph than its section", t.name)
		case offset > 1<<46:
			return l.refused(InvalidArgument, "tensor %q is at byte %d of its section", t.name, offset)
		}
		t.section, t.offset, s.used = s, offset, true
		return Success
	})
}

// TensorSetSectionOffset is synTensorSetSectionOffset.
func (l *Library) TensorSetSectionOffset(h Handle, offset uint64) Status {
	return l.setTensor("synTensorSetSectionOffset", h, args{"offset": offset}, func(t *tensor) Status {
		if offset > 1<<46 {
			return l.refused(InvalidArgument, "tensor %q is at byte %d of its section", t.name, offset)
		}
		t.offset = offset
		return Success
	})
}

// NodeCreate is synNodeCreateWithId, and synNodeCreate. Operands that are absent are
// handles of 0.
func (l *Library) NodeCreate(graph Handle, in, out []Handle, params []byte, guid, name string) (uint64, Status) {
	a := args{"graph": graph, "in": in, "out": out, "params": params, "guid": guid, "name": name}
	return call(l, "synNodeCreateWithId", a, func() (uint64, Status) {
		g, st := lookup(l, l.graphs, graph, "graph")
		if st != Success {
			return 0, st
		}
		n := &node{name: name, guid: guid}
		if n.in, st = l.operands(g, guid, in); st != Success {
			return 0, st
		}
		if n.out, st = l.operands(g, guid, out); st != Success {
			return 0, st
		}
		if st := l.checkNode(n, params); st != Success {
			return 0, st
		}
		n.id = g.next
		g.next++
		g.nodes = append(g.nodes, n)
		for _, t := range slices.Concat(n.in, n.out) {
			if t != nil {
				t.locked = true
			}
		}
		for _, t := range n.out {
			t.producer = n
		}
		return n.id, Success
	})
}

func (l *Library) operands(g *graph, guid string, handles []Handle) ([]*tensor, Status) {
	list := make([]*tensor, len(handles))
	for i, h := range handles {
		if h == 0 {
			continue
		}
		t, st := lookup(l, l.tensors, h, "tensor")
		switch {
		case st != Success:
			return nil, st
		case t.graph != g:
			return nil, l.refused(InvalidArgument, "node %s uses tensor %q of another graph", guid, t.name)
		case !t.sized:
			return nil, l.refused(InvalidArgument, "node %s uses tensor %q, whose sizes are not set", guid, t.name)
		}
		list[i] = t
	}
	return list, Success
}

// checkNode checks a node as far as the library does when it is created, and decodes its
// parameters. All else is found when the graph is compiled.
func (l *Library) checkNode(n *node, params []byte) Status {
	entry, suffix, err := l.profile.Node(n.guid)
	if err != nil {
		return l.compilerRefused(Fail, "node %q: %v", n.name, err)
	}
	for _, t := range n.out {
		if t == nil {
			return l.refused(InvalidArgument, "node %q (%s) has a result that is absent", n.name, n.guid)
		}
		if t.producer != nil {
			return l.compilerRefused(Fail, "node %q (%s) writes tensor %q, which node %q writes", n.name, n.guid, t.name, t.producer.name)
		}
	}
	if st := l.decodeParams(n, entry.Params, params, suffix); st != Success {
		return st
	}
	switch {
	case n.guid == "reshape" && len(n.in) == 1 && len(n.out) == 1 && n.in[0] != nil && n.in[0].elems() != n.out[0].elems():
		return l.compilerRefused(InvalidArgument, "node %q reshapes %v to %v", n.name, n.in[0].dims, n.out[0].dims)
	case n.guid == "concat" && !l.joins(n):
		return l.compilerRefused(InvalidArgument, "node %q: the sizes of what it joins do not add up", n.name)
	}
	return Success
}

// decodeParams reads the bytes of a node's parameters by the profile's layout. Products
// take less than their structure, or nothing: the rest is 0.
func (l *Library) decodeParams(n *node, layout string, b []byte, suffix dtype.Type) Status {
	if layout == "" {
		if len(b) > 0 {
			return l.compilerRefused(InvalidArgument, "node %q (%s) has %d bytes of parameters, and takes none", n.name, n.guid, len(b))
		}
		return Success
	}
	s := l.profile.Struct(layout)
	if (n.guid == "gemm" || n.guid == "batch_gemm") && len(b) < s.Size {
		b = append(slices.Clone(b), make([]byte, s.Size-len(b))...)
	}
	st := InvalidArgument
	if n.guid == "transpose" && len(b) != s.Size {
		st = Fail
	}
	p, err := l.profile.Decode(layout, b, suffix)
	if err != nil {
		return l.compilerRefused(st, "node %q (%s): parameters: %v", n.name, n.guid, err)
	}
	n.params = p
	return Success
}

// joins reports whether the operands of a concat make its result.
func (l *Library) joins(n *node) bool {
	axis, _ := n.params.Int("axis")
	if len(n.out) != 1 || axis < 0 || int(axis) >= len(n.out[0].dims) {
		return false
	}
	sum := int64(0)
	for _, t := range n.in {
		if t == nil || len(t.dims) != len(n.out[0].dims) {
			return false
		}
		for i, d := range t.dims {
			if int64(i) != axis && d != n.out[0].dims[i] {
				return false
			}
		}
		sum += t.dims[axis]
	}
	return sum == n.out[0].dims[axis]
}

func (l *Library) compilerRefused(st Status, format string, a ...any) Status {
	l.logs.compiler("%v: "+format, append([]any{st}, a...)...)
	return st
}

// NodeDependencySet is synNodeDependencySet: all of blocked wait for all of blocking.
func (l *Library) NodeDependencySet(graph Handle, blocking, blocked []uint64) Status {
	return l.do("synNodeDependencySet", args{"graph": graph, "blocking": blocking, "blocked": blocked}, func() Status {
		g, st := lookup(l, l.graphs, graph, "graph")
		if st != Success {
			return st
		}
		first, err1 := g.byID(blocking)
		then, err2 := g.byID(blocked)
		if err := errors.Join(err1, err2); err != nil {
			return l.refused(InvalidArgument, "dependency: %v", err)
		}
		for _, n := range then {
			for _, m := range first {
				if !slices.Contains(n.after, m) {
					n.after = append(n.after, m)
				}
			}
		}
		return Success
	})
}

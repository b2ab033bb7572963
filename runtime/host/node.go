package host

import (
	"fmt"
	"slices"
	"strings"

	"quill/recipes"
	"quill/recipes/dtype"
	"quill/runtime/host/kern"
)

// kernel executes one node on its operands' memory, a stage after the other.
// It is shared by all ranks and launches of a program and therefore keeps no
// state between calls; what it needs beyond its operands it reserves when it is
// built.
type kernel []stage

// stage is work that the threads of a team share: units that may be computed in
// any ranges, of which each thread takes one. The stage before is complete.
type stage struct {
	units   int
	threads int // that are worth it; 1 leaves everything to the first thread
	run     func(m *mem, from, to int) error
}

// shared is a stage of units that take about cost operations each, of which a
// simple one on an element is one.
func shared(units, cost int, run func(m *mem, from, to int) error) stage {
	return stage{units, max(1, min(units, units*cost/worthwhile)), run}
}

// worthwhile is how many operations a thread must have to be waited for: what
// some microseconds do.
const worthwhile = 1 << 14

// node is a recipe node with its operands resolved, as kernel constructors see
// it.
type node struct {
	index   int
	spec    *spec
	name    string     // the GUID
	where   string     // names recipe, node, GUID and origin in errors
	dt      dtype.Type // the GUID's suffix; Invalid if it has none
	in, out []operand
	params  *recipes.Params
	kernels kern.Kernels
	threads int // of a team

	scratch, own int // bytes reserved so far: shared, and of each thread
	// later is the first operand that the kernel resolves itself, by
	// mem.operand: of many it reads few. 0 is none.
	later   int
	experts func(m *mem) int // for traces
	// What a product costs, for traces: bytes of its second operand, bytes of one
	// expert, operations without experts and of all experts.
	weightBytes, expertBytes, flops, expertFlops int64
	kernel                                       kernel
	// rows makes the node's operation on rows, nil if it computes otherwise;
	// move is what it does if it computes nothing.
	rows func(*node) operation
	move movement
}

// operand is one operand slot of a node.
type operand struct {
	label  string // names slot and tensor in errors
	absent bool
	dt     dtype.Type
	dims   []int
	elems  int
}

// reserve sets scratch memory of n bytes aside for the node's execution.
func (n *node) reserve(bytes int) region {
	r := region{n.scratch, bytes}
	n.scratch += align(bytes)
	return r
}

// reserveOwn is reserve for each thread: the region is one of mem.own.
func (n *node) reserveOwn(bytes int) region {
	r := region{n.own, bytes}
	n.own += align(bytes)
	return r
}

// guid is the node's GUID without type.
func (n *node) guid() string {
	if n.dt == dtype.Invalid {
		return n.name
	}
	return strings.TrimSuffix(n.name, "_"+n.dt.String())
}

// bad is the error of an operand or parameter that is not what the node takes.
func (n *node) bad(label, what string, got, want any) error {
	return fmt.Errorf("%s: %s: %s %v, want %v", n.where, label, what, got, want)
}

// typed checks an operand's element type.
func (n *node) typed(o *operand, want ...dtype.Type) error {
	if slices.Contains(want, o.dt) {
		return nil
	}
	if len(want) == 1 {
		return n.bad(o.label, "type", o.dt, want[0])
	}
	return n.bad(o.label, "type", o.dt, fmt.Sprintf("one of %v", want))
}

// shaped checks an operand's dims.
func (n *node) shaped(o *operand, want []int) error {
	if slices.Equal(o.dims, want) {
		return nil
	}
	return n.bad(o.label, "dims", o.dims, want)
}

// ranked checks an operand's number of dims.
func (n *node) ranked(o *operand, low, high int) error {
	if r := len(o.dims); r < low || r > high {
		if low == high {
			return n.bad(o.label, "rank", r, low)
		}
		return n.bad(o.label, "rank", r, fmt.Sprintf("%d to %d", low, high))
	}
	return nil
}

// same checks that operands have the element type of the GUID's suffix.
func (n *node) same(ops ...*operand) error {
	for _, o := range ops {
		if err := n.typed(o, n.dt); err != nil {
			return err
		}
	}
	return nil
}

// axis reads an axis parameter, counted from the fastest dim of o.
func (n *node) axis(field string, o *operand) (int, error) {
	v, _ := n.params.Int(field)
	if v < 0 || v >= int64(len(o.dims)) {
		return 0, n.bad("parameter "+field, "value", v, fmt.Sprintf("a dim of %s with dims %v", o.label, o.dims))
	}
	return int(v), nil
}

// split factors an operand around an axis: elements below it, along it, above it.
func (o *operand) split(axis int) (inner, n, outer int) {
	return product(o.dims[:axis]), o.dims[axis], product(o.dims[axis+1:])
}

// bf16 reports whether the operand's elements are bf16 and are computed with
// as f32.
func (o *operand) bf16() bool { return o.dt == dtype.BF16 }

// schema is the parameter structure of a node.
type schema struct {
	name   string
	fields []param
}

// param is one field of a schema. Integers lie in [min, max], arrays have any
// number of values in that range; enums hold one of syms, flag sets all of them.
// A value has the type of the node's elements: f32 for floats, else typ.
type param struct {
	name     string
	typ      recipes.FieldType
	min, max int64
	array    bool
	value    bool
	flags    bool
	syms     []string
}

// check reports the first way in which a node's parameters differ from the
// schema; nil takes no parameters.
func (s *schema) check(n *node) error {
	if s == nil {
		if n.params != nil {
			return n.bad("parameters", "structure", n.params.Struct, "none")
		}
		return nil
	}
	if n.params == nil {
		return n.bad("parameters", "structure", "missing", s.name)
	}
	if n.params.Struct != s.name {
		return n.bad("parameters", "structure", n.params.Struct, s.name)
	}
	seen := make(map[string]bool)
	for i := range n.params.Fields {
		f := &n.params.Fields[i]
		label := "parameter " + f.Name
		k := slices.IndexFunc(s.fields, func(p param) bool { return p.name == f.Name })
		if k < 0 {
			return n.bad(label, "field", "unknown", "a field of "+s.name)
		}
		if seen[f.Name] {
			return n.bad(label, "field", "repeated", "one")
		}
		seen[f.Name] = true
		if err := s.fields[k].check(n, label, f); err != nil {
			return err
		}
	}
	for _, p := range s.fields {
		if !seen[p.name] {
			return n.bad("parameter "+p.name, "field", "missing", p.typ)
		}
	}
	return nil
}

func (p *param) check(n *node, label string, f *recipes.Field) error {
	typ := p.typ
	if p.value && n.dt.IsFloat() {
		typ = recipes.F32
	}
	if f.Type != typ {
		return n.bad(label, "type", f.Type, typ)
	}
	switch typ {
	case recipes.F32:
		if len(f.Ints) > 0 || f.Sym != "" {
			return n.bad(label, "value", "not a number", typ)
		}
		return nil
	case recipes.Enum:
		if p.flags {
			got := strings.Split(f.Sym, "|")
			slices.Sort(got)
			if !slices.Equal(got, p.syms) {
				return n.bad(label, "value", f.Sym, strings.Join(p.syms, "|"))
			}
			return nil
		}
		if !slices.Contains(p.syms, f.Sym) {
			return n.bad(label, "value", f.Sym, strings.Join(p.syms, " or "))
		}
		return nil
	}
	if !p.array && len(f.Ints) != 1 {
		return n.bad(label, "value", f.Ints, "one integer")
	}
	for _, v := range f.Ints {
		if v < p.min || v > p.max {
			return n.bad(label, "value", v, p.interval())
		}
	}
	return nil
}

func (p *param) interval() string {
	if p.min == p.max {
		return fmt.Sprint(p.min)
	}
	return fmt.Sprintf("%d to %d", p.min, p.max)
}

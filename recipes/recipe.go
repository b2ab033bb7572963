// Package recipes is the meeting point of compiler and runtime: what a compile
// produces and a replay consumes.
//
//	recipe   static program of one segment at one bucket: Synapse nodes over tensors
//	plan     what one bucket executes: launches (recipe + bindings) and collectives
//	weights  where each checkpoint tensor goes in a rank's weights buffer
//	bundle   one file with all of them and a manifest
//
// Recipes and plans have one encoding, in bytes (encode.go). Nodes are named by Synapse GUID with operands in Synapse's order, dimensions
// fastest first and parameters as named typed fields.
package recipes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"quill/recipes/dtype"
)

// Recipe is the static program of one segment at one bucket. Nodes execute in
// order; a node reads only tensors that are persistent or written before it.
type Recipe struct {
	Name     string
	Sections []Section
	Tensors  []Tensor
	Nodes    []Node
}

// Section is one contiguous device range that a launch binds an address to.
type Section struct {
	Name string
	// Buffer is the device buffer a launch takes the range from.
	Buffer Buffer
	// Size is the number of bytes of the range that the recipe touches.
	Size int64
}

// Workspace as a tensor's section marks a tensor that lives only inside its
// recipe; the executing side places it.
const Workspace = -1

// Absent as a node operand is an empty operand slot.
const Absent = -1

// Tensor is a value of a recipe. Dims are in elements, fastest first. Two
// tensors of one section may overlap: a state before and after its update has
// the same section, offset and dims.
type Tensor struct {
	Name    string
	DType   dtype.Type
	Dims    []int64
	Section int   // index into Sections, or Workspace
	Offset  int64 // bytes from the section's start
}

// Elems is the number of elements.
func (t *Tensor) Elems() int64 {
	n := int64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// Bytes is the size of the tensor.
func (t *Tensor) Bytes() int64 { return t.Elems() * int64(t.DType.Size()) }

// Node is one Synapse node.
type Node struct {
	Name string
	GUID string
	In   []int // tensor indices or Absent
	Out  []int
	// Params is the node's parameter structure, nil where it takes none.
	Params *Params
	// After lists nodes that must finish first though no tensor connects them
	// (reads of a state before its update in place).
	After []int
	// Origin names the model op this node comes from.
	Origin string
}

// Params is a parameter structure by field name; the target profile knows the
// structure's byte layout.
type Params struct {
	Struct string
	Fields []Field
}

// FieldType is the type of one field.
type FieldType string

// Field types. Enum values and flag sets are carried by name, since their
// numbers belong to the target profile.
const (
	U8   FieldType = "u8"
	I32  FieldType = "i32"
	U32  FieldType = "u32"
	I64  FieldType = "i64"
	U64  FieldType = "u64"
	F32  FieldType = "f32"
	Enum FieldType = "enum"
)

// Field is one named value. Integer fields and integer arrays use Ints, f32
// fields Float, enum fields (and flag sets, joined by |) Sym.
type Field struct {
	Name  string
	Type  FieldType
	Ints  []int64
	Float float32
	Sym   string
}

// Int is the first integer of a field; ok is false when there is none.
func (p *Params) Int(name string) (v int64, ok bool) {
	if f := p.field(name); f != nil && len(f.Ints) > 0 {
		return f.Ints[0], true
	}
	return 0, false
}

// IntsOf is the integer array of a field, nil when there is none.
func (p *Params) IntsOf(name string) []int64 {
	if f := p.field(name); f != nil {
		return f.Ints
	}
	return nil
}

// FloatOf is the value of an f32 field; ok is false when there is none.
func (p *Params) FloatOf(name string) (v float32, ok bool) {
	if f := p.field(name); f != nil && f.Type == F32 {
		return f.Float, true
	}
	return 0, false
}

// SymOf is the symbolic value of an enum field, "" when there is none.
func (p *Params) SymOf(name string) string {
	if f := p.field(name); f != nil {
		return f.Sym
	}
	return ""
}

func (p *Params) field(name string) *Field {
	if p == nil {
		return nil
	}
	for i := range p.Fields {
		if p.Fields[i].Name == name {
			return &p.Fields[i]
		}
	}
	return nil
}

// Check reports the first structural fault of a recipe: operands out of range,
// reads before writes, tensors outside their section.
func (r *Recipe) Check() error {
	for i := range r.Sections {
		s := &r.Sections[i]
		if s.Size < 0 || s.Size > maxBytes {
			return fmt.Errorf("recipe %s: section %s has %d bytes", r.Name, s.Name, s.Size)
		}
	}
	written := make([]bool, len(r.Tensors))
	for i := range r.Tensors {
		t := &r.Tensors[i]
		if t.DType.Size() == 0 {
			return fmt.Errorf("recipe %s: tensor %s has no element type", r.Name, t.Name)
		}
		if _, ok := elems(t.Dims); !ok {
			return fmt.Errorf("recipe %s: tensor %s has dims %v", r.Name, t.Name, t.Dims)
		}
		switch {
		case t.Section == Workspace:
		case t.Section < 0 || t.Section >= len(r.Sections):
			return fmt.Errorf("recipe %s: tensor %s is in section %d of %d", r.Name, t.Name, t.Section, len(r.Sections))
		case !within(t.Offset, t.Bytes(), r.Sections[t.Section].Size):
			return fmt.Errorf("recipe %s: tensor %s has %d bytes at byte %d of section %s with %d bytes",
				r.Name, t.Name, t.Bytes(), t.Offset, r.Sections[t.Section].Name, r.Sections[t.Section].Size)
		default:
			written[i] = true
		}
	}
	for n := range r.Nodes {
		node := &r.Nodes[n]
		for _, in := range node.In {
			if in == Absent {
				continue
			}
			if in < 0 || in >= len(r.Tensors) {
				return fmt.Errorf("recipe %s: node %s (%s) reads tensor %d of %d", r.Name, node.Name, node.GUID, in, len(r.Tensors))
			}
			if !written[in] {
				return fmt.Errorf("recipe %s: node %s (%s) reads %s before it is written", r.Name, node.Name, node.GUID, r.Tensors[in].Name)
			}
		}
		for _, out := range node.Out {
			if out < 0 || out >= len(r.Tensors) {
				return fmt.Errorf("recipe %s: node %s (%s) writes tensor %d of %d", r.Name, node.Name, node.GUID, out, len(r.Tensors))
			}
			written[out] = true
		}
		for _, a := range node.After {
			if a < 0 || a >= n {
				return fmt.Errorf("recipe %s: node %s (%s) waits for node %d, which does not precede it", r.Name, node.Name, node.GUID, a)
			}
		}
	}
	return nil
}

// Hash is a recipe's content hash: equal recipes have equal hashes wherever
// they were compiled.
type Hash [sha256.Size]byte

// String is the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText writes the hash in hexadecimal.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads a hexadecimal hash.
func (h *Hash) UnmarshalText(b []byte) error {
	if len(b) != 2*len(h) {
		return fmt.Errorf("recipe hash %q has %d characters, want %d", b, len(b), 2*len(h))
	}
	_, err := hex.Decode(h[:], b)
	return err
}

// Sum is the hash of the canonical bytes.
func Sum(encoded []byte) Hash { return sha256.Sum256(encoded) }

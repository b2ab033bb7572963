// Package ir is quill's intermediate representation: straight-line SSA over
// tensors whose type holds element type, symbolic shape and distribution.
//
//	text (.qir) ──Parse──→ Module ──Verify──→ passes ──Print──→ text
//	                         ↑
//	            Builder (one method an op, generated from ir/ops)
//
// There is no control flow: layers are unrolled by capture and folded again by
// outlining. State (the paged caches) is an SSA value too: a write returns the
// next version, a version has one successor and no use after it.
package ir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

// Module is a set of functions that share symbols. Its last function is the
// entry.
type Module struct {
	Name  string
	Level ops.Level
	// TP is the number of ranks the graph runs on.
	TP    int
	Syms  []*Sym
	Funcs []*Func
	Pos   Pos
}

// Entry is the module's last function, nil when it has none.
func (m *Module) Entry() *Func {
	if len(m.Funcs) == 0 {
		return nil
	}
	return m.Funcs[len(m.Funcs)-1]
}

// Func finds a function by name, nil when there is none.
func (m *Module) Func(name string) *Func {
	for _, f := range m.Funcs {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// Func is a straight-line function.
type Func struct {
	Name    string
	Params  []*Param
	Results []Result
	Ops     []*Op
	// Return holds the returned values, parallel to Results.
	Return []*Value
	Pos    Pos
}

// Param finds a parameter by name, nil when there is none.
func (f *Func) Param(name string) *Param {
	for _, p := range f.Params {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Kind says where a parameter's or result's data lives.
type Kind uint8

// Kinds of parameters and results.
const (
	// Host data is written by the host before a step (an input) or read by it
	// afterwards (an output).
	Host Kind = iota
	// Carry stays on the device between two plans of a step.
	Carry
	// Weight is filled at load.
	Weight
	// State is updated in place.
	State
	// Temp crosses from one segment to another within a step.
	Temp
)

// Kinds are spelled alike for parameters and results, but for the host's.
var (
	paramKinds  = [...]string{Host: "input", Carry: "carry", Weight: "weight", State: "state", Temp: "temp"}
	resultKinds = [...]string{Host: "output", Carry: "carry", Weight: "weight", State: "state", Temp: "temp"}
)

func (k Kind) String() string { return paramKinds[k] }

func parseKind(names []string, s string) (Kind, bool) {
	i := slices.Index(names, s)
	return Kind(max(i, 0)), i >= 0
}

// Param is a function parameter.
type Param struct {
	Name string
	Kind Kind
	// Source says what fills a weight; zero in segments, whose weights are slots.
	Source Source
	Value  *Value
	Pos    Pos
}

// Source describes a weight's content: a view of a checkpoint tensor of which
// each rank takes its shard, or a constant.
type Source struct {
	// Tensor names the checkpoint tensor.
	Tensor string
	// Reshape and Perm view it before sharding: it is reshaped, then axis i of
	// the result is axis Perm[i]. Empty means as it is.
	Reshape []int64
	Perm    []int64
	// Rows, if not empty, are the first of axis 0 that is taken of that view, and the one
	// after the last.
	Rows []int64
	// Times, if not 0, multiplies every element, and then Plus is added, each in f32 and
	// rounded to the weight's type, which the elements have before.
	Times, Plus float64
	// PerRank makes a constant instead: Fill + rank·Step.
	PerRank    bool
	Fill, Step float64
}

// IsZero reports whether there is no source.
func (s *Source) IsZero() bool { return s.Tensor == "" && !s.PerRank }

// viewed reports whether the tensor is not taken as it is.
func (s *Source) viewed() bool {
	return len(s.Reshape) > 0 || len(s.Perm) > 0 || len(s.Rows) > 0 || s.Times != 0 || s.Plus != 0
}

// Result declares a function result.
type Result struct {
	Name string
	Kind Kind
	Type Type
	Pos  Pos
}

// Value is an SSA value: a parameter, or a result of an op.
type Value struct {
	Type Type
	// Def is the op that defines the value, nil for a parameter.
	Def *Op
	// Index is the position among Def's results.
	Index int
	// Param is set for a parameter.
	Param *Param
}

// Name is the parameter's name, or a description of the defining op; printed
// text numbers op results instead.
func (v *Value) Name() string {
	if v.Param != nil {
		return "%" + v.Param.Name
	}
	return "result of " + v.Def.Name()
}

// Prior is the state version whose successor v is, nil if a state's update did not
// make v.
func (v *Value) Prior() *Value {
	if v.Def == nil || !v.Def.Def.Has(ops.StateWrite) {
		return nil
	}
	return v.Def.Args[v.Def.Def.FirstState()+v.Index]
}

// State is the parameter that a state version started as, nil if v is none.
func (v *Value) State() *Param {
	for v != nil && v.Param == nil {
		v = v.Prior()
	}
	if v == nil || v.Param.Kind != State {
		return nil
	}
	return v.Param
}

// Op is one operation.
type Op struct {
	Def     *ops.Op
	Args    []*Value
	Results []*Value
	Attrs   []Attr // in the table's order
	Loc     Loc
	Pos     Pos
}

// Name is the op's name in the table.
func (o *Op) Name() string { return o.Def.Name }

// Attr is the value of one attribute. The field that its type names is set.
type Attr struct {
	Name  string
	Dim   Dim // Int and Dim
	Float float64
	Str   string
	Bool  bool
	Dims  []Dim // Ints and Dims
	DType dtype.Type
	Func  *Func
}

// Attr finds an attribute, nil when the op does not have it.
func (o *Op) Attr(name string) *Attr {
	for i := range o.Attrs {
		if o.Attrs[i].Name == name {
			return &o.Attrs[i]
		}
	}
	return nil
}

// Int is an integer attribute; the verifier has made sure that it is there.
func (o *Op) Int(name string) int64 {
	n, _ := o.Attr(name).Dim.Const()
	return n
}

// Ints is an integer list attribute.
func (o *Op) Ints(name string) []int64 {
	a := o.Attr(name)
	ns := make([]int64, len(a.Dims))
	for i, d := range a.Dims {
		ns[i], _ = d.Const()
	}
	return ns
}

// EndsSegment reports whether a segment ends at an op, which belongs to none: it
// is a collective or a graph break.
func EndsSegment(o *Op) bool { return o.Def.Has(ops.Collective) || o.Def.Has(ops.Break) }

// Loc says which part of the model an op comes from; passes keep it.
type Loc struct {
	// Layer is the layer's number, −1 for what belongs to none. In a segment
	// it counts from the layer of the call.
	Layer int
	// Op names the source operation: "attn.q_proj".
	Op string
	// Tensor is the checkpoint tensor the op works with, if there is one.
	Tensor string
}

// NoLoc is the location of ops that come from no particular place.
var NoLoc = Loc{Layer: -1}

func (l Loc) String() string {
	var parts []string
	if l.Layer >= 0 {
		parts = append(parts, fmt.Sprintf("layer %d", l.Layer))
	}
	for _, s := range []string{l.Op, l.Tensor} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, " ")
}

// Pos is a place in a text file, both counted from 1, Col in bytes; the zero
// value is unknown.
type Pos struct{ Line, Col int }

// Type is the type of a value.
type Type struct {
	DType dtype.Type
	Shape []Dim // this rank's part, slowest axis first
	Dist  Dist
}

// T makes a replicated type.
func T(t dtype.Type, shape ...Dim) Type { return Type{DType: t, Shape: shape} }

// With returns the type with another distribution.
func (t Type) With(d Dist) Type {
	t.Dist = d
	return t
}

// global is the type of the whole value that the ranks hold parts of.
func (t Type) global() Type {
	shape := slices.Clone(t.Shape)
	if d := t.Dist; d.Kind == Sharded {
		shape[d.Axis] = shape[d.Axis].Mul(D(int64(d.Ways)))
	}
	return Type{DType: t.DType, Shape: shape}
}

// Rank is the number of axes.
func (t Type) Rank() int { return len(t.Shape) }

// Elems is the number of elements of the rank's part.
func (t Type) Elems() Dim {
	n := D(1)
	for _, d := range t.Shape {
		n = n.Mul(d)
	}
	return n
}

// KeepsOrder reports whether a permutation moves axes of size 1 only, past elements
// that stay in order.
func KeepsOrder(shape []Dim, perm []int64) bool {
	last := int64(-1)
	for _, p := range perm {
		if shape[p].Is(1) {
			continue
		}
		if p < last {
			return false
		}
		last = p
	}
	return true
}

// SameShape reports whether two shapes are equal.
func SameShape(a, b []Dim) bool { return slices.EqualFunc(a, b, Dim.Equal) }

// Equal reports whether two types are the same.
func (t Type) Equal(u Type) bool {
	return t.DType == u.DType && SameShape(t.Shape, u.Shape) && t.Dist == u.Dist
}

// String writes the type as IR text spells it: bf16[128*q, 64]@shard(1, 8).
func (t Type) String() string {
	return t.DType.String() + shapeString(t.Shape) + t.Dist.String()
}

func shapeString(shape []Dim) string {
	parts := make([]string, len(shape))
	for i, d := range shape {
		parts[i] = d.String()
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// DistKind is how the ranks hold a value.
type DistKind uint8

// Distributions.
const (
	// Replicated: every rank holds the same value.
	Replicated DistKind = iota
	// Sharded: rank r of tp holds part floor(r·Ways/tp) of Ways along Axis.
	Sharded
	// Partial: the value is the sum over all ranks.
	Partial
)

// Dist is a value's distribution over the ranks.
type Dist struct {
	Kind DistKind
	Axis int
	Ways int
}

// Shard is the distribution in ways parts along an axis; one part is
// replication.
func Shard(axis, ways int) Dist {
	if ways <= 1 {
		return Dist{}
	}
	return Dist{Sharded, axis, ways}
}

// PartialSum is the distribution of a value to be summed over all ranks.
var PartialSum = Dist{Kind: Partial}

func (d Dist) String() string {
	switch d.Kind {
	case Sharded:
		return "@shard(" + strconv.Itoa(d.Axis) + ", " + strconv.Itoa(d.Ways) + ")"
	case Partial:
		return "@partial"
	}
	return ""
}

// describe is the distribution in an error message.
func (d Dist) describe() string {
	switch d.Kind {
	case Sharded:
		return fmt.Sprintf("sharded %d ways along axis %d", d.Ways, d.Axis)
	case Partial:
		return "partial"
	}
	return "replicated"
}

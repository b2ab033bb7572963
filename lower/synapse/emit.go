// Package synapse turns segments into recipes: Synapse nodes over tensors with
// dimensions fastest first.
//
// docs/nodes.md says what each node means; this package chooses the nodes of
// each IR op (rules.go) and where tensors live.
package synapse

import (
	"fmt"
	"slices"
	"strings"

	"quill/ir"
	"quill/ir/ops"
	"quill/recipes"
	"quill/recipes/dtype"
)

// Slot is the place of a parameter or result: a byte offset in a section of
// the recipe.
type Slot struct {
	Section int
	Offset  int64
}

// Segment is a specialised segment function and where its parameters and
// results live. State results share the slot of their parameter.
type Segment struct {
	Name     string
	Fn       *ir.Func
	Sections []recipes.Section // sizes are computed
	Params   []Slot
	Results  []Slot
	// Inner places values that the segment computes and of which results are parts:
	// those that have their section lie in them.
	Inner map[*ir.Value]Slot
}

// Emit lowers a segment. The error names the op, where it comes from and what
// the target cannot do.
func Emit(s Segment) (*recipes.Recipe, error) {
	t, err := Trace(s)
	if err != nil {
		return nil, err
	}
	return t.Recipe, nil
}

// Traced is a recipe and what of it belongs to what of the segment.
type Traced struct {
	Recipe *recipes.Recipe
	// Tensors hold values: those of parameters and ops. Parts of an inner value that no
	// node computes (see [Segment]) have none.
	Tensors map[*ir.Value]int
	// Nodes are, parallel to the segment's ops, the first node of each; one more
	// says how many there are.
	Nodes []int
	makes map[*ir.Op]bool
}

// Trace is Emit that tells more.
func Trace(s Segment) (*Traced, error) {
	var nodes []int
	e := &emitter{
		r:       &recipes.Recipe{Name: s.Name, Sections: slices.Clone(s.Sections)},
		tensors: map[*ir.Value]int{},
		slots:   map[*ir.Value]Slot{},
		reads:   map[Slot][]int{},
		views:   map[*ir.Value]bool{},
		writes:  map[Slot]update{},
	}
	for i, p := range s.Fn.Params {
		t, err := e.persistent(p.Name, p.Value.Type, s.Params[i])
		if err != nil {
			return nil, fmt.Errorf("parameter %%%s: %w", p.Name, err)
		}
		e.tensors[p.Value] = t
		e.slots[p.Value] = s.Params[i]
		e.views[p.Value] = p.Kind != ir.State
	}
	if err := e.inner(s); err != nil {
		return nil, err
	}
	for i, v := range s.Fn.Return {
		if _, ok := e.slots[v]; ok {
			return nil, fmt.Errorf("result %s is returned twice or is a parameter", s.Fn.Results[i].Name)
		}
		if !e.parts[v] {
			e.slots[v] = s.Results[i]
		}
	}
	for _, o := range s.Fn.Ops {
		nodes = append(nodes, len(e.r.Nodes))
		if err := e.op(o); err != nil {
			return nil, fmt.Errorf("%s of %s to %s (%s): %w", o.Name(), typesText(o.Args), typesText(o.Results), o.Loc, err)
		}
	}
	for i := range e.r.Tensors {
		t := &e.r.Tensors[i]
		if t.Section != recipes.Workspace {
			sec := &e.r.Sections[t.Section]
			sec.Size = max(sec.Size, t.Offset+t.Bytes())
		}
	}
	if err := e.r.Check(); err != nil {
		return nil, fmt.Errorf("internal fault: %w", err)
	}
	t := &Traced{Recipe: e.r, Tensors: e.tensors, Nodes: append(nodes, len(e.r.Nodes)), makes: map[*ir.Op]bool{}}
	for i, o := range s.Fn.Ops {
		t.makes[o] = t.Nodes[i] < t.Nodes[i+1]
	}
	return t, nil
}

// typesText is the types of values, for errors.
func typesText(vs []*ir.Value) string {
	parts := make([]string, len(vs))
	for i, v := range vs {
		parts[i] = v.Type.String()
	}
	const most = 8 // of experts there are thousands
	if n := len(parts); n > most {
		parts = append(parts[:most], fmt.Sprintf("%d more", n-most))
	}
	return strings.Join(parts, ", ")
}

// Makes reports whether an op of the segment has nodes. One that has none is a view of
// parameters, or it says what part of a value is a result.
func (t *Traced) Makes(o *ir.Op) bool { return t.makes[o] }

// Maker is the op whose nodes make a value, or make what it is a part of.
func (t *Traced) Maker(v *ir.Value) *ir.Op {
	o := v.Def
	for !t.makes[o] && o.Args[0].Def != nil {
		o = o.Args[0].Def
	}
	return o
}

type emitter struct {
	r       *recipes.Recipe
	tensors map[*ir.Value]int
	slots   map[*ir.Value]Slot // of persistent values
	// views are values that lie in parameters which nothing writes.
	views map[*ir.Value]bool
	// parts are results that lie in a value which is stored, skip the ops that compute
	// nothing else.
	parts map[*ir.Value]bool
	skip  map[*ir.Op]bool
	// reads holds the nodes that have read a state slot since its last update:
	// the update in place must wait for them. writes holds that update: where it or what
	// follows goes through a tensor that spans several slots, no tensor connects them.
	reads  map[Slot][]int
	writes map[Slot]update

	origin string
}

// inner places values of which results are parts. What is computed for such results
// only need not be.
func (e *emitter) inner(s Segment) error {
	e.parts, e.skip = map[*ir.Value]bool{}, map[*ir.Op]bool{}
	if len(s.Inner) == 0 {
		return nil
	}
	for v, at := range s.Inner {
		e.slots[v] = at
	}
	read := map[*ir.Value]bool{} // by an op that is not skipped, or as a result with a place of its own
	for i, v := range s.Fn.Return {
		root, ok := placedRoot(s, v)
		e.parts[v] = ok && s.Results[i].Section == s.Inner[root].Section
		read[v] = !e.parts[v]
		if e.parts[v] {
			// No node writes it, but who reads the recipe finds it.
			if _, err := e.persistent(s.Fn.Results[i].Name, v.Type, s.Results[i]); err != nil {
				return err
			}
		}
	}
	for _, o := range slices.Backward(s.Fn.Ops) {
		if len(o.Results) == 1 && !read[o.Results[0]] {
			if _, e.skip[o] = placedRoot(s, o.Results[0]); e.skip[o] {
				continue
			}
		}
		for _, a := range o.Args {
			read[a] = true
		}
	}
	return nil
}

// placedRoot is the placed value that a value is made of by slices and reshapes alone, if
// there is one.
func placedRoot(s Segment, v *ir.Value) (root *ir.Value, ok bool) {
	for v.Def != nil && (v.Def.Name() == "slice" || v.Def.Name() == "reshape") {
		v = v.Def.Args[0]
		if _, ok := s.Inner[v]; ok {
			return v, true
		}
	}
	return nil, false
}

// view makes a value of one that lies in parameters, if it is one: no node is needed.
// The operands' bytes must be those of the result, one after the other.
func (e *emitter) view(o *ir.Op) (bool, error) {
	if len(o.Results) != 1 {
		return false, nil
	}
	v := o.Results[0]
	if _, stored := e.slots[v]; stored || v.Type.Rank() > maxRank {
		return false, nil // a result is written where it belongs
	}
	skipped := int64(0) // bytes of the operands before the result
	switch {
	case o.Name() == "reshape":
	case o.Name() == "concat" && o.Int("axis") == 0:
	case o.Name() == "slice" && o.Int("axis") == 0 && ofWeight(o.Args[0]):
		start, _ := o.Attr("start").Dim.Const()
		x := e.r.Tensors[e.tensors[o.Args[0]]]
		skipped = start * (x.Bytes() / x.Dims[len(x.Dims)-1])
	default:
		return false, nil
	}
	if !e.adjacent(o.Args) {
		return false, nil
	}
	at := e.slots[o.Args[0]]
	at.Offset += skipped
	t, err := e.persistent(fmt.Sprintf("v%d", len(e.r.Tensors)), v.Type, at)
	if err != nil {
		return false, err
	}
	e.tensors[v], e.slots[v], e.views[v] = t, at, true
	return true, nil
}

// ofWeight reports whether a value that lies in parameters lies in a weight.
func ofWeight(v *ir.Value) bool {
	for v.Param == nil && len(v.Def.Args) > 0 {
		v = v.Def.Args[0]
	}
	return v.Param != nil && v.Param.Kind == ir.Weight
}

// adjacent reports whether values lie in parameters that nothing writes, one behind
// the other.
func (e *emitter) adjacent(list []*ir.Value) bool {
	return !slices.ContainsFunc(list, func(v *ir.Value) bool { return !e.views[v] }) && e.behind(list)
}

// behind reports whether values, of which all are stored, lie one behind the other.
func (e *emitter) behind(list []*ir.Value) bool {
	for i, v := range list[1:] {
		before := e.slots[list[i]]
		if e.slots[v] != (Slot{before.Section, before.Offset + e.r.Tensors[e.tensors[list[i]]].Bytes()}) {
			return false
		}
	}
	return true
}

// maxRank is the largest rank of a node's operands on the compute engines.
const maxRank = 5

func dims(t ir.Type) ([]int64, error) {
	out := make([]int64, t.Rank())
	for i, d := range t.Shape {
		n, ok := d.Const()
		if !ok {
			return nil, fmt.Errorf("size %s is not concrete", d)
		}
		out[t.Rank()-1-i] = n
	}
	return out, nil
}

func (e *emitter) persistent(name string, t ir.Type, s Slot) (int, error) {
	ds, err := dims(t)
	if err != nil {
		return 0, err
	}
	return e.tensor(recipes.Tensor{Name: name, DType: t.DType, Dims: ds, Section: s.Section, Offset: s.Offset}), nil
}

func (e *emitter) tensor(t recipes.Tensor) int {
	e.r.Tensors = append(e.r.Tensors, t)
	return len(e.r.Tensors) - 1
}

// temp adds a workspace tensor.
func (e *emitter) temp(t dtype.Type, ds ...int64) int {
	return e.tensor(recipes.Tensor{
		Name: fmt.Sprintf("t%d", len(e.r.Tensors)), DType: t, Dims: slices.Clone(ds), Section: recipes.Workspace,
	})
}

// result is the tensor of an op's result: persistent if it leaves the segment.
func (e *emitter) result(v *ir.Value) (int, error) {
	ds, err := dims(v.Type)
	if err != nil {
		return 0, err
	}
	t := e.temp(v.Type.DType, ds...)
	if s, ok := e.slots[v]; ok {
		e.r.Tensors[t].Section, e.r.Tensors[t].Offset = s.Section, s.Offset
	}
	e.tensors[v] = t
	return t, nil
}

func (e *emitter) dims(t int) []int64      { return e.r.Tensors[t].Dims }
func (e *emitter) dtype(t int) dtype.Type  { return e.r.Tensors[t].DType }
func (e *emitter) arg(o *ir.Op, i int) int { return e.tensors[o.Args[i]] }

// args are the tensors of values.
func (e *emitter) args(list []*ir.Value) []int {
	in := make([]int, len(list))
	for i, v := range list {
		in[i] = e.tensors[v]
	}
	return in
}

// node appends a node and returns its index.
func (e *emitter) node(guid string, params *recipes.Params, in, out []int) int {
	e.r.Nodes = append(e.r.Nodes, recipes.Node{
		Name: fmt.Sprintf("n%d", len(e.r.Nodes)), GUID: guid, In: in, Out: out, Params: params, Origin: e.origin,
	})
	return len(e.r.Nodes) - 1
}

// typed is a GUID with the suffix of a tensor's type.
func (e *emitter) typed(base string, t int) string { return base + "_" + e.dtype(t).String() }

// op lowers one op.
func (e *emitter) op(o *ir.Op) error {
	rule, ok := rules[o.Name()]
	if !ok {
		return fmt.Errorf("has no Synapse form")
	}
	e.origin = o.Loc.String()
	if e.skip[o] {
		return nil
	}
	if done, err := e.view(o); done || err != nil {
		return err
	}
	outs := make([]int, len(o.Results))
	for i, r := range o.Results {
		t, err := e.result(r)
		if err != nil {
			return err
		}
		if n := len(e.dims(t)); n > maxRank {
			return fmt.Errorf("result has rank %d, engines take at most %d", n, maxRank)
		}
		outs[i] = t
	}
	first := len(e.r.Nodes)
	if err := rule(e, o, outs); err != nil {
		return err
	}
	e.trackState(o, first)
	return nil
}

// update is a node that updated a state, perhaps together with others.
type update struct {
	node    int
	several bool
}

// trackState records reads of a state and makes its update wait for them.
func (e *emitter) trackState(o *ir.Op, first int) {
	if !o.Def.Has(ops.StateRead) && !o.Def.Has(ops.StateWrite) {
		return
	}
	last := len(e.r.Nodes) - 1
	for i, a := range o.Args {
		if !o.Def.TakesState(i) {
			continue
		}
		slot := e.slots[a]
		if w, ok := e.writes[slot]; ok && (w.several || o.Def.Variadic()) {
			e.after(first, w.node)
		}
		if o.Def.Has(ops.StateRead) {
			e.reads[slot] = append(e.reads[slot], last)
			continue
		}
		for _, r := range e.reads[slot] {
			e.after(first, r)
		}
		delete(e.reads, slot)
		e.writes[slot] = update{last, o.Def.Variadic()}
	}
}

// after makes all nodes from the first one on wait for another one.
func (e *emitter) after(first, n int) {
	for i := first; i < len(e.r.Nodes); i++ {
		if node := &e.r.Nodes[i]; !slices.Contains(node.After, n) {
			node.After = append(node.After, n)
		}
	}
}

// Parameter structures, by the names of the public headers.

func params(name string, fields ...recipes.Field) *recipes.Params {
	return &recipes.Params{Struct: name, Fields: fields}
}

func intField(name string, t recipes.FieldType, v ...int64) recipes.Field {
	return recipes.Field{Name: name, Type: t, Ints: v}
}

func boolInt(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

package ir

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

// Invariants that Verify checks. Errors cite the number; each has a failing
// test under testdata/verify.
//
//	V01 names are well formed and unique: module, functions, symbols, parameters, results
//	V02 a value is defined before it is used, in the same function
//	V03 a value is defined once
//	V04 an op is in the table; its operands have the right number and element types
//	V05 an op has exactly the table's attributes, each of its type
//	V06 result element types and shapes follow from operands and attributes
//	V07 result distributions follow from the operands'; operands' distributions fit together
//	V08 collectives get what they reduce or gather: partial, or sharded over all ranks
//	V09 no op that is not linear gets a partial value
//	V10 a state version has at most one successor and no use after it
//	V11 the last version of every state is returned as that state
//	V12 returned values match the declared results
//	V13 an op is allowed at the module's level
//	V14 symbols are declared before use, with sensible ranges and definitions
//	V15 sizes are positive for all symbol values and do not overflow
//	V16 shardings name an axis of the value and a number of ways that divides the ranks
//	V17 a call names an earlier function and its arguments match the parameters
//	V18 temp parameters belong to segments; weights of the entry have a source that can fill them
//	V19 outputs and carried results are replicated: nothing leaves with a reduction missing

// Verify checks every invariant and returns Diags in order of place, or nil.
func Verify(m *Module) error {
	v := verifier{mod: m, ranges: map[string]bounds{}}
	v.module()
	if len(v.diags) == 0 {
		return nil
	}
	v.diags.sort()
	return v.diags
}

// VerifyText parses and verifies a text.
func VerifyText(file string, src []byte) (*Module, error) {
	m, err := Parse(file, src)
	if err != nil {
		return nil, err
	}
	if err := Verify(m); err != nil {
		ds := err.(Diags)
		ds.withSource(file, src)
		return nil, ds
	}
	return m, nil
}

type verifier struct {
	mod     *Module
	ranges  map[string]bounds // of declared symbols
	corners []map[string]int64
	diags   Diags

	fn *Func
	// seen holds the values defined so far in fn and, for states, the op that
	// made the next version.
	seen map[*Value]*Op
	// states has the state of each value that is a version of one.
	states map[*Value]*Param
}

func (v *verifier) errorf(code string, p Pos, format string, args ...any) *Diag {
	d := &Diag{Code: code, Pos: p, Msg: fmt.Sprintf(format, args...), Where: "module @" + v.mod.Name}
	if v.fn != nil {
		d.Where += " func @" + v.fn.Name
	}
	v.diags = append(v.diags, d)
	return d
}

func (v *verifier) opError(o *Op, code, format string, args ...any) *Diag {
	d := v.errorf(code, o.Pos, format, args...)
	if i := slices.Index(v.fn.Ops, o); o.Pos.Line == 0 && i >= 0 {
		d.Where += fmt.Sprintf(" op %d", i)
	}
	if s := o.Loc.String(); s != "" {
		d.Notes = append(d.Notes, "from "+s)
	}
	return d
}

// isName reports whether a name is made of words joined by single dots; the first
// one does not start with a digit.
func isName(s string) bool {
	word := 0 // characters of the current one
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.' && word > 0:
			word = 0
		case c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' && i > 0:
			word++
		default:
			return false
		}
	}
	return word > 0
}

func (v *verifier) name(what, name string, p Pos, seen map[string]bool) {
	if !isName(name) {
		v.errorf("V01", p, "%s name %q is not a name", what, name).Help = "names are words of letters, digits and _ joined by single dots, and do not start with a digit"
	}
	if seen[name] {
		v.errorf("V01", p, "%s %s is declared twice", what, name)
	}
	seen[name] = true
}

func (v *verifier) module() {
	m := v.mod
	v.name("module", m.Name, m.Pos, map[string]bool{})
	if m.TP < 1 {
		v.errorf("V16", m.Pos, "the module runs on %d ranks", m.TP)
		return
	}
	syms := map[string]bool{}
	for _, s := range m.Syms {
		v.name("symbol", s.Name, s.Pos, syms)
		v.sym(s)
	}
	v.corners = m.corners()
	if len(m.Funcs) == 0 {
		v.errorf("V01", m.Pos, "the module has no function")
	}
	funcs := map[string]bool{}
	for i, f := range m.Funcs {
		v.name("function", f.Name, f.Pos, funcs)
		v.function(f, m.Funcs[:i])
	}
}

func (v *verifier) sym(s *Sym) {
	if s.Def == nil {
		if s.Min < 0 || s.Min > s.Max || saturated(s.Max) {
			v.errorf("V14", s.Pos, "symbol %s has the range %d..%d; want 0 ≤ min ≤ max", s.Name, s.Min, s.Max)
		}
		v.ranges[s.Name] = s.bounds(v.ranges)
		return
	}
	v.known(s.Def.X, s.Pos, "symbol "+s.Name)
	v.known(s.Def.Y, s.Pos, "symbol "+s.Name)
	switch s.Def.Fn {
	case "floor", "ceil":
		n, ok := s.Def.Y.Const()
		if !ok || n < 1 {
			v.errorf("V14", s.Pos, "symbol %s divides by %s; want a positive constant", s.Name, s.Def.Y)
			return
		}
	case "min", "max":
	default:
		v.errorf("V14", s.Pos, "symbol %s is defined by %s; want floor, ceil, min or max", s.Name, s.Def.Fn)
		return
	}
	v.ranges[s.Name] = s.bounds(v.ranges)
}

// known checks that a size uses declared symbols only.
func (v *verifier) known(d Dim, p Pos, what string) bool {
	for _, s := range d.Symbols(nil) {
		if _, ok := v.ranges[s]; !ok {
			v.errorf("V14", p, "%s uses symbol %s, which is not declared above it", what, s)
			return false
		}
	}
	if d.isTooLarge() {
		v.errorf("V15", p, "%s has a size that overflows", what)
		return false
	}
	return true
}

// maxElems bounds a value: 2^48 elements are far beyond any device.
const maxElems = 1 << 48

// typ checks a type's sizes and sharding and reports whether it can be used.
func (v *verifier) typ(t Type, p Pos, what string) bool {
	ok := true
	if t.DType.Size() == 0 {
		v.errorf("V04", p, "%s has no element type", what)
		ok = false
	}
	if t.Rank() > maxRank {
		v.errorf("V06", p, "%s has rank %d, more than %d", what, t.Rank(), maxRank)
		return false
	}
	for i, d := range t.Shape {
		if !v.known(d, p, what) {
			return false
		}
		if b := d.bound(v.ranges); b.lo < 1 {
			v.errorf("V15", p, "%s: axis %d is %s, which can be %d", what, i, d, b.lo)
			ok = false
		}
	}
	if ok && t.Elems().bound(v.ranges).hi > maxElems {
		v.errorf("V15", p, "%s: %s has more than 2^48 elements", what, t)
		ok = false
	}
	if msg := distProblem(v.mod, t); msg != "" {
		v.errorf("V16", p, "%s: %s", what, msg)
		ok = false
	}
	return ok
}

func (v *verifier) function(f *Func, earlier []*Func) {
	v.fn = f
	v.seen, v.states = map[*Value]*Op{}, map[*Value]*Param{}
	defer func() { v.fn = nil }()
	names := map[string]bool{}
	ok := true
	for _, p := range f.Params {
		v.name("parameter", p.Name, p.Pos, names)
		ok = v.param(p) && ok
		if _, dup := v.seen[p.Value]; dup {
			v.errorf("V03", p.Pos, "%%%s is the value of another parameter too", p.Name)
			ok = false
		}
		v.seen[p.Value] = nil
		if p.Kind == State {
			v.states[p.Value] = p
		}
	}
	results := map[string]bool{}
	for _, r := range f.Results {
		v.name("result", r.Name, r.Pos, results)
		ok = v.typ(r.Type, r.Pos, "result "+r.Name) && ok
	}
	if !ok {
		return
	}
	for _, o := range f.Ops {
		if !v.op(o, earlier) {
			return // what follows would mostly repeat the error
		}
	}
	v.returns(f)
}

func (v *verifier) param(p *Param) bool {
	ok := v.typ(p.Value.Type, p.Pos, "%"+p.Name)
	whole := v.fn == v.mod.Entry() // not a segment
	switch {
	case p.Kind == Temp && whole:
		v.errorf("V18", p.Pos, "%%%s: only segments have temp parameters", p.Name)
	case p.Kind == Weight && p.Source.IsZero() && whole:
		v.errorf("V18", p.Pos, "%%%s: the weight has no source", p.Name).Help = `write = "checkpoint tensor" or = fill(value, step)`
	case p.Kind != Weight && !p.Source.IsZero():
		v.errorf("V18", p.Pos, "%%%s: only weights have a source", p.Name)
	case p.Kind == Host && p.Value.Type.Dist.Kind != Replicated:
		v.errorf("V18", p.Pos, "%%%s: inputs are the same on every rank, not %s", p.Name, p.Value.Type.Dist.describe())
	case p.Value.Type.Dist.Kind == Partial && p.Kind != Temp:
		v.errorf("V18", p.Pos, "%%%s: only temp parameters can be partial", p.Name)
	case !ok:
	default:
		msg := v.sourceProblem(&p.Source, p.Value.Type)
		if msg == "" {
			return true
		}
		v.errorf("V18", p.Pos, "%%%s: %s", p.Name, msg)
	}
	return false
}

// sourceProblem says why a source cannot fill a weight of a type, "" if it can.
func (v *verifier) sourceProblem(s *Source, t Type) string {
	if s.PerRank {
		last := s.Fill + float64(v.mod.TP-1)*s.Step
		switch {
		case s.Tensor != "" || s.viewed():
			return "a constant is not filled from a tensor too"
		case s.Step != 0 && v.mod.TP > 1 && (t.Dist.Kind != Sharded || t.Dist.Ways != v.mod.TP):
			return fmt.Sprintf("a constant that differs from rank to rank is not %s but sharded %d ways", t.Dist.describe(), v.mod.TP)
		case !t.DType.Holds(s.Fill) || !t.DType.Holds(s.Fill+s.Step) || !t.DType.Holds(last):
			return fmt.Sprintf("fill(%s, %s) is not a number of type %s on every rank", formatFloat(s.Fill), formatFloat(s.Step), t.DType)
		}
		return ""
	}
	switch {
	case s.Tensor == "" && s.viewed():
		return "there is no tensor to view"
	case s.Reshape != nil && len(s.Reshape) == 0 || s.Perm != nil && len(s.Perm) == 0 || s.Rows != nil && len(s.Rows) == 0:
		return "the view of the tensor is empty; leave it out"
	case (s.Times != 0 || s.Plus != 0) && !t.DType.IsFloat():
		return fmt.Sprintf("times and plus are for floats, not for %s", t.DType)
	}
	for _, n := range []float64{s.Times, s.Plus} {
		if n != 0 && (float32(n) == 0 || !dtype.F32.Holds(n)) {
			return fmt.Sprintf("%s is 0 or infinite in f32", formatFloat(n))
		}
	}
	want := t.global().Shape
	view, msg := s.view(len(want))
	if msg != "" {
		return msg
	}
	if len(s.Rows) > 0 {
		switch {
		case len(s.Rows) != 2 || s.Rows[0] < 0 || s.Rows[0] >= s.Rows[1]:
			return fmt.Sprintf("rows %v are not the first and the one after the last", s.Rows)
		case len(want) == 0 || !want[0].Is(s.Rows[1]-s.Rows[0]):
			return fmt.Sprintf("rows %v are not as many as %s has", s.Rows, shapeString(want))
		case len(s.Reshape) > 0 && s.Rows[1] > view[0]:
			return fmt.Sprintf("rows %v are not all in the view of the tensor, which has shape %v", s.Rows, view)
		}
		view[0] = s.Rows[1] - s.Rows[0]
	}
	if len(s.Reshape) > 0 && !slices.EqualFunc(view, want, func(n int64, d Dim) bool { return d.Is(n) }) {
		return fmt.Sprintf("the view of the tensor has shape %v, want that of all shards together, %s", view, shapeString(want))
	}
	return ""
}

// view is the shape of a tensor of a rank after Reshape and Perm, or why there is none. A
// tensor that is not reshaped has sizes that are not known here, 0.
func (s *Source) view(rank int) (shape []int64, problem string) {
	view := slices.Clone(s.Reshape)
	if len(view) == 0 {
		view = make([]int64, rank)
	}
	if len(s.Perm) == 0 {
		return view, ""
	}
	seen := make([]bool, len(view))
	for _, p := range s.Perm {
		if len(s.Perm) != len(view) || p < 0 || int(p) >= len(view) || seen[p] {
			return nil, fmt.Sprintf("perm %v is not a permutation of %d axes", s.Perm, len(view))
		}
		seen[p] = true
		shape = append(shape, view[p])
	}
	return shape, ""
}

func (v *verifier) op(o *Op, earlier []*Func) bool {
	before := len(v.diags)
	if o.Def == nil {
		v.opError(o, "V04", "an op without a row in the table")
		return false
	}
	if known, ok := ops.ByName(o.Name()); !ok || known != o.Def {
		v.opError(o, "V04", "op %s is not in the table", o.Name())
		return false
	}
	v.level(o)
	for i, a := range o.Args {
		if _, ok := v.seen[a]; !ok {
			v.opError(o, "V02", "operand %d of %s is not defined above it in this function", i, o.Name())
		}
	}
	v.attrSizes(o)
	if at := o.Attr("callee"); at != nil && at.Func != nil && !slices.Contains(earlier, at.Func) {
		v.opError(o, "V17", "call of @%s, which is not above this function", at.Func.Name)
	}
	if len(v.diags) > before {
		return false
	}
	v.results(o)
	v.embeddingOffset(o)
	if len(v.diags) > before {
		return false
	}
	v.constant(o)
	v.inside(o)
	v.state(o)
	for _, r := range o.Results {
		if _, ok := v.seen[r]; ok {
			v.opError(o, "V03", "a result of %s is defined twice", o.Name())
		}
		v.seen[r] = nil
	}
	return len(v.diags) == before
}

// level checks that an op may appear where it does.
func (v *verifier) level(o *Op) {
	switch {
	case o.Def.Levels&v.allowed() == 0:
		v.opError(o, "V13", "%s is not allowed at level %s", o.Name(), levelName(v.allowed()))
	case v.allowed() != v.mod.Level && (o.Def.Has(ops.Collective) || o.Def.Has(ops.Break)):
		v.opError(o, "V13", "%s is not allowed in a segment, which it would end", o.Name())
	}
}

// allowed is the level of the current function's ops: an outlined module's
// entry holds calls and collectives, its segments what they were cut from.
func (v *verifier) allowed() ops.Level {
	if v.mod.Level == ops.Plan && v.fn != v.mod.Entry() {
		return ops.Fused
	}
	return v.mod.Level
}

// embeddingOffset checks that every rank looks up its own rows: a wrong offset
// counts rows twice, the same on all ranks. A segment does not see the source.
func (v *verifier) embeddingOffset(o *Op) {
	if o.Name() != "embedding" || v.fn != v.mod.Entry() || len(o.Args) != 3 {
		return
	}
	rows, ok := o.Args[0].Type.Shape[0].Const()
	off := o.Args[2].Param
	if !ok || off == nil || !off.Source.PerRank || off.Source.Fill != 0 || off.Source.Step != float64(rows) {
		v.opError(o, "V07", "embedding: the offset is not rank · %s, the rows of the table's part", o.Args[0].Type.Shape[0]).Help = fmt.Sprintf("declare it as a weight = fill(0, %s)", o.Args[0].Type.Shape[0])
	}
}

// attrSizes checks the sizes among attributes.
func (v *verifier) attrSizes(o *Op) {
	for _, a := range o.Attrs {
		for _, d := range append([]Dim{a.Dim}, a.Dims...) {
			v.known(d, o.Pos, o.Name()+" attribute "+a.Name)
		}
		if math.IsNaN(a.Float) || math.IsInf(a.Float, 0) {
			v.opError(o, "V05", "%s: attribute %s is %v, want a finite number", o.Name(), a.Name, a.Float)
		}
	}
}

// constant checks that a constant is a number of its type.
func (v *verifier) constant(o *Op) {
	if c, ok := AsConst(o); ok && !c.Dtype().Holds(c.Value()) {
		v.opError(o, "V05", "const: %s is not a number of type %s", formatFloat(c.Value()), c.Dtype())
	}
}

// results compares declared with inferred result types.
func (v *verifier) results(o *Op) {
	want, err := typeOp(v.mod, o)
	if err != nil {
		code, help := ruleCode(err)
		v.opError(o, code, "%s", err).Help = help
		return
	}
	if len(want) != len(o.Results) {
		v.opError(o, "V06", "%s has %s, want %d", o.Name(), plural(len(o.Results), "result"), len(want))
		return
	}
	for i, r := range o.Results {
		got := r.Type
		switch {
		case got.DType != want[i].DType || !SameShape(got.Shape, want[i].Shape):
			v.opError(o, "V06", "%s: result %d is declared %s%s, its operands give %s%s", o.Name(), i,
				got.DType, shapeString(got.Shape), want[i].DType, shapeString(want[i].Shape))
		case got.Dist != want[i].Dist:
			v.opError(o, "V07", "%s: result %d is declared %s, its operands make it %s", o.Name(), i, got.Dist.describe(), want[i].Dist.describe())
		default:
			v.typ(got, o.Pos, "result of "+o.Name())
		}
	}
}

// inside checks sizes that go together for some symbol values only. Those that
// may not be beyond others it compares at the ends of the ranges of symbols: what
// is wrong there is wrong for sure.
func (v *verifier) inside(o *Op) {
	x := Type{}
	switch o.Name() {
	case "slice", "topk":
		x = o.Args[0].Type
	case "kv_read":
		slots := o.Args[0].Type.Shape[0]
		if _, ok := slots.Div(D(o.Int("block_size"))); !ok {
			v.opError(o, "V06", "kv_read: block_size %d does not divide %s slots for all symbol values", o.Int("block_size"), slots)
		}
		return
	default:
		return
	}
	for _, env := range v.corners {
		eval := func(d Dim) int64 {
			n, err := d.Eval(env)
			if err != nil {
				return 0
			}
			return n
		}
		if o.Name() == "topk" {
			if n := eval(x.Shape[x.Rank()-1]); o.Int("k") > n {
				v.opError(o, "V06", "topk: k = %d of %d elements when %s", o.Int("k"), n, envString(env))
				return
			}
			continue
		}
		start, stop, n := eval(o.Attr("start").Dim), eval(o.Attr("stop").Dim), eval(x.Shape[o.Int("axis")])
		if start < 0 || stop < start || stop > n {
			v.opError(o, "V06", "slice: [%d, %d) is outside an axis of size %d when %s", start, stop, n, envString(env))
			return
		}
	}
}

// corners are environments with base symbols at the ends of their ranges.
func (m *Module) corners() []map[string]int64 {
	var bases []*Sym
	for _, s := range m.Syms {
		if s.Def == nil {
			bases = append(bases, s)
		}
	}
	var envs []map[string]int64
	add := func(most func(s *Sym) bool) {
		base := map[string]int64{}
		for _, s := range bases {
			base[s.Name] = s.Min
			if most(s) {
				base[s.Name] = s.Max
			}
		}
		if env, err := m.Env(base); err == nil {
			envs = append(envs, env)
		}
	}
	if len(m.Syms) > 0 {
		add(func(*Sym) bool { return false })
		add(func(*Sym) bool { return true })
	}
	if len(bases) > 1 && len(bases) <= 16 {
		for _, one := range bases {
			add(func(s *Sym) bool { return s == one })
			add(func(s *Sym) bool { return s != one })
		}
	}
	return envs
}

func envString(env map[string]int64) string {
	var parts []string
	for name, n := range env {
		parts = append(parts, fmt.Sprintf("%s = %d", name, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// state checks that versions of states are used in order, and notes the new
// versions that o makes.
func (v *verifier) state(o *Op) {
	taken := map[*Param]bool{}
	for i, a := range o.Args {
		p := v.states[a]
		switch takes := takesState(o, i); {
		case !takes && p == nil:
			continue
		case !takes:
			v.opError(o, "V10", "state %%%s is used as a plain value by %s", p.Name, o.Name()).Help = "read it with kv_read or conv_read"
			continue
		case p == nil:
			v.opError(o, "V10", "operand %d of %s is a state, %s is none", i, o.Name(), a.Name())
			continue
		}
		if taken[p] {
			v.opError(o, "V10", "%s gets state %%%s twice", o.Name(), p.Name)
		}
		taken[p] = true
		if next := v.seen[a]; next != nil {
			d := v.opError(o, "V10", "a version of state %%%s is used after %s made the next one", p.Name, next.Name())
			if next.Pos.Line > 0 {
				d.Notes = append(d.Notes, fmt.Sprintf("the next version is made at line %d", next.Pos.Line))
			}
		}
		if r := nextVersion(o, i); r != nil {
			v.seen[a] = o
			v.states[r] = p
		}
	}
}

// takesState reports whether operand i of o is a state.
func takesState(o *Op, i int) bool {
	if o.Name() == "call" {
		return o.Attr("callee").Func.Params[i].Kind == State
	}
	return o.Def.TakesState(i)
}

// nextVersion is the result of o that is the next version of the state that is
// its operand i, nil when o only reads that.
func nextVersion(o *Op, i int) *Value {
	if o.Name() != "call" {
		if !o.Def.Has(ops.StateWrite) {
			return nil
		}
		return o.Results[i-o.Def.FirstState()]
	}
	callee := o.Attr("callee").Func
	for j, r := range callee.Results {
		if r.Kind == State && r.Name == callee.Params[i].Name {
			return o.Results[j]
		}
	}
	return nil
}

// returns checks the returned values against the declared results.
func (v *verifier) returns(f *Func) {
	if len(f.Return) != len(f.Results) {
		v.errorf("V12", f.Pos, "@%s returns %s and declares %s", f.Name, plural(len(f.Return), "value"), plural(len(f.Results), "result"))
		return
	}
	returned := map[string]bool{}
	for i, x := range f.Return {
		r := f.Results[i]
		if _, ok := v.seen[x]; !ok {
			v.errorf("V02", r.Pos, "result %s is not defined in this function", r.Name)
			return
		}
		if !x.Type.Equal(r.Type) {
			v.errorf("V12", r.Pos, "result %s is declared %s, the returned value is %s", r.Name, r.Type, x.Type)
		}
		if (r.Kind == Host || r.Kind == Carry) && r.Type.Dist.Kind != Replicated {
			d := v.errorf("V19", r.Pos, "result %s leaves the graph %s", r.Name, r.Type.Dist.describe())
			d.Help = "join the shards first with all_gather"
			if r.Type.Dist.Kind == Partial {
				d.Help = reduceHelp
			}
		}
		v.resultKind(r, x)
		if r.Kind == State {
			returned[r.Name] = true
		}
	}
	for _, p := range f.Params {
		if p.Kind == State && v.seen[p.Value] != nil && !returned[p.Name] {
			v.errorf("V11", p.Pos, "state %%%s is updated but its last version is not returned", p.Name)
		}
	}
}

func (v *verifier) resultKind(r Result, x *Value) {
	p := v.states[x]
	switch {
	case r.Kind == Weight:
		v.errorf("V12", r.Pos, "result %s is a weight; weights are never written", r.Name)
	case r.Kind == State && (p == nil || p.Name != r.Name):
		v.errorf("V11", r.Pos, "result %s is not a version of state %%%s", r.Name, r.Name)
	case r.Kind == State && v.seen[x] != nil:
		v.errorf("V11", r.Pos, "result %s is not the last version of its state", r.Name)
	case r.Kind != State && p != nil:
		v.errorf("V11", r.Pos, "result %s is a version of state %%%s, returned as %s", r.Name, p.Name, resultKinds[r.Kind])
	}
}

package ir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/participle/v2/lexer"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

// maxText bounds the size of an IR text; the largest real ones are a few MB.
const maxText = 256 << 20

// Parse reads IR text. Types of op results may be left out; they are then
// inferred. The module is not verified beyond what reading needs: see Verify.
// Errors are Diags with places in the text.
func Parse(file string, src []byte) (*Module, error) {
	if len(src) > maxText {
		return nil, fmt.Errorf("%s: %d bytes of IR text, more than %d", file, len(src), maxText)
	}
	r := resolver{places: newPlaces(src)}
	ast, err := qirParser.ParseBytes(file, src)
	if err != nil {
		r.diags = Diags{syntaxError(err, src, r.places)}
	} else {
		r.module(ast)
	}
	if len(r.diags) > 0 {
		r.diags.sort()
		r.diags.withSource(file, src)
		return nil, r.diags
	}
	return r.mod, nil
}

// places finds the line and column of offsets of a text.
type places []int // where lines start

func newPlaces(src []byte) places {
	ls := places{0}
	for i, c := range src {
		if c == '\n' {
			ls = append(ls, i+1)
		}
	}
	return ls
}

func (ls places) pos(offset int) Pos {
	i, ok := slices.BinarySearch(ls, offset)
	if !ok {
		i--
	}
	return Pos{i + 1, offset - ls[i] + 1}
}

// resolver turns the syntax tree into a module.
type resolver struct {
	places places
	diags  Diags
	mod    *Module
}

func (r *resolver) pos(p lexer.Position) Pos { return r.places.pos(p.Offset) }

func (r *resolver) errorf(code string, p lexer.Position, format string, args ...any) *Diag {
	d := &Diag{Code: code, Pos: r.pos(p), Msg: fmt.Sprintf(format, args...)}
	r.diags = append(r.diags, d)
	return d
}

func (r *resolver) module(a *astModule) {
	r.mod = &Module{Name: a.Name.Name[1:], Level: ops.Model, TP: 1, Pos: r.pos(a.Name.Pos)}
	r.once(a.Attrs)
	for _, at := range a.Attrs {
		switch at.Name {
		case "level":
			id, _ := at.Value.ident()
			i := slices.IndexFunc(levelNames, func(l levelSpelling) bool { return l.name == id })
			if i < 0 {
				r.errorf("V05", at.Value.Pos, "there is no level %s", at.Value.describe()).Help = "levels are model, fused and plan"
				continue
			}
			r.mod.Level = levelNames[i].level
		case "tp":
			n, ok := int64(0), false
			if at.Value.Sum != nil {
				n, ok = r.dim(at.Value.Sum).Const()
			}
			if !ok || n < 1 || n > 1<<16 {
				r.errorf("V05", at.Value.Pos, "tp is %s, want a number of ranks", at.Value.describe())
				continue
			}
			r.mod.TP = int(n)
		default:
			r.errorf("V05", at.Pos, "a module has no attribute %s", at.Name).Help = "its attributes are level and tp"
		}
	}
	for _, s := range a.Syms {
		r.sym(s)
	}
	for _, f := range a.Funcs {
		r.mod.Funcs = append(r.mod.Funcs, r.function(f))
	}
}

// once refuses attributes that are given twice.
func (r *resolver) once(as []*astAttr) {
	seen := map[string]bool{}
	for _, a := range as {
		if seen[a.Name] {
			r.errorf("V05", a.Pos, "attribute %s is given twice", a.Name)
		}
		seen[a.Name] = true
	}
}

func (r *resolver) sym(a *astSym) {
	s := &Sym{Name: a.Name.Name, Pos: r.pos(a.Name.Pos)}
	if a.Def != nil {
		s.Def = &SymDef{Fn: a.Def.Fn, X: r.dim(a.Def.X), Y: r.dim(a.Def.Y)}
	} else {
		var okMin, okMax bool
		s.Min, okMin = r.dim(a.Min).Const()
		s.Max, okMax = r.dim(a.Max).Const()
		if !okMin || !okMax {
			r.errorf("V14", a.Name.Pos, "the range of symbol %s is not constant", s.Name)
		}
	}
	r.mod.Syms = append(r.mod.Syms, s)
}

// scope is what the names of a function stand for.
type scope struct {
	values map[string]*Value
	// places has where each name is defined, in the whole function.
	places map[string]Pos
}

func newScope(r *resolver, a *astFunc) *scope {
	sc := &scope{values: map[string]*Value{}, places: map[string]Pos{}}
	note := func(n *astArg) {
		if _, ok := sc.places[n.Name]; !ok {
			sc.places[n.Name] = r.pos(n.Pos)
		}
	}
	for _, p := range a.Params {
		note(p.Name)
	}
	for _, o := range a.Ops {
		for _, n := range o.Results {
			note(n)
		}
	}
	return sc
}

func (r *resolver) function(a *astFunc) *Func {
	f := &Func{Name: a.Name.Name[1:], Pos: r.pos(a.Name.Pos)}
	before := len(r.diags)
	sc := newScope(r, a)
	for _, p := range a.Params {
		r.param(f, sc, p)
	}
	for _, res := range a.Results {
		k, _ := parseKind(resultKinds[:], res.Kind)
		f.Results = append(f.Results, Result{Name: res.Name.Name, Kind: k, Type: r.typ(res.Type), Pos: r.pos(res.Name.Pos)})
	}
	for i, o := range a.Ops {
		if i+1 < len(a.Ops) {
			r.stray(o, a.Ops[i+1])
		}
		if len(r.diags) > before {
			return f // what follows would mostly repeat the error
		}
		r.op(f, sc, o)
	}
	if len(r.diags) == before {
		f.Return = r.args(sc, a.Return.Args)
	}
	return f
}

func (r *resolver) param(f *Func, sc *scope, a *astParam) {
	k, _ := parseKind(paramKinds[:], a.Kind)
	p := &Param{Name: a.Name.Name[1:], Kind: k, Pos: r.pos(a.Name.Pos)}
	p.Value = &Value{Type: r.typ(a.Type), Param: p}
	if a.Tensor != nil {
		p.Source.Tensor = r.str(a.Tensor)
	}
	r.once(a.Attrs)
	for _, at := range a.Attrs {
		switch at.Name {
		case "reshape":
			p.Source.Reshape = r.ints(at)
		case "perm":
			p.Source.Perm = r.ints(at)
		case "rows":
			p.Source.Rows = r.ints(at)
		case "times":
			p.Source.Times = r.number(at)
		case "plus":
			p.Source.Plus = r.number(at)
		default:
			r.errorf("V05", at.Pos, "a weight has no attribute %s", at.Name).Help = "its attributes are reshape, perm, rows, times and plus"
		}
	}
	if a.Fill != nil {
		p.Source.PerRank = true
		p.Source.Fill, p.Source.Step = r.float(a.Fill.Fill), r.float(a.Fill.Step)
	}
	r.define(sc, a.Name, p.Value)
	f.Params = append(f.Params, p)
}

func (r *resolver) define(sc *scope, n *astArg, v *Value) {
	if sc.values[n.Name] != nil {
		d := r.errorf("V03", n.Pos, "%s is defined twice", n.Name)
		d.Notes = append(d.Notes, fmt.Sprintf("it is also defined at line %d", sc.places[n.Name].Line))
	}
	sc.values[n.Name] = v
}

func (r *resolver) args(sc *scope, as []*astArg) []*Value {
	var vs []*Value
	for _, a := range as {
		if v := sc.values[a.Name]; v != nil {
			vs = append(vs, v)
		} else {
			r.undefined(sc, a)
		}
	}
	return vs
}

func (r *resolver) undefined(sc *scope, a *astArg) {
	if p, ok := sc.places[a.Name]; ok {
		d := r.errorf("V02", a.Pos, "%s is used before it is defined", a.Name)
		d.Notes = append(d.Notes, fmt.Sprintf("it is defined at line %d", p.Line))
		return
	}
	d := r.errorf("V02", a.Pos, "there is no value %s in this function", a.Name)
	if len(r.diags) > mostDiags { // which are not shown
		return
	}
	var names []string
	for n := range sc.values {
		names = append(names, n)
	}
	d.Help = DidYouMean(a.Name, names)
}

// stray finds words behind an op that the grammar takes for the next op.
func (r *resolver) stray(a, next *astOp) {
	p := next.Name.Pos
	if _, ok := ops.ByName(next.Name.Name); ok || len(next.Results) > 0 || p.Line != a.Name.Pos.Line {
		return
	}
	msg, help := strayMessage(a.Name.Name, next.Name.Name)
	r.errorf("syntax", p, "%s", msg).Help = help
}

// op resolves one op.
func (r *resolver) op(f *Func, sc *scope, a *astOp) {
	def, ok := ops.ByName(a.Name.Name)
	if !ok {
		var names []string
		for i := range ops.Table {
			names = append(names, ops.Table[i].Name)
		}
		r.errorf("V04", a.Name.Pos, "there is no op %s", a.Name.Name).Help = DidYouMean(a.Name.Name, names)
		return
	}
	before := len(r.diags)
	o := &Op{Def: def, Pos: r.pos(a.Name.Pos), Loc: r.loc(a.Loc)}
	o.Args = r.args(sc, a.Args)
	r.attrs(o, a)
	ts := make([]Type, len(a.Types))
	for i, t := range a.Types {
		ts[i] = r.typ(t)
	}
	if len(r.diags) > before {
		return
	}
	if len(a.Types) == 0 {
		var err error
		if ts, err = typeOp(r.mod, o); err != nil {
			code, help := ruleCode(err)
			r.errorf(code, a.Name.Pos, "%s", err).Help = help
			return
		}
	}
	if len(a.Results) != len(ts) {
		want := plural(len(ts), "result")
		if len(a.Types) > 0 {
			want = plural(len(ts), "result type")
		}
		r.errorf("V04", a.Name.Pos, "%s has %s but %s", a.Name.Name, want, plural(len(a.Results), "name"))
		return
	}
	o.setResults(ts)
	for i, n := range a.Results {
		r.define(sc, n, o.Results[i])
	}
	f.Ops = append(f.Ops, o)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// DidYouMean is a help line with the candidate that is nearest to a name, and
// at most two edits away; "" when there is none.
func DidYouMean(name string, candidates []string) string {
	best, most := "", 3
	if len(name) > 64 {
		return ""
	}
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if len(c) > 64 {
			continue
		}
		if d := editDistance(name, c); d < most && d < len(name)-1 {
			best, most = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "did you mean " + best + "?"
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func (r *resolver) loc(a *astLoc) Loc {
	l := NoLoc
	if a == nil {
		return l
	}
	if a.Layer != nil {
		n, ok := r.small(a.Layer)
		if !ok {
			r.errorf("syntax", a.Layer.Pos, "%s is not the number of a layer", a.Layer)
		}
		l.Layer = n
	}
	for i, s := range a.Names {
		if i == 0 {
			l.Op = r.str(s)
		} else {
			l.Tensor = r.str(s)
		}
	}
	return l
}

// small is a size that is a plain number of moderate size.
func (r *resolver) small(s *astSum) (int, bool) {
	n, ok := r.dim(s).Const()
	if n < 0 || n > 1<<30 {
		return 0, false
	}
	return int(n), ok
}

// str is the content of a string.
func (r *resolver) str(a *astString) string {
	s, err := strconv.Unquote(a.Text)
	if err != nil {
		r.errorf("syntax", a.Pos, "the string holds an unknown escape").Help = `a backslash goes before one of \ " n t r, or xHH, uHHHH`
	}
	return s
}

// attrs resolves attributes into the table's order.
func (r *resolver) attrs(o *Op, a *astOp) {
	r.once(a.Attrs)
	given := map[string]*astAttr{}
	for _, at := range a.Attrs {
		given[at.Name] = at
		d, ok := o.Def.Attr(at.Name)
		switch {
		case !ok:
			r.errorf("V05", at.Pos, "%s has no attribute %s", o.Name(), at.Name).Help = attrHelp(o.Def)
		case d.Lead:
			r.errorf("V05", at.Pos, "the %s of %s is written before its operands, without name and braces", at.Name, o.Name())
		}
	}
	lead := a.Lead
	for _, d := range o.Def.Attrs {
		var v *astValue
		switch {
		case d.Lead:
			v, lead = lead, nil
		case given[d.Name] != nil:
			v = given[d.Name].Value
		}
		if v == nil {
			continue // the verifier says which are missing
		}
		at := Attr{Name: d.Name}
		if r.attrValue(&at, d.Type, v) {
			o.Attrs = append(o.Attrs, at)
			continue
		}
		e := r.errorf("V05", v.Pos, "%s: attribute %s is %s, want %s", o.Name(), d.Name, v.describe(), attrTypeNames[d.Type])
		if d.Type == ops.DType {
			e.Help = dtypeHelp
		}
	}
	if lead != nil {
		r.errorf("syntax", lead.Pos, "%s is followed by its operands, not by %s", o.Name(), lead.describe())
	}
}

func attrHelp(def *ops.Op) string {
	var names []string
	for _, d := range def.Attrs {
		if !d.Lead {
			names = append(names, d.Name)
		}
	}
	switch len(names) {
	case 0:
		return "it takes no attributes in braces"
	case 1:
		return "its only attribute is " + names[0]
	}
	return "its attributes are " + strings.Join(names, ", ")
}

var dtypeHelp = func() string {
	var names []string
	for t := dtype.Type(1); t.Size() > 0; t++ {
		names = append(names, t.String())
	}
	return "element types are " + strings.Join(names, ", ")
}()

// attrValue reads a value as the table's type; it is false when the value is of
// another.
func (r *resolver) attrValue(at *Attr, t ops.AttrType, v *astValue) bool {
	switch t {
	case ops.Int, ops.Dim:
		if v.Sum == nil {
			return false
		}
		at.Dim = r.dim(v.Sum)
	case ops.Float:
		if v.Sum == nil || !v.Sum.isNumber() {
			return false
		}
		at.Float = r.float(v.Sum)
	case ops.String:
		if v.Str == nil {
			return false
		}
		at.Str = r.str(v.Str)
	case ops.Bool:
		id, _ := v.ident()
		if id != "true" && id != "false" {
			return false
		}
		at.Bool = id == "true"
	case ops.DType:
		id, _ := v.ident()
		d, ok := dtype.Parse(id)
		if !ok {
			return false
		}
		at.DType = d
	case ops.Func:
		if v.Global == nil {
			return false
		}
		at.Func = r.mod.Func((*v.Global)[1:])
		if at.Func == nil {
			r.errorf("V17", v.Pos, "there is no function %s above this one", *v.Global)
		}
	case ops.Ints, ops.Dims:
		if v.List == nil {
			return false
		}
		at.Dims = make([]Dim, len(v.List.Items))
		for i, s := range v.List.Items {
			at.Dims[i] = r.dim(s)
		}
	}
	return true
}

func (v *astValue) describe() string {
	switch {
	case v.List != nil:
		return "a list"
	case v.Str != nil:
		return "a string"
	case v.Global != nil:
		return *v.Global
	}
	return v.Sum.String()
}

// ident is the value's name when it is a single name.
func (v *astValue) ident() (string, bool) {
	if v.Sum == nil || v.Sum.Neg || len(v.Sum.Rest) > 0 || len(v.Sum.First.Factors) != 1 {
		return "", false
	}
	return v.Sum.First.Factors[0], true
}

func (r *resolver) ints(at *astAttr) []int64 {
	if at.Value.List == nil {
		r.errorf("V05", at.Value.Pos, "attribute %s is %s, want a list of integers", at.Name, at.Value.describe())
		return nil
	}
	ns := make([]int64, len(at.Value.List.Items))
	for i, s := range at.Value.List.Items {
		n, ok := r.dim(s).Const()
		if !ok {
			r.errorf("V05", s.Pos, "attribute %s: %s is not an integer", at.Name, s)
		}
		ns[i] = n
	}
	return ns
}

func (r *resolver) number(at *astAttr) float64 {
	if at.Value.Sum == nil || !at.Value.Sum.isNumber() {
		r.errorf("V05", at.Value.Pos, "attribute %s is %s, want a number", at.Name, at.Value.describe())
		return 0
	}
	return r.float(at.Value.Sum)
}

func (r *resolver) typ(a *astType) Type {
	t := Type{}
	var ok bool
	if t.DType, ok = dtype.Parse(a.DType); !ok {
		r.errorf("syntax", a.Pos, "there is no element type %s", a.DType).Help = dtypeHelp
	}
	t.Shape = make([]Dim, len(a.Shape))
	for i, s := range a.Shape {
		t.Shape[i] = r.dim(s)
	}
	switch {
	case a.Dist == nil:
	case a.Dist.Kind == "@partial" && a.Dist.Axis == nil:
		t.Dist = PartialSum
	case a.Dist.Kind == "@shard" && a.Dist.Axis != nil:
		axis, okAxis := r.small(a.Dist.Axis)
		ways, okWays := r.small(a.Dist.Ways)
		if !okAxis || !okWays {
			r.errorf("syntax", a.Dist.Pos, "axis and ways of @shard are not plain numbers")
		}
		t.Dist = Dist{Sharded, axis, ways}
	default:
		r.errorf("syntax", a.Dist.Pos, "there is no such distribution").Help = "write @partial, @shard(axis, ways), or nothing for a replicated value"
	}
	return t
}

func (r *resolver) dim(s *astSum) Dim {
	ts := r.prod(nil, s, s.First, s.Neg)
	for _, t := range s.Rest {
		ts = r.prod(ts, s, t.Prod, t.Op == "-")
	}
	d := canonical(ts)
	if d.isTooLarge() {
		r.errorf("syntax", s.Pos, "the size is too large").Help = fmt.Sprintf("sizes have up to %d terms, %d factors and 63 bits", maxTerms, maxDegree)
		return D(1) // which causes no further errors
	}
	return d
}

// prod appends the term of a product to ts.
func (r *resolver) prod(ts []term, s *astSum, p *astProd, neg bool) []term {
	t := term{coef: 1}
	if neg {
		t.coef = -1
	}
	for _, f := range p.Factors {
		if f[0] < '0' || f[0] > '9' {
			t.syms = append(t.syms, f)
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		switch {
		case err != nil && strings.ContainsAny(f, ".eE"):
			r.errorf("syntax", s.Pos, "%s is not an integer", f)
			n = 1
		case err != nil:
			n = inf
		}
		t.coef = satMul(t.coef, n)
	}
	slices.Sort(t.syms)
	return append(ts, t)
}

func (s *astSum) isNumber() bool {
	return len(s.Rest) == 0 && len(s.First.Factors) == 1 && s.First.Factors[0][0] >= '0' && s.First.Factors[0][0] <= '9'
}

func (r *resolver) float(s *astSum) float64 {
	if !s.isNumber() {
		r.errorf("syntax", s.Pos, "%s is not a number", s)
		return 0
	}
	f, err := strconv.ParseFloat(s.First.Factors[0], 64)
	if err != nil {
		r.errorf("syntax", s.Pos, "%s is beyond the numbers of 64 bits", s)
	}
	if s.Neg {
		f = -f
	}
	return f
}

func (s *astSum) String() string {
	var b strings.Builder
	if s.Neg {
		b.WriteByte('-')
	}
	b.WriteString(strings.Join(s.First.Factors, "*"))
	for _, t := range s.Rest {
		fmt.Fprintf(&b, " %s %s", t.Op, strings.Join(t.Prod.Factors, "*"))
	}
	return b.String()
}

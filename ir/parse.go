package ir

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"

	"quill/ir/ops"
	"quill/recipes/dtype"
)

// The grammar of IR text. Names in the text are resolved after parsing.

type astModule struct {
	Pos   lexer.Position
	Name  string     `parser:"'module' @Global"`
	Attrs []*astAttr `parser:"( '{' ( @@ ( ',' @@ )* )? '}' )?"`
	Syms  []*astSym  `parser:"@@*"`
	Funcs []*astFunc `parser:"@@*"`
}

type astSym struct {
	Pos  lexer.Position
	Name string     `parser:"'sym' @Ident"`
	Min  *astSum    `parser:"( ':' @@ '..'"`
	Max  *astSum    `parser:"  @@"`
	Def  *astSymDef `parser:"| '=' @@ )"`
}

type astSymDef struct {
	Fn string  `parser:"@('floor' | 'ceil' | 'min' | 'max') '('"`
	X  *astSum `parser:"@@ ','"`
	Y  *astSum `parser:"@@ ')'"`
}

type astFunc struct {
	Pos     lexer.Position
	Name    string       `parser:"'func' @Global '('"`
	Params  []*astParam  `parser:"( @@ ( ',' @@ )* )? ')' '->' '('"`
	Results []*astResult `parser:"( @@ ( ',' @@ )* )? ')' '{'"`
	Ops     []*astOp     `parser:"@@*"`
	Return  *astReturn   `parser:"@@ '}'"`
}

type astParam struct {
	Pos    lexer.Position
	Kind   string     `parser:"@('input' | 'carry' | 'weight' | 'state' | 'temp')"`
	Name   string     `parser:"@Value ':'"`
	Type   *astType   `parser:"@@"`
	Tensor *string    `parser:"( '=' ( @String"`
	Attrs  []*astAttr `parser:"    ( '{' @@ ( ',' @@ )* '}' )?"`
	Fill   *astFill   `parser:"  | @@ ) )?"`
}

type astFill struct {
	Fill *astSum `parser:"'fill' '(' @@ ','"`
	Step *astSum `parser:"@@ ')'"`
}

type astResult struct {
	Pos  lexer.Position
	Kind string   `parser:"@('output' | 'carry' | 'weight' | 'state' | 'temp')"`
	Name string   `parser:"@Ident ':'"`
	Type *astType `parser:"@@"`
}

type astType struct {
	Pos   lexer.Position
	DType string    `parser:"@Ident"`
	Shape []*astSum `parser:"'[' ( @@ ( ',' @@ )* )? ']'"`
	Dist  *astDist  `parser:"@@?"`
}

type astDist struct {
	Pos  lexer.Position
	Kind string `parser:"@Global"`
	Axis *int   `parser:"( '(' @Number ','"`
	Ways *int   `parser:"  @Number ')' )?"`
}

type astOp struct {
	Pos     lexer.Position
	Results []string   `parser:"( @Value ( ',' @Value )* '=' )?"`
	Name    string     `parser:"(?! 'return' ) @Ident"`
	Lead    *astValue  `parser:"( (?! Value | Ident | '[' ) @@ )?"`
	Args    []*astArg  `parser:"( (?! Value ( ',' Value )* '=' ) @@ ( ',' @@ )* )?"` // not the next op's results
	Attrs   []*astAttr `parser:"( '{' ( @@ ( ',' @@ )* )? '}' )?"`
	Types   []*astType `parser:"( ':' @@ ( ',' @@ )* )?"`
	Loc     *astLoc    `parser:"@@?"`
}

type astReturn struct {
	Pos  lexer.Position
	Args []*astArg `parser:"'return' ( @@ ( ',' @@ )* )?"`
}

type astArg struct {
	Pos  lexer.Position
	Name string `parser:"@Value"`
}

type astLoc struct {
	Layer  *int    `parser:"'loc' '(' @Number? ','?"`
	Op     *string `parser:"( @String"`
	Tensor *string `parser:"  ( ',' @String )? )? ')'"`
}

type astAttr struct {
	Pos   lexer.Position
	Name  string    `parser:"@Ident '='"`
	Value *astValue `parser:"@@"`
}

type astValue struct {
	Pos    lexer.Position
	List   *astList `parser:"  @@"`
	Str    *string  `parser:"| @String"`
	Global *string  `parser:"| @Global"`
	Sum    *astSum  `parser:"| @@"`
}

type astList struct {
	Items []*astSum `parser:"'[' ( @@ ( ',' @@ )* )? ']'"`
}

type astSum struct {
	Pos   lexer.Position
	Neg   bool       `parser:"@'-'?"`
	First *astProd   `parser:"@@"`
	Rest  []*astTerm `parser:"@@*"`
}

type astTerm struct {
	Op   string   `parser:"@('+' | '-')"`
	Prod *astProd `parser:"@@"`
}

type astProd struct {
	Factors []string `parser:"@(Number | Ident) ( '*' @(Number | Ident) )*"`
}

var qirLexer = lexer.MustSimple([]lexer.SimpleRule{
	{Name: "Comment", Pattern: `;[^\n]*`},
	{Name: "Space", Pattern: `[ \t\r\n]+`},
	{Name: "Value", Pattern: `%[A-Za-z0-9_.]+`},
	{Name: "Global", Pattern: `@[A-Za-z_][A-Za-z0-9_.]*`},
	{Name: "String", Pattern: `"(\\.|[^"\\\n])*"`},
	{Name: "Number", Pattern: `[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?`},
	{Name: "Ident", Pattern: `[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*`},
	{Name: "Arrow", Pattern: `->`},
	{Name: "Range", Pattern: `\.\.`},
	{Name: "Punct", Pattern: `[-+*=:,(){}\[\]@]`},
})

var qirParser = participle.MustBuild[astModule](
	participle.Lexer(qirLexer),
	participle.Elide("Comment", "Space"),
	participle.Unquote("String"),
	participle.UseLookahead(2),
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
	ast, err := qirParser.ParseBytes(file, src)
	if err != nil {
		d := &Diag{Code: "syntax", Msg: err.Error()}
		if pe, ok := errors.AsType[participle.Error](err); ok {
			d.Pos, d.Msg = pos(pe.Position()), pe.Message()
		}
		ds := Diags{d}
		ds.withSource(file, src)
		return nil, ds
	}
	r := resolver{}
	m := r.module(ast)
	if len(r.diags) > 0 {
		r.diags.withSource(file, src)
		return nil, r.diags
	}
	return m, nil
}

func pos(p lexer.Position) Pos { return Pos{p.Line, p.Column} }

// resolver turns the syntax tree into a module.
type resolver struct {
	diags Diags
	mod   *Module
}

func (r *resolver) errorf(code string, p lexer.Position, format string, args ...any) *Diag {
	d := &Diag{Code: code, Pos: pos(p), Msg: fmt.Sprintf(format, args...)}
	r.diags = append(r.diags, d)
	return d
}

func (r *resolver) module(a *astModule) *Module {
	r.mod = &Module{Name: a.Name[1:], Level: ops.Model, TP: 1}
	for _, at := range a.Attrs {
		switch at.Name {
		case "level":
			r.mod.Level = 0
			for _, l := range levelNames {
				if id, ok := at.Value.ident(); ok && l.name == id {
					r.mod.Level = l.level
				}
			}
			if r.mod.Level == 0 {
				r.errorf("V05", at.Pos, "level is not one of model, fused, plan")
			}
		case "tp":
			n, ok := at.Value.dim(r).Const()
			if !ok || n < 1 || n > 1<<16 {
				r.errorf("V05", at.Pos, "tp is not a number of ranks")
			}
			r.mod.TP = int(n)
		default:
			r.errorf("V05", at.Pos, "a module has no attribute %s", at.Name)
		}
	}
	for _, s := range a.Syms {
		r.sym(s)
	}
	for _, f := range a.Funcs {
		r.mod.Funcs = append(r.mod.Funcs, r.function(f))
	}
	return r.mod
}

func (r *resolver) sym(a *astSym) {
	s := &Sym{Name: a.Name, Pos: pos(a.Pos)}
	if a.Def != nil {
		s.Def = &SymDef{Fn: a.Def.Fn, X: r.dim(a.Def.X), Y: r.dim(a.Def.Y)}
	} else {
		var okMin, okMax bool
		s.Min, okMin = r.dim(a.Min).Const()
		s.Max, okMax = r.dim(a.Max).Const()
		if !okMin || !okMax {
			r.errorf("V14", a.Pos, "the range of symbol %s is not constant", a.Name)
		}
	}
	r.mod.Syms = append(r.mod.Syms, s)
}

// scope maps names of a function to values.
type scope map[string]*Value

func (r *resolver) function(a *astFunc) *Func {
	f := &Func{Name: a.Name[1:], Pos: pos(a.Pos)}
	sc := scope{}
	for _, p := range a.Params {
		r.param(f, sc, p)
	}
	for _, res := range a.Results {
		k, _ := parseKind(resultKinds[:], res.Kind)
		f.Results = append(f.Results, Result{Name: res.Name, Kind: k, Type: r.typ(res.Type), Pos: pos(res.Pos)})
	}
	for _, o := range a.Ops {
		if !r.op(f, sc, o) {
			return f // later ops would only repeat the error
		}
	}
	f.Return = r.args(sc, a.Return.Args)
	return f
}

func (r *resolver) param(f *Func, sc scope, a *astParam) {
	k, _ := parseKind(paramKinds[:], a.Kind)
	p := &Param{Name: a.Name[1:], Kind: k, Pos: pos(a.Pos)}
	p.Value = &Value{Type: r.typ(a.Type), Param: p}
	if a.Tensor != nil {
		p.Source.Tensor = *a.Tensor
	}
	for _, at := range a.Attrs {
		ns := r.ints(at)
		switch at.Name {
		case "reshape":
			p.Source.Reshape = ns
		case "perm":
			p.Source.Perm = ns
		default:
			r.errorf("V05", at.Pos, "a weight has no attribute %s", at.Name)
		}
	}
	if a.Fill != nil {
		p.Source.PerRank = true
		p.Source.Fill, p.Source.Step = r.float(a.Fill.Fill), r.float(a.Fill.Step)
	}
	r.define(sc, a.Name, p.Value, a.Pos)
	f.Params = append(f.Params, p)
}

func (r *resolver) define(sc scope, name string, v *Value, p lexer.Position) {
	if _, ok := sc[name]; ok {
		r.errorf("V03", p, "%s is defined twice", name)
	}
	sc[name] = v
}

func (r *resolver) args(sc scope, as []*astArg) []*Value {
	var vs []*Value
	for _, a := range as {
		v, ok := sc[a.Name]
		if !ok {
			r.errorf("V02", a.Pos, "%s is used before it is defined", a.Name)
			continue
		}
		vs = append(vs, v)
	}
	return vs
}

// op resolves one op and reports whether the function can go on.
func (r *resolver) op(f *Func, sc scope, a *astOp) bool {
	def, ok := ops.ByName(a.Name)
	if !ok {
		d := r.errorf("V04", a.Pos, "there is no op %s", a.Name)
		if near := nearest(a.Name); near != "" {
			d.Help = "did you mean " + near + "?"
		}
		return false
	}
	before := len(r.diags)
	o := &Op{Def: def, Pos: pos(a.Pos), Loc: loc(a.Loc)}
	o.Args = r.args(sc, a.Args)
	r.attrs(o, a)
	if len(r.diags) > before {
		return false
	}
	ts := make([]Type, len(a.Types))
	for i, t := range a.Types {
		ts[i] = r.typ(t)
	}
	if len(a.Types) == 0 {
		var err error
		if ts, err = typeOp(r.mod, o); err != nil {
			code, help := ruleCode(err)
			r.errorf(code, a.Pos, "%s", err).Help = help
			return false
		}
	}
	if len(a.Results) != len(ts) {
		r.errorf("V04", a.Pos, "%s has %d results, got %d names", a.Name, len(ts), len(a.Results))
		return false
	}
	o.setResults(ts)
	for i, n := range a.Results {
		r.define(sc, n, o.Results[i], a.Pos)
	}
	f.Ops = append(f.Ops, o)
	return true
}

// nearest is a known op name at most two edits away, "" when there is none.
func nearest(name string) string {
	best, most := "", 3
	for i := range ops.Table {
		if d := editDistance(name, ops.Table[i].Name); d < most {
			best, most = ops.Table[i].Name, d
		}
	}
	return best
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

func loc(a *astLoc) Loc {
	l := NoLoc
	if a == nil {
		return l
	}
	if a.Layer != nil {
		l.Layer = *a.Layer
	}
	if a.Op != nil {
		l.Op = *a.Op
	}
	if a.Tensor != nil {
		l.Tensor = *a.Tensor
	}
	return l
}

// attrs resolves attributes into the table's order.
func (r *resolver) attrs(o *Op, a *astOp) {
	given := map[string]*astAttr{}
	for _, at := range a.Attrs {
		if _, ok := o.Def.Attr(at.Name); !ok {
			r.errorf("V05", at.Pos, "%s has no attribute %s", o.Name(), at.Name)
			continue
		}
		if given[at.Name] != nil {
			r.errorf("V05", at.Pos, "attribute %s is given twice", at.Name)
		}
		given[at.Name] = at
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
		if err := r.attrValue(&at, d.Type, v); err != "" {
			r.errorf("V05", v.Pos, "%s: attribute %s is %s, want %s", o.Name(), d.Name, err, attrTypeNames[d.Type])
			continue
		}
		o.Attrs = append(o.Attrs, at)
	}
	if lead != nil {
		r.errorf("syntax", lead.Pos, "%s takes no value here", o.Name())
	}
}

// attrValue reads a value as the table's type; it returns what the value is
// instead when it is not of the type.
func (r *resolver) attrValue(at *Attr, t ops.AttrType, v *astValue) (got string) {
	switch t {
	case ops.Int, ops.Dim:
		if v.Sum == nil {
			return v.describe()
		}
		at.Dim = r.dim(v.Sum)
	case ops.Float:
		if v.Sum == nil || !v.Sum.isNumber() {
			return v.describe()
		}
		at.Float = r.float(v.Sum)
	case ops.String:
		if v.Str == nil {
			return v.describe()
		}
		at.Str = *v.Str
	case ops.Bool:
		id, _ := v.ident()
		if id != "true" && id != "false" {
			return v.describe()
		}
		at.Bool = id == "true"
	case ops.DType:
		id, _ := v.ident()
		d, ok := dtype.Parse(id)
		if !ok {
			return v.describe()
		}
		at.DType = d
	case ops.Func:
		if v.Global == nil {
			return v.describe()
		}
		at.Func = r.mod.Func((*v.Global)[1:])
		if at.Func == nil {
			r.errorf("V17", v.Pos, "there is no function %s above this one", *v.Global)
		}
	case ops.Ints, ops.Dims:
		if v.List == nil {
			return v.describe()
		}
		at.Dims = make([]Dim, len(v.List.Items))
		for i, s := range v.List.Items {
			at.Dims[i] = r.dim(s)
		}
	}
	return ""
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

func (v *astValue) dim(r *resolver) Dim {
	if v.Sum == nil {
		return D(-1)
	}
	return r.dim(v.Sum)
}

func (r *resolver) ints(at *astAttr) []int64 {
	if at.Value.List == nil {
		r.errorf("V05", at.Pos, "attribute %s is %s, want a list of integers", at.Name, at.Value.describe())
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

func (r *resolver) typ(a *astType) Type {
	t := Type{}
	var ok bool
	if t.DType, ok = dtype.Parse(a.DType); !ok {
		r.errorf("syntax", a.Pos, "there is no element type %s", a.DType)
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
		t.Dist = Dist{Sharded, *a.Dist.Axis, *a.Dist.Ways}
	default:
		r.errorf("syntax", a.Dist.Pos, "a distribution is @partial or @shard(axis, ways)")
	}
	return t
}

func (r *resolver) dim(s *astSum) Dim {
	d := r.prod(s, s.First)
	if s.Neg {
		d = d.Mul(D(-1))
	}
	for _, t := range s.Rest {
		p := r.prod(s, t.Prod)
		if t.Op == "-" {
			p = p.Mul(D(-1))
		}
		d = d.Add(p)
	}
	return d
}

func (r *resolver) prod(s *astSum, p *astProd) Dim {
	d := D(1)
	for _, f := range p.Factors {
		if f[0] < '0' || f[0] > '9' {
			d = d.Mul(SymDim(f))
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || saturated(n) {
			r.errorf("syntax", s.Pos, "%s is not an integer of 64 bits", f)
		}
		d = d.Mul(D(n))
	}
	for _, t := range d.terms {
		if saturated(t.coef) {
			r.errorf("syntax", s.Pos, "%s is too large", s)
			return D(1)
		}
	}
	return d
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
		r.errorf("syntax", s.Pos, "%s is not a number of 64 bits", s)
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

package header

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"

	"github.com/alecthomas/participle/v2/lexer"

	"quill/recipes/target"
)

// ctype is a type of which the layout is known, or the reason why not.
type ctype struct {
	name        string // as a profile calls it
	size, align int
	// Of a structure or union: its parts, and where a structure that extends it may put
	// more.
	fields []target.Field
	end    int
	group  bool // a structure or union, not a number
	union  bool
	plain  bool // its tail padding is its own
	ctor   bool // it has constructors of its own
	nested bool // it is declared in another one
	enum   *target.Enum
	err    *Error
	at     lexer.Position
	alias  []string
}

// scalars are the basic types on x86-64 Linux, by their usual names.
var scalars = map[string]int{
	"bool": 1, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4, "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
	"float": 4, "double": 8, "pointer": 8,
}

// typedefs are those of the standard headers.
var typedefs = map[string]string{
	"size_t": "uint64_t", "uintptr_t": "uint64_t", "intptr_t": "int64_t", "ptrdiff_t": "int64_t", "ssize_t": "int64_t",
	"nullptr_t": "pointer",
}

// basic is the usual name of a type that is spelled with keywords, "" if there is none.
func basic(words []string) string {
	count := map[string]int{}
	for _, w := range words {
		count[w]++
	}
	signed := "int"
	if count["unsigned"] > 0 {
		signed = "uint"
	}
	switch {
	case count["void"] > 0 || len(words) == 0:
		return ""
	case count["double"] > 0 && count["long"] > 0:
		return ""
	case count["bool"] > 0, count["float"] > 0, count["double"] > 0:
		return words[len(words)-1]
	case count["char"] > 0:
		return signed + "8_t"
	case count["short"] > 0:
		return signed + "16_t"
	case count["long"] > 0:
		return signed + "64_t"
	}
	return signed + "32_t"
}

// resolver lays out what is declared, in the order of the declarations.
type resolver struct {
	types  map[string]*ctype  // by qualified name
	values map[string]*number // enumerators and constants
	order  []*ctype           // structures and enumerations
	macros *source
}

// scope is where a declaration stands: the names around it, outermost first.
type scope []string

func (s scope) qualify(name string) string {
	return strings.Join(append(append([]string{}, s...), name), "::")
}

// outward calls f with a name as each scope would have it, the innermost first.
func (s scope) outward(name string, f func(string) bool) {
	if root, ok := strings.CutPrefix(name, "::"); ok {
		f(root)
		return
	}
	for i := len(s); i >= 0; i-- {
		if f(s[:i].qualify(name)) {
			return
		}
	}
}

func (s scope) inner(name string) scope { return append(append(scope{}, s...), name) }

func (r *resolver) typeNamed(name string, in scope) *ctype {
	var found *ctype
	in.outward(name, func(n string) bool { found = r.types[n]; return found != nil })
	if found != nil {
		return found
	}
	name = strings.TrimPrefix(strings.TrimPrefix(name, "::"), "std::")
	if t, ok := typedefs[name]; ok {
		name = t
	}
	if n, ok := scalars[name]; ok && strings.HasSuffix(name, "_t") || name == "pointer" && ok {
		return &ctype{name: name, size: n, align: n}
	}
	return nil
}

// constants evaluates expressions in a scope; args are those of a constructor.
func (r *resolver) constants(in scope, args map[string]*number) constants {
	return constants{
		lookup: func(name string) (*number, error) {
			if v, ok := args[name]; ok {
				if v == nil {
					return nil, fmt.Errorf("%s is an argument", name)
				}
				return v, nil
			}
			var found *number
			in.outward(name, func(n string) bool { found = r.values[n]; return found != nil })
			if found != nil {
				return found, nil
			}
			if m, ok := r.macros.macros[name]; ok && !m.function {
				return r.macros.expand(m, nil)
			}
			return nil, fmt.Errorf("%s is not known", name)
		},
		sizeof: func(t *astType) (int64, error) {
			c, err := r.typ(t, in)
			if err != nil {
				return 0, errors.New(err.Msg)
			}
			return int64(c.size), nil
		},
	}
}

// typ is a type, which is declared if it has a body.
func (r *resolver) typ(t *astType, in scope) (*ctype, *Error) {
	switch {
	case t.Struct != nil:
		c := r.structure(t.Struct, in)
		return c, c.err
	case t.Enum != nil:
		c := r.enumeration(t.Enum, in)
		return c, c.err
	case t.Basic != nil:
		name := basic(t.Basic)
		if name == "" {
			return nil, errorAt(t.Pos, "a %s has no layout in a profile", strings.Join(t.Basic, " "))
		}
		return &ctype{name: name, size: scalars[name], align: scalars[name]}, nil
	}
	c := r.typeNamed(t.Name.String(), in)
	if c == nil || t.Name.Args != nil {
		return nil, errorAt(t.Pos, "type %s is not known", t.Name)
	}
	if c.err != nil {
		return nil, errorAt(t.Pos, "type %s has no layout: %s", t.Name, c.err.Msg)
	}
	return c, nil
}

func (r *resolver) decls(list []*astDecl, in scope) *Error {
	for _, d := range list {
		if err := r.decl(d, in); err != nil {
			return err
		}
	}
	return nil
}

// decl declares what stands outside of structures.
func (r *resolver) decl(d *astDecl, in scope) *Error {
	switch {
	case d.Namespace != nil && d.Namespace.Alias != nil:
		r.alias(d.Namespace, in)
	case d.Namespace != nil:
		for _, n := range d.Namespace.Names {
			in = in.inner(n)
		}
		return r.decls(d.Namespace.Body.Decls, in)
	case d.Extern != nil:
		return r.decls(d.Extern.Decls, in)
	case d.Using != nil:
		r.using(d.Using, in)
	case d.Typedef != nil:
		r.typedef(d.Typedef, in)
	case d.Var != nil && d.Var.Func == nil:
		r.variable(d.Var, in)
	}
	return nil
}

// alias gives what a namespace has so far another name.
func (r *resolver) alias(a *astNamespace, in scope) {
	to := in.qualify(a.Names[0]) + "::"
	in.outward(a.Alias.String(), func(n string) bool {
		types, values := renamed(r.types, n+"::", to), renamed(r.values, n+"::", to)
		maps.Copy(r.types, types)
		maps.Copy(r.values, values)
		return len(types)+len(values) > 0
	})
}

// renamed gives entries under a prefix another one.
func renamed[T any](m map[string]T, from, to string) map[string]T {
	out := map[string]T{}
	for name, x := range m {
		if rest, ok := strings.CutPrefix(name, from); ok {
			out[to+rest] = x
		}
	}
	return out
}

func (r *resolver) using(u *astUsing, in scope) {
	if u.Type == nil {
		return // names of other namespaces are looked up as they are spelled
	}
	if c, err := r.typ(u.Type, in); err == nil && len(u.Stars) == 0 {
		r.name(c, in.qualify(u.Name), false)
	} else if len(u.Stars) > 0 {
		r.types[in.qualify(u.Name)] = pointer()
	}
}

func pointer() *ctype { return &ctype{name: "pointer", size: 8, align: 8} }

func (r *resolver) typedef(t *astTypedef, in scope) {
	c, err := r.typ(t.Type, in)
	for i, d := range t.Names {
		name := in.qualify(d.Name)
		switch {
		case len(d.Stars) > 0:
			r.types[name] = pointer()
		case len(d.Dims) > 0:
			r.types[name] = &ctype{err: errorAt(d.Pos, "typedef %s is of an array, which is not supported", d.Name)}
		case err != nil && c == nil:
			r.types[name] = &ctype{err: err}
		default:
			// A type's own typedef is how it is called.
			own := i == 0 && (t.Type.Struct != nil || t.Type.Enum != nil)
			r.name(c, name, own)
		}
	}
}

// name gives a type another name.
func (r *resolver) name(c *ctype, name string, own bool) {
	if r.types[name] == c {
		return
	}
	r.types[name] = c
	switch old := c.name; {
	case !c.group && c.enum == nil:
	case own:
		c.name = name
		if c.enum != nil {
			c.enum.Name = name
		}
		if old != "" {
			c.alias = append(c.alias, old)
		}
	default:
		c.alias = append(c.alias, name)
	}
}

// variable takes note of constants; types are declared on the way.
func (r *resolver) variable(v *astVar, in scope) {
	_, _ = r.typ(v.Type, in) // a type that is not known is no fault of a header
	for _, d := range v.Names {
		if len(d.Dims) > 0 || len(d.Stars) > 0 {
			continue
		}
		init := d.Init
		if init == nil && d.Brace != nil && len(d.Brace.List) == 1 {
			init = d.Brace.List[0].Expr
		}
		if init != nil {
			if n, err := r.constants(in, nil).expr(init); err == nil {
				r.values[in.qualify(d.Name)] = n
			}
		}
	}
}

func (r *resolver) enumeration(e *astEnum, in scope) *ctype {
	c := &ctype{at: e.Pos}
	if e.Name != "" {
		c.name = in.qualify(e.Name)
		r.types[c.name] = c
	}
	r.order = append(r.order, c)
	names := in
	if e.Scoped {
		names = in.inner(e.Name)
	}
	en := &target.Enum{Name: c.name}
	next, least, most := int64(0), int64(0), int64(0)
	for _, v := range e.Values {
		if v.Value != nil {
			n, err := r.constants(names, nil).expr(v.Value)
			if err == nil && n.float {
				err = errors.New("it is no integer")
			}
			if err != nil {
				c.err = errorAt(v.Pos, "value of %s: %v", v.Name, err)
				return c
			}
			next = n.i
		}
		en.Values = append(en.Values, target.Value{Name: v.Name, Number: next})
		r.values[names.qualify(v.Name)] = integer(next)
		if e.Name != "" {
			r.values[in.inner(e.Name).qualify(v.Name)] = integer(next)
		}
		least, most = min(least, next), max(most, next)
		next++
	}
	switch {
	case e.Base != nil:
		base, err := r.typ(e.Base, in)
		if err != nil {
			c.err = err
			return c
		}
		en.Type = base.name
	case e.Scoped:
		en.Type = "int32_t"
	case least < 0 && least >= -1<<31 && most < 1<<31:
		en.Type = "int32_t"
	case least < 0:
		en.Type = "int64_t"
	case most < 1<<32:
		en.Type = "uint32_t"
	default:
		en.Type = "uint64_t"
	}
	c.enum, c.size, c.align = en, scalars[en.Type], scalars[en.Type]
	return c
}

// maxFields bounds how many parts a structure may have.
const maxFields = 4096

// structure lays out a structure, class or union by the System V ABI for x86-64 and the
// C++ ABI of gcc and clang: members in order, each at the next multiple of its
// alignment, base structures first. The padding behind the last member of a base is
// used by what follows unless the base is plain: without bases, constructors, default
// values and members that are not public or not plain.
func (r *resolver) structure(s *astStruct, in scope) *ctype {
	c := &ctype{at: s.Pos, group: true, union: s.Kind == "union", align: 1, plain: true}
	if s.Name != "" {
		c.name = in.qualify(s.Name)
		r.types[c.name] = c
	}
	b := builder{r: r, c: c, in: in, public: s.Kind != "class"}
	if s.Name != "" {
		b.in = in.inner(s.Name)
	}
	// A structure within itself is not known yet.
	c.err = errorAt(s.Pos, "it is not complete here")
	err := b.build(s)
	c.err = err
	if c.err == nil && c.end == 0 && c.union {
		c.err = errorAt(s.Pos, "the union is empty")
	}
	c.size = max(1, roundUp(c.end, c.align))
	if c.plain && c.end > 0 {
		c.end = c.size
	}
	r.order = append(r.order, c)
	return c
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// builder lays out one structure.
type builder struct {
	r      *resolver
	c      *ctype
	in     scope
	public bool
	ctors  []*astCtor
}

func (b *builder) build(s *astStruct) *Error {
	if len(s.Align) > 0 {
		return errorAt(s.Pos, "alignas is not supported")
	}
	for _, a := range append(s.Attrs, s.After...) {
		return errorAt(a.Pos, "attribute %s of a structure is not supported", a)
	}
	for _, base := range s.Bases {
		if err := b.base(base); err != nil {
			return err
		}
	}
	for _, d := range s.Body.Decls {
		if err := b.member(d); err != nil {
			return err
		}
	}
	for _, ctor := range b.ctors {
		b.defaults(ctor)
	}
	return nil
}

func (b *builder) base(a *astBase) *Error {
	for _, spec := range a.Specs {
		if spec == "virtual" {
			return errorAt(a.Name.Pos, "virtual bases are not supported")
		}
	}
	t := b.r.typeNamed(a.Name.String(), b.in)
	switch {
	case t == nil || a.Name.Args != nil:
		return errorAt(a.Name.Pos, "base %s is not known", a.Name)
	case t.err != nil:
		return errorAt(a.Name.Pos, "base %s has no layout: %s", a.Name, t.err.Msg)
	case !t.group || t.union:
		return errorAt(a.Name.Pos, "base %s is no structure", a.Name)
	}
	b.c.plain = false
	if t.end == 0 {
		return nil // an empty base takes no room
	}
	return b.add(a.Name.Pos, "", t, 0, t.end)
}

// add puts a type behind what is there, as a field or, without a name, as fields. It
// takes room bytes, once or count times.
func (b *builder) add(at lexer.Position, name string, t *ctype, count, room int) *Error {
	c := b.c
	offset := 0
	if !c.union {
		offset = roundUp(c.end, t.align)
	}
	c.align = max(c.align, t.align)
	c.end = max(c.end, offset+room*max(count, 1))
	typ := t.name
	if t.enum != nil && typ == "" {
		typ = t.enum.Type // the enumeration has no name
	}
	rows := []target.Field{{Name: name, Type: typ, Count: count, Reserved: t.name == "pointer" || reserved.MatchString(name)}}
	if t.group {
		rows = nil
		for i := range max(count, 1) {
			prefix := name
			if count > 0 {
				prefix = fmt.Sprintf("%s[%d]", name, i)
			}
			rows = append(rows, t.under(prefix, i*t.size)...)
			if len(rows) > maxFields {
				break
			}
		}
	}
	if c.union && len(rows) != 1 {
		return errorAt(at, "a union of structures with several members is not supported")
	}
	if len(c.fields)+len(rows) > maxFields || c.end > 1<<16 {
		return errorAt(at, "the structure has more than %d fields or %d bytes", maxFields, 1<<16)
	}
	for _, f := range rows {
		f.Offset += offset
		c.fields = append(c.fields, f)
	}
	return nil
}

// reserved are names of fields that are there for their room only.
var reserved = regexp.MustCompile(`^(m_)?_*struct_?[pP]ad(ding)?_?\d*$|^_*reserved_?\d*$|^_*dummy_?\d*$`)

// under gives a structure's fields as parts of another one.
func (t *ctype) under(prefix string, offset int) []target.Field {
	rows := make([]target.Field, len(t.fields))
	for i, f := range t.fields {
		if prefix != "" {
			f.Name = prefix + "." + f.Name
			if f.Union != "" {
				f.Union = prefix + "." + f.Union
			}
			if t.union {
				f.Union = prefix
			}
		}
		f.Offset += offset
		rows[i] = f
	}
	return rows
}

func (b *builder) member(d *astDecl) *Error {
	switch {
	case d.Access != "":
		b.public = d.Access == "public"
	case d.Using != nil:
		b.r.using(d.Using, b.in)
	case d.Typedef != nil:
		b.r.typedef(d.Typedef, b.in)
	case d.Ctor != nil:
		return b.ctor(d.Ctor)
	case d.Var != nil:
		return b.fields(d.Var)
	}
	return nil
}

func (b *builder) ctor(a *astCtor) *Error {
	if a.Rest.Pure == "delete" || a.Rest.Pure == "default" {
		return nil
	}
	b.c.plain = false
	if a.Tilde {
		return nil
	}
	b.c.ctor = true
	for _, arg := range a.Args {
		if arg.Default == nil {
			return nil
		}
	}
	b.ctors = append(b.ctors, a)
	return nil
}

func (b *builder) fields(v *astVar) *Error {
	for _, spec := range v.Specs {
		switch spec {
		case "virtual":
			return errorAt(v.Pos, "virtual functions are not supported")
		case "static", "constexpr":
			if v.Func == nil {
				b.r.variable(v, b.in)
			}
			return nil
		case "friend":
			return nil
		}
	}
	if len(v.Align) > 0 {
		return errorAt(v.Pos, "alignas is not supported")
	}
	if v.Func != nil {
		if strings.Join(v.Func.Op, "") == "=" && v.Func.Rest.Pure == "" {
			b.c.plain = false
		}
		return nil
	}
	t, err := b.r.typ(v.Type, b.in)
	if v.Type.Struct != nil {
		t.nested = true
	}
	if len(v.Names) == 0 {
		return b.unnamed(v, t, err)
	}
	for _, d := range v.Names {
		if err := b.field(d, t, err); err != nil {
			return err
		}
	}
	return nil
}

// unnamed adds the members of an anonymous structure or union; other types that stand
// alone are only declared.
func (b *builder) unnamed(v *astVar, t *ctype, err *Error) *Error {
	if v.Type.Struct == nil || v.Type.Struct.Name != "" {
		return nil
	}
	if err != nil {
		return err
	}
	if t.union {
		var names []string
		for _, f := range t.fields {
			names = append(names, f.Name)
		}
		for i := range t.fields {
			t.fields[i].Union = strings.Join(names, "|")
		}
	}
	b.c.plain = b.c.plain && t.plain
	return b.add(v.Pos, "", t, 0, t.size)
}

func (b *builder) field(d *astDeclarator, t *ctype, err *Error) *Error {
	switch {
	case d.Bits != nil || d.Bare != nil:
		return errorAt(d.Pos, "bit-fields are not supported")
	case len(d.Stars) > 0 && d.Stars[len(d.Stars)-1] == "&":
		return errorAt(d.Pos, "references are not supported")
	case len(d.Stars) > 0:
		t, err = pointer(), nil
	}
	if err != nil {
		return err
	}
	if t.group && len(t.fields) == 0 {
		return errorAt(d.Pos, "field %s is of an empty structure, which is not supported", d.Name)
	}
	count := 0
	for _, dim := range d.Dims {
		n, err := b.dim(dim)
		if err != nil {
			return err
		}
		if count = max(count, 1) * n; count > 1<<16 {
			return errorAt(dim.Pos, "an array of %d elements", count)
		}
	}
	for _, a := range d.Attrs {
		n, err := b.aligned(a)
		if err != nil {
			return err
		}
		if !b.c.union {
			b.c.end = roundUp(b.c.end, n)
		}
		b.c.align = max(b.c.align, n)
	}
	before := len(b.c.fields)
	if err := b.add(d.Pos, d.Name, t, count, t.size); err != nil {
		return err
	}
	if !b.public || t.group && !t.plain {
		b.c.plain = false
	}
	if d.Init == nil && d.Brace == nil {
		return nil
	}
	b.c.plain = false
	list := &astInitial{}
	if d.Init != nil {
		list.List = []*astValue{{Expr: d.Init}}
	} else {
		list = d.Brace
	}
	b.initialise(b.c.fields[before:], t, list.List, nil)
	return nil
}

// aligned is the alignment that an attribute asks for, the only one that is understood.
func (b *builder) aligned(a *astAttr) (int, *Error) {
	text := a.String()
	size, ok := strings.CutPrefix(text, "aligned ( ")
	if !ok {
		return 0, errorAt(a.Pos, "attribute %s is not supported", text)
	}
	n, err := b.r.constants(b.in, nil).text(strings.TrimSuffix(size, " )"), a.Pos)
	if err != nil || n.float || n.i < 1 || n.i > 1<<12 || n.i&(n.i-1) != 0 {
		return 0, errorAt(a.Pos, "attribute %s is no alignment", text)
	}
	return int(n.i), nil
}

// String spells an attribute, with blanks between its words.
func (a *astAttr) String() string { return spell(a.Items) }

func spell(items []*astParen) string {
	var words []string
	for _, i := range items {
		if i.Inner != nil {
			words = append(words, "(", spell(i.Inner.Items), ")")
		} else {
			words = append(words, i.Token)
		}
	}
	return strings.Join(words, " ")
}

func (b *builder) dim(d *astDim) (int, *Error) {
	if d.Size == nil {
		return 0, errorAt(d.Pos, "an array without a size")
	}
	n, err := b.r.constants(b.in, nil).expr(d.Size)
	switch {
	case err != nil:
		return 0, errorAt(d.Pos, "size of an array: %v", err)
	case n.float || n.i < 1 || n.i > 1<<16:
		return 0, errorAt(d.Pos, "an array of %v elements", n.value())
	}
	return int(n.i), nil
}

// initialise sets the defaults of a member's fields to a list of values. What cannot be
// computed is no default.
func (b *builder) initialise(rows []target.Field, t *ctype, list []*astValue, args map[string]*number) {
	if t != nil && t.group {
		if len(list) == 0 && !t.ctor {
			for i := range rows {
				if rows[i].Default == nil {
					rows[i].Default = []float64{0}
				}
			}
			return
		}
		if len(list) > 0 { // as computed elsewhere
			for i := range rows {
				rows[i].Default = nil
			}
		}
		return
	}
	f := &rows[0]
	f.Default = nil
	if len(list) > max(f.Count, 1) {
		return
	}
	values := []float64{}
	for _, v := range list {
		if v.Expr == nil {
			return
		}
		n, err := b.r.constants(b.in, args).expr(v.Expr)
		if err != nil {
			return
		}
		values = append(values, n.value())
	}
	if len(values) == 0 {
		values = []float64{0}
	}
	f.Default = values
}

// defaults takes what a constructor without arguments sets.
func (b *builder) defaults(a *astCtor) {
	args := map[string]*number{}
	for _, arg := range a.Args {
		n, err := b.r.constants(b.in, nil).expr(arg.Default)
		if err != nil {
			n = nil
		}
		args[arg.Name] = n
	}
	for _, init := range a.Inits {
		name := init.Name.String()
		rows := b.rows(name)
		if rows == nil { // a base, which sets its own
			continue
		}
		// Parts of an inner structure have longer names.
		t := &ctype{group: rows[0].Name != name, ctor: true}
		b.initialise(rows, t, init.List, args)
	}
	if a.Rest.Body != nil {
		b.assignments(a.Rest.Body, args)
	}
}

// rows are the fields of a member.
func (b *builder) rows(name string) []target.Field {
	first, n := 0, 0
	for i, f := range b.c.fields {
		if f.Name == name || strings.HasPrefix(f.Name, name+".") || strings.HasPrefix(f.Name, name+"[") {
			if n == 0 {
				first = i
			}
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return b.c.fields[first : first+n]
}

// assignment is a statement that sets a field, or an element of it.
var assignment = regexp.MustCompile(`^(?:this -> )?([A-Za-z_]\w*(?: \. [A-Za-z_]\w*)*)(?: \[ (.*) \])? = (.*)$`)

// assignments takes what the body of a constructor sets, up to the first block.
func (b *builder) assignments(body *astBody, args map[string]*number) {
	var words []string
	for _, item := range body.Items {
		if item.Body != nil {
			return
		}
		if item.Token != ";" {
			words = append(words, item.Token)
			continue
		}
		m := assignment.FindStringSubmatch(strings.Join(words, " "))
		words = nil
		if m != nil {
			b.assign(strings.ReplaceAll(m[1], " ", ""), m[2], m[3], args)
		}
	}
}

func (b *builder) assign(name, index, value string, args map[string]*number) {
	for i := range b.c.fields {
		f := &b.c.fields[i]
		if f.Name != name {
			continue
		}
		env := b.r.constants(b.in, args)
		n, err := env.text(value, b.c.at)
		if err != nil {
			f.Default = nil
			return
		}
		at := integer(0)
		if index != "" {
			at, err = env.text(index, b.c.at)
		}
		if err != nil || at.float || at.i < 0 || at.i >= int64(max(f.Count, 1)) {
			f.Default = nil
			return
		}
		for int64(len(f.Default)) <= at.i {
			f.Default = append(f.Default, 0)
		}
		f.Default[at.i] = n.value()
		return
	}
}

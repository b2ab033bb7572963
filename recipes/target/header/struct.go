package header

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/alecthomas/participle/v2/lexer"

	"quill/recipes/target"
)

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

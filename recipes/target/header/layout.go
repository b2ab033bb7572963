package header

import (
	"errors"
	"fmt"
	"maps"
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

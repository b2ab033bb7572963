package target

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"quill/recipes"
	"quill/recipes/dtype"
)

// scalar is a C type of a number. Alignment is natural: that of the size.
type scalar struct {
	size     int // bytes
	min, max float64
	float    bool
	carried  recipes.FieldType // as which recipes carry it
}

var scalars = map[string]scalar{
	"bool":     {1, 0, 1, false, recipes.U8},
	"int8_t":   {1, math.MinInt8, math.MaxInt8, false, recipes.I32},
	"uint8_t":  {1, 0, math.MaxUint8, false, recipes.U8},
	"int16_t":  {2, math.MinInt16, math.MaxInt16, false, recipes.I32},
	"uint16_t": {2, 0, math.MaxUint16, false, recipes.U32},
	"int32_t":  {4, math.MinInt32, math.MaxInt32, false, recipes.I32},
	"uint32_t": {4, 0, math.MaxUint32, false, recipes.U32},
	"int64_t":  {8, math.MinInt64, math.MaxInt64, false, recipes.I64},
	"uint64_t": {8, 0, math.MaxInt64, false, recipes.U64}, // recipes have 63 bits of it
	"float":    {4, -math.MaxFloat32, math.MaxFloat32, true, recipes.F32},
	"double":   {8, -math.MaxFloat64, math.MaxFloat64, true, recipes.F32},
	"pointer":  {8, 0, 0, false, recipes.U64}, // of the host, so always null
}

// scalarOf is the number that holds a field's element, and its enumeration if the type
// is one.
func (p *Profile) scalarOf(f *Field) (scalar, *Enum, error) {
	if s, ok := scalars[f.Type]; ok {
		return s, nil, nil
	}
	e := p.Enum(f.Type)
	if e == nil {
		return scalar{}, nil, fmt.Errorf("field %s has unknown type %q", f.Name, f.Type)
	}
	return scalars[e.Type], e, nil
}

// carried is as what recipes carry a field.
func (p *Profile) carried(f *Field) recipes.FieldType {
	s, e, _ := p.scalarOf(f) // checked
	switch {
	case f.As != "":
		return f.As
	case e != nil || f.Flags != "":
		return recipes.Enum
	}
	return s.carried
}

func (f *Field) elems() int { return max(f.Count, 1) }

// maxSize bounds a structure; the software's have less than a kilobyte.
const maxSize = 1 << 16

// Check reports the first entry that contradicts itself or another one.
func (p *Profile) Check() error {
	if p.Name == "" {
		return errors.New("the profile has no name")
	}
	err := errors.Join(
		once("source", p.Sources, func(s *Source) []string { return []string{s.ID} }),
		once("limit", p.Limits, func(l *Limit) []string { return []string{l.Name} }),
		once("type", p.Types, func(t *Type) []string { return []string{t.Suffix} }),
		once("GUID", p.Nodes, func(n *Node) []string { return []string{n.GUID} }),
		once("refused GUID", p.Refused, func(f *Refused) []string { return []string{f.GUID} }),
		once("enumeration", p.Enums, func(e *Enum) []string { return []string{e.Name} }),
		once("structure", p.Structs, func(s *Struct) []string { return append([]string{s.Name}, s.Aliases...) }),
	)
	if err != nil {
		return p.in(err)
	}
	for i := range p.Limits {
		if l := &p.Limits[i]; l.Value < 1 {
			return p.in(fmt.Errorf("limit %s is %d", l.Name, l.Value))
		} else if err := p.cites(l.Note); err != nil {
			return p.in(fmt.Errorf("limit %s: %w", l.Name, err))
		}
	}
	for i := range p.Refused {
		if err := p.checkRefused(&p.Refused[i]); err != nil {
			return p.in(fmt.Errorf("refused GUID %s: %w", p.Refused[i].GUID, err))
		}
	}
	for i := range p.Enums {
		if err := p.checkEnum(&p.Enums[i]); err != nil {
			return p.in(fmt.Errorf("enumeration %s: %w", p.Enums[i].Name, err))
		}
	}
	for i := range p.Structs {
		if err := p.CheckStruct(&p.Structs[i]); err != nil {
			return p.in(fmt.Errorf("structure %s: %w", p.Structs[i].Name, err))
		}
	}
	for i := range p.Nodes {
		if err := p.checkNode(&p.Nodes[i]); err != nil {
			return p.in(fmt.Errorf("GUID %s: %w", p.Nodes[i].GUID, err))
		}
	}
	return nil
}

func (p *Profile) in(err error) error { return fmt.Errorf("profile %s: %w", p.Name, err) }

// once checks that all names of entries are there and differ.
func once[T any](what string, list []T, names func(*T) []string) error {
	seen := map[string]bool{}
	for i := range list {
		for _, n := range names(&list[i]) {
			if n == "" {
				return fmt.Errorf("%s %d has no name", what, i)
			}
			if seen[n] {
				return fmt.Errorf("%s %s is listed twice", what, n)
			}
			seen[n] = true
		}
	}
	return nil
}

func (p *Profile) cites(n Note) error {
	if find(p.Sources, func(s *Source) bool { return s.ID == n.Source }) == nil {
		return fmt.Errorf("source %q is not listed", n.Source)
	}
	return nil
}

func (p *Profile) checkEnum(e *Enum) error {
	s, ok := scalars[e.Type]
	if !ok || s.float || e.Type == "pointer" || e.Type == "bool" {
		return fmt.Errorf("type %q is no integer", e.Type)
	}
	if _, clash := scalars[e.Name]; clash {
		return errors.New("this is the name of a type")
	}
	if len(e.Values) == 0 {
		return errors.New("it has no values")
	}
	for _, v := range e.Values {
		if n := float64(v.Number); n < s.min || n > s.max {
			return fmt.Errorf("%s is %d, %s holds %.0f to %.0f", v.Name, v.Number, e.Type, s.min, s.max)
		}
	}
	return errors.Join(p.cites(e.Note), once("value", e.Values, func(v *Value) []string { return []string{v.Name} }))
}

// CheckStruct reports what is wrong with a structure: sizes, offsets or alignments that
// are not natural, fields that share bytes, names that cannot be told apart.
func (p *Profile) CheckStruct(s *Struct) error {
	if err := p.cites(s.Note); err != nil {
		return err
	}
	if s.Header == "" {
		return errors.New("the header that defines it is not named")
	}
	if s.Missing != "" {
		return s.checkMissing()
	}
	if s.Size < 1 || s.Size > maxSize {
		return fmt.Errorf("size is %d, want 1 to %d", s.Size, maxSize)
	}
	end, align := 0, 1 // of the fields so far
	for i := range s.Fields {
		f := &s.Fields[i]
		n, err := p.checkField(s, f)
		if err != nil {
			return err
		}
		// Members of one union share bytes; whatever else does not.
		from, before := end, i-1
		for f.Union != "" && before >= 0 && s.Fields[before].Union == f.Union {
			before--
		}
		if before < i-1 {
			from = s.Fields[before+1].Offset
		}
		if f.Offset < from {
			return fmt.Errorf("field %s is at byte %d, what is before it ends at %d", f.Name, f.Offset, from)
		}
		end, align = max(end, f.Offset+n.size*f.elems()), max(align, n.size)
	}
	if s.Align != align {
		return fmt.Errorf("alignment is %d, its fields need %d", s.Align, align)
	}
	if want := max(1, (end+align-1)/align*align); s.Size != want {
		return fmt.Errorf("size is %d, fields that end at %d and alignment %d make %d", s.Size, end, align, want)
	}
	return p.checkKeys(s)
}

func (s *Struct) checkMissing() error {
	if s.Size != 0 || s.Align != 0 {
		return errors.New("it is missing, yet has a size")
	}
	for i := range s.Fields {
		if f := &s.Fields[i]; f.Name == "" || f.Offset != 0 || f.Type != "" {
			return fmt.Errorf("field %q: of a missing structure only names are known", f.Name)
		}
	}
	return once("field", s.Fields, func(f *Field) []string { return []string{f.Name} })
}

func (p *Profile) checkField(s *Struct, f *Field) (scalar, error) {
	n, e, err := p.scalarOf(f)
	if err != nil {
		return n, err
	}
	fail := func(format string, args ...any) (scalar, error) {
		return n, fmt.Errorf("field %s: %s", f.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case f.Name == "":
		return n, fmt.Errorf("a field at byte %d has no name", f.Offset)
	case f.Count < 0 || f.Count > maxSize:
		return fail("%d elements, want 1 to %d", f.Count, maxSize)
	case f.Offset < 0 || f.Offset%n.size != 0:
		return fail("%s at byte %d is not aligned to %d", f.Type, f.Offset, n.size)
	case f.Offset+n.size*f.elems() > s.Size:
		return fail("it ends at byte %d of %d", f.Offset+n.size*f.elems(), s.Size)
	case len(f.Default) > f.elems():
		return fail("%d defaults for %d elements", len(f.Default), f.elems())
	case f.As != "" && (f.As != recipes.I32 || n.float || f.Flags != ""):
		return fail("as %s: only numbers are carried otherwise, as i32", f.As)
	case f.Flags != "" && (n.float || e != nil || f.Count > 0 || p.Enum(f.Flags) == nil):
		return fail("flags %s: want an enumeration, and the field to be an integer", f.Flags)
	case f.Type == "pointer" && !f.Reserved:
		return fail("recipes have no addresses: a pointer is reserved")
	case f.Used == "" && f.Rest != "", f.Rest != "" && f.Rest != "index":
		return fail("rest %q: want index, beside used", f.Rest)
	case f.Used != "" && (f.Count == 0 || e != nil || n.float):
		return fail("used %s: want an array of integers", f.Used)
	case p.carried(f) == recipes.Enum && f.Count > 0:
		return fail("recipes carry no arrays of names")
	case n.float && f.Count > 0 && !f.Reserved:
		return fail("recipes carry no arrays of floats")
	}
	for _, v := range f.Default {
		if v < n.min || v > n.max || !n.float && v != math.Trunc(v) {
			return fail("default %v, want %v to %v", v, n.min, n.max)
		}
	}
	names := e
	if f.Flags != "" {
		names = p.Enum(f.Flags)
	}
	for symbol, name := range f.Symbols {
		if names == nil {
			return fail("symbol %s: the field has no names", symbol)
		}
		if _, ok := names.byName(name); !ok {
			return fail("symbol %s: enumeration %s has no %s", symbol, names.Name, name)
		}
	}
	return n, nil
}

// checkKeys checks that a recipe's fields can be told apart, and that counts of used
// elements are fields.
func (p *Profile) checkKeys(s *Struct) error {
	type key struct {
		name string
		typ  recipes.FieldType
	}
	seen, union := map[key]bool{}, map[string]string{}
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Reserved {
			continue
		}
		k := key{f.Key(), p.carried(f)}
		if u, ok := union[f.Key()]; seen[k] || ok && (u == "" || u != f.Union) {
			return fmt.Errorf("recipes would have two fields %s", f.Key())
		}
		seen[k], union[f.Key()] = true, f.Union
		if f.Used != "" {
			by := s.field(f.Used)
			if by == nil || by.Count > 0 || by.Type != "uint32_t" {
				return fmt.Errorf("field %s: used %s is no uint32_t of the structure", f.Name, f.Used)
			}
		}
	}
	return nil
}

// field is a field by its name, nil if there is none.
func (s *Struct) field(name string) *Field {
	return find(s.Fields, func(f *Field) bool { return f.Name == name })
}

func (p *Profile) checkRefused(f *Refused) error {
	if f.Why == "" || f.Instead == "" {
		return errors.New("want why, and what to use instead")
	}
	if _, _, err := p.Node(f.GUID); err == nil {
		return errors.New("it is listed as one to use, too")
	}
	return p.cites(f.Note)
}

func (p *Profile) checkNode(n *Node) error {
	if err := p.cites(n.Note); err != nil {
		return err
	}
	if !slices.Contains([]Engine{Vector, Matrix, Move, Alias}, n.Engine) {
		return fmt.Errorf("engine %q is none of %s, %s, %s", n.Engine, Matrix, Move, Alias)
	}
	if n.InPlace != "" && !slices.ContainsFunc(n.In, func(o Operand) bool { return o.Name == n.InPlace }) {
		return fmt.Errorf("it updates %s, which is no operand", n.InPlace)
	}
	if n.Params != "" && p.Struct(n.Params) == nil {
		return fmt.Errorf("parameter structure %s is not listed", n.Params)
	}
	for _, t := range n.Suffixes {
		if !p.hasType(t) {
			return fmt.Errorf("suffix %q is no type", t)
		}
	}
	rank := p.Limit("rank")
	for _, list := range [][]Operand{n.In, n.Out} {
		if err := once("operand", list, func(o *Operand) []string { return []string{o.Name} }); err != nil {
			return err
		}
		for i := range list {
			o := &list[i]
			for _, t := range o.Types {
				if t == "dt" && len(n.Suffixes) == 0 || t != "dt" && !p.hasType(t) {
					return fmt.Errorf("operand %s: type %q is not known", o.Name, t)
				}
			}
			if o.MinRank < 0 || int64(o.MaxRank) > rank || o.MaxRank != 0 && o.MinRank > o.MaxRank {
				return fmt.Errorf("operand %s: rank %d to %d of at most %d", o.Name, o.MinRank, o.MaxRank, rank)
			}
			if i > 0 && (list[i-1].Repeated && !o.Repeated || list[i-1].Optional && !o.Optional) || o.Repeated && o.Optional {
				return fmt.Errorf("operand %s: optional and repeated ones come last, and are not both", o.Name)
			}
		}
	}
	return nil
}

// hasType reports whether a type is in the profile.
func (p *Profile) hasType(name string) bool {
	return slices.ContainsFunc(p.Types, func(t Type) bool { return t.Suffix == name })
}

// typeNames are those that an operand may have in a node with a suffix.
func (p *Profile) typeNames(o *Operand, suffix dtype.Type) []string {
	var names []string
	for _, t := range o.Types {
		if t == "dt" {
			t = suffix.String()
		}
		names = append(names, t)
	}
	if names == nil {
		for _, t := range p.Types {
			names = append(names, t.Suffix)
		}
	}
	return names
}

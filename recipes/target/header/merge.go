package header

import (
	"fmt"
	"slices"

	"github.com/alecthomas/participle/v2/lexer"

	"quill/recipes/target"
)

// Merged says what became of a profile's structures and enumerations.
type Merged struct {
	Added   []string // structures that had no layout, or were not listed
	Checked []string // are in both, and alike; the header is now their source
	Missing []string // structures that have no layout still
	// Skipped are types of the header without a layout.
	Skipped []Skipped
}

// Merge adds to a profile the layouts that it lacks, of all structures of the header if
// all is set, and checks those that both have. Origin is what the source of new entries
// is. An error names the place in the header and the profile's entry; the profile is
// then of no use.
func (h *Header) Merge(p *target.Profile, origin string, all bool) (*Merged, error) {
	m := merger{h: h, p: p, out: &Merged{Skipped: h.Skipped}}
	m.source = m.cite(origin)
	for i := range h.Enums {
		if have := p.Enum(h.Enums[i].Name); have != nil {
			if err := m.enum(have, &h.Enums[i]); err != nil {
				return nil, err
			}
		}
	}
	for i := range p.Structs {
		if err := m.structure(&p.Structs[i]); err != nil {
			return nil, err
		}
	}
	for i := range h.Structs {
		s := &h.Structs[i]
		if !all || s.Nested || m.listed(s) {
			continue
		}
		entry := s.Struct
		entry.Header, entry.Source = base(s.At.Filename), m.source
		if err := m.admit(&entry); err != nil {
			m.out.Skipped = append(m.out.Skipped, Skipped{s.Name, errorAt(s.At, "%v", err)})
			continue
		}
		p.Structs = append(p.Structs, entry)
		m.out.Added = append(m.out.Added, s.Name)
	}
	if len(m.out.Added)+len(m.out.Checked) == 0 && m.used {
		m.p.Sources = m.p.Sources[:len(m.p.Sources)-1]
	}
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", h.File, err)
	}
	return m.out, nil
}

type merger struct {
	h      *Header
	p      *target.Profile
	out    *Merged
	source string
	used   bool // the source is one that the profile did not list
}

// cite finds or makes an id for the source of what is added.
func (m *merger) cite(origin string) string {
	for _, s := range m.p.Sources {
		if s.What == origin {
			return s.ID
		}
	}
	m.used = true
	id := "header"
	for n := 2; slices.ContainsFunc(m.p.Sources, func(s target.Source) bool { return s.ID == id }); n++ {
		id = fmt.Sprintf("header%d", n)
	}
	m.p.Sources = append(m.p.Sources, target.Source{ID: id, What: origin})
	return id
}

func (m *merger) listed(s *Struct) bool {
	return slices.ContainsFunc(append([]string{s.Name}, s.Aliases...), func(n string) bool { return m.p.Struct(n) != nil })
}

// differ is the error for what both have.
func (m *merger) differ(at lexer.Position, name, format string, args ...any) error {
	return errorAt(at, "%s of the header is not that of profile %s: %s", name, m.p.Name, fmt.Sprintf(format, args...))
}

// enum checks that an enumeration has the profile's numbers; new names are added.
func (m *merger) enum(have *target.Enum, got *Enum) error {
	if have.Type != got.Type {
		return m.differ(got.At, got.Name, "the header holds it in %s, the profile in %s", got.Type, have.Type)
	}
	for _, v := range have.Values {
		i := slices.IndexFunc(got.Values, func(g target.Value) bool { return g.Name == v.Name })
		if i < 0 {
			return m.differ(got.At, got.Name, "the header has no %s, which is %d in the profile", v.Name, v.Number)
		}
		if n := got.Values[i].Number; n != v.Number {
			return m.differ(got.At, got.Name, "%s is %d in the header, %d in the profile", v.Name, n, v.Number)
		}
	}
	have.Values, have.Note = got.Values, target.Note{Source: m.source}
	m.out.Checked = append(m.out.Checked, got.Name)
	return nil
}

// structure fills in or checks an entry of the profile.
func (m *merger) structure(s *target.Struct) error {
	got := m.h.Struct(s.Name)
	switch {
	case got == nil && s.Missing == "":
		return nil
	case got == nil:
		for _, skipped := range m.h.Skipped {
			if skipped.Name == s.Name {
				e := *skipped.Err
				e.Msg = fmt.Sprintf("%s has no layout: %s", s.Name, e.Msg)
				return &e
			}
		}
		m.out.Missing = append(m.out.Missing, s.Name)
		return nil
	case s.Missing != "":
		return m.fill(s, got)
	}
	m.out.Checked = append(m.out.Checked, s.Name)
	if err := m.check(s, got); err != nil {
		return err
	}
	s.Note = target.Note{Source: m.source} // a header is as sure as can be
	return nil
}

// fill gives a missing structure its layout, and keeps what recipes call its fields.
func (m *merger) fill(s *target.Struct, got *Struct) error {
	fields := slices.Clone(got.Fields)
	for _, known := range s.Fields {
		i := slices.IndexFunc(fields, func(f target.Field) bool { return f.Name == known.Name })
		if i < 0 {
			var names []string
			for _, f := range fields {
				names = append(names, f.Name)
			}
			return m.differ(got.At, s.Name, "the header has no field %s, which recipes have as %s; it has %v", known.Name, known.Key(), names)
		}
		f := &fields[i]
		f.Recipe, f.As, f.Flags, f.Symbols, f.Used, f.Rest = known.Recipe, known.As, known.Flags, known.Symbols, known.Used, known.Rest
	}
	s.Size, s.Align, s.Fields, s.Missing, s.Unverified = got.Size, got.Align, fields, "", ""
	s.Header, s.Source = base(got.At.Filename), m.source
	if err := m.admit(s); err != nil {
		return errorAt(got.At, "%s: %v", s.Name, err)
	}
	m.out.Added = append(m.out.Added, s.Name)
	return nil
}

// check compares a structure with the profile's.
func (m *merger) check(s *target.Struct, got *Struct) error {
	if s.Size != got.Size || s.Align != got.Align {
		return m.differ(got.At, s.Name, "it has %d bytes and alignment %d in the header, %d and %d in the profile", got.Size, got.Align, s.Size, s.Align)
	}
	for i := range max(len(s.Fields), len(got.Fields)) {
		if i >= len(s.Fields) {
			return m.differ(got.At, s.Name, "the profile has no field %s", got.Fields[i].Name)
		}
		if i >= len(got.Fields) {
			return m.differ(got.At, s.Name, "the header has no field %s", s.Fields[i].Name)
		}
		if a, b := place(&got.Fields[i]), place(&s.Fields[i]); a != b {
			return m.differ(got.At, s.Name, "it has %s in the header, %s in the profile", a, b)
		}
	}
	return nil
}

// place spells what must be alike of a field.
func place(f *target.Field) string {
	t := f.Type
	if f.Count > 0 {
		t = fmt.Sprintf("%s[%d]", t, f.Count)
	}
	text := fmt.Sprintf("%s %s at byte %d", t, f.Name, f.Offset)
	if f.Union != "" {
		text += " in a union"
	}
	values := f.Default
	for len(values) > 1 && values[len(values)-1] == 0 {
		values = values[:len(values)-1]
	}
	if values != nil {
		text += fmt.Sprintf(", by default %v,", values)
	}
	return text
}

// admit checks a structure that is added, together with the enumerations that it needs.
func (m *merger) admit(s *target.Struct) error {
	before := m.p.Enums
	for i := range s.Fields {
		for _, name := range []string{s.Fields[i].Type, s.Fields[i].Flags} {
			if e := m.h.enum(name); e != nil && m.p.Enum(name) == nil {
				entry := e.Enum
				entry.Note = target.Note{Source: m.source}
				m.p.Enums = append(m.p.Enums, entry)
			}
		}
	}
	err := m.p.CheckStruct(s)
	if err != nil {
		m.p.Enums = before
	}
	return err
}

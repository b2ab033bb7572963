// Package header reads parameter structures out of a vendor's C++ headers and adds
// their layouts to a target profile.
//
//	header ── preprocess ──→ text ── grammar ──→ declarations ── layout ──→ target.Struct
//
// It understands what such headers are made of: namespaces, structures with bases,
// unions, enumerations, arrays, typedefs, constants, constructors and default values.
// A structure that needs more, such as a bit-field, is skipped with the reason; text
// that is no such header is an error with its place.
package header

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/participle/v2"
	"github.com/alecthomas/participle/v2/lexer"

	"quill/recipes/target"
)

// Header is what a header declares.
type Header struct {
	File string
	// Structs and Enums have layouts; their source is not set.
	Structs []Struct
	Enums   []Enum
	// Skipped says of structures and enumerations without one why.
	Skipped []Skipped
}

// Struct is a structure and where it is declared.
type Struct struct {
	target.Struct
	At lexer.Position
	// Nested ones are declared in others and are no parameters themselves.
	Nested bool
}

// Enum is an enumeration and where it is declared.
type Enum struct {
	target.Enum
	At lexer.Position
}

// Skipped is a type without a layout.
type Skipped struct {
	Name string
	Err  *Error
}

// MaxBytes bounds a header; the largest have some hundred kilobytes.
const MaxBytes = 4 << 20

// maxDepth bounds brackets in brackets.
const maxDepth = 100

// Parse reads a header. Include gives the text of files that it includes, nil where
// there is none; it may be nil. Errors have places.
func Parse(file string, src []byte, include func(name string) []byte) (*Header, error) {
	if include == nil {
		include = func(string) []byte { return nil }
	}
	top, err := preprocess(file, src, predefined(), include)
	if err != nil {
		return nil, err
	}
	r := &resolver{types: map[string]*ctype{}, values: map[string]*number{}, macros: top}
	for _, s := range append(top.inner, top) {
		if err := r.read(s); err != nil {
			return nil, err
		}
	}
	return r.header(file), nil
}

func (r *resolver) read(s *source) error {
	if len(s.text) > MaxBytes {
		return &Error{File: s.file, Msg: fmt.Sprintf("%d bytes, want at most %d", len(s.text), MaxBytes)}
	}
	text, err := s.tokens()
	if err != nil {
		return err
	}
	if err := s.nesting(text); err != nil {
		return err
	}
	ast, err := fileParser.ParseBytes(s.file, text)
	if err != nil {
		return syntaxError(err, s.file)
	}
	if err := r.decls(ast.Decls, nil); err != nil {
		return err
	}
	return nil
}

// nesting refuses brackets that are too deep to be read.
func (s *source) nesting(text []byte) error {
	depth := 0
	for i, c := range text {
		switch {
		case bytes.IndexByte([]byte("([{"), c) >= 0:
			if depth++; depth > maxDepth {
				return errorAt(s.pos(i), "more than %d brackets in each other", maxDepth)
			}
		case bytes.IndexByte([]byte(")]}"), c) >= 0 && depth > 0:
			depth--
		}
	}
	return nil
}

func syntaxError(err error, file string) error {
	pe, ok := errors.AsType[participle.Error](err)
	if !ok {
		return &Error{File: file, Msg: err.Error()}
	}
	msg := pe.Message()
	if ue, ok := errors.AsType[*participle.UnexpectedTokenError](err); ok {
		found := fmt.Sprintf("%q", ue.Unexpected.Value)
		if ue.Unexpected.EOF() {
			found = "the end of the file"
		}
		msg = "did not expect " + found + " here"
	}
	return errorAt(pe.Position(), "%s", msg)
}

func (r *resolver) header(file string) *Header {
	h := &Header{File: file}
	for _, c := range r.order {
		switch {
		case c.name == "":
		case c.err != nil:
			h.Skipped = append(h.Skipped, Skipped{c.name, c.err})
		case c.enum != nil:
			h.Enums = append(h.Enums, Enum{*c.enum, c.at})
		case !c.union:
			s := target.Struct{Name: c.name, Aliases: c.alias, Size: c.size, Align: c.align, Fields: c.fields}
			h.Structs = append(h.Structs, Struct{s, c.at, c.nested})
		}
	}
	return h
}

// Struct is a structure by its name or an alias, nil if there is none with a layout.
func (h *Header) Struct(name string) *Struct {
	i := slices.IndexFunc(h.Structs, func(s Struct) bool { return s.Name == name || slices.Contains(s.Aliases, name) })
	if i < 0 {
		return nil
	}
	return &h.Structs[i]
}

func (h *Header) enum(name string) *Enum {
	i := slices.IndexFunc(h.Enums, func(e Enum) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return &h.Enums[i]
}

// base is a file's name without its folders.
func base(file string) string { return file[strings.LastIndexByte(file, '/')+1:] }

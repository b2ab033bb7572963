// Package dltest helps to test what calls the vendor's library: it compares Go types
// with a table of the C interface, and compiles a library that writes down how it is
// called.
package dltest

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unsafe"

	"quill/recipes/dl"
)

// ABI is the table of the C interface (recipes/dl/testdata/abi.json).
type ABI struct {
	Origin    string     `json:"origin"`
	Structs   []Struct   `json:"structs"`
	Enums     []Enum     `json:"enums"` // the one without a name has the macros
	Functions []Function `json:"functions"`
}

// Struct is a C structure.
type Struct struct {
	Name   string  `json:"name"`
	Size   uintptr `json:"size"`
	Fields []Field `json:"fields"`
}

// Field is a field of a structure, in bytes.
type Field struct {
	Offset uintptr `json:"offset"`
	Size   uintptr `json:"size"`
	Name   string  `json:"name"`
	Type   string  `json:"type"`
}

// Enum is a C enumeration.
type Enum struct {
	Name   string `json:"name"`
	Size   int    `json:"size"`
	Values []struct {
		Name  string `json:"name"`
		Value int64  `json:"value"`
	} `json:"values"`
}

// Function is a function by the C types of its arguments.
type Function struct {
	Name    string   `json:"name"`
	Returns string   `json:"returns"`
	Args    []string `json:"args"`
	Since   string   `json:"since"` // the version that it came with, "" for 1.16 or before
}

// Read reads a table.
func Read(path string) (*ABI, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	a := &ABI{}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(a); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

// Struct compares a Go struct with a C one: its size, and name, offset and size of each
// field in order. Fields are named by their tag `c:"name"`; those called _ without one are
// padding.
func (a *ABI) Struct(name string, t reflect.Type) error {
	i := slices.IndexFunc(a.Structs, func(s Struct) bool { return s.Name == name })
	if i < 0 {
		return fmt.Errorf("the table has no struct %s", name)
	}
	s := &a.Structs[i]
	if t.Kind() != reflect.Struct || t.Size() != s.Size {
		return fmt.Errorf("struct %s: want %d bytes, have %s of %d", name, s.Size, t, t.Size())
	}
	var fields []reflect.StructField
	for i := range t.NumField() {
		if f := t.Field(i); f.Name != "_" || f.Tag.Get("c") != "" {
			fields = append(fields, f)
		}
	}
	if len(fields) != len(s.Fields) {
		return fmt.Errorf("struct %s: want %d fields, have %d in %s", name, len(s.Fields), len(fields), t)
	}
	for i, f := range fields {
		want := s.Fields[i]
		have := Field{Offset: f.Offset, Size: f.Type.Size(), Name: f.Tag.Get("c"), Type: want.Type}
		if have != want {
			return fmt.Errorf("struct %s, field %s.%s: want %s at %d of %d bytes, have %s at %d of %d",
				name, t, f.Name, want.Name, want.Offset, want.Size, have.Name, have.Offset, have.Size)
		}
		if base, _, array := strings.Cut(want.Type, "["); array != (f.Type.Kind() == reflect.Array) {
			return fmt.Errorf("struct %s, field %s.%s: %s is %s", name, t, f.Name, want.Type, f.Type)
		} else if array && f.Type.Elem().Size() != sizes[base] {
			return fmt.Errorf("struct %s, field %s.%s: elements of %s are %s", name, t, f.Name, want.Type, f.Type.Elem())
		}
	}
	return nil
}

// Values compares constants of one enumeration with the table, by their C names.
func (a *ABI) Values(enum string, have map[string]int64) error {
	i := slices.IndexFunc(a.Enums, func(e Enum) bool { return e.Name == enum })
	if i < 0 {
		return fmt.Errorf("the table has no enumeration %q", enum)
	}
	want := map[string]int64{}
	for _, v := range a.Enums[i].Values {
		want[v.Name] = v.Value
	}
	for name, v := range have {
		if w, ok := want[name]; !ok {
			return fmt.Errorf("enumeration %s has no %s", enum, name)
		} else if v != w {
			return fmt.Errorf("%s: want %d, have %d", name, w, v)
		}
	}
	return nil
}

// Table compares a struct type of functions (see [dl.Library.Bind]) with the C
// signatures. structs are the Go types that stand for C structures, by their C names.
func (a *ABI) Table(t reflect.Type, structs map[string]reflect.Type) error {
	for name, s := range structs {
		if err := a.Struct(name, s); err != nil {
			return err
		}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, optional := dl.Tag(f)
		if name == "" {
			return fmt.Errorf("field %s of %s is for no symbol", f.Name, t)
		}
		k := slices.IndexFunc(a.Functions, func(c Function) bool { return c.Name == name })
		if k < 0 {
			return fmt.Errorf("field %s of %s: the table has no function %s", f.Name, t, name)
		}
		c := &a.Functions[k]
		if c.Since != "" && !optional {
			return fmt.Errorf("%s came with %s, so it must be optional", name, c.Since)
		}
		in, out, err := signature(f)
		if err == nil {
			err = c.check(in, out, structs)
		}
		if err != nil {
			return fmt.Errorf("%s (field %s of %s): %w", name, f.Name, t, err)
		}
	}
	return nil
}

// signature is that of a func field, or of the method Call of a uintptr one.
func signature(f reflect.StructField) (in []reflect.Type, out reflect.Type, err error) {
	fn, first := f.Type, 0
	if fn.Kind() != reflect.Func {
		m, ok := fn.MethodByName("Call")
		if !ok {
			return nil, nil, fmt.Errorf("type %s has no method Call", fn)
		}
		fn, first = m.Type, 1
	}
	for i := first; i < fn.NumIn(); i++ {
		in = append(in, fn.In(i))
	}
	if fn.NumOut() != 1 || fn.IsVariadic() {
		return nil, nil, fmt.Errorf("%s has no C signature", fn)
	}
	return in, fn.Out(0), nil
}

func (c *Function) check(in []reflect.Type, out reflect.Type, structs map[string]reflect.Type) error {
	if len(in) != len(c.Args) {
		return fmt.Errorf("want %d arguments, have %d", len(c.Args), len(in))
	}
	for i, t := range in {
		if !passes(c.Args[i], t, structs) {
			return fmt.Errorf("argument %d: want %s, have %s", i+1, c.Args[i], t)
		}
	}
	if !returned(c.Returns, out) {
		return fmt.Errorf("result: want %s, have %s", c.Returns, out)
	}
	return nil
}

// returned reports whether a Go type stands for a C result.
func returned(c string, t reflect.Type) bool {
	switch c {
	case "synStatus":
		return t == reflect.TypeFor[dl.Status]()
	case "hcclResult_t":
		return t == reflect.TypeFor[dl.Result]()
	case "const char*":
		return t.Kind() == reflect.String
	}
	return false
}

// sizes are the bytes of C scalars; enumerations have 4.
var sizes = map[string]uintptr{
	"bool": 1, "char": 1, "unsigned char": 1, "uint8_t": 1, "int": 4, "unsigned int": 4, "unsigned": 4, "uint32_t": 4,
	"uint64_t": 8, "size_t": 8, "TSize": 8, "synNodeId": 8, "synDeviceId": 4, "synModuleId": 4, "synSectionId": 4,
	"synGraphAttributeVal": 8, // a union
}

// passes reports whether a Go type may stand for a C argument.
func passes(c string, t reflect.Type, structs map[string]reflect.Type) bool {
	constant := strings.HasPrefix(c, "const ")
	c = strings.TrimSpace(strings.TrimPrefix(c, "const "))
	if elem, ok := strings.CutSuffix(c, "*"); ok {
		return pointer(strings.TrimSpace(elem), constant, t, structs)
	}
	if s, ok := structs[c]; ok {
		return t == s
	}
	switch size, scalar := sizes[c]; {
	case isHandle(c):
		return t == reflect.TypeFor[dl.Handle]()
	case c == "bool":
		return t.Kind() == reflect.Bool
	case c == "int":
		return t.Kind() == reflect.Int32
	case scalar:
		return unsigned(t) && t.Size() == size
	case c == "hcclResult_t":
		return t == reflect.TypeFor[dl.Result]()
	default: // an enumeration
		return unsigned(t) && t.Size() == 4 && unicode.IsLower(rune(c[0]))
	}
}

func unsigned(t reflect.Type) bool {
	return t.Kind() >= reflect.Uint8 && t.Kind() <= reflect.Uint64
}

// isHandle reports whether a C type is an opaque pointer.
func isHandle(c string) bool {
	return strings.HasPrefix(c, "syn") && strings.HasSuffix(c, "Handle") || c == "synTensor" || c == "hcclComm_t"
}

// pointer reports whether a Go type may stand for a C pointer to elem.
func pointer(elem string, constant bool, t reflect.Type, structs map[string]reflect.Type) bool {
	switch {
	case elem == "void": // addresses of the device are numbers; a stream of HCCL is a handle
		return t.Kind() == reflect.Uintptr || t.Kind() == reflect.UnsafePointer || t == reflect.TypeFor[*byte]()
	case elem == "void*":
		return t == reflect.PointerTo(reflect.TypeFor[unsafe.Pointer]())
	case elem == "char" && constant && t.Kind() == reflect.String:
		return true
	case t.Kind() != reflect.Pointer:
		return false
	}
	return passes(elem, t.Elem(), structs)
}

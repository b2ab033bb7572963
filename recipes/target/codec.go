package target

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"quill/recipes"
	"quill/recipes/dtype"
)

// MissingError reports a parameter structure of which a profile has no layout.
type MissingError struct {
	Profile, Struct, Header, Why string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("profile %s has no layout of %s (%s): quill target import %s makes a profile that has it", e.Profile, e.Struct, e.Why, e.Header)
}

// layout is a structure that has a layout.
func (p *Profile) layout(name string) (*Struct, error) {
	s := p.Struct(name)
	switch {
	case s == nil:
		return nil, fmt.Errorf("profile %s has no structure %s", p.Name, name)
	case s.Missing != "":
		return nil, &MissingError{p.Name, name, s.Header, s.Missing}
	}
	return s, nil
}

// Encode lays out parameters in the bytes that the target takes: little-endian, as many
// as the structure has, padding zero. Fields that are not given have their defaults.
func (p *Profile) Encode(v *recipes.Params) ([]byte, error) {
	s, err := p.layout(v.Struct)
	if err != nil {
		return nil, err
	}
	c := coder{p, s, make([]byte, s.Size)}
	taken := map[string]bool{} // fields of the recipe
	given := map[string]bool{} // fields of the structure, and unions
	for i := range v.Fields {
		f := &v.Fields[i]
		if taken[f.Name] {
			return nil, fmt.Errorf("%s: field %s is given twice", v.Struct, f.Name)
		}
		taken[f.Name] = true
		at, err := c.find(f)
		if err == nil {
			err = c.put(at, f, v)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.Struct, err)
		}
		given[at.Name] = true
		if at.Union != "" {
			given[at.Union] = true
		}
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		switch {
		case given[f.Name] || f.Union != "" && given[f.Union]:
		case f.Default == nil && !f.Reserved:
			return nil, fmt.Errorf("%s: field %s is missing and has no default", v.Struct, f.Key())
		default:
			c.putDefault(f)
			given[f.Union] = true // "" is no union
		}
	}
	return c.b, nil
}

// Decode is the inverse of Encode for bytes that it may give; it gives all fields, in
// the structure's order. Of is the type of the node's GUID, by which unions of floats
// and integers are told apart.
func (p *Profile) Decode(name string, b []byte, of dtype.Type) (*recipes.Params, error) {
	s, err := p.layout(name)
	if err != nil {
		return nil, err
	}
	if len(b) != s.Size {
		return nil, fmt.Errorf("%s has %d bytes, want %d", name, len(b), s.Size)
	}
	c := coder{p, s, b}
	v := &recipes.Params{Struct: name}
	for i := range s.Fields {
		f := &s.Fields[i]
		if f.Reserved || f.Union != "" && c.member(f.Union, of) != f {
			continue
		}
		field, err := c.get(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		v.Fields = append(v.Fields, field)
	}
	again, err := p.Encode(v)
	if err != nil {
		return nil, err
	}
	for i := range b {
		if b[i] != again[i] {
			return nil, fmt.Errorf("%s: byte %d (%s) is %#02x, want %#02x", name, i, c.at(i), b[i], again[i])
		}
	}
	return v, nil
}

// coder reads or writes the bytes of one structure.
type coder struct {
	p *Profile
	s *Struct
	b []byte
}

// find is the field that a recipe's field is, by name and type.
func (c *coder) find(v *recipes.Field) (*Field, error) {
	var names []string
	var wrong []string // types under that name
	for i := range c.s.Fields {
		f := &c.s.Fields[i]
		switch t := c.p.carried(f); {
		case f.Reserved:
		case f.Key() != v.Name:
			names = append(names, f.Key())
		case t != v.Type:
			wrong = append(wrong, string(t))
		default:
			return f, nil
		}
	}
	if wrong != nil {
		return nil, fmt.Errorf("field %s is of type %s, want %s", v.Name, v.Type, strings.Join(wrong, " or "))
	}
	return nil, fmt.Errorf("there is no field %s; there are %s", v.Name, strings.Join(slices.Compact(names), ", "))
}

// member is the field of a union that is decoded for a type.
func (c *coder) member(union string, of dtype.Type) *Field {
	var first *Field
	for i := range c.s.Fields {
		f := &c.s.Fields[i]
		if f.Union != union || f.Reserved {
			continue
		}
		if (c.p.carried(f) == recipes.F32) == of.IsFloat() {
			return f
		}
		if first == nil {
			first = f
		}
	}
	return first
}

// at says what a byte belongs to.
func (c *coder) at(i int) string {
	for k := range c.s.Fields {
		f := &c.s.Fields[k]
		if n, _, _ := c.p.scalarOf(f); i >= f.Offset && i < f.Offset+n.size*f.elems() {
			return "field " + f.Name
		}
	}
	return "padding"
}

func (c *coder) putDefault(f *Field) {
	n, _, _ := c.p.scalarOf(f)
	for i, v := range f.Default {
		if n.float {
			c.putFloat(f, v)
			continue
		}
		c.putInt(f, i, int64(v))
	}
}

func (c *coder) putFloat(f *Field, v float64) {
	if f.Type == "float" {
		binary.LittleEndian.PutUint32(c.b[f.Offset:], math.Float32bits(float32(v)))
		return
	}
	binary.LittleEndian.PutUint64(c.b[f.Offset:], math.Float64bits(v))
}

func (c *coder) putInt(f *Field, i int, v int64) {
	n, _, _ := c.p.scalarOf(f)
	var le [8]byte
	binary.LittleEndian.PutUint64(le[:], uint64(v))
	copy(c.b[f.Offset+i*n.size:], le[:n.size])
}

// put writes a recipe's field.
func (c *coder) put(f *Field, v *recipes.Field, all *recipes.Params) error {
	if err := onlyOne(v); err != nil {
		return err
	}
	switch v.Type {
	case recipes.F32:
		if f.Type == "float" { // keeps the bits of what is not a number
			binary.LittleEndian.PutUint32(c.b[f.Offset:], math.Float32bits(v.Float))
		} else {
			c.putFloat(f, float64(v.Float))
		}
		return nil
	case recipes.Enum:
		n, err := c.number(f, v.Sym)
		if err != nil {
			return err
		}
		c.putInt(f, 0, n)
		return nil
	}
	want := f.elems()
	if f.Used != "" {
		used, ok := all.Int(c.s.field(f.Used).Key())
		if !ok || used > int64(want) || used < 0 {
			return fmt.Errorf("field %s: %s is %d, want 0 to %d elements", v.Name, f.Used, used, want)
		}
		want = int(used)
	}
	if len(v.Ints) != want {
		return fmt.Errorf("field %s has %d numbers %v, want %d", v.Name, len(v.Ints), v.Ints, want)
	}
	n, e, _ := c.p.scalarOf(f)
	for i, x := range v.Ints {
		if y := float64(x); y < n.min || y > n.max {
			return fmt.Errorf("field %s is %d, want %.0f to %.0f", v.Name, x, n.min, n.max)
		}
		if e != nil {
			if _, ok := e.byNumber(x); !ok {
				return fmt.Errorf("field %s is %d, want one of %s", v.Name, x, e)
			}
		}
		c.putInt(f, i, x)
	}
	for i := want; f.Rest == "index" && i < f.elems(); i++ {
		c.putInt(f, i, int64(i))
	}
	return nil
}

// String lists an enumeration's values.
func (e *Enum) String() string {
	parts := make([]string, len(e.Values))
	for i, v := range e.Values {
		parts[i] = fmt.Sprintf("%s (%d)", v.Name, v.Number)
	}
	return strings.Join(parts, ", ")
}

// number is what a name, or a set of flags, stands for.
func (c *coder) number(f *Field, sym string) (int64, error) {
	if f.Flags == "" {
		return c.value(f, c.p.Enum(f.Type), sym)
	}
	e, all := c.p.Enum(f.Flags), int64(0)
	if sym == "" {
		if name, ok := e.byNumber(0); ok {
			return 0, fmt.Errorf("field %s is empty, want %s", f.Key(), name)
		}
		return 0, nil
	}
	flags := strings.Split(sym, "|")
	for _, name := range flags {
		n, err := c.value(f, e, name)
		if err != nil {
			return 0, err
		}
		if all&n != 0 || n == 0 && len(flags) > 1 {
			return 0, fmt.Errorf("field %s is %s: %s adds nothing of its own", f.Key(), sym, name)
		}
		all |= n
	}
	if n, _, _ := c.p.scalarOf(f); float64(all) < n.min || float64(all) > n.max {
		return 0, fmt.Errorf("field %s is %s or %d, want %.0f to %.0f", f.Key(), sym, all, n.min, n.max)
	}
	return all, nil
}

func (c *coder) value(f *Field, e *Enum, sym string) (int64, error) {
	name := sym
	if s, ok := f.Symbols[sym]; ok {
		name = s
	}
	if n, ok := e.byName(name); ok {
		return n, nil
	}
	return 0, fmt.Errorf("field %s is %q, want one of %s", f.Key(), sym, e)
}

// symbol is what recipes call a value of an enumeration.
func (f *Field) symbol(name string) string {
	best := name
	for symbol, n := range f.Symbols {
		if n == name && (best == name || symbol < best) {
			best = symbol
		}
	}
	return best
}

// get reads a field.
func (c *coder) get(f *Field) (recipes.Field, error) {
	v := recipes.Field{Name: f.Key(), Type: c.p.carried(f)}
	n, e, _ := c.p.scalarOf(f)
	b := c.b[f.Offset:]
	switch {
	case f.Type == "float":
		v.Float = math.Float32frombits(binary.LittleEndian.Uint32(b))
		return v, nil
	case n.float:
		wide := math.Float64frombits(binary.LittleEndian.Uint64(b))
		if v.Float = float32(wide); float64(v.Float) != wide {
			return v, fmt.Errorf("field %s is %v, which f32 does not hold", f.Name, wide)
		}
		return v, nil
	case v.Type == recipes.Enum:
		x := c.int(f, n, 0)
		var err error
		if f.Flags != "" {
			v.Sym, err = c.flags(f, x)
		} else if name, ok := e.byNumber(x); ok {
			v.Sym = f.symbol(name)
		} else {
			err = fmt.Errorf("field %s is %d, want one of %s", f.Name, x, e)
		}
		return v, err
	}
	count := f.elems()
	if f.Used != "" {
		used := c.int(c.s.field(f.Used), scalars["uint32_t"], 0)
		if used > int64(count) {
			return v, fmt.Errorf("field %s is %d, want 0 to %d elements of %s", f.Used, used, count, f.Name)
		}
		count = int(used)
	}
	for i := range count {
		x := c.int(f, n, i)
		if f.Type == "uint64_t" && x < 0 {
			return v, fmt.Errorf("field %s is %d, want 0 to %d", f.Name, uint64(x), int64(math.MaxInt64))
		}
		v.Ints = append(v.Ints, x)
	}
	return v, nil
}

// flags names the bits of a set, in the enumeration's order.
func (c *coder) flags(f *Field, x int64) (string, error) {
	e := c.p.Enum(f.Flags)
	if name, ok := e.byNumber(x); ok {
		return f.symbol(name), nil
	}
	var names []string
	left := x
	for _, v := range e.Values {
		if v.Number != 0 && left&v.Number == v.Number {
			names = append(names, f.symbol(v.Name))
			left &^= v.Number
		}
	}
	if left != 0 {
		return "", fmt.Errorf("field %s is %#x, of which %#x is no flag; there are %s", f.Name, x, left, e)
	}
	return strings.Join(names, "|"), nil
}

func (c *coder) int(f *Field, n scalar, i int) int64 {
	var le [8]byte
	copy(le[:], c.b[f.Offset+i*n.size:][:n.size])
	x := int64(binary.LittleEndian.Uint64(le[:]))
	if n.min < 0 { // signed
		shift := 64 - 8*n.size
		x = x << shift >> shift
	}
	return x
}

// onlyOne checks that a recipe's field has the value that its type names.
func onlyOne(v *recipes.Field) error {
	if v.Type != recipes.F32 && v.Float != 0 || v.Type != recipes.Enum && v.Sym != "" || (v.Type == recipes.F32 || v.Type == recipes.Enum) && v.Ints != nil {
		return errors.New("field " + v.Name + " has values that are not of its type " + string(v.Type))
	}
	return nil
}

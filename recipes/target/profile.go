// Package target knows what a target's software takes: the nodes that recipes may
// have, with their operands, limits, and the byte layout of parameter structures.
//
//	profiles/gaudi2-1.21.json ──→ Profile ──┬→ recipes.Params ↔ bytes
//	    vendor's header ─→ header.Import ─┘  └→ quill target show
//
// A profile is data, one JSON file for each version of the software. What is not
// sure says why, and what is not public is listed as missing.
//
// It is a leaf: every package may import it.
package target

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"

	"quill/recipes"
	"quill/recipes/dtype"
)

// Profile describes one version of a target's software.
type Profile struct {
	Name     string   `json:"name"`
	Device   string   `json:"device"`
	Software string   `json:"software"`
	Sources  []Source `json:"sources"`
	Limits   []Limit  `json:"limits"`
	Types    []Type   `json:"types"`
	Nodes    []Node   `json:"nodes"`
	// Refused are nodes that the target has and that are not to be used.
	Refused []Refused `json:"refused,omitempty"`
	Enums   []Enum    `json:"enums"`
	Structs []Struct  `json:"structs"`
}

// Source is where entries come from, which cite it by id.
type Source struct {
	ID   string `json:"id"`
	What string `json:"what"`
}

// Note says where an entry comes from and, if it is not sure, why.
type Note struct {
	Source     string `json:"source,omitempty"`
	Unverified string `json:"unverified,omitempty"`
}

// Limit is the largest number of something, but for alignments, which are what
// numbers must be multiples of.
type Limit struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
	Unit  string `json:"unit"`
	What  string `json:"what"`
	Note
}

// Type is an element type by its suffix in GUIDs, with its number in the C interface
// and its bytes an element.
type Type struct {
	Suffix string `json:"suffix"`
	Number int64  `json:"number"`
	Bytes  int    `json:"bytes"`
}

// Node is what one GUID takes and gives.
type Node struct {
	GUID string `json:"guid"` // without the suffix
	// Suffixes are the types that the GUID may end in, none where it has no suffix.
	Suffixes []string `json:"suffixes,omitempty"`
	// Params is the parameter structure, "" where there is none.
	Params string `json:"params,omitempty"`
	// Engine is what computes it, which limits the sizes of its operands.
	Engine Engine `json:"engine,omitempty"`
	// InPlace is the operand that it updates where the result is the very tensor, "" if
	// it updates none.
	InPlace string    `json:"in_place,omitempty"`
	In      []Operand `json:"in"`
	Out     []Operand `json:"out"`
	Note
}

// Engine is what of a device computes a node.
type Engine string

const (
	Vector Engine = ""       // the vector engines, perhaps beside others
	Matrix Engine = "matrix" // the matrix engine
	Move   Engine = "move"   // what copies
	Alias  Engine = "alias"  // nothing, as a rule: the result is another view of the bytes
)

// Refused is a node, by its whole GUID, that is not to be used.
type Refused struct {
	GUID    string `json:"guid"`
	Why     string `json:"why"`     // what it does
	Instead string `json:"instead"` // what to use
	Note
}

// Operand is one operand or result of a node.
type Operand struct {
	Name string `json:"name"`
	// Types are those it may have, dt that of the suffix; none is any of the profile.
	Types []string `json:"types,omitempty"`
	// MinRank and MaxRank bound its dimensions; 0 is 1 and the limit "rank".
	MinRank int `json:"min_rank,omitempty"`
	MaxRank int `json:"max_rank,omitempty"`
	// Optional operands may be absent, and left out at the end.
	Optional bool `json:"optional,omitempty"`
	// Repeated operands come at the end, each as often as the others, at least once:
	// all of the first, then all of the second.
	Repeated bool `json:"repeated,omitempty"`
}

// Enum is a C enumeration, or the bits of a set of flags.
type Enum struct {
	Name string `json:"name"`
	// Type is the integer that holds it.
	Type   string  `json:"type"`
	Values []Value `json:"values"`
	Note
}

// Value is one name of an enumeration.
type Value struct {
	Name   string `json:"name"`
	Number int64  `json:"number"`
}

// Struct is a parameter structure.
type Struct struct {
	Name string `json:"name"`
	// Aliases are other names of the same structure.
	Aliases []string `json:"aliases,omitempty"`
	Size    int      `json:"size,omitempty"`  // bytes
	Align   int      `json:"align,omitempty"` // bytes
	// Missing says why there is no layout. Fields then are what is known of them, by
	// name, and Size, Align, Offset and Type are not set.
	Missing string `json:"missing,omitempty"`
	// Header is the file of the software that defines the structure.
	Header string  `json:"header"`
	Fields []Field `json:"fields,omitempty"`
	Note
}

// Field is a number or an array of numbers in a structure. Parts of inner and base
// structures are fields of the outer one, with names like dropout.ratio.
type Field struct {
	Offset int    `json:"offset"` // bytes
	Name   string `json:"name"`
	// Type is bool, int8_t … uint64_t, float, double, pointer, or an enumeration; of one
	// element, if it is an array.
	Type  string `json:"type,omitempty"`
	Count int    `json:"count,omitempty"` // elements of an array, 0 if it is none
	// Default is the value of elements that a recipe does not give; a field without
	// must be given. Elements behind those listed are 0.
	Default []float64 `json:"default,omitempty"`
	// Reserved fields are always their default, or 0; recipes do not have them.
	Reserved bool `json:"reserved,omitempty"`
	// Union is what fields at one place share: a recipe gives one of them.
	Union string `json:"union,omitempty"`

	// What recipes call it, Name if empty; fields of a union may be called the same if
	// recipes carry them as different types.
	Recipe string `json:"recipe,omitempty"`
	// As is i32 where recipes carry a number otherwise than Type says, such as that of an
	// enumeration rather than its name.
	As recipes.FieldType `json:"as,omitempty"`
	// Flags names the enumeration of which an integer is a set, carried by name.
	Flags string `json:"flags,omitempty"`
	// Symbols are what recipes call values of the enumeration.
	Symbols map[string]string `json:"symbols,omitempty"`
	// Used is the field that says how many elements of an array a recipe gives; the
	// others are 0, or their index where Rest is "index".
	Used string `json:"used,omitempty"`
	Rest string `json:"rest,omitempty"`
}

// Key is what recipes call a field.
func (f *Field) Key() string {
	if f.Recipe != "" {
		return f.Recipe
	}
	return f.Name
}

//go:embed profiles/*.json
var embedded embed.FS

// Names are the built-in profiles.
func Names() []string {
	entries, _ := embedded.ReadDir("profiles") // sorted; an embedded folder can be read
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), ".json")
	}
	return names
}

// Default is the profile that is meant where none is named.
const Default = "gaudi2-1.21"

// Load gives a built-in profile.
func Load(name string) (*Profile, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("there is no profile %q; there are %s", name, strings.Join(Names(), ", "))
	}
	data, err := embedded.ReadFile(path.Join("profiles", name+".json"))
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// Hash identifies what a profile says: that of its file as [Profile.Format] writes it.
func (p *Profile) Hash() (recipes.Hash, error) {
	text, err := p.Format()
	return recipes.Sum(text), err
}

// Parse reads and checks a profile.
func Parse(data []byte) (*Profile, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var p Profile
	if err := dec.Decode(&p); err != nil {
		return nil, fmt.Errorf("byte %d: %w", dec.InputOffset(), err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("byte %d: there is something behind the profile", dec.InputOffset())
	}
	if err := p.Check(); err != nil {
		return nil, err
	}
	return &p, nil
}

// Node is the entry of a GUID and the type of its suffix, Invalid if it has none.
func (p *Profile) Node(guid string) (*Node, dtype.Type, error) {
	if n := p.node(guid); n != nil && len(n.Suffixes) == 0 {
		return n, dtype.Invalid, nil
	}
	i := max(0, strings.LastIndexByte(guid, '_'))
	n := p.node(guid[:i])
	switch {
	case n == nil || len(n.Suffixes) == 0:
		return nil, 0, fmt.Errorf("profile %s has no GUID %s", p.Name, guid)
	case !slices.Contains(n.Suffixes, guid[i+1:]):
		return nil, 0, fmt.Errorf("profile %s has %s with suffixes %s, not %s", p.Name, n.GUID, strings.Join(n.Suffixes, ", "), guid[i+1:])
	}
	t, _ := dtype.Parse(guid[i+1:])
	return n, t, nil
}

func (p *Profile) node(guid string) *Node {
	return find(p.Nodes, func(n *Node) bool { return n.GUID == guid })
}

// Struct is a structure by its name or an alias, nil if the profile does not list it.
func (p *Profile) Struct(name string) *Struct {
	return find(p.Structs, func(s *Struct) bool { return s.Name == name || slices.Contains(s.Aliases, name) })
}

// Enum is an enumeration by name, nil if there is none.
func (p *Profile) Enum(name string) *Enum {
	return find(p.Enums, func(e *Enum) bool { return e.Name == name })
}

// Limit is the value of a limit, as large as can be if the profile has none.
func (p *Profile) Limit(name string) int64 {
	if l := find(p.Limits, func(l *Limit) bool { return l.Name == name }); l != nil {
		return l.Value
	}
	return math.MaxInt64
}

func find[T any](list []T, is func(*T) bool) *T {
	for i := range list {
		if is(&list[i]) {
			return &list[i]
		}
	}
	return nil
}

func (e *Enum) byName(name string) (int64, bool) {
	if v := find(e.Values, func(v *Value) bool { return v.Name == name }); v != nil {
		return v.Number, true
	}
	return 0, false
}

func (e *Enum) byNumber(n int64) (string, bool) {
	if v := find(e.Values, func(v *Value) bool { return v.Number == n }); v != nil {
		return v.Name, true
	}
	return "", false
}

// Package dtype holds the number formats that compiler, recipes and runtime
// share: their names, sizes and exact conversions.
//
// It is a leaf: every package may import it.
package dtype

import (
	"fmt"
	"math"
)

// Type is an element type. The zero value is invalid.
type Type uint8

// The element types quill knows. Predicates are I8 holding 0 or 1, as they are
// on the device.
const (
	Invalid Type = iota
	I8
	U8
	I32
	I64
	BF16
	F32
)

type info struct {
	name string // as IR text, recipes and GUID suffixes spell it
	size int    // bytes an element
}

var infos = [...]info{
	Invalid: {"invalid", 0},
	I8:      {"i8", 1},
	U8:      {"u8", 1},
	I32:     {"i32", 4},
	I64:     {"i64", 8},
	BF16:    {"bf16", 2},
	F32:     {"f32", 4},
}

// String is the name IR text, recipes and Synapse GUID suffixes use.
func (t Type) String() string {
	if int(t) < len(infos) {
		return infos[t].name
	}
	return fmt.Sprintf("dtype(%d)", uint8(t))
}

// Size is the number of bytes of one element, 0 for an invalid type.
func (t Type) Size() int {
	if int(t) < len(infos) {
		return infos[t].size
	}
	return 0
}

// IsFloat reports whether values of t are floating point numbers.
func (t Type) IsFloat() bool { return t == BF16 || t == F32 }

// IsInt reports whether values of t are integers (predicates included).
func (t Type) IsInt() bool { return t == I8 || t == U8 || t == I32 || t == I64 }

// Parse is the inverse of String.
func Parse(s string) (Type, bool) {
	for t := I8; int(t) < len(infos); t++ {
		if infos[t].name == s {
			return t, true
		}
	}
	return Invalid, false
}

// MarshalText writes the type's name.
func (t Type) MarshalText() ([]byte, error) {
	if t.Size() == 0 {
		return nil, fmt.Errorf("cannot encode %v", t)
	}
	return []byte(t.String()), nil
}

// UnmarshalText reads a type's name.
func (t *Type) UnmarshalText(b []byte) error {
	v, ok := Parse(string(b))
	if !ok {
		return fmt.Errorf("unknown element type %q", b)
	}
	*t = v
	return nil
}

// Holds reports whether t has a number that is neither infinite nor NaN for v: v itself
// if t is of integers, else what v is rounded to.
func (t Type) Holds(v float64) bool {
	switch t {
	case F32:
		return finite(float32(v))
	case BF16:
		return finite(RoundBF16(float32(v)))
	}
	bits := 8*t.Size() - 1 // without the sign
	low, high := -math.Ldexp(1, bits), math.Ldexp(1, bits)
	if t == U8 {
		low, high = 0, 256
	}
	return v == math.Trunc(v) && low <= v && v < high
}

func finite(f float32) bool { return f-f == 0 }

// ToBF16 rounds f to bfloat16, to nearest with ties to even. NaN stays NaN
// (quiet), infinities and signed zeros are kept.
func ToBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 widens a bfloat16 exactly.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// RoundBF16 is FromBF16(ToBF16(f)).
func RoundBF16(f float32) float32 { return FromBF16(ToBF16(f)) }

package passes

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Kind is the type of an option.
type Kind uint8

// Kinds of options.
const (
	Bool   Kind = iota
	Int         // a number that is not negative
	Bytes       // the same, with an optional suffix KiB, MiB or GiB
	Choice      // one of a list of words
)

var kindNames = [...]string{Bool: "bool", Int: "int", Bytes: "bytes", Choice: "choice"}

func (k Kind) String() string { return kindNames[k] }

// Option is a setting of a pass.
type Option struct {
	Name string
	Kind Kind
	// Default is spelled as in a pipeline.
	Default string
	Choices []string // of a Choice
	Doc     string
}

// value is a parsed one: n for all kinds but Choice.
type value struct {
	n int64
	s string
}

// parse reads a value; the error says what is wanted.
func (o *Option) parse(s string) (value, error) {
	switch o.Kind {
	case Bool:
		if s == "true" {
			return value{n: 1}, nil
		}
		if s == "false" {
			return value{}, nil
		}
		return value{}, fmt.Errorf("option %s is %q, want true or false", o.Name, s)
	case Choice:
		if slices.Contains(o.Choices, s) {
			return value{s: s}, nil
		}
		return value{}, fmt.Errorf("option %s is %q, want one of %s", o.Name, s, strings.Join(o.Choices, ", "))
	}
	if o.Kind == Bytes {
		n, err := ParseBytes(s)
		if err != nil {
			return value{}, fmt.Errorf("option %s is %q, want a number from 0, with KiB, MiB or GiB behind it or nothing for bytes", o.Name, s)
		}
		return value{n: n}, nil
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return value{}, fmt.Errorf("option %s is %q, want a number from 0", o.Name, s)
	}
	return value{n: int64(n)}, nil
}

// ParseBytes reads a number of bytes, perhaps with KiB, MiB or GiB behind it.
func ParseBytes(s string) (int64, error) {
	digits, unit := s, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB"} {
		if d, ok := strings.CutSuffix(s, suffix); ok {
			digits, unit = d, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || int64(n) > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is no number of bytes", s)
	}
	return int64(n) * unit, nil
}

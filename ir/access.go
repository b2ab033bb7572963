package ir

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Env gives every symbol of the module a value: base has those of the base
// symbols, which must lie in their ranges; derived ones are computed. A base
// that holds derived symbols too, as Env returns it, must agree with them.
func (m *Module) Env(base map[string]int64) (map[string]int64, error) {
	env := make(map[string]int64, len(m.Syms))
	for _, s := range m.Syms {
		given, ok := base[s.Name]
		v := given
		var err error
		switch {
		case s.Def != nil:
			v, err = s.Def.value(env)
			if err == nil && ok && given != v {
				err = fmt.Errorf("is %d, not %d", v, given)
			}
		case !ok:
			err = fmt.Errorf("has no value")
		case v < s.Min || v > s.Max:
			err = fmt.Errorf("is %d, outside its range", v)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		env[s.Name] = v
	}
	var unknown []string
	for name := range base {
		if _, ok := env[name]; !ok {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, fmt.Errorf("module @%s has no symbol %s", m.Name, strings.Join(unknown, ", "))
	}
	return env, nil
}

// MaxBytes bounds the bytes of a value of a type, over all sizes that the symbols
// allow; math.MaxInt64 stands for more than any device has.
func (m *Module) MaxBytes(t Type) int64 {
	ranges := make(map[string]bounds, len(m.Syms))
	for _, s := range m.Syms {
		ranges[s.Name] = s.bounds(ranges)
	}
	n := t.Elems().bound(ranges).hi
	if n > maxElems {
		return math.MaxInt64
	}
	return n * int64(t.DType.Size())
}

// AtLeast reports whether a size is at least n whatever the values of the symbols.
// It may be false where that is so and sizes depend on each other.
func (m *Module) AtLeast(d Dim, n int64) bool {
	ranges := make(map[string]bounds, len(m.Syms))
	for _, s := range m.Syms {
		ranges[s.Name] = s.bounds(ranges)
	}
	return d.bound(ranges).lo >= n
}

// bounds is the range of a symbol, given those of the symbols above it.
func (s *Sym) bounds(ranges map[string]bounds) bounds {
	if s.Def == nil {
		return bounds{s.Min, s.Max}
	}
	x, y := s.Def.X.bound(ranges), s.Def.Y.bound(ranges)
	return bounds{s.Def.eval(x.lo, y.lo), s.Def.eval(x.hi, y.hi)}
}

// value computes a derived symbol from the values of earlier ones.
func (f *SymDef) value(env map[string]int64) (int64, error) {
	x, err := f.X.Eval(env)
	if err != nil {
		return 0, err
	}
	y, err := f.Y.Eval(env)
	if err != nil {
		return 0, err
	}
	if (f.Fn == "floor" || f.Fn == "ceil") && (y < 1 || x == math.MinInt64) {
		return 0, fmt.Errorf("divides %d by %d", x, y)
	}
	return f.eval(x, y), nil
}

// Check compares an op with the table: number and element types of operands,
// attributes, and the results' element types and shapes. It leaves out what
// needs the rest of the module: distributions, order, levels and states.
func (o *Op) Check() error {
	if err := checkOperands(o); err != nil {
		return err
	}
	if err := checkAttrs(o); err != nil {
		return err
	}
	rule, ok := shapeRules[o.Name()]
	if !ok {
		return operandErr("op %s has no result rule", o.Name())
	}
	want, err := rule(o)
	if err != nil {
		return err
	}
	if len(want) != len(o.Results) {
		return shapeErr("%s has %d results, want %d", o.Name(), len(o.Results), len(want))
	}
	for i, r := range o.Results {
		if w := want[i]; r.Type.DType != w.DType || !SameShape(r.Type.Shape, w.Shape) {
			return shapeErr("%s: result %d is declared %s%s, its operands give %s%s", o.Name(), i,
				r.Type.DType, shapeString(r.Type.Shape), w.DType, shapeString(w.Shape))
		}
	}
	return nil
}

package ir

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Dim is a size: a polynomial with integer coefficients over the module's
// symbols, in canonical form, so that equal sizes compare equal with Equal.
// The zero value is 0.
type Dim struct {
	terms []term // by descending degree, then by symbols; no zero coefficients
}

// term is coef times the product of syms (sorted, repeats are powers).
type term struct {
	coef int64
	syms []string
}

// D is the constant size n.
func D(n int64) Dim { return canonical([]term{{coef: n}}) }

// SymDim is the size named by a symbol.
func SymDim(name string) Dim { return Dim{[]term{{1, []string{name}}}} }

// Const returns the value of a constant size.
func (d Dim) Const() (int64, bool) {
	switch {
	case len(d.terms) == 0:
		return 0, true
	case len(d.terms) == 1 && len(d.terms[0].syms) == 0:
		return d.terms[0].coef, true
	}
	return 0, false
}

// Is reports whether d is the constant n.
func (d Dim) Is(n int64) bool {
	c, ok := d.Const()
	return ok && c == n
}

// Equal reports whether two sizes are the same polynomial.
func (d Dim) Equal(e Dim) bool {
	return slices.EqualFunc(d.terms, e.terms, func(a, b term) bool {
		return a.coef == b.coef && slices.Equal(a.syms, b.syms)
	})
}

// maxTerms and maxDegree bound polynomials; real ones have at most a handful of
// terms of low degree.
const (
	maxTerms  = 1 << 10
	maxDegree = 32
)

// tooLarge stands for every polynomial that is beyond the bounds above or has a
// coefficient beyond 64 bits. It stays what it is in sums and products, so that
// an absurd size never becomes a small one, and the verifier refuses it.
var tooLarge = Dim{[]term{{coef: inf}}}

// isTooLarge reports whether d is tooLarge.
func (d Dim) isTooLarge() bool { return d.Is(inf) }

// Add is d + e.
func (d Dim) Add(e Dim) Dim { return canonical(slices.Concat(d.terms, e.terms)) }

// Sub is d − e.
func (d Dim) Sub(e Dim) Dim { return d.Add(e.Mul(D(-1))) }

// Mul is d · e.
func (d Dim) Mul(e Dim) Dim {
	if x, ok := d.Const(); ok {
		if y, ok := e.Const(); ok {
			return D(satMul(x, y)) // most sizes
		}
	}
	if len(d.terms)*len(e.terms) > maxTerms {
		return tooLarge
	}
	var ts []term
	for _, a := range d.terms {
		for _, b := range e.terms {
			ts = append(ts, term{satMul(a.coef, b.coef), mergeSyms(a.syms, b.syms)})
		}
	}
	return canonical(ts)
}

// mergeSyms joins two sorted lists.
func mergeSyms(a, b []string) []string {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	syms := slices.Concat(a, b)
	slices.Sort(syms)
	return syms
}

// Div is d / e where that is exact: e is a monomial that divides every term.
func (d Dim) Div(e Dim) (Dim, bool) {
	if d.isTooLarge() || e.isTooLarge() {
		return Dim{}, false
	}
	if len(e.terms) != 1 {
		if d.Equal(e) && len(e.terms) > 0 {
			return D(1), true
		}
		return Dim{}, false
	}
	by := e.terms[0]
	ts := make([]term, 0, len(d.terms))
	for _, t := range d.terms {
		if t.coef%by.coef != 0 {
			return Dim{}, false
		}
		syms := slices.Clone(t.syms)
		for _, s := range by.syms {
			i := slices.Index(syms, s)
			if i < 0 {
				return Dim{}, false
			}
			syms = slices.Delete(syms, i, i+1)
		}
		ts = append(ts, term{t.coef / by.coef, syms})
	}
	return canonical(ts), true
}

// canonical sorts terms and merges equal monomials. It may reorder ts.
func canonical(ts []term) Dim {
	slices.SortStableFunc(ts, func(a, b term) int {
		if c := cmp.Compare(len(b.syms), len(a.syms)); c != 0 {
			return c
		}
		return slices.Compare(a.syms, b.syms)
	})
	var out []term
	for _, t := range ts {
		if n := len(out); n > 0 && slices.Equal(out[n-1].syms, t.syms) {
			out[n-1].coef = satAdd(out[n-1].coef, t.coef)
			continue
		}
		out = append(out, t)
	}
	out = slices.DeleteFunc(out, func(t term) bool { return t.coef == 0 })
	switch {
	case len(out) == 0:
		return Dim{}
	case len(out) > maxTerms || len(out[0].syms) > maxDegree || slices.ContainsFunc(out, func(t term) bool { return saturated(t.coef) }):
		return tooLarge
	}
	return Dim{out}
}

// String writes the polynomial as IR text spells it: 128*q + 3.
func (d Dim) String() string {
	switch {
	case len(d.terms) == 0:
		return "0"
	case len(d.terms) == 1 && len(d.terms[0].syms) == 0:
		return strconv.FormatInt(d.terms[0].coef, 10)
	}
	var b strings.Builder
	for i, t := range d.terms {
		coef := t.coef
		switch {
		case i > 0 && coef < 0:
			b.WriteString(" - ")
			coef = -coef
		case i > 0:
			b.WriteString(" + ")
		case coef < 0:
			b.WriteString("-")
			coef = -coef
		}
		if coef != 1 || len(t.syms) == 0 {
			b.WriteString(strconv.FormatInt(coef, 10))
			if len(t.syms) > 0 {
				b.WriteByte('*')
			}
		}
		b.WriteString(strings.Join(t.syms, "*"))
	}
	return b.String()
}

// Symbols appends the names of the symbols of d to dst.
func (d Dim) Symbols(dst []string) []string {
	for _, t := range d.terms {
		dst = append(dst, t.syms...)
	}
	return dst
}

// Eval computes the size for given symbol values. It fails on an unknown
// symbol and on overflow.
func (d Dim) Eval(env map[string]int64) (int64, error) {
	var sum int64
	for _, t := range d.terms {
		p := t.coef
		for _, s := range t.syms {
			v, ok := env[s]
			if !ok {
				return 0, fmt.Errorf("size %s: symbol %s has no value", d, s)
			}
			p = satMul(p, v)
		}
		sum = satAdd(sum, p)
	}
	if saturated(sum) {
		return 0, fmt.Errorf("size %s overflows", d)
	}
	return sum, nil
}

// Subst replaces symbols by sizes.
func (d Dim) Subst(env map[string]Dim) Dim {
	if _, ok := d.Const(); ok {
		return d
	}
	var sum Dim
	for _, t := range d.terms {
		p := D(t.coef)
		for _, s := range t.syms {
			v, ok := env[s]
			if !ok {
				v = SymDim(s)
			}
			p = p.Mul(v)
		}
		sum = sum.Add(p)
	}
	return sum
}

// bounds is an interval; inf and −inf stand for all that is beyond 64 bits.
type bounds struct{ lo, hi int64 }

// bound computes an interval that contains d for all symbol values in env.
func (d Dim) bound(env map[string]bounds) bounds {
	var sum bounds
	for _, t := range d.terms {
		p := bounds{t.coef, t.coef}
		for _, s := range t.syms {
			v, ok := env[s]
			if !ok {
				v = bounds{-inf, inf}
			}
			p = p.mul(v)
		}
		sum = sum.add(p)
	}
	return sum
}

func (a bounds) add(b bounds) bounds {
	sum := bounds{satAdd(a.lo, b.lo), satAdd(a.hi, b.hi)}
	if a.lo == -inf || b.lo == -inf { // even where the other is inf
		sum.lo = -inf
	}
	if a.hi == inf || b.hi == inf {
		sum.hi = inf
	}
	return sum
}

func (a bounds) mul(b bounds) bounds {
	ps := []int64{satMul(a.lo, b.lo), satMul(a.lo, b.hi), satMul(a.hi, b.lo), satMul(a.hi, b.hi)}
	return bounds{slices.Min(ps), slices.Max(ps)}
}

// inf is where numbers saturate, so that an absurd size becomes an error
// instead of a small one.
const inf = math.MaxInt64

func saturated(v int64) bool { return v == inf || v <= -inf }

// satAdd adds; what is saturated stays so.
func satAdd(a, b int64) int64 {
	s := a + b
	switch {
	case saturated(a):
		return a
	case saturated(b):
		return b
	case a > 0 && b > 0 && s <= 0:
		return inf
	case a < 0 && b < 0 && (s >= 0 || s < -inf):
		return -inf
	}
	return s
}

// satMul multiplies.
func satMul(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	p := a * b
	if a == math.MinInt64 || b == math.MinInt64 || p == math.MinInt64 || p/b != a {
		if a < 0 != (b < 0) {
			return -inf
		}
		return inf
	}
	return p
}

// Sym is a declared symbol: a size known only when a bucket is chosen, or one
// derived from others.
type Sym struct {
	Name string
	// Min and Max bound a base symbol, inclusive. Ignored for derived symbols.
	Min, Max int64
	// Def derives the symbol from earlier ones; nil for a base symbol.
	Def *SymDef
	Pos Pos
}

// SymDef is the definition of a derived symbol.
type SymDef struct {
	Fn   string // floor, ceil, min or max
	X, Y Dim    // floor and ceil divide X by Y, which is a positive constant
}

func (s *Sym) String() string {
	if s.Def == nil {
		return fmt.Sprintf("sym %s: %d..%d", s.Name, s.Min, s.Max)
	}
	return fmt.Sprintf("sym %s = %s(%s, %s)", s.Name, s.Def.Fn, s.Def.X, s.Def.Y)
}

// eval computes a derived symbol; x and y are the values of its arguments. It
// keeps what is saturated, and is monotonic in x and, for min and max, in y.
func (f *SymDef) eval(x, y int64) int64 {
	switch {
	case f.Fn == "min":
		return min(x, y)
	case f.Fn == "max":
		return max(x, y)
	case saturated(x):
		return x
	case f.Fn == "floor":
		return floorDiv(x, y)
	}
	return -floorDiv(-x, y)
}

func floorDiv(x, y int64) int64 {
	q := x / y
	if x%y != 0 && (x < 0) != (y < 0) {
		q--
	}
	return q
}

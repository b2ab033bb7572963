package ir

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var testSyms = []string{"a", "b.c", "q"}

// drawDim draws a polynomial of a few terms, with coefficients that are small,
// or near the limits.
func drawDim(t *rapid.T, label string) Dim {
	var ts []term
	for i := range rapid.IntRange(0, 4).Draw(t, label+" terms") {
		c := rapid.Int64Range(-9, 9)
		if rapid.IntRange(0, 9).Draw(t, fmt.Sprint(label, " large ", i)) == 0 {
			c = rapid.OneOf(rapid.Int64(), rapid.Int64Range(math.MinInt64, math.MinInt64+2), rapid.Int64Range(math.MaxInt64-2, math.MaxInt64))
		}
		d := D(c.Draw(t, fmt.Sprint(label, " coefficient ", i)))
		for _, s := range rapid.SliceOfN(rapid.SampledFrom(testSyms), 0, 3).Draw(t, fmt.Sprint(label, " symbols ", i)) {
			d = d.Mul(SymDim(s))
		}
		ts = append(ts, d.terms...)
	}
	return canonical(ts)
}

func drawEnv(t *rapid.T) map[string]int64 {
	env := map[string]int64{}
	for _, s := range testSyms {
		env[s] = rapid.OneOf(rapid.Int64Range(-3, 9), rapid.Int64Range(-1<<40, 1<<40)).Draw(t, s)
	}
	return env
}

// exact evaluates without bounds. It is false for a polynomial that is too large.
func exact(d Dim, env map[string]int64) (*big.Int, bool) {
	sum := new(big.Int)
	for _, t := range d.terms {
		p := big.NewInt(t.coef)
		for _, s := range t.syms {
			p.Mul(p, big.NewInt(env[s]))
		}
		sum.Add(sum, p)
	}
	return sum, !d.isTooLarge()
}

func requireExact(t require.TestingT, want *big.Int, d Dim, env map[string]int64) {
	if got, ok := exact(d, env); ok {
		require.Equal(t, want.String(), got.String(), "%s with %v", d, env)
	}
}

func TestDimArithmeticIsEvaluation(t *testing.T) {
	large, small := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		x, y, env := drawDim(t, "x"), drawDim(t, "y"), drawEnv(t)
		vx, okX := exact(x, env)
		vy, okY := exact(y, env)
		for _, d := range []Dim{x.Add(y), x.Sub(y), x.Mul(y)} {
			if d.isTooLarge() {
				large++
			} else {
				small++
			}
		}
		if okX && okY {
			requireExact(t, new(big.Int).Add(vx, vy), x.Add(y), env)
			requireExact(t, new(big.Int).Sub(vx, vy), x.Sub(y), env)
			requireExact(t, new(big.Int).Mul(vx, vy), x.Mul(y), env)
		} else {
			require.True(t, x.Add(y).isTooLarge())
			require.True(t, x.Sub(y).isTooLarge())
			require.True(t, x.Mul(y).isTooLarge() || x.Is(0) || y.Is(0))
		}
		require.True(t, x.Add(y).Equal(y.Add(x)))
		require.True(t, x.Mul(y).Equal(y.Mul(x)))
		require.True(t, x.Equal(x.Add(D(0))))
		require.True(t, x.Equal(x.Mul(D(1))))
		if okX {
			require.True(t, x.Sub(x).Is(0))
		}
	})
	require.Greater(t, large, 0)
	require.Greater(t, small, 0)
}

func TestDimEval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, env := drawDim(t, "x"), drawEnv(t)
		want, _ := exact(x, env)
		got, err := x.Eval(env)
		if err == nil {
			require.Equal(t, want.String(), fmt.Sprint(got), "%s with %v", x, env)
		} else {
			require.ErrorContains(t, err, "overflows")
		}
	})
	_, err := SymDim("z").Eval(map[string]int64{"a": 1})
	require.EqualError(t, err, "size z: symbol z has no value")
	_, err = tooLarge.Eval(nil)
	require.Error(t, err)
	// An intermediate overflow does not become a small number again.
	big := SymDim("a").Mul(SymDim("a")).Sub(SymDim("b"))
	_, err = big.Eval(map[string]int64{"a": 1 << 40, "b": math.MaxInt64 - 1})
	require.Error(t, err)
}

// A quotient times the divisor is the dividend.
func TestDimDiv(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := drawDim(t, "x"), drawDim(t, "y")
		if q, ok := x.Div(y); ok {
			require.True(t, q.Mul(y).Equal(x), "%s / %s = %s", x, y, q)
		}
		// What is a multiple of a monomial can be divided by it.
		if p := x.Mul(y); len(y.terms) == 1 && !p.isTooLarge() && !x.isTooLarge() && !y.isTooLarge() {
			q, ok := p.Div(y)
			require.True(t, ok, "(%s) / %s", p, y)
			require.True(t, q.Equal(x))
		}
	})
	q, ok := SymDim("q").Add(D(1)).Div(SymDim("q").Add(D(1)))
	require.True(t, ok && q.Is(1))
	_, ok = D(4).Div(D(0))
	require.False(t, ok)
	_, ok = D(0).Div(D(0))
	require.False(t, ok)
	_, ok = tooLarge.Div(tooLarge)
	require.False(t, ok)
}

func TestSymDefEval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Int64Range(-1000, 1000).Draw(t, "x")
		y := rapid.Int64Range(1, 50).Draw(t, "y")
		require.Equal(t, int64(math.Floor(float64(x)/float64(y))), (&SymDef{Fn: "floor"}).eval(x, y))
		require.Equal(t, int64(math.Ceil(float64(x)/float64(y))), (&SymDef{Fn: "ceil"}).eval(x, y))
		require.Equal(t, min(x, y), (&SymDef{Fn: "min"}).eval(x, y))
		require.Equal(t, max(x, y), (&SymDef{Fn: "max"}).eval(x, y))
	})
}

// parseDim reads a size by way of a module.
func parseDim(s string) (Dim, error) {
	m, err := Parse("dim.qir", []byte("module @m\nfunc @f(input %x: f32["+s+"]) -> () { return }"))
	if err != nil {
		return Dim{}, err
	}
	return m.Entry().Params[0].Value.Type.Shape[0], nil
}

func TestDimStringParses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := drawDim(t, "x")
		back, err := parseDim(x.String())
		if x.isTooLarge() {
			require.ErrorContains(t, err, "too large")
			return
		}
		require.NoError(t, err)
		require.True(t, x.Equal(back), "%s is read as %s", x, back)
		require.Equal(t, x.String(), back.String())
	})
	for text, want := range map[string]string{
		"0":                       "0",
		"-0":                      "0",
		"q - q":                   "0",
		"q + 2 + q":               "2*q + 2",
		"b*a*2*b":                 "2*a*b*b",
		"-q*3 + 4 - 1":            "-3*q + 3",
		"- q":                     "-q",
		"1 - a*b + q":             "-a*b + q + 1",
		"0*9223372036854775807":   "0",
		"9223372036854775806":     "9223372036854775806",
		"-9223372036854775806":    "-9223372036854775806",
		"007":                     "7",
		"q*q*q - 2*q*q*q + q*q*q": "0",
	} {
		d, err := parseDim(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d.String(), text)
	}
}

// The interval of a polynomial holds its value wherever the symbols lie in
// theirs.
func TestDimBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := drawDim(t, "x")
		ranges, env := map[string]bounds{}, map[string]int64{}
		for _, s := range testSyms {
			ends := rapid.OneOf(rapid.Int64Range(-5, 9), rapid.Int64Range(-1<<40, 1<<40), rapid.Int64())
			lo, hi := ends.Draw(t, s+" min"), ends.Draw(t, s+" max")
			lo, hi = min(lo, hi), max(lo, hi)
			env[s] = rapid.Int64Range(lo, hi).Draw(t, s)
			ranges[s] = bounds{lo, hi}
			if rapid.IntRange(0, 9).Draw(t, s+" unknown") == 0 {
				delete(ranges, s)
			}
		}
		b := x.bound(ranges)
		require.LessOrEqual(t, b.lo, b.hi)
		if v, err := x.Eval(env); err == nil {
			require.LessOrEqual(t, b.lo, v, "%s with %v", x, env)
			require.GreaterOrEqual(t, b.hi, v, "%s with %v", x, env)
		}
	})
	require.Equal(t, bounds{-inf, inf}, SymDim("a").bound(nil))
	// A term that may overflow upwards and one that may downwards leave nothing certain.
	wide := map[string]bounds{"a": {1 << 62, inf}, "q": {1 << 62, inf}}
	require.Equal(t, bounds{-inf, inf}, SymDim("a").Mul(D(4)).Sub(SymDim("q").Mul(D(4))).bound(wide))
}

// Derived symbols are bounded by the values at the ends of what they depend on.
func TestDerivedSymbolBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lo := rapid.Int64Range(0, 30).Draw(t, "lo")
		hi := lo + rapid.Int64Range(0, 30).Draw(t, "extent")
		x := D(rapid.Int64Range(-3, 3).Draw(t, "k")).Mul(SymDim("q")).Add(D(rapid.Int64Range(-9, 9).Draw(t, "c")))
		def := &SymDef{Fn: rapid.SampledFrom([]string{"floor", "ceil", "min", "max"}).Draw(t, "fn"), X: x, Y: D(rapid.Int64Range(1, 7).Draw(t, "y"))}
		m := &Module{Name: "m", TP: 1, Syms: []*Sym{{Name: "q", Min: lo, Max: hi}, {Name: "w", Def: def}}}
		v := verifier{mod: m, ranges: map[string]bounds{}}
		for _, s := range m.Syms {
			v.sym(s)
		}
		require.Empty(t, v.diags)
		env, err := m.Env(map[string]int64{"q": rapid.Int64Range(lo, hi).Draw(t, "q")})
		require.NoError(t, err)
		require.LessOrEqual(t, v.ranges["w"].lo, env["w"])
		require.GreaterOrEqual(t, v.ranges["w"].hi, env["w"])
	})
	// What may overflow stays so through a division.
	require.Equal(t, int64(-inf), (&SymDef{Fn: "floor"}).eval(-inf, 1000))
	require.Equal(t, int64(inf), (&SymDef{Fn: "ceil"}).eval(inf, 1000))
}

func TestDimSaturation(t *testing.T) {
	require.True(t, D(math.MinInt64).isTooLarge())
	require.True(t, D(math.MaxInt64).isTooLarge())
	require.False(t, D(math.MaxInt64-1).isTooLarge())
	require.True(t, D(math.MaxInt64-1).Add(D(1)).isTooLarge())
	require.True(t, D(math.MaxInt64-1).Add(D(1)).Sub(D(5)).isTooLarge(), "too large stays too large")
	require.True(t, D(1<<32).Mul(D(1<<31)).isTooLarge())
	require.True(t, D(1<<32).Mul(D(-1<<31)).isTooLarge())
	require.True(t, tooLarge.Mul(SymDim("q")).isTooLarge())
	require.True(t, tooLarge.Mul(D(0)).Is(0))
	require.True(t, SymDim("q").Add(tooLarge).Sub(tooLarge).isTooLarge())
	require.Equal(t, "9223372036854775807", tooLarge.String())
	for _, c := range []struct{ a, b, sum, product int64 }{
		{math.MaxInt64, -1, inf, -inf},
		{math.MinInt64, 1, math.MinInt64, -inf},
		{-inf, inf, -inf, -inf},
		{math.MinInt64, -1, math.MinInt64, inf},
		{-1 << 62, -1 << 62, -inf, inf},
		{1 << 62, 1 << 62, inf, inf},
		{-(1 << 62), -(1<<62 - 1), -inf, inf},
		{1 << 31, 1 << 32, 1<<31 + 1<<32, inf},
		{3, -4, -1, -12},
	} {
		require.Equal(t, c.sum, satAdd(c.a, c.b), "%d + %d", c.a, c.b)
		require.Equal(t, c.product, satMul(c.a, c.b), "%d · %d", c.a, c.b)
		require.Equal(t, c.product, satMul(c.b, c.a), "%d · %d", c.b, c.a)
	}
}

func TestDimLimits(t *testing.T) {
	var sum Dim
	for i := range maxTerms {
		sum = sum.Add(SymDim(fmt.Sprint("s", i)))
	}
	require.False(t, sum.isTooLarge())
	require.True(t, sum.Add(SymDim("one_more")).isTooLarge())
	require.True(t, sum.Mul(SymDim("a").Add(SymDim("b"))).isTooLarge())
	require.False(t, sum.Mul(SymDim("a")).isTooLarge())
	p := D(1)
	for range maxDegree {
		p = p.Mul(SymDim("a"))
	}
	require.False(t, p.isTooLarge())
	require.True(t, p.Mul(SymDim("a")).isTooLarge())
	// Reading is bounded likewise, and takes no longer than the text is long.
	for _, text := range []string{
		strings.Repeat("a*", 20_000) + "a",
		strings.Repeat("a + ", 20_000) + "a",
		strings.TrimSuffix(strings.Repeat("a*b*c + a*b - ", 5_000), " - "),
	} {
		d, err := parseDim(text)
		if err != nil {
			require.ErrorContains(t, err, "too large")
			continue
		}
		require.Less(t, len(d.terms), 3)
	}
	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "s%d + ", i)
	}
	_, err := parseDim(many.String() + "1")
	require.ErrorContains(t, err, "too large")
}

// Operations do not change their operands, which share memory.
func TestDimsAreValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := drawDim(t, "x"), drawDim(t, "y")
		before := x.String() + "|" + y.String()
		_, _, _ = x.Add(y), x.Sub(y), x.Mul(y)
		_, _ = x.Div(y)
		_ = x.Mul(y).Add(x).Mul(y)
		_ = x.Subst(map[string]Dim{"a": y, "q": D(2)})
		require.Equal(t, before, x.String()+"|"+y.String())
	})
}

// Substitution commutes with evaluation.
func TestDimSubst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y, env := drawDim(t, "x"), drawDim(t, "y"), drawEnv(t)
		vy, err := y.Eval(env)
		if err != nil || x.isTooLarge() {
			return
		}
		inner := map[string]int64{"a": vy, "b.c": env["b.c"], "q": env["q"]}
		want, _ := exact(x, inner)
		requireExact(t, want, x.Subst(map[string]Dim{"a": y}), env)
	})
}
